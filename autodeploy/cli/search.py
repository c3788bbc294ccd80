"""`autodeploy search`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.status import Status

from autodeploy.cli.ask import Asked, asked_space
from autodeploy.cli.exits import DONE, INTERRUPTED, say
from autodeploy.cli.plans import plan_in_space
from autodeploy.errors import NoFeasiblePlan, SpecError, spec_error
from autodeploy.formats.document import check_writable, plan_document, search_document, to_json, write_text
from autodeploy.formats.space_text import space_text
from autodeploy.report.explain import chosen_words, explanation_facts
from autodeploy.report.tables import console, progress_line, search_report
from autodeploy.search.engine import CUT_SHAPES, ENGINES, SOLVE_PLANS, Answer, Request, search
from autodeploy.search.enumerate import describe
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import Progress
from autodeploy.search.nearest import nearest_miss
from autodeploy.search.result import PlanResult
from autodeploy.spec.space import Space

INTERRUPTED_FILE = Path("plans.interrupted.json")
TRIALS = {"fast": 300, "normal": 1200, "deep": 6000}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to search, and where the answer goes."""

    baseline: str | None
    write_space: Path | None
    top: int
    out: Path | None
    engine: str
    trials: int | None
    workers: int
    storage: str | None
    seed: int
    timeout_s: float | None
    as_json: bool


def run_search(asked: Asked, options: Options) -> int:
    """Search a space; returns the exit code."""
    request = _request(asked, options)
    space = asked_space(asked)
    choice = plan_in_space(options.baseline, space) if options.baseline else None
    baseline = evaluate(space, choice.plan) if choice else None
    answer, wall_s = _with_progress(space, request)
    if not answer.legal:
        raise _no_legal_plan(answer)
    if options.write_space is not None:
        write_text(options.write_space, space_text(space))
        say(f"space written to {options.write_space}")
    if choice and choice.chosen:
        say(f"baseline: {chosen_words(choice.named())}")
    yours = _baseline_document(answer, baseline) | {"chosen": choice.named()} if baseline and choice else None
    document = _document(answer, options, yours, wall_s)
    kept = options.out or (INTERRUPTED_FILE if answer.status == "interrupted" else None)
    if kept is not None:
        write_text(kept, to_json(document))
        say(f"kept in {kept}")
    if options.as_json:
        sys.stdout.write(to_json(document))
    else:
        screen = console()
        screen.print(search_report(answer, baseline, screen.width))
    return _exit_code(answer)


def _request(asked: Asked, options: Options) -> Request:
    """The request, after all that can be wrong with it was checked."""
    if options.engine not in ENGINES:
        raise spec_error("--engine", f"unknown {options.engine!r}", " ".join(ENGINES))
    for flag, path in (("--out", options.out), ("--write-space", options.write_space)):
        if path is None:
            continue
        if asked.space_file is not None and path.resolve() == asked.space_file.resolve():
            raise spec_error(flag, f"{path} is the space file", "another file")
        check_writable(path, flag)
    if options.write_space is not None and options.write_space.suffix.lower() != ".toml":
        raise spec_error(
            "--write-space", f"{options.write_space} is no .toml file", "a file whose name ends with .toml"
        )
    for name, value in (("--storage", options.storage), ("--trials", options.trials)):
        if value is not None and options.engine != "optuna":
            raise spec_error(name, f"of no use to --engine {options.engine}", "--engine optuna")
    if options.out is not None and options.out == options.write_space:
        raise spec_error("--write-space", f"{options.out} is also --out", "another file")
    return Request(
        engine=options.engine,
        top=options.top,
        timeout_s=options.timeout_s,
        seed=options.seed,
        cut_shapes=CUT_SHAPES.get(asked.effort, 0),
        solve_plans=SOLVE_PLANS.get(asked.effort, 0),
        trials=options.trials or TRIALS.get(asked.effort, 1),
        workers=options.workers,
        storage=options.storage,
    )


def _with_progress(space: Space, request: Request) -> tuple[Answer, float]:
    """The search and its wall seconds, with one moving line on a terminal and one final line elsewhere."""
    lines = console(stderr=True)
    started = time.monotonic()
    last = Progress()

    def keep(progress: Progress) -> Progress:
        nonlocal last
        last = progress
        return progress

    if lines.is_terminal:
        with Status("", console=lines) as status:
            answer = search(space, request, lambda progress: _show(status, keep(progress), started))
    else:
        answer = search(space, request, lambda progress: _show(None, keep(progress), started))
    last.stage, last.gap_frac, wall_s = "done", answer.gap_frac, time.monotonic() - started
    last.best_s = min([last.best_s, *(result.step_time_s for result in answer.results)])
    if answer.legal:
        say(progress_line(last, wall_s))
    return answer, wall_s


def _show(status: Status | None, progress: Progress, started: float) -> None:
    if status is not None:
        status.update(progress_line(progress, time.monotonic() - started))


def _document(answer: Answer, options: Options, yours: dict[str, Any] | None, wall_s: float) -> dict[str, Any]:
    ideal = answer.results[0].ideal_step_time_s if answer.results else None
    facts = answer.facts() | {"ideal_step_time_s": ideal, "seed": options.seed, "engine": options.engine}
    more = {"baseline": yours} if yours else {}
    run = {"wall_s": wall_s, "workers": options.workers}
    return search_document(answer.space, answer.results, answer.status, facts, run, **more)


def _baseline_document(answer: Answer, baseline: PlanResult) -> dict[str, Any]:
    """The user's own plan: in full, with the factor to the best and the terms that make it."""
    space, best = answer.space, answer.results[0] if answer.results else None
    return plan_document(space, 0, baseline) | {
        "rank": None,
        "factor_to_best": baseline.step_time_s / best.step_time_s if best else None,
        "explanation": explanation_facts(space, baseline, best),
    }


def _exit_code(answer: Answer) -> int:
    if answer.status == "interrupted":
        say("interrupted: ranked what was simulated so far")
        return INTERRUPTED
    if answer.status == "infeasible":
        ruled = answer.outcomes[0]
        raise NoFeasiblePlan("nearest miss " + nearest_miss(answer.space, ruled.screened).text(), ruled.refused)
    return DONE


def _no_legal_plan(answer: Answer) -> SpecError:
    found = answer.outcomes[0].enumeration
    counts = "; ".join(f"{count:,} by {describe(rule)}" for rule, count in found.refused.items())
    problem = f"no legal plan among {found.candidates:,} candidates ({counts})"
    return spec_error("plan", problem, "wider values", source=answer.space.name)
