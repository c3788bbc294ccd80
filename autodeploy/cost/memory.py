"""What a stage holds, term by term: state of its parameters, rows of its live microbatches, buffers (model.md 3, 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autodeploy.cost.layers import LayerCost
from autodeploy.numeric import Num, is_column, largest, maximum, minimum, total, where
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Role
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import PlanLike, States
from autodeploy.spec.target import Profile

WEIGHT_BYTES = 2.0
"""bf16 weights."""
HALF_BYTES = 2.0
"""Of a master weight, what the weight itself holds where both share their upper half."""
HOST_PIECES = 16.0
"""Pieces in which a state that lies on the host comes back for the update (MindSpeed swap-optimizer)."""
Moments = Sequence[Sequence[tuple[Kind, Num, Num]]]
"""Moments that can be the peak: per moment, how many layers of each kind are live, and how many wait for their weight
gradients."""


def optimizer_bytes(job: Job, profile: Profile) -> float:
    """Master weight and moments of a parameter."""
    return profile.master_bytes + job.moment_bytes


def state_bytes(job: Job, profile: Profile, plan: PlanLike, params: Num, shards: Num) -> dict[str, Num]:
    """Weights, gradients and optimizer state of `params` parameters, sharded by the ZeRO stage, while passes run.

    Formula: 2 x (/D from zero 3; none where the shards are the masters), (grad_bytes + 16-bit ones beside fp32 sums) x
    (/D from zero 2), 12 x (8 x with bf16 moments; /D from zero 1); 2 x less where master weights share their upper half
    with the weights; nothing where the state lies on the host
    Source: model.md 3; arXiv 1910.02054 section 3, Megatron-LM's distributed optimizer and precision-aware optimizer;
    PyTorch FSDP; MindSpeed reuse-fp32-param, swap-optimizer.
    """
    beside = profile.half_gradient_bytes if job.grad_precision == "fp32" else 0.0
    return {
        "weights": _weight_bytes(profile, plan) * params / where(plan.zero >= 3, shards, 1.0),
        "gradients": (job.grad_bytes + beside) * params / where(plan.zero >= 2, shards, 1.0),
        "optimizer": _kept_state(job, profile, plan) * params / where(plan.zero >= 1, shards, 1.0),
    }


def _weight_bytes(profile: Profile, plan: PlanLike) -> Num:
    """Bytes of the weight that a trained parameter has beside its master weight."""
    return where(plan.zero >= 3, 0.0, WEIGHT_BYTES) if profile.sharded_master else WEIGHT_BYTES


def _kept_state(job: Job, profile: Profile, plan: PlanLike) -> Num:
    """Bytes of optimizer state that a parameter has on the device while passes run."""
    state = optimizer_bytes(job, profile)
    reused = where(plan.states == States.REUSE, state - HALF_BYTES, state)
    return where(plan.states == States.HOST, 0.0, reused)


def vocabulary_copies(model: Model, pp: int, role: Role) -> int:
    """Vocabulary matrices that a stage holds a second time: MTP needs embedding and head, tied weights one of both.

    Source: model.md 3; Megatron-LM gpt_model.py (rule V74).
    """
    if pp == 1:
        return 0
    embedding, head, mtp = (role.count(kind) > 0 for kind in (Kind.EMBEDDING, Kind.HEAD, Kind.MTP))
    if model.tied_embeddings:
        return int((head or mtp) and not embedding)
    return int(mtp and not embedding) + int(mtp and not head)


class Params(NamedTuple):
    """Parameters of one stage: trained ones by the group that shares their state, and frozen ones."""

    dense: Num
    experts: Num
    frozen: Num = 0.0
    frozen_experts: Num = 0.0


def stage_params(model: Model, pp: int, role: Role, costs: Mapping[Kind, LayerCost]) -> Params:
    """Parameters of one stage of a role, with its copies of the vocabulary matrices."""
    dense = [role.count(kind) * costs[kind].dense_params for kind in role.kinds]
    experts = [role.count(kind) * costs[kind].expert_params for kind in role.kinds]
    frozen = [role.count(kind) * costs[kind].frozen_params for kind in role.kinds]
    idle = [role.count(kind) * costs[kind].frozen_expert_params for kind in role.kinds]
    copies = vocabulary_copies(model, pp, role)
    if copies:
        dense.append(copies * costs[Kind.EMBEDDING].split_params)
        frozen.append(copies * costs[Kind.EMBEDDING].frozen_params)
    return Params(total(dense), total(experts), total(frozen), total(idle))


def state_shards(plan: PlanLike) -> tuple[Num, Num]:
    """Ranks that share the state of a dense and of an expert parameter."""
    return plan.dp * plan.cp / plan.replicas, maximum(plan.edp / plan.replicas, 1.0)


def resident_terms(job: Job, profile: Profile, plan: PlanLike, params: Params) -> dict[str, Num]:
    """Weights, gradients, optimizer: dense state sharded over dp x cp, expert state over edp, each over one replica;
    of frozen parameters the weights."""
    dense_shards, expert_shards = state_shards(plan)
    first = state_bytes(job, profile, plan, params.dense, dense_shards)
    second = state_bytes(job, profile, plan, params.experts, expert_shards)
    terms = {name: first[name] + second[name] for name in first}
    held = frozen_bytes(plan)
    return terms | {"weights": terms["weights"] + held[0] * params.frozen + held[1] * params.frozen_experts}


def frozen_bytes(plan: PlanLike) -> tuple[Num, Num]:
    """Resident bytes of a frozen parameter, dense and of an expert."""
    dense, expert = state_shards(plan)
    return WEIGHT_BYTES / where(plan.zero >= 3, dense, 1.0), WEIGHT_BYTES / where(plan.zero >= 3, expert, 1.0)


def bytes_per_param(job: Job, profile: Profile, plan: PlanLike) -> Params:
    """Resident bytes of one parameter of each sort."""
    shards = state_shards(plan)
    dense, expert = (total(list(state_bytes(job, profile, plan, 1.0, each).values())) for each in shards)
    return Params(dense, expert, *frozen_bytes(plan))


def moments_bytes(job: Job, plan: PlanLike, params: Params) -> Num:
    """Adam's two moments of a stage, as far as they lie on the device while passes run."""
    here = where(plan.states == States.HOST, 0.0, job.moment_bytes)
    return here * _sharded(plan, params)


