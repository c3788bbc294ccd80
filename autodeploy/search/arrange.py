"""Arrange and cost: a plan (or a column of plans) on one layout, every role of stages with its memory and time.

This is where schedule and cost meet. The same function serves the screen of a million plans, the simulation of
the good ones and the explanation of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from autodeploy.balance.fit import Beside, StageMemory, beside, budget, fit_stage, idle_layers, live_layers
from autodeploy.balance.recompute import Ladder
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.load import Load
from autodeploy.cost.memory import Params, boundary_buffers, stage_params, vocabulary_copies
from autodeploy.cost.sharding import shard_traffic
from autodeploy.cost.slots import backward_loads, boundary_bytes, forward_loads, stage_send_s, weight_times
from autodeploy.cost.tail import data_parallel, stage_tail
from autodeploy.numeric import Num, is_column, largest, total, where
from autodeploy.schedule.bounds import stage_work_s, step_bound_s
from autodeploy.schedule.live import enough_microbatches
from autodeploy.schedule.orders import op_counts
from autodeploy.schedule.shapes import OpCounts
from autodeploy.search.arranged import Arranged, Case, Common, Distinct, Pipe, StageCost
from autodeploy.spec.layout import Layout, Role
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.placement import Placement, is_paired
from autodeploy.spec.plan import FIRST_SPLIT, Overlap, Plan, PlanLike, Schedule
from autodeploy.spec.space import Space


def microbatches_of(space: Space, plan: PlanLike) -> Num:
    """Microbatches per data-parallel rank and step, through each chunk: half of them from either end in DualPipe."""
    from_one_end = where(plan.schedule == Schedule.DUALPIPE, 0.5, 1.0)
    return from_one_end * (space.job.gbs / (plan.mbs * plan.dp))


def arrange(space: Space, case: Case, plan: PlanLike, costs: Mapping[Kind, LayerCost], ladder: Ladder) -> Arranged:
    """Memory, recompute, slot loads, tail, bound and screen time of plans that share a case."""
    return lay_out(common_of(space, case.layout.pp, plan, costs, ladder), case)


def lay_out(common: Common, case: Case) -> Arranged:
    """The same from what does not depend on the layout."""
    return put_together(common, case, tuple(_stage(common, case, role) for role in case.layout.roles))


def put_together(common: Common, case: Case, stages: tuple[StageCost, ...]) -> Arranged:
    """A plan from its stages, one per role of the layout."""
    bound = _bound(common, case, stages)
    allocated = largest([stage.memory.allocated_bytes for stage in stages])
    held = largest([stage.memory.host_bytes for stage in stages])
    return Arranged(
        case=case,
        microbatches=common.microbatches,
        send_s=common.send_s,
        stages=stages,
        limits=common.limits,
        bound_s=bound,
        screen_s=bound + _exposed_sends(case, common.microbatches) * common.send_s,
        peak_bytes=allocated,
        needed_bytes=allocated / (1.0 - common.space.cluster.fragmentation_frac) + common.limits.communicators,
        host_bytes=held,
        fits=(allocated <= common.limits.capacity_bytes) & (held <= common.limits.host_bytes),
        rolls=case.split and common.space.target.profile.rolling_update,
    )


def common_of(space: Space, pp: int, plan: PlanLike, costs: Mapping[Kind, LayerCost], ladder: Ladder) -> Common:
    """What does not depend on the layout, for plans of one pp."""
    boundary = boundary_bytes(space.model, space.job, plan)
    microbatches = microbatches_of(space, plan)
    dp = data_parallel(space.machine, plan)
    return Common(
        space=space,
        plan=plan,
        costs=costs,
        ladder=ladder,
        microbatches=microbatches,
        distinct=_distinct(microbatches),
        send_s=stage_send_s(space.machine.cluster, space.model, space.job, plan),
        limits=budget(space.machine, space.model, space.job, plan, boundary_buffers(pp, boundary), costs),
        dp=dp,
        sharding=shard_traffic(space.machine, space.job, plan, dp, costs),
    )


def _stage(common: Common, case: Case, role: Role) -> StageCost:
    space, costs = common.space, common.costs
    params = stage_params(space.model, case.layout.pp, role, costs)
    shape = case.shape(case.live_microbatches)
    moments, idle = live_layers(shape, role, common.microbatches), idle_layers(shape, role)
    held = beside(space.machine, space.job, common.plan, role, params, costs)
    memory = fit_stage(common.limits, role, common.ladder, moments, params, held, idle)
    extra = {kind: common.ladder.extra_load(kind, memory.rung) for kind in role.kinds}
    backward = backward_loads(role, costs, extra, common.sharding)
    return cost_stage(common, case, role, StageNeeds(params, held, memory), (extra, backward))


class StageNeeds(NamedTuple):
    """What a stage holds."""

    params: Params
    held: Beside
    memory: StageMemory


def cost_stage(
    common: Common, case: Case, role: Role, needs: StageNeeds, rebuilt: tuple[Mapping[Kind, Load], tuple[Load, ...]]
) -> StageCost:
    """A stage from what it holds and what it rebuilds: (load of each kind of layer, backward load of each chunk)."""
    space, costs, (params, held, memory) = common.space, common.costs, needs
    extra, backward = rebuilt
    vocabulary = costs[Kind.EMBEDDING].split_params
    forward = forward_loads(role, costs, common.sharding)
    windows = (_all_chunks(case, role, forward), _all_chunks(case, role, backward))
    shared = shared_matrices(space.model, case.layout, role)
    tail = stage_tail(
        space.machine,
        space.job,
        common.plan,
        common.dp,
        is_paired(case.schedule, case.overlap),
        params,
        windows,
        shared * vocabulary if shared else 0.0,
    )
    return StageCost(
        role=role, params=params, held=held, memory=memory, forward=forward, backward=backward, extra=extra, tail=tail,
        weights_s=weight_times(role, costs) if case.split else (),
        sharding_s=total([role.count(kind) * sum(common.sharding[kind]) for kind in role.kinds if common.sharding]),
    )  # fmt: skip


def _all_chunks(case: Case, role: Role, loads: Sequence[Load]) -> Num:
    """Seconds of one microbatch through all chunks of a stage."""
    counted = zip(role.content_counts, (case.pass_s(load) for load in loads), strict=True)
    return total([seconds if count == 1 else count * seconds for count, seconds in counted])


@lru_cache(maxsize=8192)
def shared_matrices(model: Model, layout: Layout, role: Role) -> int:
    """Vocabulary matrices of this stage that another stage holds as well."""
    copies = vocabulary_copies(model, layout.pp, role)
    if copies or not any(vocabulary_copies(model, layout.pp, other) for other in layout.roles):
        return copies
    if role.count(Kind.EMBEDDING):
        return 1
    return int(role.count(Kind.HEAD) > 0 and not role.count(Kind.MTP))


def _bound(common: Common, case: Case, stages: tuple[StageCost, ...]) -> Num:
    """The schedule's bound at the last stage of every role, where fill and drain are longest."""
    last = [stage.role.stages[-1] for stage in stages]
    mirrored = case.layout.placement == Placement.MIRROR
    pipe = Pipe(case=case, microbatches=common.microbatches, send_s=common.send_s)
    work = [_work_s(pipe, stage, rank, common.distinct) for stage, rank in zip(stages, last, strict=True)]
    tails = [stage.tail.seconds for stage in stages]
    if case.split and common.space.target.profile.rolling_update:
        return largest([seconds + tail for seconds, tail in zip(work, tails, strict=True)])
    delayed = [_delayed_s(pipe, stage, rank, common.distinct) for stage, rank in zip(stages, last, strict=True)]
    return step_bound_s(
        [0 if mirrored and 2 * stage >= case.layout.pp else stage for stage in last],  # these fill from the other end
        case.layout.role_of_stage,
        [case.pass_s(stage.forward[0]) for stage in stages],
        [stage.inputs_s(case)[0] if case.split else case.pass_s(stage.backward[0]) for stage in stages],
        work,
        tails,
        common.send_s,
        delayed if case.split else None,
    )


