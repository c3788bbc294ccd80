"""Arrange and cost: a plan (or a column of plans) on one layout, every role of stages with its memory and time.

This is where schedule and cost meet. The same function serves the screen of a million plans, the simulation of
the good ones and the explanation of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autodeploy.balance.fit import StageMemory, extra_loads, fit_stage
from autodeploy.balance.recompute import Ladder
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.load import Load, paired_s
from autodeploy.cost.memory import stage_params, vocabulary_copies
from autodeploy.cost.slots import backward_loads, boundary_bytes, forward_loads, stage_send_s
from autodeploy.cost.tail import StageTail, stage_tail
from autodeploy.numeric import Num, maximum, total
from autodeploy.schedule.bounds import stage_work_s, step_bound_s
from autodeploy.schedule.orders import OpCounts, Shape, op_counts
from autodeploy.spec.layout import Layout, Role
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Overlap, Plan, PlanLike, Schedule
from autodeploy.spec.space import Space


@dataclass(frozen=True, slots=True)
class Case:
    """What plans must share to be costed together: pipeline shape, layout, recompute policy."""

    schedule: Schedule
    overlap: Overlap
    policy: str
    rule: str
    """The layout rule that gave the layout."""
    layout: Layout
    live_microbatches: int
    """Microbatches, capped where more change no live count."""

    def shape(self, microbatches: int) -> Shape:
        """The schedule shape for so many microbatches."""
        return Shape(self.schedule, self.layout.pp, self.layout.vpp, microbatches, self.overlap)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCost:
    """One role of stages under a plan."""

    role: Role
    params: tuple[Num, Num]
    memory: StageMemory
    forward: tuple[Load, ...]
    """Per chunk."""
    backward: tuple[Load, ...]
    extra: Mapping[Kind, Load]
    """What recompute adds to the backward pass of each kind of layer."""
    tail: StageTail

    def merged_s(self) -> list[list[Num]]:
        """[i][j] forward of chunk i merged with backward of chunk j."""
        return [[paired_s(f, b) for b in self.backward] for f in self.forward]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arranged:
    """A plan, or a column of plans, on one layout."""

    case: Case
    microbatches: Num
    send_s: Num
    stages: tuple[StageCost, ...]
    """Per role of the layout."""
    bound_s: Num
    screen_s: Num
    peak_bytes: Num
    """Of the worst stage."""


def microbatches_of(space: Space, plan: PlanLike) -> Num:
    """Microbatches per data-parallel rank and step."""
    return space.job.gbs / (plan.mbs * plan.dp)


def arrange(
    space: Space, case: Case, plan: PlanLike, costs: Mapping[Kind, LayerCost], ladder: Ladder
) -> Arranged:
    """Memory, recompute, slot loads, tail, bound and screen time of plans that share a case."""
    microbatches = microbatches_of(space, plan)
    boundary = boundary_bytes(space.model, space.job, plan)
    stages = tuple(
        _stage(space, case, plan, role, costs, ladder, boundary) for role in case.layout.roles
    )
    send = stage_send_s(space.cluster, space.model, space.job, plan)
    bound = _bound(case, stages, microbatches, send)
    peak: Num = 0.0
    for stage in stages:
        peak = maximum(peak, stage.memory.peak_bytes)
    return Arranged(
        case=case,
        microbatches=microbatches,
        send_s=send,
        stages=stages,
        bound_s=bound,
        screen_s=bound + _exposed_sends(case, microbatches) * send,
        peak_bytes=peak,
    )


def _stage(
    space: Space,
    case: Case,
    plan: PlanLike,
    role: Role,
    costs: Mapping[Kind, LayerCost],
    ladder: Ladder,
    boundary: Num,
) -> StageCost:
    pp = case.layout.pp
    vocabulary = costs[Kind.EMBEDDING].dense_params
    params = stage_params(space.model, pp, role, costs, vocabulary)
    shape = case.shape(case.live_microbatches)
    memory = fit_stage(space.machine, space.job, plan, shape, role, costs, ladder, params, boundary)
    extra = extra_loads(ladder, memory.rung, role)
    forward, backward = forward_loads(role, costs), backward_loads(role, costs, extra)
    windows = (total([load.alone for load in forward]), total([load.alone for load in backward]))
    shared = _shared_matrices(space, case.layout, role) * vocabulary
    tail = stage_tail(space.machine, space.job, plan, params, windows, shared)
    return StageCost(
        role=role, params=params, memory=memory, forward=forward, backward=backward, extra=extra, tail=tail
    )


def _shared_matrices(space: Space, layout: Layout, role: Role) -> int:
    """Vocabulary matrices of this stage that another stage holds as well."""
    copies = vocabulary_copies(space.model, layout.pp, role)
    if copies or not any(vocabulary_copies(space.model, layout.pp, other) for other in layout.roles):
        return copies
    if role.count(Kind.EMBEDDING):
        return 1
    return int(role.count(Kind.HEAD) > 0 and not role.count(Kind.MTP))


def _bound(case: Case, stages: tuple[StageCost, ...], microbatches: Num, send: Num) -> Num:
    """The schedule's bound at the last stage of every role, where fill and drain are longest."""
    last = [stage.role.stages[-1] for stage in stages]
    work = [_work_s(case, stage, rank, microbatches) for stage, rank in zip(stages, last, strict=True)]
    return step_bound_s(
        last,
        case.layout.role_of_stage,
        [stage.forward[0].alone for stage in stages],
        [stage.backward[0].alone for stage in stages],
        work,
        [stage.tail.seconds for stage in stages],
        send,
    )


def _work_s(case: Case, stage: StageCost, rank: int, microbatches: Num) -> Num:
    forward = [load.alone for load in stage.forward]
    backward = [load.alone for load in stage.backward]
    if case.overlap == Overlap.NONE:
        return microbatches * total([f + b for f, b in zip(forward, backward, strict=True)])
    counts = _counts(case, rank, microbatches)
    return stage_work_s(counts, forward, backward, stage.merged_s())


def _counts(case: Case, rank: int, microbatches: Num) -> OpCounts:
    """Op counts of a rank; with a column of microbatches, every count is a column."""
    if not isinstance(microbatches, np.ndarray):
        return op_counts(case.shape(int(microbatches)), rank)
    unique, inverse = np.unique(microbatches, return_inverse=True)
    each = [op_counts(case.shape(int(m)), rank) for m in unique]
    return OpCounts(*(np.stack(column, axis=-1)[..., inverse] for column in zip(*each, strict=True)))


def _exposed_sends(case: Case, microbatches: Num) -> Num:
    """Messages in the open beyond fill and drain, which the bound already holds (physics 5.3)."""
    pp, vpp = case.layout.pp, case.layout.vpp
    if vpp > 1:
        return 2.0 * pp * (vpp - 1)
    return 2.0 * (pp - 1) * (microbatches - 1.0) / pp


def case_of(space: Space, plan: Plan, rule: str, layout: Layout) -> Case:
    """The case of one plan on a layout."""
    return Case(
        plan.schedule, plan.overlap, plan.recompute, rule, layout,
        live_cap(plan.pp, plan.vpp, int(microbatches_of(space, plan))),
    )  # fmt: skip


def live_cap(pp: int, vpp: int, microbatches: int) -> int:
    """Microbatches beyond which live counts stay the same: whole groups for interleaving."""
    enough = 4 * pp if vpp > 1 else pp + 2
    return min(microbatches, enough)
