"""All choices of a class whose price stays near a bound: lists grown from modes, part by part.

A mode says which parts all layers of a class swap and how many layers rebuild everything; what is left is how many
layers rebuild each part. At given prices a choice costs the bound plus what it is dearer than the cheapest, mode by
mode and layer by layer. The lists keep what is dearer by no more than a given excess, so they hold every choice that
fits and costs no more than bound and excess together. What another one beats in every respect is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from autodeploy.balance.selection_values import LayerClass, full_bytes

LONG_LIST = 64
"""Lists from this length on are searched for what others beat."""
MOST_PAIRS = 500_000
"""Pairs that are looked at together."""
WINDOW = 64
ROUNDS = 6
"""How many of the best, so often, are compared with all others where three figures count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Modes:
    """The modes of a class, one row each, and the parts that it may rebuild, one column each."""

    full: np.ndarray
    swapped: np.ndarray
    """[modes, parts], 1 where all layers swap the part."""
    room: np.ndarray
    """[modes, parts]: layers that may rebuild the part."""
    figures: np.ndarray
    """[modes, 4]: bytes saved per live microbatch, seconds, swapped bytes, buffers."""
    rebuild: np.ndarray
    """[modes]: bytes under rebuilding where the whole layer is."""
    by_buffer: np.ndarray
    """Rows by their buffers, least first."""
    kept: np.ndarray
    seconds: np.ndarray
    """Of a part, times weight; infinite where not offered."""
    offered_s: np.ndarray
    """The same with zero in place of infinite."""


@lru_cache(maxsize=1000)
def modes_of(layers: LayerClass, copy_s: float, timed: bool) -> Modes:
    """The modes of a class, whose `live` should be empty so that stages share them."""
    n, parts = layers.count, layers.parts
    kept = np.array([p.kept_bytes for p in parts])
    in_full = np.array([p.in_full for p in parts], dtype=bool)
    weight, whole = layers.weight * timed, full_bytes(layers)
    rows = []
    for swapped in _subsets(layers):
        most = n if layers.full_s is not None and not (swapped * in_full).any() else 0
        rows += [(full, swapped) for full in range(most + 1)]
    full = np.array([float(each) for each, _ in rows])
    swap = np.array([each for _, each in rows]).reshape(len(rows), len(parts))
    moved = n * (swap @ kept)
    buffer = 2.0 * swap @ kept
    offered = np.array([(p.rebuild_s or 0.0) * weight for p in parts])
    seconds = weight * (full * (layers.full_s or 0.0) + moved * copy_s)
    return Modes(
        full=full, swapped=swap, room=(n - full[:, None] * in_full) * (1.0 - swap),
        figures=np.column_stack([moved + full * whole, seconds, moved, buffer]),
        by_buffer=buffer.argsort(kind="stable"),
        rebuild=np.where(full > 0.0, whole, 0.0), kept=kept, offered_s=offered,
        seconds=np.array([np.inf if p.rebuild_s is None else p.rebuild_s * weight for p in parts]),
    )  # fmt: skip


def _subsets(layers: LayerClass) -> list[np.ndarray]:
    """Sets of parts that the link lets all layers swap."""
    found = [(np.zeros(len(layers.parts)), 0.0)]
    for place, part in enumerate(layers.parts):
        moved = layers.count * part.kept_bytes
        if not part.swap or layers.count == 0:
            continue
        one = np.eye(len(layers.parts))[place]
        found += [(each + one, sum_ + moved) for each, sum_ in found if sum_ + moved <= layers.link_bytes]
    return [each for each, _ in found]


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What a choice of all classes together must reach, and keep within."""

    excess: np.ndarray
    need: np.ndarray
    """Bytes saved, one entry a moment."""
    host: np.ndarray
    hosted: bool
    """Whether the host can run out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """A list of choices of one class, least excess first."""

    excess: np.ndarray
    figures: np.ndarray
    """[choices, 4], as of modes."""
    mode: np.ndarray
    rebuilt: np.ndarray
    """[choices, parts]."""


def choices_near(modes: Modes, above: np.ndarray, price: np.ndarray, excess: float, hosted: bool) -> Choices:
    """All choices that are dearer than the least by no more than the excess.

    `above` is what each mode is dearer than the best, `price` what rebuilding a part in one more layer costs at the
    prices; both infinite where barred. Where the host can run out (`hosted`) swapped bytes count in what beats what.
    """
    mode = np.flatnonzero(above <= excess)
    over = above[mode]
    cheap = price < 0.0
    rebuilt = np.where(cheap, modes.room[mode], 0.0)
    step = np.abs(price)
    most = modes.room.max(axis=0)
    for part in np.argsort(-step, kind="stable"):
        if most[part] == 0.0 or step[part] > excess:
            continue
        off = np.arange(min(most[part], np.floor(excess / step[part]) if step[part] else most[part]) + 1.0)
        grown = over[:, None] + step[part] * off
        row, column = np.nonzero((grown <= excess) & (off <= modes.room[mode, part][:, None]))
        over, mode, rebuilt = grown[row, column], mode[row], rebuilt[row]
        rebuilt[:, part] += np.where(cheap[part], -off[column], off[column])
        if len(over) > LONG_LIST:
            keep = undominated(_columns(_figures(modes, mode, rebuilt), hosted), over)
            over, mode, rebuilt = over[keep], mode[keep], rebuilt[keep]
    figures = _figures(modes, mode, rebuilt)
    keep = undominated(_columns(figures, hosted), over)
    return Choices(excess=over[keep], figures=figures[keep], mode=mode[keep], rebuilt=rebuilt[keep])


