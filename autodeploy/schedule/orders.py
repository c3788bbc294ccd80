"""Op orders of every rank, as data (model.md 5.1), and what can be read off them: live chunks and op counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from autodeploy.spec.plan import Overlap, Schedule

NONE = -1
"""Stands where an op has no forward, or no backward, half."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that the order of ops depends on."""

    schedule: Schedule
    pp: int
    vpp: int
    microbatches: int
    overlap: Overlap

    @property
    def chunk_passes(self) -> int:
        """Forward passes of chunks on one rank."""
        return self.microbatches * self.vpp


class RankOrder(NamedTuple):
    """Ops of one rank in order. An op is a forward, a backward, or both merged (arrays of equal length)."""

    f_microbatch: np.ndarray
    f_chunk: np.ndarray
    b_microbatch: np.ndarray
    b_chunk: np.ndarray


class OpCounts(NamedTuple):
    """How often each kind of op occurs on a rank, per distinct chunk content."""

    forward: np.ndarray
    """[i] forwards on their own."""
    backward: np.ndarray
    """[i] backwards on their own."""
    merged: np.ndarray
    """[i, j] forward of content i merged with backward of content j."""


def warm_up(shape: Shape, rank: int) -> int:
    """Forwards before the first backward. Merging needs one more, so that its two halves are independent; and, as
    interleaving, two per later stage: a microbatch goes down and comes back while merged ops follow each other.

    Source: Megatron-LM core/pipeline_parallel/schedules.py get_pp_rank_microbatches; model.md 4.5, 5.1.
    """
    ahead = shape.pp - rank - 1
    if shape.schedule == Schedule.INTERLEAVED or shape.overlap == Overlap.PAIR:
        ahead = 2 * ahead + (shape.vpp - 1) * shape.pp
    return min(ahead + int(shape.overlap), shape.chunk_passes)


def forward_table(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """(microbatch, chunk) of the k-th forward: groups of pp microbatches, chunk by chunk within a group."""
    group = shape.pp if shape.vpp > 1 else shape.microbatches
    microbatch = np.arange(shape.microbatches).reshape(-1, group)
    table = np.repeat(microbatch[:, None, :], shape.vpp, axis=1)
    chunk = np.broadcast_to(np.arange(shape.vpp)[None, :, None], table.shape)
    return table.ravel(), chunk.ravel()


def rank_order(shape: Shape, rank: int) -> RankOrder:
    """1F1B or interleaved 1F1B: warm-up forwards, then a forward and a backward in turn, then the rest."""
    microbatch, chunk = forward_table(shape)
    back = shape.vpp - 1 - chunk
    warm, passes = warm_up(shape, rank), shape.chunk_passes
    nothing = np.full(passes, NONE)
    if shape.overlap == Overlap.PAIR:
        tail = nothing[:warm]
        return RankOrder(
            np.concatenate([microbatch, tail]), np.concatenate([chunk, tail]),
            np.concatenate([tail, microbatch]), np.concatenate([tail, back]),
        )  # fmt: skip
    forward = np.concatenate([np.arange(warm), warm + 2 * np.arange(passes - warm)])
    backward = np.concatenate([warm + 1 + 2 * np.arange(passes - warm), 2 * passes - warm + np.arange(warm)])
    columns = [np.full(2 * passes, NONE) for _ in RankOrder._fields]
    columns[0][forward], columns[1][forward] = microbatch, chunk
    columns[2][backward], columns[3][backward] = microbatch, back
    return RankOrder(*columns)


def _by_content(order: RankOrder, content: np.ndarray) -> RankOrder:
    """The order with the content of each chunk in the place of the chunk."""
    return order._replace(
        f_chunk=np.where(order.f_chunk == NONE, NONE, content[order.f_chunk]),
        b_chunk=np.where(order.b_chunk == NONE, NONE, content[order.b_chunk]),
    )


@lru_cache(maxsize=8192)
def op_counts(shape: Shape, rank: int, content: tuple[int, ...]) -> OpCounts:
    """How often a rank runs each kind of op in a step, chunks of equal content taken together.

    `content` says of every chunk which content it has (0 .. v - 1 for all different).
    """
    order, v = _by_content(rank_order(shape, rank), np.array(content)), max(content) + 1
    has_f, has_b = order.f_chunk != NONE, order.b_chunk != NONE
    merged = np.zeros((v, v))
    np.add.at(merged, (order.f_chunk[has_f & has_b], order.b_chunk[has_f & has_b]), 1.0)
    return OpCounts(
        forward=np.bincount(order.f_chunk[has_f & ~has_b], minlength=v).astype(float),
        backward=np.bincount(order.b_chunk[has_b & ~has_f], minlength=v).astype(float),
        merged=merged,
    )


def steady_microbatches(shape: Shape) -> Shape:
    """The same shape with no more microbatches than its live chunks can tell (they repeat from there on)."""
    return replace(shape, microbatches=min(shape.microbatches, enough_microbatches(shape.pp, shape.vpp)))


def enough_microbatches(pp: int, vpp: int) -> int:
    """Microbatches beyond which live counts stay the same; whole groups of pp where chunks are interleaved."""
    return 2 * pp if vpp > 1 else 2 * pp + 1


@lru_cache(maxsize=8192)
def live_chunks(shape: Shape, rank: int) -> tuple[tuple[int, ...], ...]:
    """Live microbatches per chunk at every moment that can be the peak: vectors that no other one exceeds.

    A chunk is live from the start of its forward to the end of its backward; in a merged op the forward takes layer by
    layer what the backward gives back (docs/decisions/0002). One vector for equal chunks' purposes (their sums agree);
    several where chunks may differ in size.
    """
    order, v = rank_order(steady_microbatches(shape), rank), shape.vpp
    chunks = np.arange(v)
    begun = np.cumsum(order.f_chunk[:, None] == chunks, axis=0)
    ended = np.cumsum(order.b_chunk[:, None] == chunks, axis=0)
    before = np.vstack([np.zeros((1, v), dtype=int), ended[:-1]])
    merged = (order.f_chunk != NONE) & (order.b_chunk != NONE)
    live = begun - np.where(merged[:, None], ended, before)
    return pareto_maxima({tuple(int(x) for x in row) for row in live})


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
