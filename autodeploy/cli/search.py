"""`autodeploy search`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from rich.status import Status

from autodeploy.catalog.lookup import load_space
from autodeploy.cli.exits import DONE, INTERRUPTED, NOTHING_FITS, say
from autodeploy.errors import NoFeasiblePlan, spec_error
from autodeploy.formats.document import check_writable, search_document, to_json, write_text
from autodeploy.report.tables import console, progress_line, search_report
from autodeploy.search.enumerate import describe
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import Outcome, Progress, search_exact
from autodeploy.search.nearest import nearest_miss
from autodeploy.search.result import PlanResult
from autodeploy.spec.space import Space

ENGINES = ("exact",)
INTERRUPTED_FILE = Path("plans.interrupted.json")


def run_search(
    path: Path, *, top: int, out: Path | None, gbs: int | None, engine: str, seed: int, timeout_s: float | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Search a space file; returns the exit code."""
    if engine not in ENGINES:
        raise spec_error("--engine", f"unknown {engine!r}", " ".join(ENGINES))
    if out is not None:
        check_writable(out)
    space = load_space(path, gbs)
    started = time.monotonic()
    outcome = _with_progress(space, top, timeout_s, started)
    if not len(outcome.enumeration.legal):
        raise _no_legal_plan(space, outcome)
    results = [evaluate(space, outcome.screened.plans.row(int(row))) for row in outcome.rows]
    document = _document(space, outcome, results, seed, time.monotonic() - started)
    kept = out or (INTERRUPTED_FILE if outcome.status == "interrupted" else None)
    if kept is not None:
        write_text(kept, to_json(document))
        say(f"kept in {kept}")
    _print(outcome, results, document, as_json)
    return _exit_code(space, outcome)


def _with_progress(space: Space, top: int, timeout_s: float | None, started: float) -> Outcome:
    """The search, with one moving line on a terminal and one final line elsewhere."""
    lines = console(stderr=True)
    last = Progress()

    def elapsed() -> float:
        return time.monotonic() - started

    if lines.is_terminal:
        with Status("", console=lines) as status:
            outcome = search_exact(space, top=top, timeout_s=timeout_s, report=lambda p: _show(status, p, elapsed()))
    else:
        outcome = search_exact(space, top=top, timeout_s=timeout_s)
    last.stage, last.candidates = "done", outcome.enumeration.candidates
    last.legal, last.fits = (
        len(outcome.enumeration.legal),
        len(outcome.enumeration.legal) - outcome.not_fitting,
    )
    last.simulated, last.gap_frac = outcome.simulated, outcome.gap_frac
    last.best_s = float(outcome.step_s[0]) if len(outcome.step_s) else float("inf")
    say(progress_line(last, elapsed()))
    return outcome


def _show(status: Status, progress: Progress, elapsed_s: float) -> None:
    status.update(progress_line(progress, elapsed_s))


def _document(space: Space, outcome: Outcome, results: list[PlanResult], seed: int, wall_s: float) -> dict[str, Any]:
    ideal = results[0].ideal_step_time_s if results else None
    facts = outcome.facts() | {"ideal_step_time_s": ideal, "seed": seed}
    return search_document(space, results, outcome.status, facts, {"wall_s": wall_s, "workers": 1})


def _print(outcome: Outcome, results: list[PlanResult], document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(to_json(document))
    else:
        console().print(search_report(outcome, results))


def _exit_code(space: Space, outcome: Outcome) -> int:
    if outcome.status == "interrupted":
        say("interrupted: ranked what was simulated so far")
        return INTERRUPTED
    if outcome.status == "infeasible":
        raise NoFeasiblePlan("nearest miss " + nearest_miss(space, outcome.screened).text(), outcome.refused)
    return DONE if len(outcome.rows) else NOTHING_FITS


def _no_legal_plan(space: Space, outcome: Outcome) -> Exception:
    counts = "; ".join(f"{count:,} by {describe(rule)}" for rule, count in outcome.refused.items())
    return spec_error("plan", f"no legal plan among {outcome.enumeration.candidates:,} candidates ({counts})",
                      "wider values", source=space.name)  # fmt: skip
