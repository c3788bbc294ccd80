"""An order of ops compiled for the simulator: every op with its producers, sorted into levels.

Ops of one level depend on none of each other, so a level is one array operation over all of them and all plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autodeploy.errors import ScheduleDeadlock
from autodeploy.schedule.orders import rank_order
from autodeploy.schedule.shapes import NONE, RankOrder, Shape
from autodeploy.spec.placement import position_of, stage_of
from autodeploy.spec.plan import Overlap

START = 0
"""Index of the moment zero, which stands for a producer that is not there; ops count from 1."""


class Ops(NamedTuple):
    """What every op is: its rank, and microbatch and chunk of its forward, its backward and its weight gradients."""

    rank: np.ndarray
    f_microbatch: np.ndarray
    f_chunk: np.ndarray
    b_microbatch: np.ndarray
    b_chunk: np.ndarray
    w_microbatch: np.ndarray
    w_chunk: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """All ops of all ranks, sorted by level. Arrays of one entry per op unless said otherwise."""

    shape: Shape
    ops: Ops
    duration: np.ndarray
    """Row of the duration table, chunk * pp + rank being a pass: F, whole B, then (rank, i, j) for merged ops, then B
    without its weight gradients and these; where microbatches differ, (pass, microbatch) for F and B, and
    (rank, chunk, microbatch) of the forward half for merged ops."""
    before: np.ndarray
    """The previous op on the rank."""
    producers: tuple[np.ndarray, ...]
    """The ops whose forward and whose backward output an op waits for; one array where no op has both halves."""
    sends: tuple[np.ndarray, ...]
    """[:, 1] 1 where the op sends its forward (backward) output to another rank."""
    levels: tuple[tuple[int, int], ...]
    """First and last + 1 of the ops of every level."""
    of_rank: tuple[np.ndarray, ...]
    """Per rank the indices of its ops, in order."""

    @property
    def last(self) -> list[int]:
        """[pp] index of the last op of every rank."""
        return [int(ops[-1]) for ops in self.of_rank]


@lru_cache(maxsize=48)
def compile_program(shape: Shape, *, each_microbatch: bool = False) -> Program:
    """The program of a shape. Raises `ScheduleDeadlock` when an op can never start."""
    orders = [rank_order(shape, rank) for rank in range(shape.pp)]
    return compile_orders(shape, orders, each_microbatch=each_microbatch)


def compile_orders(shape: Shape, orders: Sequence[RankOrder], *, each_microbatch: bool = False) -> Program:
    """The program of given orders, one per rank. `each_microbatch`: durations differ from microbatch to microbatch (of
    schedules that keep backward passes whole).
    Raises `ScheduleDeadlock`, saying who waits for whom."""
    ops = _join(orders)
    last = np.cumsum([len(order.f_chunk) for order in orders])
    before = np.arange(len(ops.rank))
    before[np.concatenate([[0], last[:-1]])] = START
    f_from, b_from = _forward_producers(shape, ops), _backward_producers(shape, ops)
    level = _levels(ops, before, f_from, b_from, last)
    # what the rank made itself, it made earlier: only other ranks' outputs are waited for
    f_from = np.where(_comes_from_below(shape, ops), f_from, START)
    b_from = np.where(_comes_from_above(shape, ops), b_from, START)
    producers, sends = [f_from, b_from], [_sends_forward(shape, ops), _sends_backward(shape, ops)]
    if shape.overlap == Overlap.NONE:  # a forward has no producer of a backward, and the reverse
        producers, sends = [f_from + b_from], [sends[0] + sends[1]]
    order = np.argsort(level, kind="stable")
    place = np.zeros(len(order) + 1, dtype=np.intp)
    place[order + 1] = np.arange(1, len(order) + 1)
    edges = np.searchsorted(level[order], np.arange(1, level.max() + 2))
    return Program(
        shape=shape,
        ops=Ops(*(column[order] for column in ops)),
        duration=(_rows_of_microbatches if each_microbatch else _duration_rows)(shape, ops)[order],
        before=place[before[order]],
        producers=tuple(place[source[order]] for source in producers),
        sends=tuple(sent[order, None].astype(float) for sent in sends),
        levels=tuple((int(a), int(b)) for a, b in pairwise(edges)),
        of_rank=tuple(np.split(place[1:], last[:-1])),
    )


def _join(orders: Sequence[RankOrder]) -> Ops:
    ranks = np.concatenate([np.full(len(order.f_chunk), rank) for rank, order in enumerate(orders)])
    columns = [np.concatenate(column) for column in zip(*orders, strict=True)]
    return Ops(ranks, *columns)


def _positions(shape: Shape, ops: Ops, chunk: np.ndarray) -> np.ndarray:
    """The position of a chunk on the rank of every op; of NONE something without meaning."""
    found: np.ndarray = position_of(shape.placement, shape.pp, ops.rank, np.maximum(chunk, 0))
    return found


def _where_is(shape: Shape, ops: Ops, microbatch: np.ndarray, chunk: np.ndarray) -> np.ndarray:
    """[positions, microbatches] index of the op that holds a pass of a position."""
    found = np.zeros((shape.positions, shape.microbatches), dtype=np.intp)
    here = np.nonzero(chunk != NONE)[0]
    found[_positions(shape, ops, chunk)[here], microbatch[here]] = here + 1
    return found


def _forward_producers(shape: Shape, ops: Ops) -> np.ndarray:
    """The forward of the position before, on the same microbatch."""
    found = _where_is(shape, ops, ops.f_microbatch, ops.f_chunk)
    before = _positions(shape, ops, ops.f_chunk) - 1
    fed = (ops.f_chunk != NONE) & (before >= 0) & ~np.isin(before, shape.ends)
    return np.where(fed, found[np.maximum(before, 0), np.maximum(ops.f_microbatch, 0)], START)


def _backward_producers(shape: Shape, ops: Ops) -> np.ndarray:
    """The backward of the position after; at the end of a pipeline its own forward."""
    found = _where_is(shape, ops, ops.b_microbatch, ops.b_chunk)
    own = _where_is(shape, ops, ops.f_microbatch, ops.f_chunk)
    here, microbatch = _positions(shape, ops, ops.b_chunk), np.maximum(ops.b_microbatch, 0)
    after = found[np.minimum(here + 1, shape.positions - 1), microbatch]
    return np.where(ops.b_chunk == NONE, START, np.where(np.isin(here, shape.ends), own[here, microbatch], after))


def crosses(shape: Shape, position: np.ndarray, step: int) -> np.ndarray:
    """Whether what leaves a position for the next one (step 1) or the one before (-1) goes to another rank. The ends of
    two pipelines that meet are on one rank."""
    there = np.clip(position + step, 0, shape.positions - 1)
    placement, pp = shape.placement, shape.pp
    found: np.ndarray = stage_of(placement, pp, there) != stage_of(placement, pp, position)
    return found


def _sends_forward(shape: Shape, ops: Ops) -> np.ndarray:
    """Where the next position is on another rank."""
    return (ops.f_chunk != NONE) & crosses(shape, _positions(shape, ops, ops.f_chunk), 1)


def _comes_from_below(shape: Shape, ops: Ops) -> np.ndarray:
    """Ops whose forward half gets its input from another rank."""
    return (ops.f_chunk != NONE) & crosses(shape, _positions(shape, ops, ops.f_chunk), -1)


def _comes_from_above(shape: Shape, ops: Ops) -> np.ndarray:
    """Ops whose backward half gets its gradients from another rank."""
    return (ops.b_chunk != NONE) & crosses(shape, _positions(shape, ops, ops.b_chunk), 1)


def _sends_backward(shape: Shape, ops: Ops) -> np.ndarray:
    """Where the position before is on another rank."""
    return (ops.b_chunk != NONE) & crosses(shape, _positions(shape, ops, ops.b_chunk), -1)


def _duration_rows(shape: Shape, ops: Ops) -> np.ndarray:
    passes = shape.positions
    forward = ops.f_chunk * shape.pp + ops.rank
    backward = passes + ops.b_chunk * shape.pp + ops.rank
    rows, next_row = np.where(ops.f_chunk != NONE, forward, backward), 2 * passes
    if shape.overlap == Overlap.PAIR:
        merged = next_row + (ops.rank * shape.vpp + ops.f_chunk) * shape.vpp + ops.b_chunk
        rows = np.where((ops.f_chunk != NONE) & (ops.b_chunk != NONE), merged, rows)
        next_row += passes * shape.vpp
    if shape.split:
        inputs, weights = backward - passes + next_row, next_row + passes + ops.w_chunk * shape.pp + ops.rank
        rows = np.where((ops.b_chunk != NONE) & (ops.w_chunk == NONE), inputs, rows)
        rows = np.where((ops.b_chunk == NONE) & (ops.w_chunk != NONE), weights, rows)
    return rows


def _rows_of_microbatches(shape: Shape, ops: Ops) -> np.ndarray:
    slots, many = shape.pp * shape.vpp, shape.microbatches
    forward = (ops.f_chunk * shape.pp + ops.rank) * many + ops.f_microbatch
    backward = (slots + ops.b_chunk * shape.pp + ops.rank) * many + ops.b_microbatch
    merged = (2 * slots + ops.rank * shape.vpp + ops.f_chunk) * many + ops.f_microbatch
    both = (ops.f_chunk != NONE) & (ops.b_chunk != NONE)
    return np.where(both, merged, np.where(ops.f_chunk != NONE, forward, backward))


def _levels(ops: Ops, before: np.ndarray, f_from: np.ndarray, b_from: np.ndarray, last: np.ndarray) -> np.ndarray:
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
        stuck = [i for i, end in zip(at, ends, strict=True) if i < end]
        raise ScheduleDeadlock(_who_waits(ops, [(i, f_[i] if f_[i] and not level[f_[i]] else b_[i]) for i in stuck]))
    return np.array(level[1:])


def _who_waits(ops: Ops, waiting: Sequence[tuple[int, int]]) -> str:
    """Each rank's first op that cannot start, and whose output it lacks."""
    parts = [f"{_name(ops, op)} waits for {_name(ops, source - 1)}" for op, source in waiting]
    return "the schedule never ends: " + "; ".join(parts)


def _name(ops: Ops, op: int) -> str:
    halves = []
    if ops.f_chunk[op] != NONE:
        halves.append(f"F of microbatch {ops.f_microbatch[op]} chunk {ops.f_chunk[op]}")
    if ops.b_chunk[op] != NONE:
        halves.append(f"B of microbatch {ops.b_microbatch[op]} chunk {ops.b_chunk[op]}")
    if not halves:
        halves.append(f"W of microbatch {ops.w_microbatch[op]} chunk {ops.w_chunk[op]}")
    return f"rank {ops.rank[op]} " + " + ".join(halves)
