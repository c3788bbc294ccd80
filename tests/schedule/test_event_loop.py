"""The simulator against an event loop that knows neither levels nor programs (benchmarks/event_loop.py)."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.errors import ScheduleDeadlock
from autodeploy.schedule.orders import rank_order
from autodeploy.schedule.program import compile_orders, compile_program
from autodeploy.schedule.shapes import RankOrder, Shape
from autodeploy.schedule.simulate import simulate
from tests.house.source import ROOT
from tests.schedule.oracle import shape_of, written


def load(name: str) -> ModuleType:
    """A module of the benchmarks, which are no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


Loop = load("event_loop").Loop


def passes_of(shape: Shape, rank: int) -> list[tuple]:
    """The ops of a rank in the words of the event loop."""
    return [
        tuple((side, half[0], half[1] * shape.pp + rank) for side, half in zip("FB", op, strict=True) if half)
        for op in written(rank_order(shape, rank))
    ]


@settings(max_examples=60, deadline=None)
@given(
    pp=st.integers(1, 6), vpp=st.integers(1, 3), groups=st.integers(1, 3), extra=st.integers(0, 3),
    pair=st.booleans(), send=st.sampled_from([0.0, 0.02, 0.6, 4.0]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_every_op_of_its_own_length_ends_as_in_the_event_loop(
    pp: int, vpp: int, groups: int, extra: int, pair: bool, send: float, seed: int
) -> None:
    # durations differ per slot, chunk and microbatch, merged ops included
    chunks = vpp if pp > 1 else 1
    shape = shape_of(pp, chunks, groups * pp if chunks > 1 else groups + extra, pair)
    draw, slots = np.random.default_rng(seed), pp * chunks
    forward, backward = (draw.uniform(0.1, 2.0, (slots, shape.microbatches, 1)) for _ in range(2))
    merged = draw.uniform(0.1, 4.0, (pp, chunks, shape.microbatches, 1))
    seconds = {}
    for rank in range(pp):
        for op in passes_of(shape, rank):
            side, microbatch, slot = op[0]
            table = {"F": forward, "B": backward}[side]
            both = merged[rank, slot // pp, microbatch, 0]
            seconds[op] = both if len(op) == 2 else table[slot, microbatch, 0]
    events = Loop([passes_of(shape, rank) for rank in range(pp)], seconds, send, slots).run()
    program = compile_program(shape, each_microbatch=True)
    found = simulate(program, forward, backward, merged if pair else None, np.array([send]))
    assert found[:, 0] == pytest.approx(np.array(events), rel=1e-12)


def test_a_backward_before_its_own_forward_is_a_deadlock() -> None:
    # on the last rank nothing but the order says so
    shape = shape_of(2, 1, 3)
    orders = [rank_order(shape, rank) for rank in range(2)]
    turned = RankOrder(*(column[[1, 0, *range(2, len(column))]] for column in orders[1]))
    with pytest.raises(ScheduleDeadlock, match="rank 1 B of microbatch 0 chunk 0 waits for rank 1 F of microbatch 0"):
        compile_orders(shape, [orders[0], turned])
