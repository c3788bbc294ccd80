"""The simulation of arranged plans: slot times from stage costs, the program of their shape, the step it makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autodeploy.schedule.program import compile_program
from autodeploy.schedule.simulate import simulate
from autodeploy.schedule.timeline import Durations
from autodeploy.search.arrange import Arranged
from autodeploy.spec.plan import Overlap


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Simulated steps of K plans of one shape."""

    step_s: np.ndarray
    """[K]"""
    finish_s: np.ndarray
    """[pp, K] when each stage ends its last op."""
    without_sends_s: np.ndarray | None = None
    """[K] the step if messages between stages took no time; on request."""


def simulate_steps(arranged: Arranged, microbatches: int, *, with_free_sends: bool = False) -> Steps:
    """Step time of arranged plans that share the number of microbatches: pipeline, then the tail of every stage."""
    program = compile_program(arranged.case.shape(microbatches))
    forward, backward = _slot_times(arranged, "forward"), _slot_times(arranged, "backward")
    plans = forward.shape[1]
    merged = _merged_times(arranged, plans) if arranged.case.overlap == Overlap.PAIR else None
    sends = np.broadcast_to(np.asarray(arranged.send_s, dtype=float), (plans,))
    tails = _per_stage(arranged, [stage.tail.seconds for stage in arranged.stages], plans)
    if not with_free_sends:
        finish = simulate(program, forward, backward, merged, sends)
        return Steps(step_s=(finish + tails).max(axis=0), finish_s=finish)
    merged_twice = None if merged is None else _twice(merged)
    both = simulate(program, _twice(forward), _twice(backward), merged_twice, np.concatenate([sends, 0.0 * sends]))
    finish, free = both[:, :plans], both[:, plans:]
    return Steps(step_s=(finish + tails).max(axis=0), finish_s=finish, without_sends_s=(free + tails).max(axis=0))


def durations_of(arranged: Arranged) -> Durations:
    """The slot times of one arranged plan."""
    pair = arranged.case.overlap == Overlap.PAIR
    return Durations(
        forward_s=_slot_times(arranged, "forward")[:, 0],
        backward_s=_slot_times(arranged, "backward")[:, 0],
        merged_s=_merged_times(arranged, 1)[..., 0] if pair else None,
        send_s=float(arranged.send_s),
    )


def _twice(times: np.ndarray) -> np.ndarray:
    """The same plans a second time, along the last axis."""
    return np.concatenate([times, times], axis=-1)


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
        per_chunk.append(_per_stage(arranged, [load.alone for load in loads], plans))
    return np.concatenate(per_chunk)


def _merged_times(arranged: Arranged, plans: int) -> np.ndarray:
    """[pp, vpp, vpp, K]"""
    per_role = []
    for stage in arranged.stages:
        table = np.stack([np.stack([_row(time, plans) for time in row]) for row in stage.merged_s()])
        content = np.array(stage.role.content_of_chunk)
        per_role.append(table[content[:, None], content[None, :]])
    return np.stack([per_role[role] for role in arranged.case.layout.role_of_stage])