def host_bytes(job: Job, profile: Profile, plan: PlanLike, params: Params) -> Num:
    """Optimizer state of a stage that lies on the host."""
    if not np.any(plan.states == States.HOST):  # static: whether any plan asks
        return 0.0
    return where(plan.states == States.HOST, optimizer_bytes(job, profile), 0.0) * _sharded(plan, params)


def _sharded(plan: PlanLike, params: Params) -> Num:
    """Parameters whose state a rank holds."""
    return total(list(_shares(plan, params)))


def _shares(plan: PlanLike, params: Params) -> tuple[Num, Num]:
    """The same, dense and of experts."""
    dense, expert = state_shards(plan)
    return params.dense / where(plan.zero >= 1, dense, 1.0), params.experts / where(plan.zero >= 1, expert, 1.0)


def update_bytes(
    machine: Machine, job: Job, plan: PlanLike, role: Role, params: Params, costs: Mapping[Kind, LayerCost]
) -> Num:
    """Only during the optimizer's step: its temporary, and what comes back from the host at a time.

    Source: model.md 4.6; first peaks of MindSpeed-LLM's tests (docs/memory.md).
    """
    profile = machine.profile
    copied = _copied_bytes(profile, plan, role, params, costs) if profile.update_copy_bytes else 0.0
    copied = copied + gradient_copies(profile, job, plan, params) + _gather_copies(profile, plan, params)
    return copied + host_bytes(job, profile, plan, params) / HOST_PIECES


def _gather_copies(profile: Profile, plan: PlanLike, params: Params) -> Num:
    """The flat copy through which updated weights of a sharded optimizer are gathered."""
    if not profile.gather_copy_params:
        return 0.0
    copied = WEIGHT_BYTES * minimum(params.dense + params.experts, 1.0 * profile.gather_copy_params)
    return where((plan.zero >= 1) & (state_shards(plan)[0] > 1), copied, 0.0)


