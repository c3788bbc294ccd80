"""`autodeploy sweep` and `autodeploy gate`."""

from __future__ import annotations

import os
from pathlib import Path

from rich.status import Status

from autodeploy.cli.exits import DONE, GATE_FAILED, SOME_FAILED, say
from autodeploy.errors import spec_error
from autodeploy.formats.document import check_writable
from autodeploy.report.sweeps import results_table, violations_table
from autodeploy.report.tables import console
from autodeploy.sweep.cells import cells_of, read_sweep
from autodeploy.sweep.gate import against_baseline, against_thresholds
from autodeploy.sweep.lines import FAILED, read_lines
from autodeploy.sweep.run import Progress, run_sweep


def run(file: Path, out: Path, workers: int | None) -> int:
    """Run a sweep; returns the exit code."""
    sweep = read_sweep(file)
    cells = cells_of(sweep)
    check_writable(out)
    lines_out = console(stderr=True)
    with Status(f"{len(cells)} cells", console=lines_out) as status:
        lines = run_sweep(sweep, cells, out, workers or os.cpu_count() or 1, lambda p: status.update(_text(p)))
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
    found = [*against_baseline(lines, read_lines(baseline), share)] if baseline else []
    found += against_thresholds(lines, read_sweep(sweep).thresholds) if sweep else []
    if found:
        console().print(violations_table(found))
        say(f"gate failed: {len(found)} violations in {len(lines)} cells")
        return GATE_FAILED
    console().print(f"gate passed: {len(lines)} cells")
    return DONE


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
