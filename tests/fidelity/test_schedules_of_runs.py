"""Runs whose sources name a schedule with weight gradients apart are read with it, and come out as they were measured.

Zero Bubble: arXiv 2401.10241 tables 3 and 4. DeepSeek-V3: arXiv 2412.19437, Table 4 of its ISCA 2025 paper.
"""

from __future__ import annotations

import pytest

from autodeploy.fidelity.predict import Prediction, predict
from autodeploy.fidelity.runs import read_runs
from autodeploy.spec.plan import Overlap, Schedule
from tests.fidelity.little import SHIPPED

pytestmark = pytest.mark.slow
WORDS = {
    "schedule 1F1B;": Schedule.ONE_F_ONE_B,
    "schedule 1F1B-I;": Schedule.INTERLEAVED,
    "schedule ZB-1p;": Schedule.ZB_H1,
    "schedule ZB-2p;": Schedule.ZB_H2,
    "schedules-method=dualpipev;": Schedule.DUALPIPE_V,
    "DualPipe: ": Schedule.DUALPIPE,
}


@pytest.fixture(scope="module")
def told() -> dict[str, list[Prediction]]:
    """Predictions of all rows that name a schedule, by the words."""
    runs = [run for path in SHIPPED for run in read_runs(path)[0]]
    rows = {word: [run for run in runs if run.row.says(word)] for word in WORDS}
    return {word: [predict(run) for run in found] for word, found in rows.items()}


def test_every_row_has_the_schedule_that_it_names(told: dict[str, list[Prediction]]) -> None:
    assert {word: len(found) for word, found in told.items()} == {
        "schedule 1F1B;": 9, "schedule 1F1B-I;": 9, "schedule ZB-1p;": 9, "schedule ZB-2p;": 9,
        "schedules-method=dualpipev;": 2, "DualPipe: ": 3,
    }  # fmt: skip
    for word, found in told.items():
        assert {each.run.plan.schedule for each in found} == {WORDS[word]}


@pytest.mark.parametrize("word", ["schedule ZB-1p;", "schedule ZB-2p;"])
def test_zero_bubble_peaks_are_the_measured_ones(told: dict[str, list[Prediction]], word: str) -> None:
    errors = [each.memory_error_frac for each in told[word]]
    assert all(error is not None and abs(error) < 0.07 for error in errors)


def test_zero_bubble_orders_gain_what_was_measured(told: dict[str, list[Prediction]]) -> None:
    """Of one job, ZB-2p is the quickest and 1F1B the slowest; what each gains over 1F1B within 6 % of the step."""
    plain, h1, h2 = (told[f"schedule {name};"] for name in ("1F1B", "ZB-1p", "ZB-2p"))
    for slow, middle, quick in zip(plain, h1, h2, strict=True):
        ours, seen = [], []
        for each in (slow, middle, quick):
            assert each.result is not None
            assert each.run.step_s is not None
            ours.append(each.result.step_time_s)
            seen.append(each.run.step_s)
        assert ours == sorted(ours, reverse=True)
        assert [a / ours[0] for a in ours] == pytest.approx([b / seen[0] for b in seen], abs=0.06)


def test_deepseek_v3_with_dualpipe_takes_the_published_step(told: dict[str, list[Prediction]]) -> None:
    for each in told["DualPipe: "]:
        assert each.run.plan.overlap is Overlap.PAIR
        assert each.run.row.use == "validate"
        assert each.error_frac is not None
        assert abs(each.error_frac) < 0.10