def _copied_bytes(profile: Profile, plan: PlanLike, role: Role, params: Params, costs: Mapping[Kind, LayerCost]) -> Num:
    """The temporary of the update: of the largest tensor, as far as it lies in the rank's shard. A state on the host
    is updated without it."""
    tensors = [largest([costs[kind].largest_params[side] for kind in role.kinds]) for side in (0, 1)]
    inside = [minimum(tensor, share) for tensor, share in zip(tensors, _shares(plan, params), strict=True)]
    copied = profile.update_copy_bytes * largest(inside)
    if profile.update_copy_most_bytes:
        copied = minimum(copied, profile.update_copy_most_bytes)
    return where(plan.states == States.HOST, 0.0, copied)


def gradient_copies(profile: Profile, job: Job, plan: PlanLike, params: Params) -> Num:
    """fp32 copies of the rank's share of 16-bit gradients; 0 where they are fp32 already."""
    if not profile.gradient_copy_bytes or job.grad_bytes >= profile.gradient_copy_bytes:
        return 0.0
    return profile.gradient_copy_bytes * total(list(_shares(plan, params)))


def mask_bytes(machine: Machine, job: Job, role: Role) -> float:
    """Attention masks that the layers of a stage hold."""
    layers = sum(role.count(kind) for kind in (Kind.DENSE, Kind.SPARSE, Kind.MTP))
    return machine.profile.layer_mask_bytes * layers * job.seq_len * job.seq_len


def start_bytes(machine: Machine, plan: PlanLike, params: Params) -> Num:
    """All of what is there while the model is made: weights, and a copy of all local ones where the stack makes one;
    0 where that can never be the peak. Source: ms-swift issue 9403."""
    if not machine.profile.flat_weights:
        return 0.0
    dense, expert = frozen_bytes(plan)
    trained = WEIGHT_BYTES * (params.dense + params.experts)
    return 2.0 * (trained + dense * params.frozen + expert * params.frozen_experts)


def stand_in_bytes(machine: Machine, role: Role, costs: Mapping[Kind, LayerCost]) -> Num:
    """What stands in for the gradients of a stage's weights, one for all of a shape.

    Source: Transformer Engine pytorch/module/base.py, get_dummy_wgrad; Megatron-LM core/tensor_parallel/layers.py.
    """
    each = machine.profile.stand_in_bytes
    if not each:
        return 0.0
    weights = {name: size for kind in role.kinds for name, size in costs[kind].weights.items()}
    return each * total(list(weights.values()))


def communicator_bytes(machine: Machine, model: Model, plan: PlanLike) -> Num:
    """Buffers of every process group with more than one rank, and of the world; groups of experts only where the
    model has any. Source: model.md 4.6."""
    sizes = [plan.tp, plan.cp, plan.dp, plan.pp, plan.replicas]
    if model.moe is not None:
        sizes += [plan.ep, plan.etp, plan.edp]
    groups = total([1.0 * (size > 1) for size in sizes]) + 1.0 + machine.profile.extra_groups * (plan.pp > 1)
    return groups * machine.cluster.communicator_bytes


def activation_bytes(
    kept: Mapping[Kind, Sequence[Num]], delayed: Mapping[Kind, Num], moments: Moments, rung: int
) -> Num:
    """Rows of all live microbatches and what waits for weight gradients, at the worst of the moments that can be the
    peak; nothing without any."""
    return largest([_held_bytes(kept, delayed, moment, rung) for moment in moments])


def _held_bytes(
    kept: Mapping[Kind, Sequence[Num]], delayed: Mapping[Kind, Num], moment: Sequence[tuple[Kind, Num, Num]], rung: int
) -> Num:
    live = [count * kept[kind][rung] for kind, count, _ in moment]
    waiting = [count * delayed[kind] for kind, _, count in moment if is_column(count) or count]
    return total([*live, *waiting])


def transient_bytes(working: Mapping[Kind, Sequence[Num]], role: Role, rung: int) -> Num:
    """The largest backward pass among the layers of a stage."""
    return largest([working[kind][rung] for kind in role.kinds])


def boundary_buffers(pp: int, boundary: Num) -> Num:
    """Send and receive buffers of the pipeline, both ways. Source: model.md 4.6."""
    return 2.0 * boundary if pp > 1 else 0.0


def messages_kept(role: Role) -> int:
    """Messages of a microbatch that a stage receives or sends in its forward pass."""
    return (role.count(Kind.EMBEDDING) == 0) + (role.count(Kind.HEAD) == 0)
