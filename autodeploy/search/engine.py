"""The engines: exact over plans arranged by rule and over the layer cuts of the best shapes, and a study by Optuna."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, Literal

import numpy as np

from autodeploy.analysis.inventory import kind_counts
from autodeploy.balance.solving import SOLVE
from autodeploy.numeric import largest, total
from autodeploy.search.arrange import microbatches_of
from autodeploy.search.enumerate import broken_rules, enumerate_plans, legal_plans
from autodeploy.search.evaluate import arranged, evaluate
from autodeploy.search.exact import Limits, Outcome, Progress, Report, Status, search_plans, silent
from autodeploy.search.layers import LayerTable
from autodeploy.search.outer import BUDGETS, FIELDS, FIT, cut_plans, shortlist
from autodeploy.search.result import PlanResult
from autodeploy.search.steps import simulate_steps
from autodeploy.spec.plan import Overlap, Plan, table_of
from autodeploy.spec.space import Space

Engine = Literal["auto", "exact", "optuna"]
ENGINES: tuple[Engine, ...] = ("auto", "exact", "optuna")
CUT_SHAPES = {"fast": 0, "normal": 32, "deep": 128}
"""`auto`: how many of the best shapes are searched with layers cut beyond the rules, by effort."""
FINALISTS = 20
"""Ranked plans whose selections are solved."""
STUDY_SHAPES = 24
"""Shapes that a study looks at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a search is asked to do."""

    engine: Engine = "auto"
    top: int = 20
    timeout_s: float | None = None
    seed: int = 0
    cut_shapes: int = CUT_SHAPES["normal"]
    trials: int = 1200
    workers: int = 1
    storage: str | None = None
    sampler: str = "nsga2"
    solve: bool = True
    """Solve what the ranked plans rebuild (not for `exact`, whose answer is the proof over rules)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a search found."""

    space: Space
    outcomes: tuple[Outcome, ...]
    """Plans arranged by rule; then, for `auto`, cuts of the best shapes."""
    results: tuple[PlanResult, ...]
    """Best first."""
    status: Status
    gap_frac: float
    study: dict[str, Any] | None = None
    """What a study did, for reports."""

    @property
    def legal(self) -> int:
        """Plans arranged."""
        return sum(len(outcome.enumeration.legal) for outcome in self.outcomes)

    def facts(self) -> dict[str, Any]:
        """The `search` part of a plan document."""
        parts = [outcome.facts() for outcome in self.outcomes]
        summed = {name: sum(part[name] for part in parts) for name in ("candidates", "legal", "fits", "simulated")}
        refused = {name: _merge([part[name] for part in parts]) for name in ("refused", "refused_by_memory")}
        return summed | refused | {"gap_frac": self.gap_frac} | ({"study": self.study} if self.study else {})


def _merge(counts: list[dict[str, int]]) -> dict[str, int]:
    return {key: sum(part.get(key, 0) for part in counts) for part in counts for key in part}


def search(space: Space, request: Request, report: Report = silent) -> Answer:
    """Rank the plans of a space. Raises `SpecError` for a faulty space or storage."""
    progress = Progress()
    report(progress)
    limits = Limits(top=_places(request), timeout_s=request.timeout_s)
    ruled = search_plans(space, enumerate_plans(space), progress, limits, report)
    if ruled.status in ("timeout", "interrupted", "infeasible") or request.engine == "exact":
        return _answer([ruled], request)
    if request.engine == "optuna":
        return _study(ruled, request, progress, report)
    return _answer([ruled, *_cuts(ruled, request, progress, limits, report)], request)


def _cuts(ruled: Outcome, request: Request, progress: Progress, limits: Limits, report: Report) -> list[Outcome]:
    """The best shapes again, with every cut of their layers that could still bring a plan among the first."""
    if not request.cut_shapes or ruled.space.plan.layout != ("auto",):
        return []
    plans = cut_plans(shortlist(ruled.space, ruled.screened, request.cut_shapes))
    if not plans:
        return []
    last = float(ruled.step_s[-1]) if len(ruled.step_s) >= _places(request) else float("inf")
    return [
        search_plans(
            ruled.space,
            legal_plans(ruled.space, table_of(plans)),
            progress,
            replace(limits, top=len(plans), limit_s=last),
            report,
        )
    ]


def _answer(outcomes: list[Outcome], request: Request) -> Answer:
    steps: dict[Plan, float] = {}
    for outcome in outcomes:
        steps |= outcome.steps()
    worst = max(outcomes, key=lambda outcome: outcome.gap_frac)
    status = next((o.status for o in outcomes if o.status in ("timeout", "interrupted")), outcomes[0].status)
    return Answer(
        space=outcomes[0].space, outcomes=tuple(outcomes), results=tuple(_rank(outcomes[0].space, steps, request)),
        status=status, gap_frac=worst.gap_frac,
    )  # fmt: skip


def _solves(request: Request) -> bool:
    return request.solve and request.engine != "exact"


def _places(request: Request) -> int:
    """Places to prove: where the first plans are solved after that, always so many that the answer does not depend on
    how many are asked for."""
    return max(request.top, FINALISTS) if _solves(request) else request.top


def _rank(space: Space, steps: Mapping[Plan, float], request: Request) -> list[PlanResult]:
    """The best plans in full."""
    return _in_full(space, _finalists(space, steps, request), request)


def _in_full(space: Space, steps: Mapping[Plan, float], request: Request) -> list[PlanResult]:
    """The first plans in full, each on its best layout."""
    return [evaluate(space, plan) for plan in _distinct(space, sorted_by_step(steps), request.top)]


def _finalists(space: Space, steps: Mapping[Plan, float], request: Request) -> dict[Plan, float]:
    """The best plans with their steps, what they rebuild solved; ties to the layout that a rule makes."""
    ordered = sorted(steps, key=lambda plan: (steps[plan], plan.layout != "auto"))
    plans = _distinct(space, ordered, _places(request))
    if not _solves(request):
        return {plan: steps[plan] for plan in plans}
    return dict(_solved(space, plan, steps[plan]) for plan in plans)


def _distinct(space: Space, plans: Iterable[Plan], count: int) -> list[Plan]:
    """The first so many. Plans that differ in nothing but the cut of their layers are one, unless the space lists
    several layouts; so are those that differ in how missing bytes are found, unless it lists how."""
    single = len(space.plan.layout) == 1
    best: dict[Plan, Plan] = {}
    for plan in plans:
        policy = plan.recompute if plan.recompute in space.plan.recompute else FIT
        best.setdefault(replace(plan, layout="" if single else plan.layout, recompute=policy), plan)
        if len(best) == count:
            break
    return list(best.values())


def sorted_by_step(steps: Mapping[Plan, float]) -> list[Plan]:
    """Fastest first; ties as they come."""
    return sorted(steps, key=lambda plan: steps[plan])


def _solved(space: Space, ruled: Plan, ruled_s: float) -> tuple[Plan, float]:
    """A plan that the rule arranged, or the same with its selections solved, where the target can do what they ask and
    the step gets shorter; and the step."""
    plan = replace(ruled, recompute=SOLVE)
    if ruled.recompute != FIT or broken_rules(space, plan):
        return ruled, ruled_s
    found = arranged(space, plan)
    step_s = float(simulate_steps(found, int(found.microbatches)).step_s[0])
    return (plan, step_s) if found.fits and step_s < ruled_s else (ruled, ruled_s)


def content_hash(space: Space, request: Request) -> str:
    """12 hex digits over everything that a study's answer depends on."""
    parts = [asdict(replace(space, inputs={})), request.trials, request.seed, request.sampler, STUDY_SHAPES]
    parts += [FIELDS, BUDGETS if request.solve else ()]
    text = json.dumps([*parts, version("autodeploy")], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _study(ruled: Outcome, request: Request, progress: Progress, report: Report) -> Answer:
    """Optuna on the most promising shapes, beside the plans arranged by rule."""
    from autodeploy.search.crew import run_groups
    from autodeploy.search.study import Ledger, Settings, storage_at

    space = ruled.space
    outer = shortlist(space, ruled.screened, STUDY_SHAPES)
    if not request.solve:
        outer = replace(outer, budgets=(FIT,))
    settings = Settings(trials=request.trials, seed=request.seed, sampler=request.sampler)  # type: ignore[arg-type]

    def hear(done: int, best_s: float) -> None:
        progress.stage, progress.best_s = f"study, group {done}", min(progress.best_s, best_s)
        report(progress)

    deadline = None if request.timeout_s is None else progress.started_s + request.timeout_s
    with storage_at(request.storage) as storage:
        ledger = Ledger(storage, space.name, content_hash(space, request))
        ledger.check()
        found = run_groups(outer, settings, ledger, request.workers, deadline_s=deadline, report=hear)
    finalists = _finalists(space, ruled.steps(), request) | _finalists(space, found.step_s, request)
    results = _in_full(space, finalists, request)
    facts = {
        "sampler": request.sampler, "trials": found.trials, "simulated": found.simulated, "shapes": len(outer.shapes),
        "groups": found.groups, "content_hash": ledger.content_hash,
    }  # fmt: skip
    best = results[0].step_time_s
    gap = max(0.0, (best - free_bound_s(ruled)) / best)
    status: Status = found.stopped or ("gap" if gap else "optimal")  # type: ignore[assignment]
    return Answer(space=space, outcomes=(ruled,), results=tuple(results), status=status, gap_frac=gap, study=facts)


def free_bound_s(outcome: Outcome) -> float:
    """The smallest bound over all legal plans with layers cut in any way: all work spread evenly over the stages,
    nothing rebuilt, no fill or drain, no tail. Never above any simulation of any layout."""
    plans, layers = outcome.screened.plans, outcome.screened.layers
    alone, hidden = _whole_work_s(outcome.space, layers)
    work = np.where(plans.overlap == Overlap.PAIR, hidden, alone)
    return float((microbatches_of(outcome.space, plans) * work / plans.pp).min())


def _whole_work_s(space: Space, layers: LayerTable) -> tuple[Any, Any]:
    """Per plan: seconds of one microbatch through the whole model, alone and with everything hidden."""
    counts = kind_counts(space.model, space.job.mtp)
    passes = [(count, layers.costs[kind].forward.plus(layers.costs[kind].backward)) for kind, count in counts.items()]
    alone = total([count * load.alone for count, load in passes])
    lanes = [total([count * getattr(load, lane) for count, load in passes]) for lane in ("busy", "inner", "outer")]
    return alone[layers.index], largest(lanes)[layers.index]
