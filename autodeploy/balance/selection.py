"""What a stage rebuilds and what it swaps to the host, so that it fits at the least added time. Exact.

The problem. Per class of alike layers choose how many rebuild everything, and per part how many rebuild it, or that
all layers swap it; no layer does two of these with the same part. At every moment the bytes saved must reach the need
and what the saving works on: the largest thing that is under rebuilding at once (a part, or all that full drops), and
two buffers for all parts that a class swaps, of the class with the most. Swapped bytes stay within the class's link
and, at their peak, within the host. A part is swapped in all layers of its class or in none: with any number of
layers very many choices cost nearly the same.

The method. What rebuilding and the buffers work on are two of few limits. For each pair of limits, prices of what the
stage needs prove a lower bound (`selection_duals`), and all choices near the bound are listed (`selection_lists`).
The distance from the bound is widened until it holds a choice that fits; the cheapest of them is the least of all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autodeploy.balance.selection_duals import (
    Limits,
    Prices,
    mode_prices,
    problem_of,
    refine,
    row_prices,
    with_buffers,
)  # fmt: skip
from autodeploy.balance.selection_greedy import greedy
from autodeploy.balance.selection_lists import Choices, Goal, choices_near, combined
from autodeploy.balance.selection_values import (
    Counts,
    FrontierPoint,
    Selection,
    StageNeed,
    evaluate,
    fits,
    slack_bytes,
)  # fmt: skip

__all__ = ("best_effort", "frontier", "greedy", "relaxed_s", "select")

FIRST_FRAC = 0.004
"""The first distance from the bound, as a share of it."""
WIDER = 4.0
"""By how much the distance grows where it holds no choice."""
ROUNDING = 1e-9
"""Of a value: differences that count as none."""


def select(stage: StageNeed, within_s: float = 0.0) -> Selection | None:
    """The selection that fits at the least added seconds, or one at most `within_s` above; None where none fits.

    Source: bounded knapsack by dominance lists (Nemhauser and Ullmann 1969) around Lagrangian bounds, as in the core
    problem of Balas and Zemel 1980.
    """
    if max(stage.need_bytes) <= 0.0:
        return evaluate(stage, _nothing(stage))
    start = greedy(stage)
    if start is None:
        start = best_effort(stage)
        if not fits(stage, start):
            return None
    search = _Search(stage, timed=True)
    best = search.least(start, within_s)
    return evaluate(stage, best.counts, search.bound)


def best_effort(stage: StageNeed) -> Selection:
    """The selection that leaves the least missing at the worst moment, whatever time it adds."""
    if not stage.classes:
        return evaluate(stage, ())
    return _Search(stage, timed=False).least(evaluate(stage, _nothing(stage)))


def relaxed_s(stage: StageNeed) -> float:
    """Seconds that every selection adds at least, with counts that need not be whole; without meaning where none
    fits."""
    if max(stage.need_bytes) <= 0.0 or not stage.classes:
        return 0.0
    return _Search(stage, timed=True).bound


def frontier(stage: StageNeed, points: int) -> list[FrontierPoint]:
    """The least seconds for needs from nothing to the most that can be saved, at equal distances.

    Needs of several moments keep their differences: what is saved is said of the moment that needs most.
    """
    top = max(stage.need_bytes)
    most = top - best_effort(stage).short_bytes
    found = []
    for point in range(points):
        saved = most * point / max(1, points - 1)
        chosen = select(replace(stage, need_bytes=tuple(need - top + saved for need in stage.need_bytes)))
        if chosen is not None:
            found.append(FrontierPoint(saved_bytes=saved, added_s=chosen.added_s))
    return found


def _nothing(stage: StageNeed) -> tuple[Counts, ...]:
    return tuple(
        Counts(label=c.label, full=0, rebuilt=(0,) * len(c.parts), swapped=(0,) * len(c.parts)) for c in stage.classes
    )


class _Search:
    """One stage: bounds of every pair of limits, and the choices near them.

    A pair is a limit of bytes under rebuilding and one of buffers, both charged in full. Of what keeps within a pair
    nothing beats the pair's bound; a selection keeps within the pair of what it works on.
    """

    def __init__(self, stage: StageNeed, timed: bool) -> None:
        self.stage, self.timed = stage, timed
        self.problem = a = problem_of(stage, timed)
        self.slack = slack_bytes(stage)
        self.hosted = bool(a.peak @ [modes.figures[:, 2].max() for modes in a.modes] > a.host)
        prices = row_prices(a, timed, self.hosted)
        each = len(a.buffers)
        self.limits = Limits(rebuild=np.repeat(a.thresholds, each), buffer=np.tile(a.buffers, len(a.thresholds)))
        self.prices = Prices(
            bound=with_buffers(a, prices).ravel(), moment=np.repeat(prices.moment, each, axis=0),
            host=np.repeat(prices.host, each),
        )  # fmt: skip
        self.refined = np.full(len(self.prices.bound), each == 1 or not timed)
        bound = float(self.prices.bound.min())
        self.bound = max(0.0, bound - ROUNDING * abs(bound)) if timed else bound

    def value(self, selection: Selection) -> float:
        """What is made least."""
        return selection.added_s if self.timed else selection.short_bytes

    def least(self, best: Selection, within: float = 0.0) -> Selection:
        """The best selection of all, or one that is above it by no more than `within`, from one to begin with."""
        bound = self.prices.bound
        distance = FIRST_FRAC * (abs(bound.min()) or abs(self.value(best)))
        while self.value(best) - within > (low := float(bound.min())):
            cut = low + distance
            self._refine(self._limit(best, cut, within))
            for pair in np.argsort(bound, kind="stable"):
                limit = self._limit(best, cut, within)
                if bound[pair] > limit:
                    break
                best = self._near(int(pair), limit, best)
            if self.value(best) - within <= cut:
                break
            distance *= WIDER
        return best

    def _limit(self, best: Selection, cut: float, within: float) -> float:
        """What a better selection within the cut has at most."""
        value = self.value(best) - within
        return min(cut, value * (1.0 - ROUNDING) if self.timed else value - self.slack)

    def _refine(self, limit: float) -> None:
        """Better prices for the pairs with a bound up to the limit."""
        at = np.flatnonzero((self.prices.bound <= limit) & ~self.refined)
        if not len(at):
            return
        self.refined[at] = True
        better = refine(self.problem, self.prices.row(at), self.limits.row(at), self.hosted)
        self.prices.bound[at], self.prices.moment[at], self.prices.host[at] = better.bound, better.moment, better.host

    def _near(self, pair: int, limit: float, best: Selection) -> Selection:
        """The best selection within a pair and with a value up to the limit, or the one given."""
        a, row = self.problem, np.array([pair])
        price, limits = self.prices.row(row), self.limits.row(row)
        values = [mode_prices(a, c, price.moment, price.host, limits) for c in range(len(a.modes))]
        excess = limit - price.bound[0] + ROUNDING * (abs(limit) + abs(price.bound[0]))
        lists = [
            choices_near(modes, value[0] - value.min(), parts[0], excess, self.hosted)
            for modes, (value, parts) in zip(a.modes, values, strict=True)
        ]
        need = a.need + limits.rebuild + limits.buffer - self.slack
        goal = Goal(excess=excess, need=need if self.timed else need - limit, host=a.host, hosted=self.hosted)
        index, figures = combined(lists, a.live, goal)
        if not len(index):
            return best
        value = figures[:, 1] if self.timed else -(figures[:, 3:] - a.need).min(axis=1)
        first = index[value.argmin()]
        found = evaluate(self.stage, [self._counts(c, each, first[c]) for c, each in enumerate(lists)])
        return found if self.value(found) < self.value(best) else best

    def _counts(self, at: int, choices: Choices, row: int) -> Counts:
        layers, modes, mode = self.stage.classes[at], self.problem.modes[at], choices.mode[row]
        return Counts(
            label=layers.label, full=int(modes.full[mode]), rebuilt=tuple(int(x) for x in choices.rebuilt[row]),
            swapped=tuple(int(x) * layers.count for x in modes.swapped[mode]),
        )  # fmt: skip