def _figures(modes: Modes, mode: np.ndarray, rebuilt: np.ndarray) -> np.ndarray:
    figures = modes.figures[mode]
    figures[:, 0] += rebuilt @ modes.kept
    figures[:, 1] += rebuilt @ modes.offered_s
    return figures


def _columns(figures: np.ndarray, hosted: bool) -> list[np.ndarray]:
    """What choices of one class are compared by: less is better."""
    return [-figures[:, 0], figures[:, 1], figures[:, 2]] if hosted else [-figures[:, 0], figures[:, 1]]


def undominated(columns: Sequence[np.ndarray], over: np.ndarray) -> np.ndarray:
    """Rows, least excess first, without those that others beat in all columns; all that nothing beats are among them.

    Rows that tie in all keep one.
    """
    left = over.argsort(kind="stable")
    if len(left) <= 8:
        return left
    if len(columns) == 2:
        order = np.lexsort((columns[0], columns[1]))
        best = np.minimum.accumulate(columns[0][order])
        kept = np.ones(len(order), dtype=bool)
        kept[order[1:]] = columns[0][order[1:]] < best[:-1]
        return left[kept[left]]
    for start in range(0, ROUNDS * WINDOW, WINDOW):
        if start >= len(left):
            break
        first = left[start : start + WINDOW]
        beaten = np.arange(start, start + len(first))[:, None] < np.arange(len(left))
        for column in columns:
            beaten &= column[first][:, None] <= column[left]
        left = left[~beaten.any(axis=0)]
    return left


def combined(lists: Sequence[Choices], live: np.ndarray, goal: Goal) -> tuple[np.ndarray, np.ndarray]:
    """Choices of all classes together that reach the goal: index tuples [choices, classes], and their figures.

    Figures: excess, seconds, bytes at the host, bytes saved at every moment. Longest list last; what cannot reach the
    goal with all that is left is dropped on the way.
    """
    order = sorted(range(len(lists)), key=lambda c: len(lists[c].excess))
    owns = [_scaled(lists[c], live[c]) for c in order]
    index = np.zeros((1, 0), dtype=np.int64)
    figures = np.zeros((1, 3 + live.shape[1]))
    for place, own in enumerate(owns):
        rest = [each[:, 3:].max(axis=0) for each in owns[place + 1 :]]
        need = goal.need - sum(rest)
        count = np.searchsorted(own[:, 0], goal.excess - figures[:, 0], side="right")
        found = [_pairs(figures, own, count, part, need, goal) for part in _slices(count)]
        kept = [_thinned(figures, own, pairs, goal) if rest and len(found) > 1 else pairs for pairs in found]
        row, column = np.concatenate(kept, axis=1)
        if rest and len(row) > LONG_LIST:
            row, column = _thinned(figures, own, np.stack([row, column]), goal)
        index, figures = np.column_stack([index[row], column]), figures[row] + own[column]
    return index[:, np.argsort(order)], figures


def _slices(count: np.ndarray) -> list[slice]:
    """Rows in runs of no more pairs than memory should hold at once, or of one row."""
    ends = np.searchsorted(np.cumsum(count), np.arange(MOST_PAIRS, count.sum() + MOST_PAIRS, MOST_PAIRS), side="right")
    bounds = np.unique(np.concatenate([[0], ends, [len(count)]]))
    return [slice(int(a), int(b)) for a, b in pairwise(bounds)] or [slice(0, 0)]


def _pairs(
    figures: np.ndarray, own: np.ndarray, count: np.ndarray, part: slice, need: np.ndarray, goal: Goal
) -> np.ndarray:
    """Pairs of a row of figures and one of the first `count` of a class that can still reach the goal: [2, pairs]."""
    count = count[part]
    row = np.repeat(np.arange(len(count)), count) + part.start
    column = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    ok = np.ones(len(row), dtype=bool)
    for moment, least in enumerate(need):
        ok &= figures[row, 3 + moment] + own[column, 3 + moment] >= least
    if goal.hosted:
        ok &= figures[row, 2] + own[column, 2] <= goal.host
    return np.stack([row[ok], column[ok]])


def _thinned(figures: np.ndarray, own: np.ndarray, pairs: np.ndarray, goal: Goal) -> np.ndarray:
    """The pairs without those that others beat."""
    joined = figures[pairs[0]] + own[pairs[1]]
    columns = [joined[:, 1], *(-joined[:, each] for each in range(3, joined.shape[1]))]
    if goal.hosted:
        columns.append(joined[:, 2])
    return pairs[:, undominated(columns, joined[:, 0])]


def _scaled(choices: Choices, live: np.ndarray) -> np.ndarray:
    """The figures of one class as `combined` adds them."""
    own = choices.figures
    return np.column_stack([choices.excess, own[:, 1], own[:, 2] * live.max(), own[:, :1] * live])
