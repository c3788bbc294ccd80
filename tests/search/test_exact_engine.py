"""The exact engine against brute force: its ranking, its steps, its counts, and the gap of a search cut short."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autodeploy.search import exact
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.search.exact import Limits, Outcome, Progress, search_exact, search_plans
from autodeploy.search.screen import screen
from autodeploy.spec.plan import Plan
from tests.search.little import NAMES, every_plan, legal_plans_of, little_spaces, order_of, ranking_of

EVERY_SPACE = pytest.mark.parametrize("name", NAMES)


def ranked(outcome: Outcome) -> list[tuple[Plan, float]]:
    """Plans and steps, best first."""
    plans = [outcome.screened.plans.row(int(row)) for row in outcome.rows]
    return list(zip(plans, outcome.step_s.tolist(), strict=True))


@pytest.mark.parametrize("top", [1, 10, 1000])
@EVERY_SPACE
def test_every_rank_is_that_of_brute_force(name: str, top: int) -> None:
    brute = ranking_of(name)
    outcome = search_exact(little_spaces()[name], top=top)
    assert (outcome.status, outcome.gap_frac) == ("optimal", 0.0)
    assert outcome.step_s.tolist() == [each.step_s for each in brute[:top]]
    by_plan = {each.plan: each for each in brute}
    found = [by_plan[plan] for plan, _ in ranked(outcome)]
    assert [each.step_s for each in found] == outcome.step_s.tolist()
    assert [order_of(each) for each in found] == [order_of(each) for each in brute[: len(found)]]


@EVERY_SPACE
def test_the_best_is_proven_without_simulating_all(name: str) -> None:
    outcome = search_exact(little_spaces()[name], top=1)
    assert 0 < outcome.simulated < len(ranking_of(name)) / 4


@EVERY_SPACE
def test_what_is_left_unsimulated_could_not_have_been_better(name: str) -> None:
    outcome = search_exact(little_spaces()[name], top=1)
    ranking = {each.plan: each.step_s for each in ranking_of(name)}
    plans = outcome.screened.plans
    for row in np.nonzero(outcome.screened.fits)[0]:
        step = ranking[plans.row(int(row))]
        assert outcome.screened.bound_s[row] <= step * (1 + 1e-12)
        assert step >= outcome.step_s[0]


@EVERY_SPACE
def test_counts_are_those_of_plans_asked_one_by_one(name: str) -> None:
    space = little_spaces()[name]
    facts = search_exact(space, top=1).facts()
    assert facts["candidates"] == len(list(every_plan(space)))
    assert facts["legal"] == len(legal_plans_of(name))
    assert facts["fits"] == len(ranking_of(name))
    assert facts["refused_by_memory"] == {"memory.device": facts["legal"] - facts["fits"]}
    assert facts["candidates"] == facts["legal"] + sum(facts["refused"].values())


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates one plan at a time, so that a search can be cut short anywhere."""
    monkeypatch.setattr(exact, "BATCH_ROWS", 1)


def check_gap(reported_s: float, gap_frac: float, best_s: float) -> None:
    """A gap is honest if no plan is faster than it allows."""
    assert 0.0 <= gap_frac <= 1.0
    assert best_s >= (1.0 - gap_frac) * reported_s * (1 - 1e-12)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("top", [1, 20])
@EVERY_SPACE
def test_one_batch_gives_an_honest_gap(name: str, top: int) -> None:
    outcome = search_exact(little_spaces()[name], top=top, timeout_s=0.0)
    assert outcome.simulated == 1
    if outcome.status == "optimal":  # the one batch that there was time for proved it all
        assert outcome.gap_frac == 0.0
        assert top == 1
    else:
        assert outcome.status == "timeout"
    reported = float(outcome.step_s[0])
    check_gap(reported, outcome.gap_frac, ranking_of(name)[0].step_s)
    bounds = np.delete(outcome.screened.bound_s, outcome.rows)[np.delete(outcome.screened.fits, outcome.rows)]
    assert outcome.gap_frac == pytest.approx(max(0.0, 1.0 - bounds.min() / reported), rel=1e-12)


