"""Runs of many microbatches by their steady state, against the same runs simulated whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.schedule import steady
from autodeploy.schedule.program import compile_program
from autodeploy.schedule.shapes import Shape
from autodeploy.schedule.simulate import simulate
from autodeploy.schedule.steady import GROUPS, Durations, finish_s
from tests.schedule.oracle import columns, random_times, shape_of


def random_plans(shape: Shape, plans: int, seed: int, send: float) -> Durations:
    """Unequal slots, drawn anew for every plan."""
    rng = np.random.default_rng(seed)
    return Durations(*columns(shape, [random_times(shape, rng, send=send) for _ in range(plans)]))


@settings(max_examples=30, deadline=None)
@given(
    pp=st.integers(1, 6), vpp=st.integers(1, 3), more=st.integers(0, 40), pair=st.booleans(),
    send=st.sampled_from([0.0, 0.05, 2.0]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_long_run_ends_as_simulated_whole(pp: int, vpp: int, more: int, pair: bool, send: float, seed: int) -> None:
    chunks = vpp if pp > 1 else 1
    count = (GROUPS + 10) * pp + more * (pp if chunks > 1 else 1)
    shape = shape_of(pp, chunks, count, pair)
    times = random_plans(shape, 3, seed, send)
    whole = simulate(compile_program(shape), *times)
    assert finish_s(shape, times) == pytest.approx(whole, rel=1e-11)


@pytest.mark.parametrize(("pp", "vpp", "pair"), [(4, 1, False), (8, 1, True), (8, 2, False), (16, 2, True)])
def test_4096_microbatches_need_no_more_ops_than_20_groups(
    pp: int, vpp: int, pair: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = shape_of(pp, vpp, 4096, pair)
    compiled: list[int] = []

    def counted(asked: Shape):
        compiled.append(asked.microbatches)
        return compile_program.__wrapped__(asked)

    monkeypatch.setattr(steady, "compile_program", counted)
    times = random_plans(shape, 40, 11, 0.01)
    settled = steady._period(shape_of(pp, vpp, GROUPS * pp, pair), times).microbatches > 0
    assert settled.mean() > 0.7  # most of unequal pipelines settle
    compiled.clear()
    finish_s(shape, times.plans(np.nonzero(settled)[0]))
    assert max(compiled) < (GROUPS + steady.PERIODS) * pp


def test_a_run_that_never_settles_is_simulated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # no period is ever accepted: the answer must not change
    shape = shape_of(4, 1, 300)
    times = random_plans(shape, 2, 5, 0.1)
    expected = finish_s(shape, times)
    monkeypatch.setattr(steady, "EQUAL_FRAC", -1.0)
    assert finish_s(shape, times) == pytest.approx(expected, rel=1e-11)
