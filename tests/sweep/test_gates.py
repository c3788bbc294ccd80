"""The gate: what it catches and what it lets pass, against an earlier run and against thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autodeploy.errors import SpecError
from autodeploy.spec.sweep import Threshold
from autodeploy.sweep.gate import Violation, against_baseline, against_thresholds, matches
from autodeploy.sweep.lines import read_lines
from autodeploy.units import GIB
from tests.sweep.little import Line, swept, write_lines, write_sweep

RATE = "tokens_per_s_per_device"


def line_of(cell: str = "gbs=8", **changed: Any) -> Line:
    """A line of a cell that works."""
    return {
        "cell": cell, "inputs": {}, "status": "optimal", "plan_id": "0123456789ab", "plan_short": "tp1", RATE: 1000.0,
        "step_time_s": 2.0, "peak_memory_bytes": 40 * GIB, "fits": True, "gap_frac": 0.0, "error": None, "run": {},
        **changed,
    }  # fmt: skip


FIGURES = ("plan_id", "plan_short", RATE, "step_time_s", "peak_memory_bytes")


def failed(cell: str = "gbs=8") -> Line:
    """A line of a cell whose input was bad."""
    return line_of(cell, **dict.fromkeys(FIGURES), status="failed", fits=None, error="unknown model")


def too_big(cell: str = "gbs=8") -> Line:
    """A line of a cell in which nothing fits."""
    return line_of(cell, **dict.fromkeys(FIGURES), status="infeasible", fits=False)


def compared(now: Line, before: Line, most_frac: float = 0.02) -> list[Violation]:
    """What a gate says of one cell."""
    return list(against_baseline([now], [before], most_frac))


@pytest.mark.parametrize(("rate", "rules"), [
    (1030.0, []), (1000.0, []), (990.0, []), (980.0, []), (979.9, ["speed"]), (970.0, ["speed"]), (1.0, ["speed"]),
])  # fmt: skip
def test_a_cell_may_slow_down_by_two_percent_and_no_more(rate: float, rules: list[str]) -> None:
    assert [each.rule for each in compared(line_of(**{RATE: rate}), line_of())] == rules


@pytest.mark.parametrize(("share", "rules"), [(0.0, ["speed"]), (0.0299, ["speed"]), (0.0301, []), (0.5, [])])
def test_what_is_allowed_decides(share: float, rules: list[str]) -> None:
    assert [each.rule for each in compared(line_of(**{RATE: 970.0}), line_of(), share)] == rules


def test_a_slower_cell_is_shown_with_both_figures() -> None:
    (found,) = compared(line_of("gbs=8,devices=4", **{RATE: 970.0}), line_of("gbs=8,devices=4"))
    assert found == Violation(
        cell="gbs=8,devices=4", rule="speed", wanted=f"at least 980.0 {RATE}", found="970.0 (-3.0%)"
    )


PAIRS: dict[str, tuple[Line, Line, list[str]]] = {
    "same": (line_of(), line_of(), []),
    "failed_in_both": (failed(), failed(), []),
    "fits_in_neither": (too_big(), too_big(), []),
    "works_now": (line_of(), failed(), []),
    "fits_now": (line_of(), too_big(), []),
    "fails_now": (failed(), line_of(), ["works"]),
    "fails_now_and_did_not_fit": (failed(), too_big(), ["works"]),
    "fits_no_longer": (too_big(), line_of(), ["fits"]),
    "did_not_work_and_does_not_fit": (too_big(), failed(), []),
    "other_plan_as_fast": (line_of(plan_id="ba9876543210"), line_of(), []),
    "more_memory": (line_of(peak_memory_bytes=59 * GIB), line_of(), []),
    "other_run": (line_of(run={"wall_s": 9.0}), line_of(run={"wall_s": 1.0}), []),
}


@pytest.mark.parametrize("case", PAIRS)
def test_what_changed_in_a_cell(case: str) -> None:
    now, before, rules = PAIRS[case]
    assert [each.rule for each in compared(now, before, 0.0)] == rules


def test_a_failure_is_shown_with_its_reason() -> None:
    (found,) = compared(failed(), line_of())
    assert (found.wanted, found.found) == ("optimal", "failed: unknown model")


def test_a_cell_that_is_gone_is_a_violation_and_a_new_one_is_not() -> None:
    old, new = [line_of("a"), line_of("b"), failed("c")], [line_of("b"), line_of("d")]
    assert [(each.cell, each.rule) for each in against_baseline(new, old, 0.02)] == [("a", "present"), ("c", "present")]


def test_every_violation_is_found_in_the_order_of_the_old_run() -> None:
    old = [line_of(name) for name in "abcde"]
    new = [too_big("e"), line_of("d"), line_of("c", **{RATE: 500.0}), failed("b")]
    found = [(each.cell, each.rule) for each in against_baseline(new, old, 0.02)]
    assert found == [("a", "present"), ("b", "works"), ("c", "speed"), ("e", "fits")]


@pytest.mark.parametrize(("words", "cell", "holds"), [
    ("", "model=a,gbs=8", True),
    ("model=a", "model=a,gbs=8", True),
    ("gbs=8,model=a", "model=a,gbs=8", True),
    ("gbs=8,", "model=a,gbs=8", True),
    ("gbs=80", "model=a,gbs=8", False),
    ("gbs=8", "model=a,gbs=80", False),
    ("model=a,gbs=9", "model=a,gbs=8", False),
    ("model", "model=a,gbs=8", False),
])  # fmt: skip
def test_a_threshold_is_for_the_cells_that_hold_all_its_words(words: str, cell: str, holds: bool) -> None:
    assert matches(words, cell) is holds


HELD: dict[str, tuple[Threshold, Line, list[str]]] = {
    "fits": (Threshold(fits=True), line_of(), []),
    "fits_not": (Threshold(fits=True), too_big(), ["fits"]),
    "failed": (Threshold(fits=True), failed(), ["fits"]),
    "should_not_fit": (Threshold(fits=False), line_of(), ["fits"]),
    "does_not_fit_as_asked": (Threshold(fits=False), too_big(), []),
    "fast_enough": (Threshold(min_tokens_per_s_per_device=1000.0), line_of(), []),
    "too_slow": (Threshold(min_tokens_per_s_per_device=1000.1), line_of(), [RATE]),
    "no_speed": (Threshold(min_tokens_per_s_per_device=1.0), too_big(), [RATE]),
    "memory": (Threshold(max_memory_bytes=40 * GIB), line_of(), []),
    "too_much_memory": (Threshold(max_memory_bytes=39.99 * GIB), line_of(), ["memory"]),
    "no_memory": (Threshold(max_memory_bytes=80 * GIB), failed(), ["memory"]),
    "plan": (Threshold(plan_id="0123456789ab"), line_of(), []),
    "other_plan": (Threshold(plan_id="ba9876543210"), line_of(), ["plan_id"]),
    "no_plan": (Threshold(plan_id="0123456789ab"), too_big(), ["plan_id"]),
    "all_at_once": (
        Threshold(fits=True, min_tokens_per_s_per_device=1.0, max_memory_bytes=1.0, plan_id="x"), failed(),
        ["fits", RATE, "memory", "plan_id"],
    ),
    "nothing_asked": (Threshold(), failed(), []),
    "other_cell": (Threshold(cell="gbs=9"), line_of(), ["threshold"]),
}  # fmt: skip


@pytest.mark.parametrize("case", HELD)
def test_what_a_threshold_asks(case: str) -> None:
    threshold, line, rules = HELD[case]
    assert [each.rule for each in against_thresholds([line], [threshold])] == rules


def test_figures_of_a_threshold_are_shown() -> None:
    threshold = Threshold(cell="gbs=8", min_tokens_per_s_per_device=1234.0, max_memory_bytes=30 * GIB)
    found = {each.rule: each for each in against_thresholds([line_of()], [threshold])}
    assert (found[RATE].wanted, found[RATE].found) == ("at least 1234", "1000.0")
    assert (found["memory"].wanted, found["memory"].found) == ("at most 30.00 GiB", "40.00 GiB")


def test_a_threshold_holds_for_every_matching_cell() -> None:
    lines = [line_of("gbs=8,d=1"), too_big("gbs=8,d=2"), too_big("gbs=9,d=1")]
    found = list(against_thresholds(lines, [Threshold(cell="gbs=8", fits=True)]))
    assert [each.cell for each in found] == ["gbs=8,d=2"]


def test_a_cell_that_failed_does_not_keep_that_nothing_fits() -> None:
    assert [each.rule for each in against_thresholds([failed()], [Threshold(fits=False)])] == ["fits"]


def test_a_rerun_is_no_regression(tmp_path: Path) -> None:
    path = write_sweep(tmp_path)
    one, other = (swept(path, tmp_path / name) for name in ("one.jsonl", "other.jsonl"))
    assert list(against_baseline(other, one, 0.0)) == []
    assert list(against_baseline(read_lines(tmp_path / "other.jsonl"), read_lines(tmp_path / "one.jsonl"), 0.0)) == []


BROKEN = {
    "torn": '{"cell": "a", "status": "failed"}\n{"cell": "b", "sta',
    "text": "all went well\n",
    "array": '["a", "optimal"]\n',
    "no_cell": '{"status": "optimal"}\n',
    "no_status": '{"cell": "a"}\n',
    "empty_line": '{"cell": "a", "status": "failed"}\n\n{"cell": "b", "status": "failed"}\n',
    "number": "1\n",
    "null": "null\n",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_no_results_is_refused_with_the_line(tmp_path: Path, case: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(BROKEN[case])
    with pytest.raises(SpecError) as caught:
        read_lines(path)
    assert caught.value.faults[0].path == ("line 2" if case in ("torn", "empty_line") else "line 1")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "results.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match="cannot read"):
        read_lines(path)


UNCHECKED: dict[str, Line] = {
    "cell_as_number": {"cell": 1},
    "cell_as_list": {"cell": ["a"]},
    "status_as_number": {"status": 1},
    "unknown_status": {"status": "fine"},
    "rate_as_text": {RATE: "fast"},
    "no_rate": {RATE: None},
    "memory_as_text": {"peak_memory_bytes": "40 GiB"},
    "fits_as_text": {"fits": "yes"},
}


@pytest.mark.parametrize("case", UNCHECKED)
def test_a_line_with_wrong_figures_is_refused(tmp_path: Path, case: str) -> None:
    path = write_lines(tmp_path / "results.jsonl", [line_of(**UNCHECKED[case])])
    with pytest.raises(SpecError):
        read_lines(path)


def test_a_cell_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "results.jsonl", [line_of(**{RATE: 1.0}), line_of()])
    with pytest.raises(SpecError):
        read_lines(path)


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_is_refused(tmp_path: Path, rate: float) -> None:
    path = write_lines(tmp_path / "results.jsonl", [line_of(**{RATE: rate})])
    with pytest.raises(SpecError):
        read_lines(path)
