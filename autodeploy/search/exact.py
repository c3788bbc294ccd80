"""The exact engine: screen all, then simulate in the order of promise until bounds prove the rest worse.

A plan is left unsimulated only if its bound is not below the last place asked for, so every rank printed is
proven, not only the first.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from autodeploy.search.arrange import microbatches_of
from autodeploy.search.enumerate import Enumeration, enumerate_plans
from autodeploy.search.screen import Screened, arrange_rows, screen
from autodeploy.search.steps import simulate_steps
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space

BATCH_ROWS = 256
Status = Literal["optimal", "gap", "timeout", "interrupted", "infeasible"]


@dataclass(slots=True)
class Progress:
    """How far a search has come. The only object of the search that changes."""

    stage: str = "enumerate"
    candidates: int = 0
    legal: int = 0
    fits: int = 0
    simulated: int = 0
    best_s: float = float("inf")
    gap_frac: float = 1.0
    started_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a search found: rows of `screened` with their simulated steps, best first."""

    space: Space
    enumeration: Enumeration
    screened: Screened
    status: Status
    rows: np.ndarray
    step_s: np.ndarray
    simulated: int
    gap_frac: float
    refused: dict[str, int]
    """Candidates per first failing rule; `memory.device` for legal plans that do not fit is apart."""
    not_fitting: int

    def steps(self) -> dict[Plan, float]:
        """The ranked plans with their steps."""
        plans = self.screened.plans
        return {plans.row(int(row)): float(step) for row, step in zip(self.rows, self.step_s, strict=True)}

    def facts(self) -> dict[str, Any]:
        """The `search` part of a plan document."""
        found = self.enumeration
        return {
            "candidates": found.candidates,
            "legal": len(found.legal),
            "fits": len(found.legal) - self.not_fitting,
            "simulated": self.simulated,
            "refused": dict(self.refused),
            "refused_by_memory": {"memory.device": self.not_fitting},
            "gap_frac": self.gap_frac,
        }


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """The report of a search that nobody watches."""
    del progress


