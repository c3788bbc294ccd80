"""The simulation of arranged plans: slot times from stage costs, the program of their shape, the step it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autodeploy.schedule.steady import Durations, finish_s
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
        return Steps(step_s=(finish + tails).max(axis=0), finish_s=finish)
    forward, backward, merged, sends = times
    plans = len(sends)
    wide = None if merged is None else _and_equal(merged, (0, 1, 2))
    messages = np.concatenate([sends, 0.0 * sends, 0.0 * sends])
    ends = finish_s(shape, Durations(_and_equal(forward, (0,)), _and_equal(backward, (0,)), wide, messages))
    finish, free, equal = ends[:, :plans], ends[:, plans : 2 * plans], ends[:, 2 * plans :]
    apart = Apart((free + tails).max(axis=0), equal.max(axis=0))
    return Steps(step_s=(finish + tails).max(axis=0), finish_s=finish, apart=apart)


def step_s_of(arranged: Arranged) -> float:
    """Step time of a single plan."""
    return float(simulate_steps(arranged, int(arranged.microbatches)).step_s[0])


def simulate_layouts(options: Sequence[Arranged], microbatches: int) -> np.ndarray:
    """[K] steps of one plan arranged on K layouts of one shape."""
    parts = [durations_of(each) for each in options]
    merged = None if parts[0].merged_s is None else np.concatenate([part.merged_s for part in parts], axis=-1)
    times = Durations(
        np.concatenate([part.forward_s for part in parts], axis=1),
        np.concatenate([part.backward_s for part in parts], axis=1),
        merged,
        np.concatenate([part.send_s for part in parts]),
    )
    finish = finish_s(options[0].case.shape(microbatches), times)
    found: np.ndarray = (finish + np.concatenate([_tails(each) for each in options], axis=1)).max(axis=0)
    return found


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
    return Durations(_slot_times(arranged, "forward"), _slot_times(arranged, "backward"), merged, sends)


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
