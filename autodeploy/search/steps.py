"""The simulation of arranged plans: slot times from stage costs, the program of their shape, the step it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autodeploy.schedule.steady import Durations, finish_s, rolling_s, side_by_side
from autodeploy.search.arranged import Arranged
from autodeploy.spec.plan import Overlap


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Simulated steps of K plans of one shape."""

    step_s: np.ndarray
    """[K]"""
    finish_s: np.ndarray
    """[pp, K] when each stage ends its last op."""
    apart: Apart | None = None
    """On request."""


class Apart(NamedTuple):
    """What the same step would be, [K]."""

    without_sends_s: np.ndarray
    """If messages between stages took no time."""
    equal_s: np.ndarray
    """The pipeline alone, if moreover all slots took the mean."""


def simulate_steps(arranged: Arranged, microbatches: int, *, take_apart: bool = False) -> Steps:
    """Step time of arranged plans that share the number of microbatches: pipeline, then the tail of every stage."""
    shape = arranged.case.shape(microbatches)
    times, tails = durations_of(arranged), _tails(arranged)
    if not take_apart:
        finish = finish_s(shape, times)
        return Steps(step_s=_step_s(arranged, finish + tails, times), finish_s=finish)
    plans = len(times.send_s)
    wide = _thrice(times)
    ends = finish_s(shape, wide)
    finish, free, equal = ends[:, :plans], ends[:, plans : 2 * plans], ends[:, 2 * plans :]
    bare, even = (wide.plans(np.arange(first * plans, (first + 1) * plans)) for first in (1, 2))
    apart = Apart(_step_s(arranged, free + tails, bare), _step_s(arranged, equal, even))
    return Steps(step_s=_step_s(arranged, finish + tails, times), finish_s=finish, apart=apart)


def _step_s(arranged: Arranged, ends_s: np.ndarray, times: Durations) -> np.ndarray:
    """[K] from when each stage is done ([pp, K]): all stages begin together, or each as soon as it is done itself."""
    shape = arranged.case.shape(1)
    return rolling_s(shape, ends_s, times) if arranged.rolls else np.asarray(ends_s.max(axis=0))


def _thrice(times: Durations) -> Durations:
    """The plans as they are, without messages, and moreover with the mean in every slot."""
    merged = None if times.merged_s is None else _and_equal(times.merged_s, (0, 1, 2))
    split = None if times.split_s is None else _and_equal(times.split_s, (1,))
    messages = np.concatenate([times.send_s, 0.0 * times.send_s, 0.0 * times.send_s])
    return Durations(_and_equal(times.forward_s, (0,)), _and_equal(times.backward_s, (0,)), merged, messages, split)


def step_s_of(arranged: Arranged) -> float:
    """Step time of a single plan."""
    return float(simulate_steps(arranged, int(arranged.microbatches)).step_s[0])


def simulate_layouts(options: Sequence[Arranged], microbatches: int) -> np.ndarray:
    """[K] steps of one plan arranged on K layouts of one shape."""
    times = side_by_side([durations_of(each) for each in options])
    finish = finish_s(options[0].case.shape(microbatches), times)
    tails = np.concatenate([_tails(each) for each in options], axis=1)
    return _step_s(options[0], finish + tails, times)


def _tails(arranged: Arranged) -> np.ndarray:
    """[pp, K]"""
    return _per_stage(arranged, [stage.tail.seconds for stage in arranged.stages], _plans(arranged))


def _and_equal(times: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The same plans a second time, and a third with the mean in every place, along the last axis."""
    mean = np.broadcast_to(times.mean(axis=axes, keepdims=True), times.shape)
    return np.concatenate([times, times, mean], axis=-1)


def durations_of(arranged: Arranged) -> Durations:
    """What the ops and messages of arranged plans take."""
    plans = _plans(arranged)
    merged = _merged_times(arranged, plans) if arranged.case.overlap == Overlap.PAIR else None
    sends = np.broadcast_to(np.asarray(arranged.send_s, dtype=float), (plans,))
    split = np.stack([_split_times(arranged, side) for side in (0, 1)]) if arranged.case.split else None
    return Durations(_slot_times(arranged, "forward"), _slot_times(arranged, "backward"), merged, sends, split)


def _row(value: object, plans: int | None = None) -> np.ndarray:
    row = np.atleast_1d(np.asarray(value, dtype=float))
    return row if plans is None else np.broadcast_to(row, (plans,))


def _plans(arranged: Arranged) -> int:
    return len(_row(arranged.stages[0].backward[0].alone))


def _per_stage(arranged: Arranged, per_role: list[object], plans: int) -> np.ndarray:
    """[pp, K] from one entry per role."""
    rows = [_row(value, plans) for value in per_role]
    return np.stack([rows[role] for role in arranged.case.layout.role_of_stage])


def _slot_times(arranged: Arranged, side: str) -> np.ndarray:
    """[slots, K], slot = chunk * pp + stage."""
    plans = _plans(arranged)
    per_chunk = []
    for chunk in range(arranged.case.layout.vpp):
        loads = [getattr(stage, side)[stage.role.content_of_chunk[chunk]] for stage in arranged.stages]
        per_chunk.append(_per_stage(arranged, [arranged.case.pass_s(load) for load in loads], plans))
    return np.concatenate(per_chunk)


def _split_times(arranged: Arranged, side: int) -> np.ndarray:
    """[slots, K] of backward passes without their weight gradients (side 0), or of these (1)."""
    plans, case = _plans(arranged), arranged.case
    roles = [(stage.inputs_s(case), stage.weights_s)[side] for stage in arranged.stages]
    contents = [stage.role.content_of_chunk for stage in arranged.stages]
    per_chunk = [
        _per_stage(arranged, [times[places[chunk]] for times, places in zip(roles, contents, strict=True)], plans)
        for chunk in range(case.layout.vpp)
    ]
    return np.concatenate(per_chunk)


def _merged_times(arranged: Arranged, plans: int) -> np.ndarray:
    """[pp, vpp, vpp, K]"""
    per_role = []
    for stage in arranged.stages:
        table = np.stack(
            [
                np.stack([_row(time, plans) for time in row])
                for row in stage.merged_s(arranged.pipe.sends_s, arranged.case.taken_frac)
            ]
        )
        content = np.array(stage.role.content_of_chunk)
        per_role.append(table[content[:, None], content[None, :]])
    return np.stack([per_role[role] for role in arranged.case.layout.role_of_stage])
