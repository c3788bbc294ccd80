"""Recompute until it fits, per role: the lowest rung of the ladder on which a stage's peak is within the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autodeploy.balance.recompute import Ladder
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.memory import (
    Moments,
    Params,
    activation_bytes,
    bytes_per_param,
    communicator_bytes,
    host_bytes,
    mask_bytes,
    messages_kept,
    stand_in_bytes,
    start_bytes,
    transient_bytes,
    update_bytes,
)  # fmt: skip
from autodeploy.cost.sharding import gathered_bytes
from autodeploy.numeric import Num, is_column, largest, maximum, minimum, total, where
from autodeploy.schedule.live import enough_microbatches, idle_chunks, pareto_maxima, pass_chunks
from autodeploy.schedule.orders import warm_up
from autodeploy.schedule.shapes import Shape
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Role
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import Overlap, PlanLike


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What is the same for all stages of a plan."""

    bytes_per_param: Params
    """Resident bytes of one parameter of each sort."""
    boundary: Num
    """p2p buffers."""
    message_copy: Num
    """Per message and live microbatch: the copy of it that the stack holds."""
    gathered: Mapping[Kind, Num]
    """Per kind of layer: its sharded weights and gradients while they are whole; empty where none are."""
    communicators: Num
    capacity_bytes: Num
    """What the allocator may hand out: usable memory less communicators, and of that the share not lost."""
    host_bytes: float
    """Memory of the host that is a device's share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """Where on the ladder a stage stands, and what it allocates there."""

    rung: Num
    allocated_bytes: Num
    """Peak of all moments, as the framework's allocator counts it: without communicators, before fragmentation."""
    host_bytes: Num = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What a stage holds beside rows and state, apart from recompute."""

    update: Num
    """Only during the update."""
    start: Num
    """All of it while the model is made."""
    always: Num
    """What layers hold beside parameters: masks, and what stands in for gradients."""
    host: Num


def budget(
    machine: Machine, model: Model, job: Job, plan: PlanLike, boundary: Num, costs: Mapping[Kind, LayerCost]
) -> Budget:
    """The budget of a plan's stages; `boundary` is what the pipeline's buffers of one message each way take."""
    left = 1.0 - machine.cluster.fragmentation_frac
    communicators = communicator_bytes(machine, model, plan)
    return Budget(
        bytes_per_param=bytes_per_param(job, machine.profile, plan),
        boundary=boundary,
        message_copy=boundary / 2.0 if machine.profile.stage_copies else 0.0,
        gathered=gathered_bytes(job, plan, costs),
        communicators=communicators,
        capacity_bytes=(machine.cluster.device.usable_bytes - communicators) * left,
        host_bytes=machine.cluster.device.host_bytes,
    )


def beside(
    machine: Machine, job: Job, plan: PlanLike, role: Role, params: Params, costs: Mapping[Kind, LayerCost]
) -> Beside:
    """What a stage of a role holds beside."""
    return Beside(
        update=update_bytes(machine, job, plan, role, params, costs),
        start=start_bytes(machine, plan, params),
        always=mask_bytes(machine, job, role) + stand_in_bytes(machine, role, costs),
        host=host_bytes(job, machine.profile, plan, params),
    )


def live_layers(shape: Shape, role: Role, microbatches: Num) -> Moments:
    """Layers of each kind live at the moments that can be the peak, on the role's fullest stage: its first, or any
    where weight gradients run apart.

    `shape` may hold fewer microbatches than there are, if enough for the live counts; without interleaving the
    count is min(warm-up + 1, microbatches); merged ops need no more than the warm-up.
    """
    if shape.vpp > 1 or shape.split:
        return _layers_at(shape, role, pass_chunks)
    many = replace(shape, microbatches=enough_microbatches(shape.schedule, shape.pp, 1))
    first = 0.0 if shape.overlap == Overlap.PAIR else 1.0
    live = minimum(warm_up(many, role.stages[0]) + first, microbatches)
    return (tuple((kind, role.count(kind) * live, 0) for kind in role.kinds),)


def idle_layers(shape: Shape, role: Role) -> Moments:
    """The same between passes, when nothing but weight gradients works; no moments where these never run apart."""
    return _layers_at(shape, role, idle_chunks) if shape.split else ()


@lru_cache(maxsize=8192)
def _layers_at(shape: Shape, role: Role, chunks_at: Callable[[Shape, int], tuple[tuple[int, ...], ...]]) -> Moments:
    stages = role.stages if shape.split else role.stages[:1]
    vectors = {_layers_of(role, live) for stage in stages for live in chunks_at(shape, stage)}
    kinds = len(role.kinds)
    nothing = (0,) * kinds
    return tuple(
        tuple(zip(role.kinds, vector[:kinds], vector[kinds:] or nothing, strict=True))
        for vector in pareto_maxima(vectors)
    )


def _layers_of(role: Role, chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Layers of each kind from counts per chunk: of live ones, and after them of waiting ones where there are any."""
    halves = [chunks[first : first + len(role.chunks)] for first in range(0, len(chunks), len(role.chunks))]
    return tuple(
        sum(n * chunk[kind] for n, chunk in zip(half, role.chunks, strict=True))
        for half in halves
        for kind in role.kinds
    )


