"""The gate: results of a sweep held against an earlier run and against thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autodeploy.spec.sweep import Threshold
from autodeploy.sweep.cells import Cell
from autodeploy.sweep.lines import FAILED, Line
from autodeploy.units import format_bytes

RATE = "tokens_per_s_per_device"


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """One thing that a cell does not keep."""

    cell: str
    rule: str
    wanted: str
    found: str


def against_baseline(lines: Sequence[Line], old: Sequence[Line], max_regress_frac: float) -> Iterator[Violation]:
    """Cells of the old run that are gone, no longer work or fit, or have become slower than allowed. A cell that
    failed in both is no violation."""
    now = {line["cell"]: line for line in lines}
    for before in old:
        cell = before["cell"]
        if cell not in now:
            yield Violation(cell=cell, rule="present", wanted="in the results", found="missing")
        else:
            yield from _compare(cell, now[cell], before, max_regress_frac)


def _compare(cell: str, line: Line, before: Line, max_regress_frac: float) -> Iterator[Violation]:
    if before["status"] == FAILED:
        return
    if line["status"] == FAILED:
        yield Violation(cell=cell, rule="works", wanted=before["status"], found=f"failed: {line.get('error')}")
    elif before.get("fits") and not line.get("fits"):
        yield Violation(cell=cell, rule="fits", wanted="fits, as before", found="does not fit")
    elif before.get(RATE) and line[RATE] < (1.0 - max_regress_frac) * before[RATE]:
        change = line[RATE] / before[RATE] - 1.0
        wanted = f"at least {(1.0 - max_regress_frac) * before[RATE]:.1f} {RATE}"
        yield Violation(cell=cell, rule="speed", wanted=wanted, found=f"{line[RATE]:.1f} ({change:+.1%})")


def against_thresholds(lines: Sequence[Line], thresholds: Iterable[Threshold]) -> Iterator[Violation]:
    """Cells that do not keep what a sweep file asks of them; a threshold that matches no cell is one as well."""
    for threshold in thresholds:
        matching = [line for line in lines if matches(threshold.cell, line["cell"])]
        if not matching:
            yield Violation(cell=threshold.cell, rule="threshold", wanted="a cell of this name", found="none")
        for line in matching:
            yield from _hold(threshold, line)


def against_cells(lines: Sequence[Line], cells: Iterable[Cell]) -> Iterator[Violation]:
    """Cells of a sweep that have no result: it did not finish."""
    done = {line["cell"] for line in lines}
    for cell in cells:
        if cell.name not in done:
            yield Violation(cell=cell.name, rule="present", wanted="in the results", found="missing")


def matches(words: str, cell: str) -> bool:
    """Whether a cell's name holds all the words."""
    return set(filter(None, words.split(","))) <= set(cell.split(","))


def _hold(threshold: Threshold, line: Line) -> Iterator[Violation]:
    cell = line["cell"]
    if threshold.fits is not None and line.get("fits") is not threshold.fits:
        yield _violation(cell, "fits", threshold.fits, line.get("fits"))
    least, most = threshold.min_tokens_per_s_per_device, threshold.max_memory_bytes
    if least is not None and (line.get(RATE) or 0.0) < least:
        yield _violation(cell, RATE, f"at least {least:g}", line.get(RATE))
    peak = line.get("peak_memory_bytes")
    if most is not None and (peak is None or peak > most):
        found = "none" if peak is None else format_bytes(peak)
        yield _violation(cell, "memory", f"at most {format_bytes(most)}", found)
    if threshold.plan_id is not None and line.get("plan_id") != threshold.plan_id:
        yield _violation(cell, "plan_id", threshold.plan_id, line.get("plan_id"))


def _violation(cell: str, rule: str, wanted: Any, found: Any) -> Violation:
    return Violation(cell=cell, rule=rule, wanted=str(wanted), found=str(found))
