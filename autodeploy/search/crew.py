"""Workers for a study: groups of shapes spread over processes, with the same answer for any number of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autodeploy.processes import map_in_order
from autodeploy.search.judge import Judge, Judged
from autodeploy.search.outer import Outer, Point

if TYPE_CHECKING:
    from autodeploy.search.study import Ledger, Settings

GROUP_SHAPES = 2
"""Shapes that one study compares."""
Visited = list[tuple[Point, Judged]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What the groups found: every feasible plan with its step, and the cost of finding them."""

    step_s: dict
    """Plan -> simulated step."""
    trials: int
    simulated: int
    groups: int
    stopped: str = ""
    """`timeout` or `interrupted` where not all groups ran."""


def groups_of(outer: Outer) -> list[Outer]:
    """The shortlist in groups of neighbouring shapes."""
    shapes = outer.shapes
    return [replace(outer, shapes=shapes[i : i + GROUP_SHAPES]) for i in range(0, len(shapes), GROUP_SHAPES)]


def run_groups(
    outer: Outer,
    settings: Settings,
    ledger: Ledger,
    workers: int,
    *,
    deadline_s: float | None = None,
    report: Callable[[int, float], None] | None = None,
) -> Findings:
    """Run (or take from the ledger) every group; `report` hears how many are done and the best step.

    `deadline_s` is a time of `time.monotonic`, after which no further group is taken in.
    """
    groups = groups_of(outer)
    each = replace(settings, trials=max(settings.trials // max(len(groups), 1), 1))
    steps: dict = {}
    trials = simulated = 0
    stopped = ""
    try:
        for done, visited in enumerate(_results(groups, each, ledger, workers), 1):
            trials += len(visited)
            simulated += len({judged.plan for _, judged in visited if judged.broken_rules == 0})
            steps |= {judged.plan: judged.step_s for _, judged in visited if judged.plan and judged.feasible}
            if report is not None:
                report(done, min(steps.values(), default=float("inf")))
            if deadline_s is not None and time.monotonic() > deadline_s and done < len(groups):
                stopped = "timeout"
                break
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Findings(step_s=steps, trials=trials, simulated=simulated, groups=len(groups), stopped=stopped)


def _results(groups: Sequence[Outer], settings: Settings, ledger: Ledger, workers: int) -> Iterator[Visited]:
    """Visited points of every group in order, each kept in the ledger as soon as it is finished."""
    known = {number: ledger.finished(number, group) for number, group in enumerate(groups)}
    open_groups = [number for number, visited in known.items() if visited is None]
    tasks = [(groups[number], settings, settings.seed + number * GROUP_SHAPES) for number in open_groups]
    fresh = zip(open_groups, map_in_order(_run, tasks, workers), strict=True)
    for number, group in enumerate(groups):
        visited = known[number]
        if visited is None:
            _, visited = next(fresh)
            ledger.keep(number, group, visited)
        yield visited


def _run(task: tuple[Outer, Settings, int]) -> Visited:
    from autodeploy.search.study import run_study  # brings Optuna: only where a study runs

    outer, settings, seed = task
    return run_study(Judge(outer), settings, seed)