def _delayed_s(pipe: Pipe, stage: StageCost, rank: int, distinct: Distinct | None) -> Num:
    """Seconds of the weight gradients that a stage runs apart."""
    if not pipe.case.split:
        return 0.0
    counts = _counts(pipe.case, stage.role, rank, pipe.microbatches, distinct).weights
    return total([count * seconds for count, seconds in zip(counts, stage.weights_s, strict=True)])


def _work_s(pipe: Pipe, stage: StageCost, rank: int, distinct: Distinct | None) -> Num:
    case = pipe.case
    if case.overlap == Overlap.NONE:
        both = _all_chunks(case, stage.role, stage.forward) + _all_chunks(case, stage.role, stage.backward)
        return pipe.microbatches * both
    forward = [case.pass_s(load) for load in stage.forward]
    backward = [case.pass_s(load) for load in stage.backward]
    counts = _counts(case, stage.role, rank, pipe.microbatches, distinct)
    split = (stage.inputs_s(case), stage.weights_s) if case.split else None
    return stage_work_s(counts, forward, backward, stage.merged_s(pipe.sends_s, case.taken_frac), split)


def stage_work_s_of(found: Arranged, stage: StageCost, rank: int) -> Num:
    """Seconds of all ops of one rank of a role in a step."""
    return _work_s(found.pipe, stage, rank, _distinct(found.microbatches))


def _distinct(microbatches: Num) -> Distinct | None:
    return np.unique(microbatches, return_inverse=True) if is_column(microbatches) else None


def _counts(case: Case, role: Role, rank: int, microbatches: Num, distinct: Distinct | None) -> OpCounts:
    """Op counts of a rank; with a column of microbatches, every count is a column."""
    if distinct is None:
        return op_counts(case.shape(int(microbatches)), rank, role.content_of_chunk)
    unique, inverse = distinct
    each = [op_counts(case.shape(int(m)), rank, role.content_of_chunk) for m in unique]
    return OpCounts(*(np.stack(column, axis=-1)[..., inverse] for column in zip(*each, strict=True)))


def _exposed_sends(case: Case, microbatches: Num) -> Num:
    """Messages in the open beyond fill and drain, which the bound already holds (model.md 5.3)."""
    pp, vpp = case.layout.pp, case.layout.vpp
    if vpp > 1 and case.layout.placement == Placement.ROUND:
        return 2.0 * pp * (vpp - 1)
    return 2.0 * (pp - 1) * (microbatches - 1.0) / pp


def case_of(space: Space, plan: Plan, rule: str, layout: Layout) -> Case:
    """The case of one plan on a layout."""
    alike = plan.vpp == 1 and plan.schedule < FIRST_SPLIT
    live = 1 if alike else live_cap(plan.schedule, plan.pp, int(microbatches_of(space, plan)))
    taken_frac = space.cluster.device.exchange_frac
    whole = plan.schedule == Schedule.DUALPIPE_V and space.target.profile.whole_drain
    return Case(plan.schedule, plan.overlap, plan.recompute, rule, layout, live, taken_frac, whole)


def live_cap(schedule: Schedule, pp: int, microbatches: int) -> int:
    """Microbatches of a schedule beyond which live counts stay the same (interleaved: whole groups of pp)."""
    return min(microbatches, enough_microbatches(schedule, pp, 2))
