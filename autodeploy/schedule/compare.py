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

SPLIT_PASSES = 10
"""A schedule with weight gradients apart has two chunks of three passes, and there are several of them."""

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
    check_shapes(pp, microbatches, vpps, split=bool(times.weights_s))
    kinds = [(Schedule.ONE_F_ONE_B, 1), *((Schedule.INTERLEAVED, v) for v in vpps)]
    shapes = [Shape(kind, pp, v, microbatches, overlap) for kind, v in kinds for overlap in Overlap]
    if times.weights_s and pp > 1:
        shapes += list(_split_shapes(pp, microbatches))
    return [_compared(shape, times) for shape in shapes]


def _split_shapes(pp: int, microbatches: int) -> Iterator[Shape]:
    """Those that so many microbatches fill."""
    for schedule in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_V):
        yield Shape(schedule, pp, TWO_CHUNKS if schedule >= FIRST_OF_TWO else 1, microbatches, Overlap.NONE)
    if microbatches < 2 * pp:
        return
    for overlap in Overlap:
        yield Shape(Schedule.DUALPIPE_V, pp, TWO_CHUNKS, microbatches, overlap)
    for overlap in Overlap if pp % 2 == microbatches % 2 == 0 else ():
        yield Shape(Schedule.DUALPIPE, pp, TWO_CHUNKS, microbatches // 2, overlap)


def check_shapes(pp: int, microbatches: int, vpps: Sequence[int], *, split: bool = False) -> None:
    """Every fault of the numbers of stages, chunks and microbatches; `split`: with schedules that run weight gradients
    apart."""
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
    most = MOST_PASSES // SPLIT_PASSES if split else MOST_PASSES
    if pp * microbatches * max([1, *vpps]) > most:
        problem = "pp x vpp x microbatches is too much to simulate"
        faults.append(Fault(path="--microbatches", problem=problem, allowed=f"a product up to {most:,}"))
    if faults:
        raise SpecError(*faults)


def _compared(shape: Shape, times: StageTimes) -> Comparison:
    whole = _durations(shape, times)
    ends = finish_s(shape, whole)
    step = float(rolling_s(shape, ends, whole)[0] if shape.split else ends.max())
    works = [_work_s(shape, rank, whole) for rank in range(shape.pp)]
    return Comparison(
        shape=shape,
        step_s=step,
        bubble_s=max(step - max(works), 0.0),
        closed_form_s=_closed_form_s(shape, times),
        live_stages=max(map(sum, live_chunks(shape, 0))) * _share(shape),
        messages=2 * _hops(shape) * shape.microbatches,
    )


def _share(shape: Shape) -> float:
    """Of a stage, what a chunk is: two whole ones lie head to tail, others share it evenly."""
    return 1.0 if shape.placement == Placement.MIRROR else 1.0 / shape.vpp


def _durations(shape: Shape, times: StageTimes) -> Durations:
    """Times of chunks, from those of whole stages."""
    pp, v, share = shape.pp, shape.vpp, _share(shape)

    def chunks(each: Sequence[float]) -> np.ndarray:
        own = share * np.array(each)
        return np.concatenate([own, own[::-1]]) if shape.placement == Placement.MIRROR else np.tile(own, v)

    forward, backward = (chunks(each)[:, None] for each in (times.forward_s, times.backward_s))
    pair, split = None, None
    if shape.overlap == Overlap.PAIR:
        both = chunks(times.merged_s).reshape(v, pp).mean(axis=0)
        pair = np.broadcast_to(both[:, None, None, None], (pp, v, v, 1))
    if shape.split:
        weights = chunks(times.weights_s)[:, None]
        split = np.stack([backward - weights, weights])
    return Durations(forward, backward, pair, np.array([times.send_s]), split)


def _hops(shape: Shape) -> int:
    """Positions whose output goes to another rank."""
    return int(crosses(shape, np.arange(shape.positions), 1).sum())


def _work_s(shape: Shape, rank: int, times: Durations) -> float:
    """Seconds of all ops of a rank."""
    mine = [chunk * shape.pp + rank for chunk in range(shape.vpp)]
    counts = op_counts(shape, rank, tuple(range(shape.vpp)))
    merged = None if times.merged_s is None else times.merged_s[rank, ..., 0].tolist()
    split = None if times.split_s is None else (times.split_s[0, mine, 0].tolist(), times.split_s[1, mine, 0].tolist())
    forward, backward = (each[mine, 0].tolist() for each in (times.forward_s, times.backward_s))
    return float(stage_work_s(counts, forward, backward, merged, split))


def _closed_form_s(shape: Shape, times: StageTimes) -> float | None:
    """Formula: (pp-1)(F+B)/v; with weight gradients W apart, none longer than F or B-W, ZB-H1 (pp-1)(F+B-2W),
    ZB-H2 (pp-1)(F+B-3W), in runs that fill the pipeline twice.
    Source: arXiv 2104.04473 section 2.2; arXiv 2401.10241 table 2."""
    if shape.overlap == Overlap.PAIR or not times.equal or shape.placement != Placement.ROUND:
        return None
    forward, backward, late = times.forward_s[0], times.backward_s[0], 0.0
    if shape.split:
        weights, spared = times.weights_s[0], 2.0 if shape.schedule == Schedule.ZB_H1 else 3.0
        if weights > min(forward, backward - weights) or shape.microbatches < 2 * shape.pp:
            return None
        late = spared * weights
    return (shape.pp - 1) * (forward + backward - late) / shape.vpp