@EVERY_SPACE
def test_a_batch_of_one_shape_gives_an_honest_gap(name: str) -> None:
    outcome = search_exact(little_spaces()[name], top=20, timeout_s=0.0)
    assert outcome.status == "timeout"
    assert 1 <= outcome.simulated < len(ranking_of(name))
    check_gap(float(outcome.step_s[0]), outcome.gap_frac, ranking_of(name)[0].step_s)
    ranks = {each.plan: each.step_s for each in ranking_of(name)}
    assert [ranks[plan] for plan, _ in ranked(outcome)] == outcome.step_s.tolist()


@pytest.mark.usefixtures("one_by_one")
@EVERY_SPACE
def test_the_gap_is_honest_after_every_batch(name: str) -> None:
    best = ranking_of(name)[0].step_s
    seen: list[tuple[float, float]] = []

    def watch(progress: Progress) -> None:
        if progress.stage == "simulate" and progress.simulated:
            seen.append((progress.best_s, progress.gap_frac))
            check_gap(progress.best_s, progress.gap_frac, best)

    search_exact(little_spaces()[name], top=20, report=watch)
    assert len(seen) >= 20
    assert seen[-1] == (best, 0.0)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("batches", [1, 2, 5])
@EVERY_SPACE
def test_an_interrupt_keeps_what_was_simulated(name: str, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, done = exact._Ranking.simulate, []

    def simulate(ranking: Any, *batch: Any) -> None:
        if len(done) == batches:
            raise KeyboardInterrupt
        done.append(batch)
        whole(ranking, *batch)

    monkeypatch.setattr(exact._Ranking, "simulate", simulate)
    outcome = search_exact(little_spaces()[name], top=20)
    assert (outcome.status, outcome.simulated, len(outcome.rows)) == ("interrupted", batches, batches)
    check_gap(float(outcome.step_s[0]), outcome.gap_frac, ranking_of(name)[0].step_s)


@pytest.mark.parametrize("factor", [1.0, 1.02, 1.5])
@EVERY_SPACE
def test_every_plan_within_reach_is_kept(name: str, factor: float) -> None:
    brute = ranking_of(name)
    reach_s = factor * brute[0].step_s
    outcome = search_exact(little_spaces()[name], top=1, reach_s=reach_s)
    within = [each.step_s for each in brute if each.step_s < reach_s]
    assert outcome.step_s.tolist() == (within or [brute[0].step_s])


@EVERY_SPACE
def test_of_plans_with_a_limit_all_below_it_are_ranked(name: str) -> None:
    space, brute = little_spaces()[name], ranking_of(name)
    limit_s = brute[len(brute) // 2].step_s
    limits = Limits(top=len(brute), limit_s=limit_s)
    outcome = search_plans(space, enumerate_plans(space), Progress(), limits)
    below = [each.step_s for each in brute if each.step_s < limit_s]
    assert outcome.step_s.tolist()[: len(below)] == below
    assert outcome.simulated < len(brute)


@EVERY_SPACE
def test_ties_go_to_headroom_and_then_to_smaller_degrees(name: str) -> None:
    space = little_spaces()[name]
    screened = screen(space, enumerate_plans(space).legal)
    ranking = exact._Ranking(space, screened, Limits(top=1000))
    ranking.step_s[screened.fits] = 1.0
    rows, _ = ranking.best()
    plans = screened.plans.rows(rows)
    keys = list(zip(screened.needed_bytes[rows], plans.tp * plans.pp * plans.vpp * plans.ep * plans.etp, strict=True))
    assert len(keys) == screened.fits.sum()
    assert keys == sorted(keys)


def test_the_order_of_the_values_does_not_matter() -> None:
    space = little_spaces()["sparse"]
    turned = type(space.plan)(
        tp=space.plan.tp[::-1], pp=space.plan.pp[::-1], vpp=space.plan.vpp[::-1], ep=space.plan.ep[::-1],
        mbs=space.plan.mbs[::-1], overlap=space.plan.overlap[::-1],
    )  # fmt: skip
    one = search_exact(space, top=15)
    other = search_exact(type(space)(**{**_fields(space), "plan": turned}), top=15)
    assert ranked(one) == ranked(other)


def _fields(space: Any) -> dict[str, Any]:
    return {name: getattr(space, name) for name in space.__dataclass_fields__}
