"""Long runs: a steady state that repeats tells the end of any number of microbatches (model.md 5.2).

An op waits for ops at most a warm-up and a group of passes before it. So once all moments of that many passes are
those of one period earlier plus a constant, all later ones are too, until the last microbatch drains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from autodeploy.schedule.orders import Shape, warm_up
from autodeploy.schedule.program import Program, compile_program
from autodeploy.schedule.simulate import Moments, run, simulate
from autodeploy.spec.plan import Overlap

GROUPS = 20
"""Groups of pp microbatches that are simulated one by one."""
PERIODS = 4
"""Longest period looked for, in groups."""
EQUAL_FRAC = 1e-12
"""Two moments are equal within this share of the step: rounding."""


class Durations(NamedTuple):
    """What `simulate` takes beside the program; axes as there."""

    forward_s: np.ndarray
    backward_s: np.ndarray
    merged_s: np.ndarray | None
    send_s: np.ndarray

    def plans(self, index: np.ndarray) -> Durations:
        """Some of the plans."""
        merged = None if self.merged_s is None else self.merged_s[..., index]
        return Durations(self.forward_s[:, index], self.backward_s[:, index], merged, self.send_s[index])


class Period(NamedTuple):
    """Of each plan [K]: microbatches after which the steady state repeats (0: none was found), and their seconds."""

    microbatches: np.ndarray
    seconds: np.ndarray


def finish_s(shape: Shape, times: Durations) -> np.ndarray:
    """[pp, K] when every rank ends its last op, at the cost of at most about `GROUPS` groups of microbatches where the
    steady state repeats, which it does unless several stages are slowest within a hair."""
    short = replace(shape, microbatches=_short(shape, 0))
    if shape.microbatches <= (GROUPS + PERIODS) * shape.pp:
        return simulate(compile_program(shape), *times)
    period = _period(short, times)
    out = np.empty((shape.pp, len(times.send_s)))
    for length in np.unique(period.microbatches).tolist():
        index = np.nonzero(period.microbatches == length)[0]
        out[:, index] = _extended(shape, times.plans(index), length, period.seconds[index])
    return out


def _extended(shape: Shape, times: Durations, length: int, seconds: np.ndarray) -> np.ndarray:
    """A short run that differs from the whole by full periods, and these."""
    if not length:
        return simulate(compile_program(shape), *times)
    short = replace(shape, microbatches=_short(shape, length))
    ends = simulate(compile_program(short), *times)
    return ends + (shape.microbatches - short.microbatches) // length * seconds


def _short(shape: Shape, length: int) -> int:
    """Microbatches to simulate so that whole periods are missing."""
    least = GROUPS * shape.pp
    return least + (shape.microbatches - least) % length if length else least


def _period(shape: Shape, times: Durations) -> Period:
    """The shortest period of each plan in the last passes of a short run."""
    program = compile_program(shape)
    moments = run(program, *times)
    equal_s = EQUAL_FRAC * moments.end[program.last].max(axis=0)
    steady = _steady(program, moments)
    found = Period(np.zeros(len(times.send_s), dtype=int), np.zeros(len(times.send_s)))
    window = warm_up(shape, 0) + shape.pp
    for length in _lengths(shape):
        passes = length * shape.vpp
        later, earlier = steady[:, -window:], steady[:, -window - passes : -passes]
        shift = (later - earlier).reshape(-1, len(equal_s))
        repeats = (np.ptp(shift, axis=0) <= equal_s) & (found.microbatches == 0)
        found.microbatches[repeats] = length
        found.seconds[repeats] = shift.mean(axis=0)[repeats]
    return found


def _lengths(shape: Shape) -> Iterator[int]:
    """Microbatches that a period may have: any number, with interleaving whole groups."""
    unit = shape.pp if shape.vpp > 1 else 1
    yield from range(unit, PERIODS * shape.pp + 1, unit)


def _steady(program: Program, moments: Moments) -> np.ndarray:
    """[moments, passes, K] of the passes in which all ranks alternate: ends of ops and of messages, per rank."""
    shape = program.shape
    begin = warm_up(shape, 0)
    rows = []
    for rank, ops in enumerate(program.of_rank):
        warm = warm_up(shape, rank)
        places = [ops[begin : shape.chunk_passes]]
        if shape.overlap == Overlap.NONE:
            first = warm + 2 * (begin - warm)
            last = warm + 2 * (shape.chunk_passes - warm)
            places = [ops[first:last:2], ops[first + 1 : last : 2]]
        rows += [times[each] for each in places for times in (moments.end, *moments.arrived)]
    return np.stack(rows)