def fit_stage(
    limits: Budget, role: Role, ladder: Ladder, moments: Moments, params: Params, held: Beside, idle: Moments = ()
) -> StageMemory:
    """Climb the ladder while the stage is over the device; the highest rung stands if none fits."""
    fixed = resident_bytes(limits, params) + held.always
    rung: Num = 0
    allocated = _allocated(fixed, _rung_bytes(limits, ladder, role, (moments, idle), 0), held)
    over = allocated > limits.capacity_bytes
    for step in range(1, ladder.rungs):
        if not (over.any() if is_column(over) else over):
            break
        here = _allocated(fixed, _rung_bytes(limits, ladder, role, (moments, idle), step), held)
        rung = rung + 1 * over
        allocated = where(over, here, allocated)
        over = over & (here > limits.capacity_bytes)
    host = held.host + swapped_bytes(ladder, moments)
    return StageMemory(rung=_as_index(rung, allocated), allocated_bytes=allocated, host_bytes=host)


def swapped_bytes(ladder: Ladder, moments: Moments) -> Num:
    """Rows of all live microbatches that wait on the host."""
    each = ladder.swapped_bytes
    if not any(is_column(rows) or rows for rows in each.values()):
        return 0.0
    return largest([total([count * each[kind] for kind, count, _ in live]) for live in moments])


def resident_bytes(limits: Budget, params: Params) -> Num:
    """Weights, gradients and state of a stage."""
    each = limits.bytes_per_param
    fixed = each.dense * params.dense + each.experts * params.experts
    for count, held in ((params.frozen, each.frozen), (params.frozen_experts, each.frozen_experts)):
        if is_column(count) or count:
            fixed = fixed + held * count
    return fixed


def _allocated(resident: Num, passes: Num, held: Beside) -> Num:
    """The fullest moment: passes, update, or start."""
    return maximum(resident + maximum(passes, held.update), held.start)


def _as_index(rung: Num, like: Num) -> Num:
    """A rung per plan, also where no plan of a column had to climb."""
    return np.broadcast_to(rung, like.shape) if is_column(like) else rung


def _rung_bytes(limits: Budget, ladder: Ladder, role: Role, moments: tuple[Moments, Moments], rung: int) -> Num:
    """Of passes and what they work on, or of what waits between them."""
    rows, waiting = (activation_bytes(ladder.kept_bytes, ladder.delayed_bytes, each, rung) for each in moments)
    buffers = working_buffers(limits, role, live_passes(role, moments[0]))
    passes = rows + transient_bytes(ladder.transient_bytes, role, rung)
    return (maximum(passes, waiting) if moments[1] else passes) + buffers


def live_passes(role: Role, moments: Moments) -> Num:
    """Most passes of one chunk that are live at once, of chunks as large as the stage's average."""
    each = sum(role.count(kind) for kind in role.kinds) / len(role.chunks)
    return largest([total([count for _, count, _ in live]) for live in moments]) / each


def working_buffers(limits: Budget, role: Role, live: Num) -> Num:
    """Messages between stages, with those that the stack keeps of every live pass of a chunk, and sharded weights
    while they are whole.

    Source: DeepSpeed runtime/pipe/engine.py, pipe_buffers; model.md 4.6.
    """
    whole = largest([limits.gathered[kind] for kind in role.kinds]) if limits.gathered else 0.0
    return limits.boundary + limits.message_copy * messages_kept(role) * live + whole
