"""An order of ops compiled for the simulator: every op with its producers, sorted into levels.

Ops of one level depend on none of each other, so a level is one array operation over all of them and all plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from autodeploy.errors import ScheduleDeadlock
from autodeploy.schedule.orders import NONE, RankOrder, Shape, rank_order
from autodeploy.spec.plan import Overlap

START = 0
"""Index of the moment zero, which stands for a producer that is not there; ops count from 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """All ops of all ranks, sorted by level. Arrays of one entry per op unless said otherwise."""

    shape: Shape
    rank: np.ndarray
    duration: np.ndarray
    """Row of the duration table: slot for F, slots + slot for B, then (rank, i, j) for merged ops."""
    before: np.ndarray
    """The previous op on the rank."""
    producers: tuple[tuple[np.ndarray, np.ndarray], ...]
    """Ops on other ranks that an op waits for, and [:, 1] 1 where a message lies between. Only merged ops have two."""
    levels: tuple[tuple[int, int], ...]
    """First and last + 1 of the ops of every level."""
    last: np.ndarray
    """[pp] index of the last op of every rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ops:
    """All ops in rank order, before sorting; indices count from 1."""

    rank: np.ndarray
    f_microbatch: np.ndarray
    f_chunk: np.ndarray
    b_microbatch: np.ndarray
    b_chunk: np.ndarray


@lru_cache(maxsize=48)
def compile_program(shape: Shape) -> Program:
    """The program of a shape. Raises `ScheduleDeadlock` when an op can never start."""
    orders = [rank_order(shape, rank) for rank in range(shape.pp)]
    ops = _join(orders)
    last = np.cumsum([len(order.f_chunk) for order in orders])
    before = np.arange(len(ops.rank))
    before[np.concatenate([[0], last[:-1]])] = START
    f_from, f_sent = _forward_producers(shape, ops)
    b_from, b_sent = _backward_producers(shape, ops)
    level = _levels(before, f_from, b_from, last)
    producers = [(f_from, f_sent), (b_from, b_sent)]
    if shape.overlap == Overlap.NONE:  # a forward has no producer of a backward, and the reverse
        producers = [(f_from + b_from, f_sent + b_sent)]
    order = np.argsort(level, kind="stable")
    place = np.zeros(len(order) + 1, dtype=np.intp)
    place[order + 1] = np.arange(1, len(order) + 1)
    edges = np.searchsorted(level[order], np.arange(1, level.max() + 2))
    return Program(
        shape=shape,
        rank=ops.rank[order],
        duration=_duration_rows(shape, ops)[order],
        before=place[before[order]],
        producers=tuple((place[source[order]], sent[order, None]) for source, sent in producers),
        levels=tuple((int(a), int(b)) for a, b in pairwise(edges)),
        last=place[last],
    )


def _join(orders: list[RankOrder]) -> _Ops:
    ranks = np.concatenate([np.full(len(order.f_chunk), rank) for rank, order in enumerate(orders)])
    columns = [np.concatenate(column) for column in zip(*orders, strict=True)]
    return _Ops(rank=ranks, f_microbatch=columns[0], f_chunk=columns[1], b_microbatch=columns[2], b_chunk=columns[3])


def _where_is(shape: Shape, ops: _Ops, microbatch: np.ndarray, chunk: np.ndarray) -> np.ndarray:
    """[vpp * pp, microbatches] index of the op that holds a pass of a slot."""
    found = np.zeros((shape.vpp * shape.pp, shape.microbatches), dtype=np.intp)
    here = np.nonzero(chunk != NONE)[0]
    found[chunk[here] * shape.pp + ops.rank[here], microbatch[here]] = here + 1
    return found


def _forward_producers(shape: Shape, ops: _Ops) -> tuple[np.ndarray, np.ndarray]:
    """The forward of the slot below, on the same microbatch."""
    found = _where_is(shape, ops, ops.f_microbatch, ops.f_chunk)
    slot = ops.f_chunk * shape.pp + ops.rank
    fed = (ops.f_chunk != NONE) & (slot > 0)
    source = np.where(fed, found[np.maximum(slot - 1, 0), np.maximum(ops.f_microbatch, 0)], START)
    return source, (fed & (shape.pp > 1)).astype(float)


def _backward_producers(shape: Shape, ops: _Ops) -> tuple[np.ndarray, np.ndarray]:
    """The backward of the slot above; in the last slot its own forward, which is earlier on the rank anyway."""
    found = _where_is(shape, ops, ops.b_microbatch, ops.b_chunk)
    top = shape.pp * shape.vpp - 1
    slot = ops.b_chunk * shape.pp + ops.rank
    fed = (ops.b_chunk != NONE) & (slot < top)
    source = np.where(fed, found[np.minimum(slot + 1, top), np.maximum(ops.b_microbatch, 0)], START)
    return source, (fed & (shape.pp > 1)).astype(float)


def _duration_rows(shape: Shape, ops: _Ops) -> np.ndarray:
    slots = shape.pp * shape.vpp
    forward = ops.f_chunk * shape.pp + ops.rank
    backward = slots + ops.b_chunk * shape.pp + ops.rank
    rows = np.where(ops.f_chunk != NONE, forward, backward)
    if shape.overlap == Overlap.PAIR:
        merged = 2 * slots + (ops.rank * shape.vpp + ops.f_chunk) * shape.vpp + ops.b_chunk
        rows = np.where((ops.f_chunk != NONE) & (ops.b_chunk != NONE), merged, rows)
    return rows


def _levels(before: np.ndarray, f_from: np.ndarray, b_from: np.ndarray, last: np.ndarray) -> np.ndarray:
    """1 + the highest level among the producers: a pass over the ops in the order in which they become ready."""
    ends = [int(x) for x in last]
    at = [0, *ends[:-1]]
    before_, f_, b_ = before.tolist(), f_from.tolist(), b_from.tolist()
    level = [0] * (len(before_) + 1)
    done, moved = 0, True
    while moved:
        moved = False
        for rank, end in enumerate(ends):
            i = at[rank]
            while i < end:
                f, b = f_[i], b_[i]
                if (f and not level[f]) or (b and not level[b]):
                    break
                highest, other = level[before_[i]], level[f] if level[f] >= level[b] else level[b]
                level[i + 1] = 1 + (highest if highest >= other else other)
                i += 1
            moved |= i > at[rank]
            done += i - at[rank]
            at[rank] = i
    if done < len(before_):
        raise ScheduleDeadlock(f"{len(before_) - done} ops never become ready, the first of each rank at {at}")
    return np.array(level[1:])