def search_exact(
    space: Space,
    *,
    top: int = 20,
    timeout_s: float | None = None,
    report: Report = silent,
    reach_s: float = 0.0,
) -> Outcome:
    """Rank the plans of a space. `report` is called as the search goes on; every plan with a step below `reach_s`
    is simulated and kept as well.

    Raises `SpecError` for a faulty space. An interrupt (Ctrl-C) during simulation ends the search with what is
    proven so far.
    """
    progress = Progress()
    report(progress)
    found = enumerate_plans(space)
    return search_plans(space, found, progress, Limits(top=top, timeout_s=timeout_s, reach_s=reach_s), report)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How far a search goes."""

    top: int
    """Places asked for; all of them are proven."""
    timeout_s: float | None = None
    reach_s: float = 0.0
    """Every plan with a shorter step is simulated and kept, however many there are."""
    limit_s: float = float("inf")
    """Plans that cannot have a shorter step are of no interest."""


def search_plans(
    space: Space, found: Enumeration, progress: Progress, limits: Limits, report: Report = silent
) -> Outcome:
    """Rank legal plans: screen them all, simulate in the order of promise."""
    progress.stage, progress.candidates = "screen", progress.candidates + found.candidates
    progress.legal += len(found.legal)
    report(progress)
    screened = screen(space, found.legal)
    fitting = int(screened.fits.sum())
    progress.stage, progress.fits = "simulate", progress.fits + fitting
    report(progress)
    ranking = _Ranking(space, screened, limits)
    status = _simulate_all(ranking, progress, limits.timeout_s, report)
    rows, steps = ranking.best()
    gap = ranking.gap_frac()
    if not fitting:
        status = "infeasible"
    return Outcome(
        space=space, enumeration=found, screened=screened, status=status, rows=rows, step_s=steps,
        simulated=ranking.simulated, gap_frac=gap, refused=found.refused, not_fitting=len(found.legal) - fitting,
    )  # fmt: skip


class _Ranking:
    """Simulated steps so far, and the feasible rows still to come, shape by shape, each in order of bound."""

    def __init__(self, space: Space, screened: Screened, limits: Limits) -> None:
        self.space, self.screened, self.limits = space, screened, limits
        self.step_s = np.full(len(screened.plans), np.inf)
        self.microbatches = np.round(microbatches_of(space, screened.plans)).astype(int)
        self.groups = self._shapes()
        self.heap = [(screened.bound_s[rows[0]], key) for key, rows in self.groups.items()]
        heapq.heapify(self.heap)

    def _shapes(self) -> dict[tuple[int, int], np.ndarray]:
        feasible = np.nonzero(self.screened.fits)[0]
        order = feasible[np.argsort(self.screened.bound_s[feasible], kind="stable")]
        groups: dict[tuple[int, int], list[int]] = {}
        for row in order:
            key = (int(self.screened.case[row]), int(self.microbatches[row]))
            groups.setdefault(key, []).append(int(row))
        return {key: np.array(rows) for key, rows in groups.items()}

    def threshold_s(self) -> float:
        """Step of the last place asked for: what is not below it cannot matter."""
        done = self.step_s[np.isfinite(self.step_s)]
        place = self.limits.top - 1
        last = float(np.partition(done, place)[place]) if len(done) > place else float("inf")
        return max(min(last, self.limits.limit_s), self.limits.reach_s)

    @property
    def simulated(self) -> int:
        """Plans simulated so far."""
        return int(np.isfinite(self.step_s).sum())

    def next_batch(self) -> tuple[tuple[int, int], np.ndarray] | None:
        """The most promising shape and its rows worth simulating; None when all is proven."""
        limit = self.threshold_s()
        while self.heap and self.heap[0][0] < limit:
            _, key = heapq.heappop(self.heap)
            rows = self.groups[key]
            batch = rows[:BATCH_ROWS][self.screened.bound_s[rows[:BATCH_ROWS]] < limit]
            rest = rows[len(batch) :]
            self.groups[key] = rest
            if len(rest):
                heapq.heappush(self.heap, (self.screened.bound_s[rest[0]], key))
            if len(batch):
                return key, batch
        return None

    def simulate(self, key: tuple[int, int], rows: np.ndarray) -> None:
        """Fill in the steps of some rows of one shape."""
        case = self.screened.cases[key[0]]
        arranged = arrange_rows(self.space, case, self.screened.plans, rows, self.screened.layers)
        self.step_s[rows] = simulate_steps(arranged, key[1]).step_s

    def gap_frac(self) -> float:
        """(incumbent - smallest bound of an unsimulated plan that fits) / incumbent, 0 when none is below."""
        best = min(float(self.step_s.min(initial=np.inf)), self.limits.limit_s)
        open_rows = self.screened.fits & ~np.isfinite(self.step_s)
        if not open_rows.any():
            return 0.0
        if not np.isfinite(best):
            return 1.0
        return max(0.0, (best - float(self.screened.bound_s[open_rows].min())) / best)

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the best steps, and the steps. Ties: more headroom, then smaller degrees."""
        rows = np.nonzero(np.isfinite(self.step_s))[0]
        plans = self.screened.plans.rows(rows)
        size = plans.tp * plans.pp * plans.vpp * plans.ep * plans.etp
        asked = max(self.limits.top, int((self.step_s[rows] < self.limits.reach_s).sum()))
        order = np.lexsort((size, self.screened.needed_bytes[rows], self.step_s[rows]))[:asked]
        return rows[order], self.step_s[rows[order]]


def _simulate_all(ranking: _Ranking, progress: Progress, timeout_s: float | None, report: Report) -> Status:
    try:
        while (batch := ranking.next_batch()) is not None:
            ranking.simulate(*batch)
            progress.simulated += len(batch[1])
            progress.best_s = min(progress.best_s, float(ranking.step_s.min()))
            progress.gap_frac = ranking.gap_frac()
            report(progress)
            if timeout_s is not None and time.monotonic() - progress.started_s > timeout_s:
                return "optimal" if ranking.next_batch() is None else "timeout"
    except KeyboardInterrupt:
        return "interrupted"
    return "optimal"
