"""Errors, fits, groups and ranks against answers that are known another way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from autodeploy.catalog.lookup import load
from autodeploy.fidelity.document import Validation, classes, summary, validation_document
from autodeploy.fidelity.predict import Prediction
from autodeploy.fidelity.residuals import FACTORS, residuals
from autodeploy.fidelity.score import errors_of, fits_of, groups_of, kendall_tau, median_of_sources
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.plan import CpComm
from autodeploy.spec.space import Space
from tests.fidelity.little import predicted, said

SECONDS = st.floats(0.01, 100.0)
PAIRS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=12)
PERMUTED = st.integers(2, 9).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.permutations(range(n))))
PLANS = ({"tp": 1}, {"tp": 2}, {"tp": 4}, {"tp": 8}, {"mbs": 2}, {"mbs": 4}, {"mbs": 8}, {"cp": 2})


def group(*pairs: tuple[float, float], **changed: Any) -> list[Prediction]:
    """Predicted and measured seconds of as many different plans."""
    return [said(mine, theirs, plan=plan, **changed) for (mine, theirs), plan in zip(pairs, PLANS, strict=False)]


FOUR = ((1.0, 10.0), (2.0, 11.0), (3.0, 12.0), (4.0, 13.0))


@given(PERMUTED)
def test_tau_without_ties_is_scipys(orders: tuple[list[int], list[int]]) -> None:
    mine, theirs = orders
    pairs = [(1.0 + a, 1.1**b) for a, b in zip(mine, theirs, strict=True)]
    assert kendall_tau(pairs) == pytest.approx(kendalltau(*zip(*pairs, strict=True)).statistic)


def test_tau_by_hand() -> None:
    assert kendall_tau(FOUR) == 1.0
    assert kendall_tau([(-mine, theirs) for mine, theirs in FOUR]) == -1.0
    assert kendall_tau([(1.0, 10.0), (3.0, 11.0), (2.0, 12.0)]) == pytest.approx(1 / 3)  # 2 agree, 1 does not


def test_measurements_within_four_per_cent_are_ties() -> None:
    """The inverted pair differs by 3 %: it does not count. By 5 % it does."""
    assert kendall_tau([(2.0, 1.00), (1.0, 1.03), (3.0, 2.0)]) == 1.0
    assert kendall_tau([(2.0, 1.00), (1.0, 1.05), (3.0, 2.0)]) == pytest.approx(1 / 3)
    assert kendall_tau([(1.0, 1.0), (2.0, 1.02)]) is None


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=10), st.integers(-7, 7), st.randoms())
def test_tau_knows_neither_unit_nor_order(pairs: list[tuple[float, float]], power: int, random: Any) -> None:
    """A power of two as the unit, so that rounding joins no two predictions."""
    first = kendall_tau(pairs)
    shuffled = random.sample(pairs, len(pairs))
    assert kendall_tau(shuffled) == (None if first is None else pytest.approx(first))
    assert kendall_tau([(2.0**power * a, b) for a, b in pairs]) == (None if first is None else pytest.approx(first))


def test_regret_is_nothing_where_the_best_is_picked() -> None:
    (found,) = groups_of(group(*FOUR))
    assert (found.plans, found.regret_frac, found.kendall_tau) == (4, 0.0, 1.0)
    assert found.spread == pytest.approx(1.3)


def test_regret_by_hand() -> None:
    """We put the plan first that was measured at 12 where the best took 10."""
    (found,) = groups_of(group((4.0, 10.0), (2.0, 11.0), (1.0, 12.0), (3.0, 13.0)))
    assert found.regret_frac == pytest.approx(0.2)


def test_three_plans_are_no_group_however_often_they_ran() -> None:
    three = group(*FOUR)[:3]
    assert groups_of(three) == []
    assert groups_of([*three, *three]) == []
    assert len(groups_of(group(*FOUR))) == 1


def test_a_run_without_a_step_makes_no_group() -> None:
    assert groups_of([*group(*FOUR)[:3], said(4.0, None, plan=PLANS[3])]) == []


APART: dict[str, Callable[[Space], dict[str, Any]]] = {
    "source": lambda _: {"source": "somebody else"},
    "model": lambda _: {"model": "another one"},
    "sizes_under_one_name": lambda base: {"space": {"model": replace(base.model, layers=16)}},
    "cluster": lambda _: {"space": {"cluster": load(Cluster, "h100-80g")}},
    "devices": lambda _: {"devices": 16, "space": {"devices": 16}},
    "batch": lambda base: {"gbs": 128, "space": {"job": replace(base.job, gbs=128)}},
    "sequence": lambda base: {"seq_len": 4096, "space": {"job": replace(base.job, seq_len=4096)}},
    "precision": lambda base: {"precision": "fp16", "space": {"job": replace(base.job, precision="fp16")}},
    "release": lambda _: {"framework_version": "v2"},
    "release_in_the_reference": lambda _: {"source_ref": "v0.2 docs/performance.md"},
    "profile": lambda base: {
        "space": {"target": replace(base.target, profile=replace(base.target.profile, graphs=True))}
    },
}
"""What sets the fourth run of a group apart, beside its plan."""


@pytest.mark.parametrize("name", APART)
def test_groups_never_mix(name: str) -> None:
    changed = APART[name](predicted().run.space)
    assert groups_of([*group(*FOUR)[:3], said(4.0, 13.0, plan=PLANS[3], **changed)]) == []
    assert len(groups_of([*group(*FOUR)[:3], said(4.0, 13.0, plan=PLANS[3])])) == 1


def test_two_groups_are_scored_apart() -> None:
    found = groups_of([*group(*FOUR), *group(*reversed(FOUR), source="somebody else")])
    assert [(each.source, each.plans) for each in found] == [("our own machine room", 4), ("somebody else", 4)]


@given(PAIRS)
def test_an_error_is_predicted_over_measured_less_one(pairs: list[tuple[float, float]]) -> None:
    for mine, theirs in pairs:
        assert said(mine, theirs).error_frac == pytest.approx(mine / theirs - 1.0)


@given(PAIRS, st.floats(0.1, 10.0))
def test_slower_measurements_divide_what_we_are(pairs: list[tuple[float, float]], factor: float) -> None:
    for mine, theirs in pairs:
        once, slower = said(mine, theirs).error_frac, said(mine, factor * theirs).error_frac
        assert once is not None
        assert slower is not None
        assert 1.0 + slower == pytest.approx((1.0 + once) / factor)


@given(PAIRS, st.randoms())
def test_the_order_of_rows_does_not_matter(pairs: list[tuple[float, float]], random: Any) -> None:
    runs = group(*pairs, source="one") + group(*pairs, source="other")
    shuffled = random.sample(runs, len(runs))
    first, second = (summary(Validation(predictions=tuple(each), unread=())) for each in (runs, shuffled))
    assert repr(first) == repr(second)
    assert groups_of(runs) == groups_of(shuffled)


def test_errors_of_some_runs_by_hand() -> None:
    found = errors_of([-0.3, None, 0.1, 0.2])
    assert found is not None
    assert (found.runs, found.median_abs_frac, found.bias_frac) == (3, pytest.approx(0.2), pytest.approx(0.1))
    assert found.p90_abs_frac == pytest.approx(0.28)  # a fifth of the way from 0.3 back to 0.2
    assert errors_of([None]) is None


def test_the_median_of_sources_by_hand() -> None:
    """One source of many good rows weighs as much as one of a single bad row."""
    many = [said(1.1, 1.0, source="a") for _ in range(9)]
    other = [said(1.2, 1.0, source="b"), said(0.6, 1.0, source="b")]  # 0.3
    single = [said(1.5, 1.0, source="c")]
    assert median_of_sources([*many, *other, *single]) == pytest.approx(median([0.1, 0.3, 0.5]))
    assert median_of_sources([said(1.0, None)]) is None


def test_a_run_without_a_step_has_no_error() -> None:
    assert said(1.0, None).error_frac is None
    assert replace(predicted(), result=None).error_frac is None


def test_fits_or_not_is_counted_where_it_is_known() -> None:
    base = predicted()
    assert base.result is not None

    def ended(ran: bool | None, called: bool) -> Prediction:
        assert base.result is not None
        return Prediction(run=replace(base.run, fits=ran), result=replace(base.result, fits=called))

    found = fits_of([ended(True, True), ended(True, False), ended(False, True), ended(False, False), ended(None, True)])
    assert (found.right, found.ran_but_refused, found.ran_out_but_called_fitting, found.known) == (2, 1, 1, 4)


def test_classes_hold_each_run_once_or_in_a_part_of_its_class() -> None:
    h100 = load(Cluster, "h100-80g")
    found = classes([said(2.0, 1.0), said(1.0, 1.0, space={"cluster": h100}), said(1.0, None)])
    assert {name: errors.runs for name, errors in found.items()} == {"dense, A100 and H100": 2}


def test_every_factor_holds_every_run_once() -> None:
    runs = group(*FOUR, (5.0, 14.0))
    found = residuals([*runs, said(1.0, None)])
    for factor in FACTORS:
        assert sum(each.errors.runs for each in found if each.factor == factor.name) == len(runs)


def test_a_document_of_nothing_known_is_still_a_document() -> None:
    found = validation_document(Validation(predictions=(said(1.0, None),), unread=()))
    assert [each["error_frac"] for each in found["rows"]] == [None]
    assert found["groups"] == []
    assert found["summary"]["pooled"] is None


def test_plans_that_differ_only_in_how_they_send_are_different_plans() -> None:
    last = said(4.0, 13.0, plan={"tp": 4, "cp_comm": CpComm.GATHER})
    (found,) = groups_of([*group(*FOUR)[:3], last])
    assert found.plans == 4
    assert math.isclose(found.spread, 1.3)
