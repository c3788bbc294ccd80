"""The engines: exact over plans arranged by rule, and a study of layouts beyond the rules on top of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from autodeploy.analysis.inventory import kind_counts
from autodeploy.numeric import maximum, total
from autodeploy.search.arrange import microbatches_of
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import Outcome, Progress, silent
from autodeploy.search.result import PlanResult
from autodeploy.search.screen import LayerTable
from autodeploy.spec.plan import Overlap, Plan, PlanTable
from autodeploy.spec.space import Space

SHORTLIST = 24
"""Shapes that a study looks at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a study is asked to do."""

    trials: int
    workers: int
    seed: int
    storage: str | None = None
    sampler: str = "nsga2"


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyAnswer:
    """What a study added to an exact outcome."""

    steps_s: dict[Plan, float]
    facts: dict[str, Any]
    status: str
    gap_frac: float


def content_hash(space: Space, request: Request) -> str:
    """12 hex digits over everything that a study's answer depends on."""
    parts = [asdict(replace(space, inputs={})), request.trials, request.seed, request.sampler, SHORTLIST]
    text = json.dumps([*parts, version("autodeploy")], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def study_layouts(
    outcome: Outcome,
    request: Request,
    *,
    deadline_s: float | None = None,
    report: Callable[[Progress], None] = silent,
    progress: Progress | None = None,
) -> StudyAnswer:
    """Search layouts and codes for the most promising shapes of an exact outcome with Optuna.

    Raises `SpecError` where the storage cannot be used.
    """
    from autodeploy.search.crew import run_groups
    from autodeploy.search.outer import shortlist
    from autodeploy.search.study import Ledger, Settings, open_storage

    space = outcome.space
    ledger = Ledger(open_storage(request.storage), space.name, content_hash(space, request))
    ledger.check()
    outer = shortlist(space, outcome.screened, SHORTLIST)
    settings = Settings(trials=request.trials, seed=request.seed, sampler=request.sampler)  # type: ignore[arg-type]
    state = progress or Progress()

    def hear(done: int, best_s: float) -> None:
        state.stage, state.best_s = f"study, group {done}", min(state.best_s, best_s)
        report(state)

    found = run_groups(outer, settings, ledger, request.workers, deadline_s=deadline_s, report=hear)
    best = min([*found.step_s.values(), *outcome.step_s], default=float("inf"))
    gap = max(0.0, (best - free_bound_s(outcome)) / best) if np.isfinite(best) else 1.0
    facts = {
        "sampler": request.sampler, "trials": found.trials, "simulated": found.simulated, "shapes": len(outer.shapes),
        "groups": found.groups, "content_hash": ledger.content_hash,
    }  # fmt: skip
    return StudyAnswer(steps_s=found.step_s, facts=facts, status=found.stopped or "gap", gap_frac=gap)


def free_bound_s(outcome: Outcome) -> float:
    """The smallest bound over all legal plans with layers cut in any way: all work spread evenly over the stages,
    nothing rebuilt, no fill or drain, no tail. Never above any simulation of any layout."""
    plans, layers = outcome.screened.plans, outcome.screened.layers
    if not len(plans):
        return float("inf")
    work = _whole_work_s(outcome.space, layers)
    merged = np.where(plans.overlap == Overlap.PAIR, work[1], work[0])
    return float((microbatches_of(outcome.space, plans) * merged / plans.pp).min())


def _whole_work_s(space: Space, layers: LayerTable) -> tuple[Any, Any]:
    """Per plan: seconds of one microbatch through the whole model, alone and with everything hidden."""
    counts = kind_counts(space.model, space.job.mtp)
    passes = [(count, layers.costs[kind].forward.plus(layers.costs[kind].backward)) for kind, count in counts.items()]
    alone = total([count * load.alone for count, load in passes])
    hidden = [total([count * load[lane] for count, load in passes]) for lane in (0, 2, 3)]
    best = maximum(hidden[0], maximum(hidden[1], hidden[2]))
    return alone[layers.index], best[layers.index]


def rank(outcome: Outcome, study: StudyAnswer | None, top: int) -> list[PlanResult]:
    """The best plans of both, each in full, best first; equal arrangements once."""
    steps: dict[Plan, float] = dict(study.steps_s) if study else {}
    plans: PlanTable = outcome.screened.plans
    for row, step in zip(outcome.rows, outcome.step_s, strict=True):
        steps.setdefault(plans.row(int(row)), float(step))
    ordered = sorted(steps, key=lambda plan: (steps[plan], plan.layout != "auto"))
    results: list[PlanResult] = []
    seen: set[tuple] = set()
    for plan in ordered:
        result = evaluate(outcome.space, plan)
        key = (replace(plan, layout=""), result.arrangement.layout, result.arrangement.recompute)
        if key not in seen:
            seen.add(key)
            results.append(result)
        if len(results) == top:
            break
    return results
