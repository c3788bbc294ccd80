"""Schedules side by side: closed forms of arXiv 2104.04473 section 2.2, and the timeline's own messages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.errors import SpecError
from autodeploy.schedule.compare import Comparison, StageTimes, compare
from autodeploy.schedule.program import compile_program
from autodeploy.schedule.timeline import PORT, step_events
from autodeploy.spec.plan import Overlap
from tests.schedule.oracle import equal_times
from tests.schedule.test_timeline import durations_of

FAST = settings(max_examples=30)


def times_of(pp: int, forward: float, backward: float, merged: float | None = None, send: float = 0.0) -> StageTimes:
    """Equal stages."""
    both = forward + backward if merged is None else merged
    return StageTimes(forward_s=(forward,) * pp, backward_s=(backward,) * pp, merged_s=(both,) * pp, send_s=send)


def plain(found: list[Comparison]) -> list[Comparison]:
    """Schedules without merged passes."""
    return [each for each in found if each.shape.overlap is Overlap.NONE]


@FAST
@given(
    pp=st.integers(2, 8), groups=st.integers(1, 4), vpp=st.integers(2, 5), forward=st.floats(0.1, 10.0),
    backward=st.floats(0.1, 10.0),
)  # fmt: skip
def test_equal_stages_have_the_bubble_of_the_closed_form(
    pp: int, groups: int, vpp: int, forward: float, backward: float
) -> None:
    found = plain(compare(pp, groups * pp, [vpp], times_of(pp, forward, backward)))
    for each, v in zip(found, (1, vpp), strict=True):
        assert each.bubble_s == pytest.approx(each.closed_form_s, rel=1e-9)
        share = (pp - 1) / v / (groups * pp + (pp - 1) / v)
        assert each.bubble_frac == pytest.approx(share, rel=1e-9)


def test_unequal_stages_and_merged_passes_have_no_closed_form() -> None:
    times = StageTimes(forward_s=(1.0, 2.0), backward_s=(2.0, 4.0), merged_s=(3.0, 6.0), send_s=0.0)
    assert [each.closed_form_s for each in compare(2, 4, [2], times)] == [None] * 4
    equal = compare(2, 4, [2], times_of(2, 1.0, 2.0))
    assert [each.closed_form_s for each in equal] == [3.0, None, 1.5, None]


def test_the_slow_stage_is_the_busy_one() -> None:
    times = StageTimes(forward_s=(1.0, 2.0), backward_s=(2.0, 4.0), merged_s=(3.0, 6.0), send_s=0.0)
    one = compare(2, 10, [], times)[0]
    assert one.step_s == pytest.approx(1.0 + 10 * 6.0 + 2.0)
    assert one.bubble_s == pytest.approx(3.0)


def test_live_activations_are_the_published_ones_in_stages() -> None:
    # 1F1B keeps P microbatches, interleaving 2 (P - 1) + (v - 1) P + 1 chunks of 1/v, merging no more than
    # that, and without interleaving twice as many less one
    found = compare(4, 16, [2, 4], times_of(4, 1.0, 2.0))
    assert [each.live_stages for each in found] == [4.0, 7.0, 11 / 2, 11 / 2, 19 / 4, 19 / 4]


@pytest.mark.parametrize(("pp", "vpp", "microbatches"), [(1, 1, 5), (3, 1, 4), (2, 2, 4), (4, 3, 8)])
def test_messages_are_those_of_the_timeline(pp: int, vpp: int, microbatches: int) -> None:
    for each in compare(pp, microbatches, [vpp] if vpp > 1 else [], times_of(pp, 1.0, 2.0)):
        durations = durations_of(each.shape, equal_times(each.shape, 1.0, 2.0))
        events = step_events(compile_program(each.shape), durations)
        assert each.messages == sum(event.lane == PORT for event in events)


@pytest.mark.parametrize(
    ("pp", "microbatches", "vpps", "part"),
    [
        (4, 3, [2], "4 or another multiple"), (4, 9, [2], "8 or 12"), (1, 4, [2], "--pp: 1"), (4, 8, [1], "--vpp: 1"),
        (4, 10**7, [], "too much"),
    ],
)  # fmt: skip
def test_a_shape_that_no_schedule_runs_is_refused(pp: int, microbatches: int, vpps: list[int], part: str) -> None:
    with pytest.raises(SpecError, match=part):
        compare(pp, microbatches, vpps, times_of(pp, 1.0, 2.0))
