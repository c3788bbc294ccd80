"""One step event by event: complete, without gaps in the account, in the time that the simulator says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.schedule.live import live_chunks
from autodeploy.schedule.program import compile_program
from autodeploy.schedule.shapes import Shape
from autodeploy.schedule.steady import Durations
from autodeploy.schedule.timeline import COMPUTE, PORT, STEP_END, Event, live_levels, step_events
from tests.schedule.oracle import Times, columns, duration_s, finish_s, order_of, random_times, shape_of

FAST = settings(max_examples=40)
AFTER = {"grad_sync": 0.5, "nothing": 0.0, "optimizer": 0.25}


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Small shapes of every kind."""
    pp = draw(st.integers(1, 5))
    vpp = draw(st.integers(1, 3)) if pp > 1 else 1
    microbatches = pp * draw(st.integers(1, 3)) if vpp > 1 else draw(st.integers(1, 9))
    return shape_of(pp, vpp, microbatches, draw(st.booleans()))


def durations_of(shape: Shape, times: Times) -> Durations:
    """The oracle's times as a timeline takes them."""
    return Durations(*columns(shape, [times]))


def events_of(shape: Shape, times: Times, after: bool = False) -> tuple[Event, ...]:
    """Events of one step."""
    return step_events(compile_program(shape), durations_of(shape, times), [AFTER] * shape.pp if after else ())


def on(events: Sequence[Event], rank: int, lane: str) -> list[Event]:
    """Events of one lane of a rank."""
    return [event for event in events if (event.rank, event.lane) == (rank, lane)]


def some_times(shape: Shape, seed: int, send: float) -> Times:
    """Unequal times."""
    return random_times(shape, np.random.default_rng(seed), send=send)


CASES = given(shape=shapes(), send=st.sampled_from([0.0, 0.01, 2.0]), seed=st.integers(0, 2**32 - 1))


@FAST
@CASES
def test_ops_are_those_of_the_order_and_take_their_time(shape: Shape, send: float, seed: int) -> None:
    times = some_times(shape, seed, send)
    events = events_of(shape, times)
    for rank in range(shape.pp):
        ops, order = on(events, rank, COMPUTE), order_of(shape, rank)
        assert [(op.forward, op.backward) for op in ops] == order
        assert [op.duration_s for op in ops] == pytest.approx([duration_s(shape, times, rank, op) for op in order])


@FAST
@CASES
def test_a_step_ends_when_the_oracle_says_and_then_comes_what_follows(shape: Shape, send: float, seed: int) -> None:
    times = some_times(shape, seed, send)
    events = events_of(shape, times, after=True)
    for rank, finish in enumerate(finish_s(shape, times)):
        assert on(events, rank, COMPUTE)[-1].end_s == pytest.approx(finish, rel=1e-12)
        after = on(events, rank, STEP_END)
        assert [(e.kind, e.start_s, e.duration_s) for e in after] == [
            ("grad_sync", pytest.approx(finish), 0.5),
            ("optimizer", pytest.approx(finish + 0.5), 0.25),
        ]


@FAST
@CASES
def test_a_rank_does_one_thing_at_a_time_and_its_port_sends_one_message(shape: Shape, send: float, seed: int) -> None:
    events = events_of(shape, some_times(shape, seed, send))
    for rank in range(shape.pp):
        for lane in (COMPUTE, PORT):
            mine = on(events, rank, lane)
            assert all(each.start_s >= 0.0 for each in mine)
            assert all(a.end_s <= b.start_s + 1e-12 * b.end_s for a, b in pairwise(mine))


@FAST
@CASES
def test_every_microbatch_passes_every_chunk_once_each_way(shape: Shape, send: float, seed: int) -> None:
    events = events_of(shape, some_times(shape, seed, send))
    every = Counter((m, c) for m in range(shape.microbatches) for c in range(shape.vpp))
    for rank in range(shape.pp):
        ops = on(events, rank, COMPUTE)
        assert Counter(op.forward for op in ops if op.forward) == every
        assert Counter(op.backward for op in ops if op.backward) == every


@FAST
@CASES
def test_messages_leave_after_their_op_and_arrive_before_the_next_one(shape: Shape, send: float, seed: int) -> None:
    events = events_of(shape, some_times(shape, seed, send))
    starts: dict[tuple[str, int, int], float] = {}
    for op in (event for event in events if event.lane == COMPUTE):
        for side, half in zip("FB", (op.forward, op.backward), strict=True):
            if half:
                starts[side, half.chunk * shape.pp + op.rank, half.microbatch] = op.start_s
    messages = [event for event in events if event.lane == PORT]
    slots = shape.pp * shape.vpp
    assert len(messages) == (2 * (slots - 1) * shape.microbatches if shape.pp > 1 else 0)
    for message in messages:
        side, half, way = ("F", message.forward, 1) if message.forward else ("B", message.backward, -1)
        assert half is not None
        slot = half.chunk * shape.pp + message.rank
        assert message.start_s > starts[side, slot, half.microbatch]
        assert message.end_s <= starts[side, slot + way, half.microbatch] * (1 + 1e-12)


@FAST
@given(shape=shapes(), seed=st.integers(0, 2**32 - 1))
def test_memory_peaks_where_the_order_says_and_ends_where_it_began(shape: Shape, seed: int) -> None:
    rng = np.random.default_rng(seed)
    each, static, working = rng.uniform(1.0, 9.0, shape.vpp).tolist(), 100.0, 3.0
    events = events_of(shape, some_times(shape, seed, 0.1))
    for rank in range(shape.pp):
        levels = live_levels(on(events, rank, COMPUTE), each, static, working)
        peak = max(sum(n * size for n, size in zip(live, each, strict=True)) for live in live_chunks(shape, rank))
        assert max(level.live_bytes for level in levels) == pytest.approx(static + peak + working)
        assert levels[-1].live_bytes == static
        assert all(a.at_s < b.at_s and a.live_bytes != b.live_bytes for a, b in pairwise(levels))
