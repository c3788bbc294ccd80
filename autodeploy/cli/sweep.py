"""`autodeploy sweep` and `autodeploy gate`."""

from __future__ import annotations

import os
from pathlib import Path

from rich.status import Status

from autodeploy.cli.exits import DONE, GATE_FAILED, INTERRUPTED, SOME_FAILED, say
from autodeploy.errors import spec_error
from autodeploy.formats.document import check_writable
from autodeploy.report.sweeps import results_table, violations_table
from autodeploy.report.tables import console
from autodeploy.sweep.cells import cells_of, read_sweep
from autodeploy.sweep.gate import against_baseline, against_cells, against_thresholds
from autodeploy.sweep.lines import FAILED, Line, read_lines, salvage
from autodeploy.sweep.run import Progress, run_sweep


def run(file: Path, out: Path, workers: int | None) -> int:
    """Run a sweep; returns the exit code."""
    sweep = read_sweep(file)
    cells = cells_of(sweep)
    check_writable(out)
    lines_out = console(stderr=True)
    try:
        with Status(f"{len(cells)} cells", console=lines_out) as status:
            lines = run_sweep(sweep, cells, out, workers or os.cpu_count() or 1, lambda p: status.update(_text(p)))
    except KeyboardInterrupt:
        say(f"interrupted: {len(salvage(out))} of {len(cells)} cells kept in {out}; run again to go on")
        return INTERRUPTED
    console().print(results_table(lines))
    failed = sum(line["status"] == FAILED for line in lines)
    say(f"{len(lines)} cells, {failed} failed, kept in {out}")
    return SOME_FAILED if failed else DONE


def _text(progress: Progress) -> str:
    return f"{progress.done} of {progress.cells} cells, {progress.failed} failed, {progress.reused} reused"


def run_gate(results: Path, baseline: Path | None, max_regress: str, sweep: Path | None) -> int:
    """Gate results; returns the exit code."""
    if baseline is None and sweep is None:
        raise spec_error("gate", "nothing to hold the results against", "--baseline FILE, --sweep FILE, or both")
    share, lines = _share(max_regress), read_lines(results)
    found = [*against_baseline(lines, _baseline(baseline), share)] if baseline else []
    if sweep is not None:
        asked = read_sweep(sweep)
        found += against_cells(lines, cells_of(asked))
        found += against_thresholds(lines, asked.thresholds)
    if found:
        console().print(violations_table(found))
        say(f"gate failed: {len(found)} violations in {len(lines)} cells")
        return GATE_FAILED
    console().print(f"gate passed: {len(lines)} cells")
    return DONE


def _baseline(path: Path) -> list[Line]:
    """An earlier run; without a cell, no run could be worse than it."""
    lines = read_lines(path)
    if not lines:
        raise spec_error("--baseline", f"{path} holds no cell", "a file of sweep results")
    return lines


def _share(text: str) -> float:
    """`2%` or `0.02` as a share."""
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        share = float(number) / (100.0 if percent else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        raise spec_error("--max-regress", f"not a share: {text!r}", "0% to 99%, or 0 to 0.99")
    return share
