"""From layers to slots: forward and backward load of every chunk of a stage, and the message between stages."""

from __future__ import annotations

from collections.abc import Mapping

from autodeploy.analysis.inventory import tokens_of
from autodeploy.cost.collectives import send_s
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.load import Load, sum_loads
from autodeploy.cost.sharding import ShardTraffic
from autodeploy.numeric import Num, total
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Role
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import PlanLike

BF16 = 2.0


def chunk_loads(
    role: Role, loads: Mapping[Kind, Load], sharding: Mapping[Kind, ShardTraffic], side: int
) -> tuple[Load, ...]:
    """A forward (side 0) or backward (1) pass through each distinct chunk of a stage, with what sharding adds."""
    if sharding:
        loads = {kind: load.plus(Load(busy=sharding[kind][side])) for kind, load in loads.items()}
    return tuple(
        sum_loads([loads[kind] if count == 1 else loads[kind].times(count) for kind, count in chunk])
        for chunk in role.distinct
    )


def forward_loads(
    role: Role, costs: Mapping[Kind, LayerCost], sharding: Mapping[Kind, ShardTraffic]
) -> tuple[Load, ...]:
    """Per distinct chunk content of a stage."""
    return chunk_loads(role, {kind: costs[kind].forward for kind in role.kinds}, sharding, 0)


def backward_loads(
    role: Role, costs: Mapping[Kind, LayerCost], extra: Mapping[Kind, Load], sharding: Mapping[Kind, ShardTraffic]
) -> tuple[Load, ...]:
    """Per distinct chunk content of a stage, with what its recompute repeats."""
    return chunk_loads(role, {kind: costs[kind].backward.plus(extra[kind]) for kind in role.kinds}, sharding, 1)


def weight_times(role: Role, costs: Mapping[Kind, LayerCost]) -> tuple[Num, ...]:
    """Seconds of the weight gradients of one microbatch, per distinct chunk content of a stage."""
    return tuple(total([count * costs[kind].weights_s for kind, count in chunk]) for chunk in role.distinct)


def boundary_bytes(model: Model, job: Job, plan: PlanLike) -> Num:
    """Activations of one microbatch between stages, per rank. Source: model.md 5.3."""
    return BF16 * model.hidden * tokens_of(job, plan).part


def stage_send_s(cluster: Cluster, model: Model, job: Job, plan: PlanLike) -> Num:
    """Seconds of one message between neighbouring stages."""
    apart = plan.tp * plan.cp * plan.dp
    return send_s(cluster, apart, apart * plan.pp, boundary_bytes(model, job, plan))
