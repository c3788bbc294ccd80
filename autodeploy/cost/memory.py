"""Bytes on the worst moment of a stage, term by term (model.md 3 and 4.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autodeploy.cost.layers import LayerCost
from autodeploy.numeric import Num, largest, maximum, total, where
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Role
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import PlanLike

WEIGHT_BYTES = 2.0
"""bf16 weights."""
STATE_BYTES = 12.0
"""fp32 master weights and the two moments of Adam."""
Moments = Sequence[Sequence[tuple[Kind, Num]]]
"""Moments that can be the peak: per moment, how many layers of each kind are live."""


def state_bytes(job: Job, zero: Num, params: Num, shards: Num) -> dict[str, Num]:
    """Weights, gradients and optimizer state of `params` parameters, sharded by the ZeRO stage.

    Formula: 2 x (/D from zero 3), grad_bytes x (/D from zero 2), 12 x (/D from zero 1)
    Source: model.md 3; arXiv 1910.02054 section 3, Megatron-LM's distributed optimizer.
    """
    return {
        "weights": WEIGHT_BYTES * params / where(zero >= 3, shards, 1.0),
        "gradients": job.grad_bytes * params / where(zero >= 2, shards, 1.0),
        "optimizer": STATE_BYTES * params / where(zero >= 1, shards, 1.0),
    }


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


def resident_terms(job: Job, plan: PlanLike, params: Params) -> dict[str, Num]:
    """Weights, gradients, optimizer: dense state sharded over dp x cp, expert state over edp, each over one replica;
    of frozen parameters the weights."""
    dense_shards, expert_shards = state_shards(plan)
    first = state_bytes(job, plan.zero, params.dense, dense_shards)
    second = state_bytes(job, plan.zero, params.experts, expert_shards)
    terms = {name: first[name] + second[name] for name in first}
    held = frozen_bytes(plan)
    return terms | {"weights": terms["weights"] + held[0] * params.frozen + held[1] * params.frozen_experts}


def frozen_bytes(plan: PlanLike) -> tuple[Num, Num]:
    """Resident bytes of a frozen parameter, dense and of an expert."""
    dense, expert = state_shards(plan)
    return WEIGHT_BYTES / where(plan.zero >= 3, dense, 1.0), WEIGHT_BYTES / where(plan.zero >= 3, expert, 1.0)


def bytes_per_param(job: Job, plan: PlanLike) -> Params:
    """Resident bytes of one parameter of each sort."""
    shards = state_shards(plan)
    dense, expert = (total(list(state_bytes(job, plan.zero, 1.0, each).values())) for each in shards)
    return Params(dense, expert, *frozen_bytes(plan))


def communicator_bytes(machine: Machine, model: Model, plan: PlanLike) -> Num:
    """Buffers of every process group with more than one rank, and of the world; groups of experts only where the
    model has any. Source: model.md 4.6."""
    sizes = [plan.tp, plan.cp, plan.dp, plan.pp, plan.replicas]
    if model.moe is not None:
        sizes += [plan.ep, plan.etp, plan.edp]
    groups = total([1.0 * (size > 1) for size in sizes]) + 1.0
    return groups * machine.cluster.communicator_bytes


def activation_bytes(kept: Mapping[Kind, Sequence[Num]], moments: Moments, rung: int) -> Num:
    """Rows of all live microbatches, at the worst of the moments that can be the peak."""
    return largest([total([count * kept[kind][rung] for kind, count in live]) for live in moments])


def transient_bytes(working: Mapping[Kind, Sequence[Num]], role: Role, rung: int) -> Num:
    """The largest backward pass among the layers of a stage."""
    return largest([working[kind][rung] for kind in role.kinds])


def boundary_buffers(pp: int, boundary: Num) -> Num:
    """Send and receive buffers of the pipeline, both ways. Source: model.md 4.6."""
    return 2.0 * boundary if pp > 1 else 0.0
