"""Published claims beside ours: every claim has a measure and a verdict; arithmetic is exact; enough predictions agree.

Figures: Huawei's report on Pangu Ultra MoE (2025-05-30), arXiv 2505.04519, 2504.07866, 2603.07685.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from autodeploy.fidelity.claim_jobs import OPEN, Open, over, plan_of, spread
from autodeploy.fidelity.claims import MEASURES, Claim, Outcome, claims, outcomes
from autodeploy.report.claims import claims_document, claims_page, format_figure, summary_line
from tests.fidelity.little import predicted

MEASURED_NOW = ("scenarios-screened", "scenarios-simulated")
CHEAP = ("merge-volume", "merge-time", "merge-time-16", "one-copy", "together", "ultra-bubble", "ultra-bubble-6")
NAMED = {
    # what the brief says, in one table: each must be there
    "scenarios-screened", "scenarios-simulated", "accuracy", "merge-time", "merge-volume", "merge-step", "count-reuse",
    "extend", "adaptive-pipe", "exposed", "edpb", "together", "operators", "host", "host-idle", "activations",
    "micro-batch", "tokens-before", "tokens-after", "mfu-all-after", "ultra-bubble", "ultra-mfu", "pro", "layers",
    "whole-stack",
}  # fmt: skip


@cache
def found() -> tuple[Outcome, ...]:
    """The whole table, but for the accuracy, which has a test of its own."""
    return tuple(outcomes([predicted()]))


def one(name: str) -> Claim:
    return next(claim for claim in claims() if claim.id == name)


def outcome(ours: float, **changed: Any) -> Outcome:
    given = {"id": "x", "claim": "x", "source": "s", "published": 2.0, "unit": "", "kind": "predicted", "inputs": ""}
    return Outcome(claim=Claim(**(given | changed)), scenario="", ours=spread(ours, (1.0, 9.0)))


def test_every_claim_has_a_measure_a_source_and_a_name_of_its_own() -> None:
    names = [claim.id for claim in claims()]
    assert Counter(names).most_common(1)[0][1] == 1
    assert set(names) == {*MEASURES, "accuracy"} >= NAMED
    assert all(claim.source and claim.inputs and claim.published > 0.0 for claim in claims())


@pytest.mark.parametrize("name", CHEAP)
def test_arithmetic_of_a_claim_is_exact_and_communication_agrees(name: str) -> None:
    claim = one(name)
    for figure in MEASURES[name]():
        off = abs(figure.ours.nominal / claim.published - 1.0)
        assert off < (0.005 if claim.kind == "identity" else 0.25)
        assert figure.ours.low <= figure.ours.nominal <= figure.ours.high


@pytest.mark.parametrize(
    ("ours", "changed", "verdict"),
    [
        (2.4, {}, "agrees"),
        (2.6, {"why": "because"}, "in range: because"),
        (20.0, {"why": "because", "published": 30.0}, "off: because"),
        (2.4, {"kind": "input"}, "follows from its inputs"),
        (5.0, {"sense": "at_least"}, "the bound holds"),
        (1.9, {"sense": "at_least", "why": "because"}, "near, short of the bound: because"),
        (1.0, {"sense": "at_most"}, "the bound holds"),
        (5.0, {"sense": "at_most", "why": "because"}, "in range: because"),
        (2.0, {"kind": "identity"}, "arithmetic of the claim"),
    ],
)
def test_a_verdict_says_what_to_make_of_a_figure(ours: float, changed: dict[str, Any], verdict: str) -> None:
    assert outcome(ours, **changed).verdict == verdict


def test_the_first_of_what_is_open_is_nominal() -> None:
    ours = over(lambda a, b: a + b, (2.0, 1.0, 5.0), (10.0, 0.0))
    assert (ours.low, ours.nominal, ours.high) == (1.0, 12.0, 15.0)
    assert OPEN[0] == Open()
    assert all(sum(a != b for a, b in zip(each, OPEN[0], strict=True)) == 1 for each in OPEN[1:])


def test_the_plan_of_the_brief_is_that_of_the_reports() -> None:
    plan = plan_of(tp=8, pp=16, vpp=2, ep=32, mbs=2, dp=48)
    assert (plan.sp, plan.schedule.name, plan.edp) == (True, "INTERLEAVED", 12)


@pytest.mark.parametrize(("value", "unit", "text"), [
    (0.1398, "gain", "+14.0%"), (0.7357, "share", "73.6%"), (1.651, "ratio", "1.65"), (1.46e6, "tokens/s", "1,460,000"),
])  # fmt: skip
def test_figures_are_written_in_the_unit_of_the_claim(value: float, unit: str, text: str) -> None:
    assert format_figure(value, unit) == text


@pytest.mark.slow
def test_at_least_eight_predictions_are_within_a_quarter_and_every_miss_is_explained() -> None:
    predictions = [each for each in found() if each.claim.kind == "predicted"]
    agreeing = {each.claim.id for each in predictions if each.agrees and each.claim.id not in MEASURED_NOW}
    assert len(agreeing) >= 8
    assert {"tokens-before", "tokens-after", "merge-step", "activations"} <= agreeing
    assert [each.claim.id for each in found() if each.verdict.endswith(": ")] == []


@pytest.mark.slow
def test_both_parts_are_shown_where_the_machine_is_ambiguous() -> None:
    for name in ("tokens-before", "tokens-after", "tokens-all", "adaptive-pipe", "edpb", "ultra-mfu", "layers"):
        scenarios = [each.scenario for each in found() if each.claim.id == name]
        assert [text.split(",")[0] for text in scenarios] == ["313 TF", "376 TF"]


@pytest.mark.slow
def test_the_table_is_whole_in_every_form() -> None:
    document, page = claims_document(found()), claims_page(found())
    keys = {"claim", "source", "published", "ours", "ratio", "kind", "inputs", "scenario", "verdict"}
    for row in document["rows"]:
        assert keys <= row.keys()
        assert set(row["ours"]) == {"low", "nominal", "high"}
        assert row["ratio"] == pytest.approx(row["ours"]["nominal"] / row["published"])
    assert page.count("\n| ") >= len(document["rows"])
    assert summary_line(found()) in page
