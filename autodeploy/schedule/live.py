"""How many microbatches of every chunk a rank holds, at the moments that can be its peak (model.md 4.5)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from autodeploy.numeric import Num, where
from autodeploy.schedule.orders import rank_order
from autodeploy.schedule.shapes import NONE, RankOrder, Shape
from autodeploy.spec.plan import FIRST_SPLIT


def steady_microbatches(shape: Shape) -> Shape:
    """The same shape with no more microbatches than its live chunks can tell (they repeat from there on)."""
    return replace(
        shape, microbatches=min(shape.microbatches, enough_microbatches(shape.schedule, shape.pp, shape.vpp))
    )


def enough_microbatches(schedule: Num, pp: Num, vpp: Num) -> Num:
    """Microbatches beyond which live counts stay the same; whole groups of pp where chunks are interleaved. Numbers or
    columns."""
    return where(schedule >= FIRST_SPLIT, 4 * pp, where(vpp > 1, 2 * pp, 2 * pp + 1))


@lru_cache(maxsize=8192)
def live_chunks(shape: Shape, rank: int) -> tuple[tuple[int, ...], ...]:
    """Live microbatches per chunk at every moment that can be the peak: vectors that no other one exceeds.

    A chunk is live from the start of its forward to the end of its backward; in a merged op the forward takes layer by
    layer what the backward gives back (docs/decisions/0002). One vector for equal chunks' purposes (their sums agree);
    several where chunks may differ in size. Where weight gradients run apart, a vector goes on with the microbatches
    per chunk that wait for theirs.
    """
    return pareto_maxima({*pass_chunks(shape, rank), *idle_chunks(shape, rank)})


@lru_cache(maxsize=8192)
def pass_chunks(shape: Shape, rank: int) -> tuple[tuple[int, ...], ...]:
    """Of `live_chunks`, the moments at which a forward or backward pass works."""
    order = rank_order(steady_microbatches(shape), rank)
    begun, ended, done = _counts(shape, order)
    merged = (order.f_chunk != NONE) & (order.b_chunk != NONE)
    live = begun - np.where(merged[:, None], ended, _before(ended))
    if shape.split:
        works = (order.f_chunk != NONE) | (order.b_chunk != NONE)
        live = np.hstack([live, _before(ended) - _before(done)])[works]
    return _distinct(live)


@lru_cache(maxsize=8192)
def idle_chunks(shape: Shape, rank: int) -> tuple[tuple[int, ...], ...]:
    """Of `live_chunks`, those between ops, and so while weight gradients run apart; none where they never do."""
    if not shape.split:
        return ()
    begun, ended, done = _counts(shape, rank_order(steady_microbatches(shape), rank))
    return _distinct(np.hstack([begun - ended, ended - done]))


def _counts(shape: Shape, order: RankOrder) -> tuple[np.ndarray, ...]:
    """[ops, vpp] forwards, backwards and weight gradients of every chunk up to an op."""
    columns = (order.f_chunk, order.b_chunk, order.w_chunk)
    return tuple(np.cumsum(column[:, None] == np.arange(shape.vpp), axis=0) for column in columns)


def _distinct(counts: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return pareto_maxima({tuple(int(x) for x in row) for row in counts})


def _before(counts: np.ndarray) -> np.ndarray:
    """Running counts before each op."""
    return np.vstack([np.zeros((1, counts.shape[1]), dtype=int), counts[:-1]])


@lru_cache(maxsize=8192)
def corners(vectors: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The vectors without those that lie between two others: of a sum with weights of zero and more, none of these is
    ever above both."""
    return tuple(one for one in vectors if not _lies_between_two(one, vectors))


def _lies_between_two(one: tuple[int, ...], vectors: tuple[tuple[int, ...], ...]) -> bool:
    """Whether two of the vectors lie on one line with `one`, on either side of it."""
    ways = {_way(one, other) for other in vectors if other != one}
    return any(tuple(-step for step in way) in ways for way in ways)


def _way(start: tuple[int, ...], end: tuple[int, ...]) -> tuple[int, ...]:
    """The shortest whole vector that points from one to the other."""
    steps = [e - s for s, e in zip(start, end, strict=True)]
    common = math.gcd(*steps)
    return tuple(step // common for step in steps)


def pareto_maxima(vectors: set[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Vectors that are not below another one in every place, largest first."""
    kept: list[tuple[int, ...]] = []
    for vector in sorted(vectors, key=lambda x: (-sum(x), x)):
        if not any(all(a >= b for a, b in zip(other, vector, strict=True)) for other in kept):
            kept.append(vector)
    return tuple(kept)
