"""From layers to slots: forward and backward load of every chunk of a stage, and the message between stages."""

from __future__ import annotations

from collections.abc import Mapping

from autodeploy.analysis.inventory import tokens_of
from autodeploy.cost.collectives import send_s
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.load import Load
from autodeploy.numeric import Num
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Counts, Role
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import PlanLike

BF16 = 2.0


def chunk_load(counts: Counts, loads: Mapping[Kind, Load]) -> Load:
    """A pass through the layers of one slot."""
    load = Load()
    for kind, each in loads.items():
        if counts[kind]:
            load = load.plus(each if counts[kind] == 1 else each.times(counts[kind]))
    return load


def forward_loads(role: Role, costs: Mapping[Kind, LayerCost]) -> tuple[Load, ...]:
    """Per chunk of a stage."""
    loads = {kind: cost.forward for kind, cost in costs.items()}
    return tuple(chunk_load(counts, loads) for counts in role.chunks)


def backward_loads(
    role: Role, costs: Mapping[Kind, LayerCost], extra: Mapping[Kind, Load]
) -> tuple[Load, ...]:
    """Per chunk of a stage, with what its recompute repeats."""
    loads = {kind: cost.backward.plus(extra[kind]) for kind, cost in costs.items() if role.count(kind)}
    return tuple(chunk_load(counts, loads) for counts in role.chunks)


def boundary_bytes(model: Model, job: Job, plan: PlanLike) -> Num:
    """Activations of one microbatch between stages, per rank. Source: physics 5.3."""
    return BF16 * model.hidden * tokens_of(job, plan).part


def stage_send_s(cluster: Cluster, model: Model, job: Job, plan: PlanLike) -> Num:
    """Seconds of one message between neighbouring stages."""
    apart = plan.tp * plan.cp * plan.dp
    return send_s(cluster, apart, apart * plan.pp, boundary_bytes(model, job, plan))
