"""Long runs: a steady state that repeats tells the end of any number of microbatches (model.md 5.2).

An op waits for ops at most a warm-up and a group of passes before it. So once all moments of that many passes are
those of one period earlier plus a constant, all later ones are too, until the last microbatch drains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from autodeploy.schedule.orders import warm_up
from autodeploy.schedule.program import START, Program, compile_program
from autodeploy.schedule.shapes import Shape
from autodeploy.schedule.simulate import Moments, run, simulate
from autodeploy.spec.placement import Placement
from autodeploy.spec.plan import Overlap

GROUPS = 20
"""Groups of pp microbatches that are simulated one by one; twice as many for plans that have not settled by then."""
PERIODS = 4
"""Longest period looked for, in groups."""
SPLIT_WINDOW = 4
"""Groups of pp microbatches within which an op waits for others where weight gradients run apart."""
EQUAL_FRAC = 1e-12
"""Two moments are equal within this share of the step: rounding."""


class Durations(NamedTuple):
    """What `simulate` takes beside the program; axes as there."""

    forward_s: np.ndarray
    backward_s: np.ndarray
    merged_s: np.ndarray | None
    send_s: np.ndarray
    split_s: np.ndarray | None = None

    def plans(self, index: np.ndarray) -> Durations:
        """Some of the plans."""
        merged, split = (None if each is None else each[..., index] for each in (self.merged_s, self.split_s))
        return Durations(self.forward_s[:, index], self.backward_s[:, index], merged, self.send_s[index], split)


def side_by_side(parts: Sequence[Durations]) -> Durations:
    """The plans of all parts."""
    columns: list[Any] = [
        None if each[0] is None else np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)
    ]
    return Durations(*columns)


class Period(NamedTuple):
    """Of each plan [K]: microbatches after which the steady state repeats (0: none was found), and their seconds."""

    microbatches: np.ndarray
    seconds: np.ndarray


def finish_s(shape: Shape, times: Durations, groups: int = GROUPS) -> np.ndarray:
    """[pp, K] when every rank ends its last op: the cost of about `groups` groups of microbatches where the steady
    state repeats by then. Where several stages are slowest within a hair it takes longer."""
    least = groups * shape.pp
    if shape.microbatches <= least + PERIODS * shape.pp:
        return simulate(compile_program(shape), *times)
    period = _period(replace(shape, microbatches=least), times)
    out = np.empty((shape.pp, len(times.send_s)))
    for length in np.unique(period.microbatches).tolist():
        index = np.nonzero(period.microbatches == length)[0]
        some = times.plans(index)
        if length:
            out[:, index] = _extended(shape, some, least, length, period.seconds[index])
        else:
            out[:, index] = finish_s(shape, some, 2 * groups)
    return out


def rolling_s(shape: Shape, ends_s: np.ndarray, times: Durations) -> np.ndarray:
    """[K] seconds from step to step where every stage goes on when it is done itself: the longest from a stage's first
    op to what it ends at (ends_s [pp, K])."""
    pp = shape.pp
    begins = _down_s(times, np.arange(pp))
    if shape.placement == Placement.MIRROR:  # microbatches enter at both ends
        begins = np.minimum(begins, _down_s(times, 2 * pp - 1 - np.arange(pp))[::-1])
    return np.asarray((ends_s - begins).max(axis=0))


def _down_s(times: Durations, rows: np.ndarray) -> np.ndarray:
    """[pp, K] when a first microbatch comes to each of some passes, one after the other."""
    hops = np.vstack([np.zeros_like(times.send_s), times.forward_s[rows[:-1]] + times.send_s])
    return np.cumsum(hops, axis=0)


def _extended(shape: Shape, times: Durations, least: int, length: int, seconds: np.ndarray) -> np.ndarray:
    """A run of at least so many microbatches that differs from the whole by full periods, and these."""
    short = replace(shape, microbatches=least + (shape.microbatches - least) % length)
    ends = simulate(compile_program(short), *times)
    return ends + (shape.microbatches - short.microbatches) // length * seconds


def _period(shape: Shape, times: Durations) -> Period:
    """The shortest period of each plan in the last passes of a short run."""
    program = compile_program(shape)
    moments = run(program, *times)
    equal_s = EQUAL_FRAC * moments.end[program.last].max(axis=0)
    steady = _steady(program, moments)
    found = Period(np.zeros(len(times.send_s), dtype=int), np.zeros(len(times.send_s)))
    window = SPLIT_WINDOW * shape.pp if shape.split else warm_up(shape, 0) + shape.pp
    for length in _lengths(shape):
        passes = length if shape.split else length * shape.vpp
        later, earlier = steady[:, -window:], steady[:, -window - passes : -passes]
        shift = (later - earlier).reshape(-1, len(equal_s))
        repeats = (np.ptp(shift, axis=0) <= equal_s) & (found.microbatches == 0)
        found.microbatches[repeats] = length
        found.seconds[repeats] = shift.mean(axis=0)[repeats]
    return found


def _lengths(shape: Shape) -> Iterator[int]:
    """Microbatches that a period may have: any number, with interleaving whole groups."""
    unit = shape.pp if shape.vpp > 1 and not shape.split else 1
    yield from range(unit, PERIODS * shape.pp + 1, unit)


def _steady(program: Program, moments: Moments) -> np.ndarray:
    """[moments, passes, K] of the passes (microbatches, where weight gradients run apart) in which all ranks do the
    same over and over: ends of ops and of messages, per rank."""
    places_of = _split_places if program.shape.split else _places
    places = [each for rank in range(program.shape.pp) for each in places_of(program, rank)]
    return np.stack([times[each] for each in places for times in (moments.end, *moments.arrived)])


def _places(program: Program, rank: int) -> list[np.ndarray]:
    """Ops of a rank between warm-up and drain, each kind apart."""
    shape, ops, warm = program.shape, program.of_rank[rank], warm_up(program.shape, rank)
    begin = warm_up(shape, 0)
    if shape.overlap != Overlap.NONE:
        return [ops[begin : shape.chunk_passes]]
    first, last = (warm + 2 * (passes - warm) for passes in (begin, shape.chunk_passes))
    return [ops[first:last:2], ops[first + 1 : last : 2]]


def _split_places(program: Program, rank: int) -> list[np.ndarray]:
    """The same up to the last forward through the first chunk: from one such forward to the next the ops repeat."""
    shape, ops = program.shape, program.of_rank[rank]
    entries = np.nonzero(program.ops.f_chunk[ops - START - 1] == 0)[0]
    last, each = int(entries[-1]), int(entries[-1] - entries[-2])
    first = last - each * (PERIODS + SPLIT_WINDOW) * shape.pp
    return [ops[first + kind : last : each] for kind in range(each)]
