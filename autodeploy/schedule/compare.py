"""The schedules that there are, side by side, for given times of whole stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autodeploy.errors import Fault, SpecError
from autodeploy.schedule.bounds import stage_work_s
from autodeploy.schedule.live import live_chunks
from autodeploy.schedule.orders import op_counts
from autodeploy.schedule.program import crosses
from autodeploy.schedule.shapes import Shape
from autodeploy.schedule.steady import Durations, finish_s, rolling_s
from autodeploy.spec.placement import TWO_CHUNKS, Placement
from autodeploy.spec.plan import FIRST_OF_TWO, Overlap, Schedule

MOST_PASSES = 2_000_000
"""Chunk passes of all stages: beyond, a program takes minutes and gigabytes."""

MOST_STAGES = 2000
"""Every sweep that sorts a program's ops looks at all stages, and there is a sweep for every stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """Seconds of one microbatch in a whole stage, stage by stage; chunks share them evenly."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    merged_s: tuple[float, ...]
    """Both, of two microbatches, merged."""
    send_s: float
    weights_s: tuple[float, ...] = ()
    """Of the backward pass, its weight gradients; empty where they are not known."""

    @property
    def equal(self) -> bool:
        """Whether all stages take the same."""
        return max(len(set(each)) for each in (self.forward_s, self.backward_s, self.weights_s)) == 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One schedule."""

    shape: Shape
    step_s: float
    """Of schedules with weight gradients apart, from step to step where a stage goes on when it is done itself."""
    bubble_s: float
    """In which the busiest stage waits."""
    closed_form_s: float | None
    """The bubble of equal stages whose messages take no time, where it has a formula."""
    live_stages: float
    """Peak live chunks on rank 0, in units of a stage's activations of one microbatch."""
    messages: int
    """Of all ranks in a step."""

    @property
    def bubble_frac(self) -> float:
        """Share of the step."""
        return self.bubble_s / self.step_s if self.step_s else 0.0


def compare(pp: int, microbatches: int, vpps: Sequence[int], times: StageTimes) -> list[Comparison]:
    """1F1B, then interleaved with every number of chunks, each with and without merged passes; then, where the times of
    weight gradients are known, the schedules that run them apart.

    Raises `SpecError` for shapes that no schedule runs.
    """
    check_shapes(pp, microbatches, vpps)
    kinds = [(Schedule.ONE_F_ONE_B, 1), *((Schedule.INTERLEAVED, v) for v in vpps)]
    shapes = [Shape(kind, pp, v, microbatches, overlap) for kind, v in kinds for overlap in Overlap]
    if times.weights_s and pp > 1:
        shapes += list(_split_shapes(pp, microbatches))
    return [_compared(shape, times) for shape in shapes]


def _split_shapes(pp: int, microbatches: int) -> Iterator[Shape]:
    """Those that so many microbatches fill."""
    for schedule in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_V):
        yield Shape(schedule, pp, TWO_CHUNKS if schedule >= FIRST_OF_TWO else 1, microbatches, Overlap.NONE)
    if microbatches >= 2 * pp:
        for overlap in Overlap:
            yield Shape(Schedule.DUALPIPE_V, pp, TWO_CHUNKS, microbatches, overlap)


def check_shapes(pp: int, microbatches: int, vpps: Sequence[int]) -> None:
    """Every fault of the numbers of stages, chunks and microbatches."""
    faults = []
    for v in vpps:
        if v < 2:
            faults.append(Fault(path="--vpp", problem=f"{v} chunks are not interleaved", allowed="2 or more"))
    if vpps and pp < 2:
        faults.append(Fault(path="--pp", problem=f"{pp} stage leaves nothing to interleave", allowed="2 or more"))
    elif vpps and microbatches % pp:
        fewer, more = microbatches // pp * pp, (microbatches // pp + 1) * pp
        near = f"{fewer} or {more}" if fewer else f"{more} or another multiple"
        problem = f"{microbatches} is no multiple of pp {pp}, which interleaving needs"
        faults.append(Fault(path="--microbatches", problem=problem, allowed=near))
    if pp > MOST_STAGES:
        faults.append(
            Fault(path="--pp", problem=f"{pp} stages are too many to simulate", allowed=f"up to {MOST_STAGES}")
        )
    if pp * microbatches * max([1, *vpps]) > MOST_PASSES:
        problem = "pp x vpp x microbatches is too much to simulate"
        faults.append(Fault(path="--microbatches", problem=problem, allowed=f"a product up to {MOST_PASSES:,}"))
    if faults:
        raise SpecError(*faults)


def _compared(shape: Shape, times: StageTimes) -> Comparison:
    pp, v = shape.pp, shape.vpp
    forward, backward, merged = (np.array(each) / v for each in (times.forward_s, times.backward_s, times.merged_s))
    down, up = (np.tile(each, v)[:, None] for each in (forward, backward))
    pair = np.broadcast_to(merged[:, None, None, None], (pp, v, v, 1)) if shape.overlap == Overlap.PAIR else None
    late = np.array(times.weights_s) / v if shape.split else np.zeros(pp)
    split = np.stack([np.tile(each, v)[:, None] for each in (backward - late, late)]) if shape.split else None
    durations = Durations(down, up, pair, np.array([times.send_s]), split)
    ends = finish_s(shape, durations)
    step = float(rolling_s(shape, ends, durations)[0] if shape.split else ends.max())
    works = [_work_s(shape, rank, forward[rank], backward[rank], merged[rank], late[rank]) for rank in range(pp)]
    return Comparison(
        shape=shape,
        step_s=step,
        bubble_s=step - max(works),
        closed_form_s=_closed_form_s(shape, times),
        live_stages=max(map(sum, live_chunks(shape, 0))) / v,
        messages=2 * _hops(shape) * shape.microbatches,
    )


def _hops(shape: Shape) -> int:
    """Positions whose output goes to another rank."""
    return int(crosses(shape, np.arange(shape.positions), 1).sum())


def _work_s(shape: Shape, rank: int, forward_s: float, backward_s: float, merged_s: float, weights_s: float) -> float:
    counts = op_counts(shape, rank, (0,) * shape.vpp)
    split = ([backward_s - weights_s], [weights_s])
    return float(stage_work_s(counts, [forward_s], [backward_s], [[merged_s]], split))


def _closed_form_s(shape: Shape, times: StageTimes) -> float | None:
    """Formula: (pp-1)(F+B)/v; with weight gradients W apart ZB-H1 (pp-1)(F+B-2W), ZB-H2 (pp-1)(F+B-3W).
    Source: arXiv 2104.04473 section 2.2; arXiv 2401.10241 table 2."""
    if shape.overlap == Overlap.PAIR or not times.equal or shape.placement != Placement.ROUND:
        return None
    spared = {Schedule.ZB_H1: 2.0, Schedule.ZB_H2: 3.0}.get(shape.schedule, 0.0)
    late = spared * times.weights_s[0] if spared else 0.0
    return (shape.pp - 1) * (times.forward_s[0] + times.backward_s[0] - late) / shape.vpp
