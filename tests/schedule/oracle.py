"""An independent pipeline: orders written from the papers, and a longest path over a dictionary of moments.

Orders: arXiv 2104.04473 section 2.2 and NVIDIA/Megatron-LM:megatron/core/pipeline_parallel/schedules.py; merged
passes as Ascend/MindSpeed moe-fb-overlap has them, with one forward more in the warm-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autodeploy.schedule.orders import rank_order
from autodeploy.schedule.shapes import NONE, RankOrder, Shape
from autodeploy.spec.plan import Overlap, Schedule

Half = tuple[int, int] | None
"""(microbatch, chunk) of the forward or backward half of an op."""
Op = tuple[Half, Half]


@dataclass(frozen=True)
class Times:
    """Seconds: forward and backward by slot, merged by (rank, forward chunk, backward chunk), one message."""

    forward: Sequence[float]
    backward: Sequence[float]
    merged: Mapping[tuple[int, int, int], float]
    send: float


def shape_of(pp: int, vpp: int, microbatches: int, pair: bool = False) -> Shape:
    """A shape with the schedule that its chunks imply."""
    schedule = Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B
    return Shape(schedule, pp, vpp, microbatches, Overlap.PAIR if pair else Overlap.NONE)


def passes(shape: Shape) -> list[tuple[int, int]]:
    """Forwards in order: groups of pp microbatches, and within a group chunk by chunk."""
    size = shape.pp if shape.vpp > 1 else shape.microbatches
    return [
        (microbatch, chunk)
        for first in range(0, shape.microbatches, size)
        for chunk in range(shape.vpp)
        for microbatch in range(first, first + size)
    ]


def order_of(shape: Shape, rank: int) -> list[Op]:
    """The ops of a rank: warm-up, forwards and backwards in turn (merged, for pairs), the rest."""
    forward = passes(shape)
    backward = [(microbatch, shape.vpp - 1 - chunk) for microbatch, chunk in forward]
    pair = shape.overlap is Overlap.PAIR
    below = shape.pp - rank - 1
    warm = 2 * below + (shape.vpp - 1) * shape.pp if shape.vpp > 1 or pair else below
    warm = min(warm + pair, len(forward))
    ops: list[Op] = [(half, None) for half in forward[:warm]]
    for f, b in zip(forward[warm:], backward, strict=False):
        ops += [(f, b)] if pair else [(f, None), (None, b)]
    return ops + [(None, half) for half in backward[len(forward) - warm :]]


def written(order: RankOrder) -> list[Op]:
    """The package's arrays as ops."""
    halves = [
        [(m, c) if c != NONE else None for m, c in zip(microbatch.tolist(), chunk.tolist(), strict=True)]
        for microbatch, chunk in ((order.f_microbatch, order.f_chunk), (order.b_microbatch, order.b_chunk))
    ]
    return list(zip(*halves, strict=True))


def finish_s(shape: Shape, times: Times) -> list[float]:
    """When every rank ends its last op, by taking whatever op is ready until none is left. The port of a rank sends
    one message at a time, in the order of the ops."""
    todo = [order_of(shape, rank) for rank in range(shape.pp)]
    there: dict[tuple[str, int, int], float] = {}
    clock, port = [0.0] * shape.pp, [0.0] * shape.pp
    while any(todo):
        moved = False
        for rank, ops in enumerate(todo):
            while ops and (ready := ready_s(shape, there, rank, ops[0])) is not None:
                op = ops.pop(0)
                clock[rank] = max(clock[rank], ready) + duration_s(shape, times, rank, op)
                for name, half in zip("FB", op, strict=True):
                    if half is not None:
                        slot = half[1] * shape.pp + rank
                        there[name, half[0], slot] = clock[rank]
                        if is_sent(shape, name, slot):
                            port[rank] = max(port[rank], clock[rank]) + times.send
                            there[name, half[0], slot] = port[rank]
                moved = True
        assert moved, "deadlock"
    return clock


def is_sent(shape: Shape, name: str, slot: int) -> bool:
    """Whether a pass through a slot has an output for another rank."""
    end = shape.pp * shape.vpp - 1 if name == "F" else 0
    return shape.pp > 1 and slot != end


def ready_s(shape: Shape, there: Mapping, rank: int, op: Op) -> float | None:
    """When the inputs of an op have arrived; None while one is not made yet."""
    top = shape.pp * shape.vpp - 1
    arrivals = [0.0]
    for name, half, step in zip("FB", op, (-1, 1), strict=True):
        if half is None:
            continue
        slot = half[1] * shape.pp + rank
        source = (name, half[0], slot + step) if 0 <= slot + step <= top else ("F", half[0], slot)
        if name == "F" and slot == 0:
            continue
        if source not in there:
            return None
        arrivals.append(there[source])
    return max(arrivals)


def duration_s(shape: Shape, times: Times, rank: int, op: Op) -> float:
    """Seconds of an op."""
    forward, backward = op
    if forward is not None and backward is not None:
        return times.merged[rank, forward[1], backward[1]]
    if forward is not None:
        return times.forward[forward[1] * shape.pp + rank]
    assert backward is not None
    return times.backward[backward[1] * shape.pp + rank]


def live_vectors(shape: Shape, rank: int, read: Callable = rank_order) -> set[tuple[int, ...]]:
    """Live microbatches per chunk during every op, walked one by one; a chunk lives from the start of its forward
    to the end of its backward. In a merged op the forward takes what the backward gives back."""
    live: Counter[int] = Counter()
    seen = set()
    for forward, backward in written(read(shape, rank)):
        merged = forward is not None and backward is not None
        if backward is not None and merged:
            live[backward[1]] -= 1
        if forward is not None:
            live[forward[1]] += 1
        seen.add(tuple(live[chunk] for chunk in range(shape.vpp)))
        if backward is not None and not merged:
            live[backward[1]] -= 1
    return seen


def largest_vectors(vectors: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Those that no other one reaches in every place."""
    return {
        one
        for one in vectors
        if not any(other != one and all(a >= b for a, b in zip(other, one, strict=True)) for other in vectors)
    }


def random_times(shape: Shape, rng: np.random.Generator, send: float = 0.0) -> Times:
    """Unequal slots; a merged op takes between the longer half and both."""
    slots = shape.pp * shape.vpp
    forward, backward = rng.uniform(0.5, 2.0, slots), rng.uniform(0.5, 4.0, slots)
    merged = {}
    for rank in range(shape.pp):
        for i in range(shape.vpp):
            for j in range(shape.vpp):
                f, b = forward[i * shape.pp + rank], backward[j * shape.pp + rank]
                merged[rank, i, j] = max(f, b) + rng.uniform() * min(f, b)
    return Times(forward.tolist(), backward.tolist(), merged, send)


def equal_times(shape: Shape, forward: float, backward: float, send: float = 0.0) -> Times:
    """Every slot the same; merged ops hide nothing."""
    slots, chunks = shape.pp * shape.vpp, range(shape.vpp)
    merged = {(rank, i, j): forward + backward for rank in range(shape.pp) for i in chunks for j in chunks}
    return Times([forward] * slots, [backward] * slots, merged, send)


def columns(shape: Shape, each: Sequence[Times]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
    """Times of several plans as the simulator takes them."""
    v = range(shape.vpp)
    merged = np.array([
        [[[t.merged[rank, i, j] for t in each] for j in v] for i in v] for rank in range(shape.pp)
    ])  # fmt: skip
    return (
        np.array([t.forward for t in each]).T,
        np.array([t.backward for t in each]).T,
        merged if shape.overlap is Overlap.PAIR else None,
        np.array([t.send for t in each]),
    )
