"""The engines: exact over plans arranged by rule and over the layer cuts of the best shapes, and a study by Optuna."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, Literal

import numpy as np

from autodeploy.analysis.inventory import kind_counts
from autodeploy.balance.solving import is_solved
from autodeploy.numeric import largest, total
from autodeploy.search.arrange import microbatches_of
from autodeploy.search.arranged import Arranged
from autodeploy.search.enumerate import enumerate_plans, legal_plans
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import Limits, Outcome, Progress, Report, Status, search_plans, silent
from autodeploy.search.layers import LayerTable
from autodeploy.search.outer import BUDGETS, FIELDS, FIT, cut_plans, shortlist
from autodeploy.search.result import PlanResult
from autodeploy.search.solved import Promise, Solved, promises, solve_plans
from autodeploy.spec.plan import Overlap, Plan, table_of
from autodeploy.spec.space import Space

UNSOLVED = Solved(step_s={}, arranged={}, tried=0, open_bound_s=float("inf"))
Engine = Literal["auto", "exact", "optuna"]
ENGINES: tuple[Engine, ...] = ("auto", "exact", "optuna")
CUT_SHAPES = {"fast": 0, "normal": 32, "deep": 128}
"""`auto`: how many of the best shapes are searched with layers cut beyond the rules, by effort."""
FINALISTS = 20
"""Places that are proven before plans are solved."""
SOLVE_PLANS = {"fast": 20, "normal": 200, "deep": 2000}
"""`auto`: how many plans are solved, by effort."""
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
    """Solve what plans rebuild and swap (not for `exact`, whose answer is the proof over rules)."""
    solve_plans: int = SOLVE_PLANS["normal"]
    """How many `auto` solves at most."""


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
    solved: Solved | None = None
    """Plans solved after the proof over the ladder."""
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
        extra = {"study": self.study} if self.study else {}
        return summed | refused | {"gap_frac": self.gap_frac} | self._solved_facts() | extra

    def _solved_facts(self) -> dict[str, Any]:
        if self.solved is None or not self.results:
            return {}
        gap = self.solved.gap_frac(self.results[0].step_time_s)
        return {"solved": {"plans": self.solved.tried, "fit": len(self.solved.step_s), "gap_frac": gap}}


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
    outcomes = [ruled, *_cuts(ruled, request, progress, limits, report)]
    return _answer(outcomes, request, _solved(outcomes, request, progress, report))


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


def _answer(outcomes: list[Outcome], request: Request, solved: Solved | None = None) -> Answer:
    """What outcomes come to, and plans solved after them."""
    space, steps = outcomes[0].space, _steps(outcomes)
    worst = max(outcomes, key=lambda outcome: outcome.gap_frac)
    found = solved or UNSOLVED
    return Answer(
        space=space, outcomes=tuple(outcomes), status=_status(outcomes, found), gap_frac=worst.gap_frac,
        results=tuple(_in_full(space, steps | found.step_s, request, found.arranged)), solved=solved,
    )  # fmt: skip


def _status(outcomes: Sequence[Outcome], solved: Solved) -> Status:
    """The first that was cut short, else that of the plans arranged by rule."""
    cut_short = [o.status for o in outcomes if o.status in ("timeout", "interrupted")]
    return next(iter(cut_short), "interrupted" if solved.interrupted else outcomes[0].status)


def _steps(outcomes: Iterable[Outcome]) -> dict[Plan, float]:
    return {plan: step for outcome in outcomes for plan, step in outcome.steps().items()}


def _solved(outcomes: list[Outcome], request: Request, progress: Progress, report: Report) -> Solved | None:
    """Recompute and swap solved: of the plans ranked, then of those that promise most."""
    if not request.solve or _status(outcomes, UNSOLVED) != "optimal":
        return None
    progress.stage = "solve"
    report(progress)
    space, places = outcomes[0].space, _places(request)
    kept = _kept(space, _steps(outcomes), request)

    def last_s(step_s: dict[Plan, float]) -> float:
        every = kept | step_s
        nth = _distinct(space, _ordered(every), places)
        return every[nth[-1]] if len(nth) == places else float("inf")

    def halted() -> bool:
        return request.timeout_s is not None and time.monotonic() - progress.started_s > request.timeout_s

    found = promises(space, [outcome.screened for outcome in outcomes], last_s({}))
    found.sort(key=lambda promise: promise.plan not in kept)
    return solve_plans(space, found, max(request.solve_plans, places), last_s, halted)


def _places(request: Request) -> int:
    """Places to prove: where plans are solved after that, always so many that the answer does not depend on how many
    are asked for."""
    return max(request.top, FINALISTS) if request.solve and request.engine != "exact" else request.top


def _in_full(
    space: Space, steps: dict[Plan, float], request: Request, arranged: Mapping[Plan, Arranged]
) -> list[PlanResult]:
    """The first plans in full, each on its best layout."""
    first = _distinct(space, _ordered(steps), request.top)
    return [evaluate(space, plan, arranged.get(plan)) for plan in first]


def _ordered(steps: dict[Plan, float]) -> list[Plan]:
    """Fastest first; ties to the layout that a rule makes, to the ladder, then as they come."""
    return sorted(steps, key=lambda plan: (steps[plan], plan.layout != "auto", is_solved(plan.recompute)))


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


def content_hash(space: Space, request: Request) -> str:
    """12 hex digits over everything that a study's answer depends on."""
    parts = [asdict(replace(space, inputs={})), request.trials, request.seed, request.sampler, STUDY_SHAPES]
    parts += [FIELDS, BUDGETS if request.solve else ()]
    text = json.dumps([*parts, version("autodeploy")], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _kept(space: Space, steps: dict[Plan, float], request: Request) -> dict[Plan, float]:
    """The plans in the places to prove."""
    return {plan: steps[plan] for plan in _distinct(space, _ordered(steps), _places(request))}


def _solved_too(space: Space, kept: dict[Plan, float]) -> Solved:
    """Those that the ladder fitted, solved."""
    ordered = [Promise(plan=plan, screen_s=step, bound_s=0.0) for plan, step in kept.items() if plan.recompute == FIT]
    return solve_plans(space, ordered, len(ordered), lambda _: float("inf"))


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
    kept = _kept(space, ruled.steps(), request) | _kept(space, found.step_s, request)
    solved = _solved_too(space, kept) if request.solve else UNSOLVED
    results = _in_full(space, kept | solved.step_s, request, solved.arranged)
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
