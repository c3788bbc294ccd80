"""Prices of the limits of a stage, and the lower bounds that they prove.

With a price on every limit the layers of a stage no longer depend on each other, and what is least then is at most
what is least with the limits: Lagrangian relaxation. Every price of zero and above proves a bound; a good one proves
that of the linear relaxation. The bytes that rebuilding works on are no price: they are a threshold, and every
threshold has bounds of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autodeploy.balance.selection_lists import Modes, modes_of
from autodeploy.balance.selection_values import StageNeed

POINTS = 7
"""Prices tried at once in a search along a line."""
BLENDS = (0.1, 0.25, 0.5, 0.75)
"""Where between the prices of two moments a better bound is looked for."""
HOST_PRICES = (0.0, *(2.0**-k for k in range(8, -2, -1)))
"""Prices of the host that are tried, in prices of the need."""
REFINED = 2
"""Times that the best interval between two candidates is searched again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A stage as arrays."""

    modes: tuple[Modes, ...]
    live: np.ndarray
    """[classes, moments]."""
    peak: np.ndarray
    need: np.ndarray
    host: np.ndarray
    share: np.ndarray
    """Each class's part of the price of buffers; they add to one, or nothing is swapped."""
    thresholds: np.ndarray
    """All that the most bytes under rebuilding can be, least first."""
    buffers: np.ndarray
    """All that buffers can be."""
    sizes: np.ndarray
    """Seconds per byte saved of what can be done, a row each, [ways, moments]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The most bytes under rebuilding and in buffers, one row a point; without the latter buffers have a price."""

    rebuild: np.ndarray
    buffer: np.ndarray | None = None

    def row(self, at: np.ndarray) -> Limits:
        """Some points."""
        return Limits(rebuild=self.rebuild[at], buffer=None if self.buffer is None else self.buffer[at])

    def repeat(self, times: int) -> Limits:
        """Every row so many times."""
        buffer = None if self.buffer is None else np.repeat(self.buffer, times)
        return Limits(rebuild=np.repeat(self.rebuild, times), buffer=buffer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Prices of one or of many points, one row each, and the bounds they prove."""

    bound: np.ndarray
    moment: np.ndarray
    """[points, moments]."""
    host: np.ndarray

    def row(self, at: np.ndarray) -> Prices:
        """Some points."""
        return Prices(bound=self.bound[at], moment=self.moment[at], host=self.host[at])


def problem_of(stage: StageNeed, timed: bool) -> Problem:
    """The arrays of a stage; without time (`timed` false) seconds count nothing."""
    modes = tuple(modes_of(replace(c, live=()), stage.swap_s_per_byte, timed) for c in stage.classes)
    live = np.array([c.live for c in stage.classes])
    able = np.array([float(m.swapped.any()) for m in modes])
    offered = [m.kept[np.isfinite(m.seconds)] for m in modes]
    return Problem(
        modes=modes, live=live, peak=live.max(axis=1), need=np.array(stage.need_bytes),
        host=np.array(stage.host_bytes), share=able / max(1.0, able.sum()),
        thresholds=np.unique(np.concatenate([[0.0], *offered, *(m.rebuild for m in modes)])),
        buffers=np.unique(np.concatenate([m.figures[:, 3] for m in modes])), sizes=_sizes(modes, live),
    )  # fmt: skip


def _sizes(modes: tuple[Modes, ...], live: np.ndarray) -> np.ndarray:
    """Seconds per byte: of parts, of modes, and of modes in place of rebuilding all parts."""
    found = []
    for each, lives in zip(modes, live, strict=True):
        able = np.isfinite(each.seconds)
        parts = np.where(able, each.seconds, 0.0)
        plain = each.room[0] * able
        extra = each.figures[:, :2] + np.column_stack([each.room @ (each.kept * able), each.room @ parts])
        extra -= [plain @ each.kept, plain @ parts]
        pairs = np.concatenate([np.column_stack([each.kept, parts])[able], each.figures[1:, :2], extra[1:]])
        rates = pairs[:, 1] / np.where(pairs[:, 0] != 0.0, pairs[:, 0], 1.0)
        rates = np.unique(rates[rates > 0.0])
        found.append(rates[:, None] / np.where(lives > 0.0, lives, np.inf))
    return np.concatenate(found)


def part_prices(modes: Modes, saved: np.ndarray, rebuild_bytes: np.ndarray) -> np.ndarray:
    """What rebuilding each part once costs at a price of bytes saved: [points, parts], infinite where barred."""
    price = modes.seconds - saved[:, None] * modes.kept
    return np.where(modes.kept <= rebuild_bytes[:, None], price, np.inf)


def mode_prices(
    a: Problem, at: int, moment: np.ndarray, host: np.ndarray, limits: Limits
) -> tuple[np.ndarray, np.ndarray]:
    """Of one class: the least that each mode costs [points, modes], and what rebuilding each part once does."""
    modes = a.modes[at]
    saved = moment @ a.live[at]
    parts = part_prices(modes, saved, limits.rebuild)
    rates = [-saved, np.ones_like(saved), host * a.peak[at]]
    rates.append(np.zeros_like(saved) if limits.buffer is not None else a.share[at] * moment.sum(axis=1))
    value = np.column_stack(rates) @ modes.figures.T + np.minimum(parts, 0.0) @ modes.room.T
    if modes.rebuild.any():
        value = np.where(modes.rebuild <= limits.rebuild[:, None], value, np.inf)
    if limits.buffer is not None and a.share[at]:
        value = np.where(modes.figures[:, 3] <= limits.buffer[:, None], value, np.inf)
    return value, parts


def prove(a: Problem, moment: np.ndarray, host: np.ndarray, limits: Limits) -> Prices:
    """The bounds of some points: prices of moments [points, moments] and of the host, and limits [points]."""
    working = limits.rebuild if limits.buffer is None else limits.rebuild + limits.buffer
    bound = moment @ a.need + moment.sum(axis=1) * working - host * a.host
    for at in range(len(a.modes)):
        bound = bound + mode_prices(a, at, moment, host, limits)[0].min(axis=1)
    return Prices(bound=bound, moment=moment, host=host)


def with_buffers(a: Problem, prices: Prices) -> np.ndarray:
    """Bounds of every threshold with every limit of buffers: [thresholds, buffers]."""
    total, rebuild = prices.moment.sum(axis=1), a.thresholds
    free = Limits(rebuild=rebuild, buffer=np.full(len(rebuild), np.inf))
    bound = (prices.moment @ a.need + total * rebuild - prices.host * a.host)[:, None] + total[:, None] * a.buffers
    for at, modes in enumerate(a.modes):
        value = mode_prices(a, at, prices.moment, prices.host, free)[0]
        order = modes.by_buffer
        least = np.minimum.accumulate(value[:, order], axis=1)
        bound += least[:, np.searchsorted(modes.figures[order, 3], a.buffers, side="right") - 1]
    return bound


def _candidates(a: Problem, direction: np.ndarray) -> np.ndarray:
    """Sizes of a price at which a bound may bend."""
    every = (a.sizes @ direction) if len(a.sizes) else np.zeros(0)
    every = every[every > 0.0]
    top = every.max() if every.size else 1.0
    return np.unique(np.concatenate([[0.0], every, [4.0 * top, 64.0 * top, 4096.0 * top]]))


def along(a: Problem, direction: np.ndarray, host: np.ndarray, limits: Limits) -> Prices:
    """The best multiples of a direction of prices, one for every threshold. Bounds are concave along a line."""
    grid = _candidates(a, direction)
    rows = len(limits.rebuild)
    low, high = np.zeros(rows), np.full(rows, grid.size - 1.0)
    steps = np.arange(POINTS) / (POINTS - 1.0)
    for _ in range(12):
        at = np.rint(low[:, None] + (high - low)[:, None] * steps)
        found = _on_line(a, direction, grid[at.astype(int)], host, limits)
        best = found.bound.reshape(rows, POINTS).argmax(axis=1)
        pick = np.arange(rows)
        low, high = at[pick, np.maximum(best - 1, 0)], at[pick, np.minimum(best + 1, POINTS - 1)]
        if ((high - low) <= 2.0).all():
            break
    floor, ceiling = grid[low.astype(int)], grid[high.astype(int)]
    middle = grid[at[pick, best].astype(int)]
    for _ in range(REFINED):
        sizes = np.concatenate([floor[:, None] + (ceiling - floor)[:, None] * steps, middle[:, None]], axis=1)
        sizes.sort(axis=1)
        found = _on_line(a, direction, sizes, host, limits)
        best = found.bound.reshape(rows, -1).argmax(axis=1)
        floor, ceiling = sizes[pick, np.maximum(best - 1, 0)], sizes[pick, np.minimum(best + 1, POINTS)]
        middle = sizes[pick, best]
    chosen = pick * (POINTS + 1) + best
    return Prices(bound=found.bound[chosen], moment=found.moment[chosen], host=found.host[chosen])


def _on_line(a: Problem, direction: np.ndarray, sizes: np.ndarray, host: np.ndarray, limits: Limits) -> Prices:
    """Bounds of sizes [thresholds, points], in one row."""
    each = sizes.shape[1]
    return prove(a, sizes.reshape(-1, 1) * direction, np.repeat(host, each), limits.repeat(each))


def row_prices(a: Problem, timed: bool, hosted: bool) -> Prices:
    """The best prices found for every threshold."""
    limits = Limits(rebuild=a.thresholds)
    none = np.zeros(len(a.thresholds))
    moments = len(a.need)
    singles = []
    for moment in range(moments):
        direction = np.eye(moments)[moment]
        if timed:
            singles.append(along(a, direction, none, limits))
        else:
            singles.append(prove(a, np.repeat(direction[None], len(none), axis=0), none, limits))
    best = best_of(singles)
    for _ in range(2 if moments > 1 else 0):
        for other in singles:
            tries = [best]
            for part in BLENDS:
                tries.append(prove(a, (1.0 - part) * best.moment + part * other.moment, best.host, limits))
            best = best_of(tries)
    if hosted:
        best = _host_line(a, best, limits)
    return best


def refine(a: Problem, prices: Prices, limits: Limits, hosted: bool) -> Prices:
    """Better prices of some points: moments in the same proportion, then the host, by turns."""
    for turn in range(3 if hosted else 1):
        total = prices.moment.sum(axis=1)
        shares = np.round(prices.moment / np.where(total > 0.0, total, 1.0)[:, None], 9)
        better = Prices(bound=prices.bound.copy(), moment=prices.moment.copy(), host=prices.host.copy())
        for direction in np.unique(shares, axis=0):
            at = np.flatnonzero((shares == direction).all(axis=1))
            if direction.any():
                found = along(a, direction, prices.host[at], limits.row(at))
                better.bound[at], better.moment[at], better.host[at] = found.bound, found.moment, found.host
        prices = best_of([prices, better])
        if hosted and turn < 2:
            prices = _host_line(a, prices, limits)
    return prices


def _host_line(a: Problem, prices: Prices, limits: Limits) -> Prices:
    """The best prices of the host that a search by halves finds."""
    total = prices.moment.sum(axis=1)
    best, step = prices, 0.5
    best = best_of([best, *(prove(a, prices.moment, part * total, limits) for part in HOST_PRICES)])
    for _ in range(4):
        best = best_of([best, *(prove(a, best.moment, best.host * (1.0 + way * step), limits) for way in (-0.5, 1.0))])
        step /= 2.0
    return best


def best_of(tries: list[Prices]) -> Prices:
    """The row with the highest bound of each."""
    if len(tries) == 1:
        return tries[0]
    at = np.argmax([each.bound for each in tries], axis=0)
    pick = np.arange(len(at))
    return Prices(
        bound=np.array([each.bound for each in tries])[at, pick],
        moment=np.array([each.moment for each in tries])[at, pick],
        host=np.array([each.host for each in tries])[at, pick],
    )
