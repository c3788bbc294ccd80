"""What happens when in one simulated step: events of every rank, lane by lane, and the bytes that live meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

import numpy as np

from autodeploy.schedule.program import START, Program, crosses
from autodeploy.schedule.shapes import NONE, Shape
from autodeploy.schedule.simulate import duration_table, run
from autodeploy.schedule.steady import Durations
from autodeploy.spec.placement import position_of

COMPUTE, PORT, EXCHANGE, STEP_END = "compute", "port", "expert exchange", "step end"
"""Lanes; there may be others."""
FORWARD, BACKWARD, INPUTS, WEIGHTS, MERGED, SEND = "F", "B", "Bi", "W", "F+B", "send"
"""Kinds of events of the pipeline; those of the step's end are named by whoever states them."""
SNAP_FRAC = 1e-12
"""Two moments so close to each other are one: what rounding leaves of end - duration."""


class Pass(NamedTuple):
    """A microbatch in a chunk of a stage."""

    microbatch: int
    chunk: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that a rank does, or that its port carries."""

    rank: int
    lane: str
    kind: str
    forward: Pass | None = None
    """The forward half of an op, or whose output is sent."""
    backward: Pass | None = None
    weights: Pass | None = None
    """Whose weight gradients an op makes."""
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.start_s + self.duration_s


class OpTimes(NamedTuple):
    """Moments of every op of a program, in its order."""

    start_s: np.ndarray
    end_s: np.ndarray
    leave_s: np.ndarray
    """[ops, 2] when the output of the forward, and of the backward half begins to travel."""
    arrive_s: np.ndarray
    """[ops, 2] when it has arrived."""


def op_times(program: Program, durations: Durations) -> OpTimes:
    """When every op runs and its outputs travel: all that a timeline takes from the simulation (of its first plan)."""
    end, arrived = run(program, *durations)
    table = duration_table(durations.forward_s, durations.backward_s, durations.merged_s, durations.split_s)
    ends, before = end[START + 1 :, 0], end[program.before, 0]
    start = ends - table[program.duration, 0]
    start = np.where(start - before <= SNAP_FRAC * ends, before, start)
    # where no op has both halves, one array tells when the output of either arrives
    arrive = np.stack([arrived[0][START + 1 :, 0], arrived[-1][START + 1 :, 0]], axis=1)
    return OpTimes(start, ends, arrive - durations.send_s[0], arrive)


def step_events(
    program: Program, durations: Durations, after_s: Sequence[Mapping[str, float]] = ()
) -> tuple[Event, ...]:
    """Everything in one step, rank by rank; `after_s` says of every rank what follows its last op, in order."""
    times = op_times(program, durations)
    found: list[Event] = []
    for rank, places in enumerate(program.of_rank):
        here = places - START - 1
        mine = OpTimes(*(column[here] for column in times))
        halves = _Halves(
            _passes(program.ops.f_microbatch[here], program.ops.f_chunk[here]),
            _passes(program.ops.b_microbatch[here], program.ops.b_chunk[here]),
            _passes(program.ops.w_microbatch[here], program.ops.w_chunk[here]),
        )
        found += _ops(rank, halves, mine)
        found += _messages(program.shape, rank, halves, mine)
        found += _afterwards(rank, mine.end_s[-1], after_s[rank] if after_s else {})
    return tuple(found)


class _Halves(NamedTuple):
    """The ops of one rank in order; None where an op has no such half."""

    forward: list[Pass | None]
    backward: list[Pass | None]
    weights: list[Pass | None]


def _passes(microbatch: np.ndarray, chunk: np.ndarray) -> list[Pass | None]:
    pairs = zip(microbatch.tolist(), chunk.tolist(), strict=True)
    return [None if c == NONE else Pass(m, c) for m, c in pairs]


def _ops(rank: int, halves: _Halves, times: OpTimes) -> Iterator[Event]:
    moments = zip(times.start_s.tolist(), times.end_s.tolist(), strict=True)
    for forward, backward, weights, (start, end) in zip(*halves, moments, strict=True):
        yield Event(
            rank=rank, lane=COMPUTE, kind=_kind(forward, backward, weights), forward=forward, backward=backward,
            weights=weights, start_s=start, duration_s=end - start,
        )  # fmt: skip


def _kind(forward: Pass | None, backward: Pass | None, weights: Pass | None) -> str:
    if forward:
        return MERGED if backward else FORWARD
    if backward:
        return BACKWARD if weights else INPUTS
    return WEIGHTS


def _messages(shape: Shape, rank: int, halves: _Halves, times: OpTimes) -> Iterator[Event]:
    """Outputs on their way to the next slot, and gradients to the one before; the ends of the model send nothing."""
    if shape.pp == 1:
        return
    down, up = ([_crosses(shape, rank, chunk, step) for chunk in range(shape.vpp)] for step in (1, -1))
    moments = zip(times.leave_s.tolist(), times.arrive_s.tolist(), strict=True)
    for forward, backward, _, (leave, arrive) in zip(*halves, moments, strict=True):
        if forward and down[forward.chunk]:
            yield _message(rank, leave[0], arrive[0], forward=forward)
        if backward and up[backward.chunk]:
            yield _message(rank, leave[1], arrive[1], backward=backward)


def _crosses(shape: Shape, rank: int, chunk: int, step: int) -> bool:
    slot = np.array(position_of(shape.placement, shape.pp, rank, chunk))
    return bool(crosses(shape, slot, step))


def _message(
    rank: int, leave_s: float, arrive_s: float, forward: Pass | None = None, backward: Pass | None = None
) -> Event:
    return Event(
        rank=rank, lane=PORT, kind=SEND, forward=forward, backward=backward, start_s=leave_s,
        duration_s=arrive_s - leave_s,
    )  # fmt: skip


def _afterwards(rank: int, finish_s: float, after_s: Mapping[str, float]) -> Iterator[Event]:
    """One after the other from the last op on; what takes no time is no event."""
    at = float(finish_s)
    for kind, seconds in after_s.items():
        if seconds > 0.0:
            yield Event(rank=rank, lane=STEP_END, kind=kind, start_s=at, duration_s=seconds)
        at += seconds


class Level(NamedTuple):
    """So many bytes from a moment on."""

    at_s: float
    live_bytes: float


def live_levels(
    ops: Sequence[Event],
    chunk_bytes: Sequence[float],
    static_bytes: float = 0.0,
    backward_bytes: float = 0.0,
    delayed_bytes: Sequence[float] = (),
) -> list[Level]:
    """Bytes on one rank over time, from its ops in order: a chunk lives from the start of its forward to the end of
    its backward, and a backward works on some more while it runs; merged, they change places layer by layer.
    `delayed_bytes`: per chunk, what waits for weight gradients that run apart."""
    waiting, sizes = len(chunk_bytes), [*chunk_bytes, *delayed_bytes]
    levels, live = [Level(0.0, static_bytes)], [0] * (2 * waiting)
    for op in ops:
        if op.forward and not op.backward:
            live[op.forward.chunk] += 1
        held = static_bytes + sum(map(mul, live, sizes))
        _note(levels, op.start_s, held + (backward_bytes if op.backward else 0.0))
        if op.backward:
            live[op.backward.chunk] -= 1
        if op.backward and not op.weights:
            live[waiting + op.backward.chunk] += 1
        if op.weights and not op.backward:
            live[waiting + op.weights.chunk] -= 1
        if op.forward and op.backward:
            live[op.forward.chunk] += 1
        _note(levels, op.end_s, static_bytes + sum(map(mul, live, sizes)))
    return levels


def _note(levels: list[Level], at_s: float, live_bytes: float) -> None:
    """What holds from now on; of two levels at one moment the later, and nothing where nothing changes."""
    if levels and at_s - levels[-1].at_s <= SNAP_FRAC * at_s:
        levels.pop()
    if not levels or levels[-1].live_bytes != live_bytes:
        levels.append(Level(at_s, live_bytes))
