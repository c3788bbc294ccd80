"""Plans again, with what they rebuild and swap solved: in the order of what they would take if nothing were missing.

The order of the ladder is not that of solved plans where memory is short. Screened on devices with room for
everything, a plan has a bound that no choice of what to rebuild or swap can beat; so what is left unsolved is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from autodeploy.balance.solving import is_solved
from autodeploy.search.arranged import Arranged
from autodeploy.search.evaluate import arranged
from autodeploy.search.outer import FIT, budgets_of
from autodeploy.search.screen import Screened, screen
from autodeploy.search.steps import step_s_of
from autodeploy.spec.plan import FIRST_SPLIT, Plan, PlanTable
from autodeploy.spec.space import Space

ROOM_BYTES = 1e18
"""More than any stage needs."""
SAMPLE = 16
"""Plans of a table that tell whether its target lets selections be solved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """A plan whose selections are open, and what it takes with nothing rebuilt."""

    plan: Plan
    screen_s: float
    bound_s: float
    """No choice of layout by its rule, of what to rebuild or to swap makes the step shorter."""
    doubtful: bool = False
    """Its ladder does not fit, and what waits for weight gradients is neither rebuilt nor swapped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Solved:
    """What solving found."""

    step_s: dict[Plan, float]
    """Plans that fit with solved selections."""
    arranged: dict[Plan, Arranged]
    """What was chosen for them."""
    tried: int
    open_bound_s: float
    """The smallest bound of the plans left unsolved; infinite if there are none."""
    interrupted: bool = False

    def gap_frac(self, best_s: float) -> float:
        """By how much some plan left unsolved could be faster than the best step, at most."""
        return max(0.0, 1.0 - self.open_bound_s / best_s)


def promises(space: Space, screens: Iterable[Screened], below_s: float) -> list[Promise]:
    """Plans that may be solved, gain by it and could take less than `below_s`; the most promising first, doubtful ones
    after all others."""
    found = [promise for each in screens if _solvable(space, each.plans) for promise in _promises(space, each, below_s)]
    return sorted(found, key=lambda promise: (promise.doubtful, promise.screen_s))


def freest(space: Space, plan: Plan) -> Plan | None:
    """The plan with the freest solved policy that target and cluster allow, its own if it names one; None without."""
    if is_solved(plan.recompute):
        return plan
    budgets = budgets_of(space, [plan]) if plan.recompute == FIT else (FIT,)
    return replace(plan, recompute=budgets[-1]) if len(budgets) > 1 else None


def solve_plans(
    space: Space,
    ordered: Iterable[Promise],
    count: int,
    last_s: Callable[[dict[Plan, float]], float],
    halted: Callable[[], bool] = lambda: False,
) -> Solved:
    """Solve up to `count` plans in the order given, until `halted`. One whose bound is not below `last_s`, the step
    that still matters given those found, is left out."""
    step_s: dict[Plan, float] = {}
    chosen: dict[Plan, Arranged] = {}
    tried, interrupted, waiting = 0, False, deque(ordered)
    try:
        while waiting and tried < count and not halted():
            promise = waiting[0]
            if promise.bound_s < last_s(step_s) and (plan := freest(space, promise.plan)) is not None:
                found = arranged(space, plan)
                tried += 1
                if found.fits:
                    step_s[plan], chosen[plan] = step_s_of(found), found
            waiting.popleft()
    except KeyboardInterrupt:
        interrupted = True
    left = min((promise.bound_s for promise in waiting), default=float("inf"))
    return Solved(step_s=step_s, arranged=chosen, tried=tried, open_bound_s=left, interrupted=interrupted)


def _solvable(space: Space, table: PlanTable) -> bool:
    rows = np.unique(np.linspace(0, len(table) - 1, SAMPLE).astype(int)) if len(table) else ()
    return any(freest(space, table.row(int(row))) is not None for row in rows)


def _promises(space: Space, screened: Screened, below_s: float) -> Iterator[Promise]:
    words = screened.plans.words["recompute"]
    rows = np.nonzero(np.array([word == FIT or is_solved(word) for word in words])[screened.plans.recompute])[0]
    free = screen(_roomy(space), screened.plans.rows(rows))
    nothing_missing = screened.fits[rows] & (screened.screen_s[rows] <= free.screen_s)
    for row in np.nonzero(~nothing_missing & (free.least_bound_s < below_s))[0].tolist():
        screen_s, bound_s = float(free.screen_s[row]), float(free.least_bound_s[row])
        plan = free.plans.row(row)
        doubtful = plan.schedule >= FIRST_SPLIT and not screened.fits[rows[row]]
        yield Promise(plan=plan, screen_s=screen_s, bound_s=bound_s, doubtful=bool(doubtful))


def _roomy(space: Space) -> Space:
    device = replace(space.cluster.device, hbm_bytes=ROOM_BYTES)
    return replace(space, cluster=replace(space.cluster, device=device))
