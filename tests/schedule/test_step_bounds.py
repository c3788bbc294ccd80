"""The bound of a step: never above the simulation of the same times, and equal to it on a balanced pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.schedule.bounds import stage_work_s, step_bound_s
from autodeploy.schedule.orders import op_counts
from autodeploy.schedule.shapes import Shape
from tests.schedule.oracle import Times, equal_times, finish_s, order_of, random_times, shape_of
from tests.schedule.test_simulation import finished


def chunk_times(shape: Shape, times: Times, stage: int) -> tuple[list[float], list[float], list[list[float]] | None]:
    """Forward, backward and merged seconds of the chunks of a stage."""
    forward, backward = times.forward[stage :: shape.pp], times.backward[stage :: shape.pp]
    if not shape.overlap:
        return list(forward), list(backward), None
    chunks = range(shape.vpp)
    return list(forward), list(backward), [[times.merged[stage, i, j] for j in chunks] for i in chunks]


def work_s(shape: Shape, times: Times, stage: int) -> float:
    return stage_work_s(op_counts(shape, stage, tuple(range(shape.vpp))), *chunk_times(shape, times, stage))


def bound_s(shape: Shape, times: Times, tails: list[float], stages: list[int] | None = None) -> float:
    """The bound with every stage a role of its own."""
    looked_at = list(range(shape.pp)) if stages is None else stages
    return step_bound_s(
        looked_at,
        tuple(range(shape.pp)),
        list(times.forward[: shape.pp]),
        list(times.backward[: shape.pp]),
        [work_s(shape, times, stage) for stage in looked_at],
        tails,
        times.send,
    )


def step_s(shape: Shape, times: Times, tails: list[float]) -> float:
    return float((finished(shape, times)[:, 0] + tails).max())


@settings(max_examples=120)
@given(
    pp=st.integers(1, 6), vpp=st.integers(1, 4), groups=st.integers(1, 4), extra=st.integers(0, 5),
    pair=st.booleans(), send=st.sampled_from([0.0, 0.01, 0.5, 4.0]), tail=st.sampled_from([0.0, 1.0, 50.0]),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_the_bound_is_never_above_the_simulation(
    pp: int, vpp: int, groups: int, extra: int, pair: bool, send: float, tail: float, seed: int
) -> None:
    chunks = vpp if pp > 1 else 1
    shape = shape_of(pp, chunks, groups * pp if chunks > 1 else groups + extra, pair)
    rng = np.random.default_rng(seed)
    times, tails = random_times(shape, rng, send), (tail * rng.uniform(size=pp)).tolist()
    assert bound_s(shape, times, tails) <= step_s(shape, times, tails) * (1 + 1e-12)


@settings(max_examples=40)
@given(
    pp=st.integers(1, 6), vpp=st.integers(1, 4), groups=st.integers(1, 4), forward=st.floats(0.1, 10.0),
    backward=st.floats(0.1, 10.0), tail=st.floats(0.0, 5.0),
)  # fmt: skip
def test_the_bound_is_the_simulation_of_equal_slots(
    pp: int, vpp: int, groups: int, forward: float, backward: float, tail: float
) -> None:
    shape = shape_of(pp, vpp if pp > 1 else 1, groups * pp)
    times, tails = equal_times(shape, forward, backward), [tail] * pp
    assert bound_s(shape, times, tails) == pytest.approx(step_s(shape, times, tails), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pp", [1, 2, 5])
def test_the_bound_is_the_path_of_a_single_microbatch(pp: int, seed: int) -> None:
    # through all stages and back, with every message
    shape = shape_of(pp, 1, 1)
    times = random_times(shape, np.random.default_rng(seed), send=0.3)
    path = sum(times.forward) + sum(times.backward) + 2 * (pp - 1) * times.send
    assert bound_s(shape, times, [0.0] * pp) == pytest.approx(path, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_looking_at_fewer_stages_never_raises_the_bound(seed: int) -> None:
    shape = shape_of(5, 2, 10)
    times, tails = random_times(shape, np.random.default_rng(seed), 0.1), [0.0] * 5
    assert bound_s(shape, times, tails, [0, 3]) <= bound_s(shape, times, tails)


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize(("pp", "vpp", "microbatches"), [(1, 1, 3), (4, 1, 2), (4, 1, 9), (3, 4, 9)])
def test_work_is_the_time_of_all_ops_of_a_rank(pp: int, vpp: int, microbatches: int, pair: bool) -> None:
    shape = shape_of(pp, vpp, microbatches, pair)
    times = random_times(shape, np.random.default_rng(5))
    for stage in range(pp):
        forward, backward, _ = chunk_times(shape, times, stage)
        seconds = 0.0
        for f, b in order_of(shape, stage):
            if f and b:
                seconds += times.merged[stage, f[1], b[1]]
            else:
                seconds += forward[f[1]] if f else backward[b[1]]  # type: ignore[index]
        assert work_s(shape, times, stage) == pytest.approx(seconds, rel=1e-12)


def test_a_stage_alone_is_bounded_by_its_work_and_tail() -> None:
    shape = shape_of(1, 1, 6)
    times = random_times(shape, np.random.default_rng(0))
    assert bound_s(shape, times, [2.5]) == pytest.approx(finish_s(shape, times)[0] + 2.5, rel=1e-12)


def test_stages_of_one_role_fill_and_drain_together() -> None:
    # three equal stages above the last: what one role counted three times gives, three roles give as well
    shape = shape_of(4, 1, 8)
    times = Times([1.0, 1.0, 1.0, 4.0], [2.0, 2.0, 2.0, 6.0], {}, 0.25)
    roles = step_bound_s([2, 3], (0, 0, 0, 1), [1.0, 4.0], [2.0, 6.0], [24.0, 80.0], [0.5, 0.75], 0.25)
    assert roles == bound_s(shape, times, [0.5, 0.5, 0.5, 0.75])
