"""The simulator: closed forms of equal slots, and an independent longest path for unequal ones.

Closed forms: arXiv 2104.04473 section 2.2 (bubble of 1F1B and interleaved 1F1B).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.errors import ScheduleDeadlock
from autodeploy.schedule import program as program_module
from autodeploy.schedule.orders import rank_order
from autodeploy.schedule.program import compile_program
from autodeploy.schedule.shapes import Shape
from autodeploy.schedule.simulate import simulate
from tests.schedule.oracle import Times, columns, equal_times, finish_s, random_times, shape_of

SECONDS = st.floats(0.1, 10.0)
STAGES = st.integers(1, 8)
FAST = settings(max_examples=40)


def finished(shape: Shape, *each: Times) -> np.ndarray:
    """[pp, K] from the simulator."""
    return simulate(compile_program(shape), *columns(shape, each))


@FAST
@given(pp=STAGES, microbatches=st.integers(1, 24), forward=SECONDS, backward=SECONDS)
def test_1f1b_has_the_bubble_of_p_minus_1(pp: int, microbatches: int, forward: float, backward: float) -> None:
    shape = shape_of(pp, 1, microbatches)
    step = finished(shape, equal_times(shape, forward, backward)).max()
    assert step == pytest.approx((microbatches + pp - 1) * (forward + backward), rel=1e-9)


@FAST
@given(pp=st.integers(2, 8), vpp=st.integers(2, 6), groups=st.integers(1, 4), forward=SECONDS, backward=SECONDS)
def test_interleaving_divides_the_bubble_by_v(pp: int, vpp: int, groups: int, forward: float, backward: float) -> None:
    shape = shape_of(pp, vpp, groups * pp)
    step = finished(shape, equal_times(shape, forward, backward)).max()
    work = groups * pp * vpp * (forward + backward)
    assert step - work == pytest.approx((pp - 1) * (forward + backward), rel=1e-9)


@FAST
@given(pp=st.integers(2, 6), vpp=st.integers(2, 5), groups=st.integers(1, 4), forward=SECONDS, backward=SECONDS)
def test_interleaving_exposes_messages_once(pp: int, vpp: int, groups: int, forward: float, backward: float) -> None:
    # down and up the P V slots once, while a message is short against a chunk
    shape, send = shape_of(pp, vpp, groups * pp), 1e-3 * min(forward, backward)
    silent, sending = (equal_times(shape, forward, backward, c) for c in (0.0, send))
    ends = finished(shape, silent, sending).max(axis=0)
    assert ends[1] - ends[0] == pytest.approx(2 * (pp * vpp - 1) * send, rel=1e-6)


@FAST
@given(pp=st.integers(2, 8), groups=st.integers(1, 6), forward=SECONDS, backward=SECONDS)
def test_1f1b_exposes_two_messages_per_microbatch_and_stage_cycle(
    pp: int, groups: int, forward: float, backward: float
) -> None:
    # fill and drain, then a cycle through all stages (2 (P - 1) messages) every P microbatches
    microbatches, send = groups * pp + 1, 1e-3
    shape = shape_of(pp, 1, microbatches)
    ends = finished(shape, *(equal_times(shape, forward, backward, c) for c in (0.0, send))).max(axis=0)
    assert ends[1] - ends[0] == pytest.approx(2 * (pp - 1) * (1 + groups) * send, rel=1e-6)


@FAST
@given(pp=STAGES, microbatches=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_one_microbatch_at_a_time_never_beats_its_own_path(pp: int, microbatches: int, seed: int) -> None:
    shape = shape_of(pp, 1, microbatches)
    times = random_times(shape, np.random.default_rng(seed), send=0.05)
    step = finished(shape, times).max()
    path = sum(times.forward) + sum(times.backward) + 2 * (pp - 1) * times.send
    works = [microbatches * (f + b) for f, b in zip(times.forward, times.backward, strict=True)]
    assert step >= max(path, *works) * (1 - 1e-12)
    if microbatches == 1:
        assert step == pytest.approx(path, rel=1e-12)


@FAST
@given(
    pp=st.integers(1, 5), vpp=st.integers(1, 4), groups=st.integers(1, 3), extra=st.integers(0, 4),
    pair=st.booleans(), send=st.sampled_from([0.0, 0.01, 0.7, 5.0]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_simulation_equals_an_independent_longest_path(
    pp: int, vpp: int, groups: int, extra: int, pair: bool, send: float, seed: int
) -> None:
    chunks = vpp if pp > 1 else 1
    microbatches = groups * pp if chunks > 1 else groups + extra
    shape = shape_of(pp, chunks, microbatches, pair)
    rng = np.random.default_rng(seed)
    each = [random_times(shape, rng, send=share * send) for share in (0.0, 1.0, 0.5)]
    assert finished(shape, *each) == pytest.approx(np.array([finish_s(shape, t) for t in each]).T, rel=1e-12)


def period_s(times: Times, pp: int) -> float:
    """Seconds a microbatch in the steady state of 1F1B: the slowest run of neighbouring stages."""
    both = [f + b for f, b in zip(times.forward, times.backward, strict=True)]
    return max(
        (sum(both[first : last + 1]) + 2 * times.send * (last - first)) / (last - first + 1)
        for first in range(pp)
        for last in range(first, pp)
    )


@settings(max_examples=25)
@given(pp=st.integers(2, 5), send=st.sampled_from([0.0, 0.01, 0.05]), seed=st.integers(0, 2**32 - 1))
def test_1f1b_settles_into_its_period(pp: int, send: float, seed: int) -> None:
    # maximum cycle mean of the steady state: lcm(1..P) more microbatches cost so many periods, while ports have time
    cycle, first = math.lcm(*range(1, pp + 1)), 40 * pp
    times = random_times(shape_of(pp, 1, 1), np.random.default_rng(seed), send=send)
    ends = [finished(shape_of(pp, 1, m), times).max() for m in (first, first + cycle)]
    assert ends[1] - ends[0] == pytest.approx(cycle * period_s(times, pp), rel=1e-9)


@pytest.mark.parametrize("pp", [3, 4, 8])
def test_a_slow_port_sets_the_pace(pp: int) -> None:
    # a stage in the middle sends an activation and a gradient of every microbatch through one port
    more, first = 2 * math.lcm(*range(1, pp + 1)), 40 * pp
    times = equal_times(shape_of(pp, 1, 1), 0.1, 0.1, 5.0)
    ends = [finished(shape_of(pp, 1, m), times).max() for m in (first, first + more)]
    assert ends[1] - ends[0] >= more * 2 * 5.0 * (1 - 1e-9)


@pytest.mark.parametrize(("pp", "vpp", "microbatches"), [(1, 1, 5), (4, 1, 9), (4, 3, 8)])
def test_merging_that_hides_nothing_gains_nothing(pp: int, vpp: int, microbatches: int) -> None:
    plain, pair = (shape_of(pp, vpp, microbatches, flag) for flag in (False, True))
    steps = [finished(shape, equal_times(shape, 1.0, 2.0)).max() for shape in (plain, pair)]
    assert steps[1] >= steps[0]


@pytest.mark.parametrize("seed", range(5))
def test_plans_simulated_together_are_those_simulated_alone(seed: int) -> None:
    shape, rng = shape_of(4, 2, 8, pair=True), np.random.default_rng(seed)
    each = [random_times(shape, rng, send=0.1) for _ in range(7)]
    together = finished(shape, *each)
    for place, times in enumerate(each):
        assert np.array_equal(together[:, [place]], finished(shape, times))


@pytest.mark.parametrize("slot", [0, 3, 7])
@pytest.mark.parametrize("pair", [False, True])
def test_a_slower_slot_is_never_faster(slot: int, pair: bool) -> None:
    shape = shape_of(4, 2, 12, pair)
    times = random_times(shape, np.random.default_rng(3))
    slower = [value + (place == slot) for place, value in enumerate(times.forward)]
    ends = finished(shape, times, Times(slower, times.backward, times.merged, times.send))
    assert (ends[:, 1] >= ends[:, 0]).all()


def test_an_order_that_waits_for_itself_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    # the first stage asks for gradients before it has sent anything
    def reversed_order(shape: Shape, rank: int):
        order = rank_order(shape, rank)
        return type(order)(*(column[::-1] for column in order)) if rank == 0 else order

    monkeypatch.setattr(program_module, "rank_order", reversed_order)
    with pytest.raises(ScheduleDeadlock) as raised:
        compile_program.__wrapped__(shape_of(3, 1, 4))
    first = "rank 0 B of microbatch 3 chunk 0 waits for rank 1 B of microbatch 3 chunk 0"
    assert first in str(raised.value)
    assert "rank 1 F of microbatch 0 chunk 0 waits for rank 0 F of microbatch 0 chunk 0" in str(raised.value)
