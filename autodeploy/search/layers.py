"""Layer costs for plans: each distinct layer once, for a table of plans and for plans one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autodeploy.analysis.inventory import kind_counts
from autodeploy.balance.recompute import Ladder, ladder
from autodeploy.cost.layers import LayerCost, layer_costs
from autodeploy.numeric import gather
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import LayerKey, Overlap, Plan, PlanTable, distinct, layer_key
from autodeploy.spec.space import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTable:
    """Layer costs and recompute ladders of every distinct layer key."""

    costs: dict[Kind, LayerCost]
    ladders: dict[tuple[str, Overlap], Ladder]
    index: np.ndarray
    """Row of the table for every plan."""

    def at(self, policy: str, overlap: Overlap, rows: np.ndarray) -> tuple[dict[Kind, LayerCost], Ladder]:
        """Layer costs and ladders of some plans."""
        where = self.index[rows]
        return gather(self.costs, where), self.ladders[policy, overlap].at(where)


def layer_table(space: Space, plans: PlanTable) -> LayerTable:
    """Cost every distinct layer once."""
    first, index = distinct(plans, LayerKey._fields)
    costs = layer_costs(space.model, space.job, space.machine, layer_key(plans.rows(first)))
    lean = {kind: replace(cost, forward_terms={}, backward_terms={}) for kind, cost in costs.items()}
    counts = kind_counts(space.model, space.job.mtp)
    ladders = {
        (policy, overlap): ladder(
            lean, counts, policy, overlap, space.target.profile, space.machine.cluster.device.host_bytes_per_s
        )
        for policy in plans.words["recompute"]
        for overlap in Overlap
    }
    slim = {kind: replace(cost, rebuild=(), rows_bytes=()) for kind, cost in lean.items()}
    return LayerTable(costs=slim, ladders=ladders, index=index)


def layers_of(space: Space, plan: Plan) -> tuple[Mapping[Kind, LayerCost], Ladder]:
    """Layer costs and recompute ladder of a plan."""
    question = (space.model, space.job, space.machine, layer_key(plan))
    return _layers(*question), _ladder(*question, plan.recompute, plan.overlap)


@lru_cache(maxsize=4096)
def _layers(model: Model, job: Job, machine: Machine, key: LayerKey) -> Mapping[Kind, LayerCost]:
    return layer_costs(model, job, machine, key)


@lru_cache(maxsize=4096)
def _ladder(model: Model, job: Job, machine: Machine, key: LayerKey, policy: str, overlap: Overlap) -> Ladder:
    counts, link = kind_counts(model, job.mtp), machine.cluster.device.host_bytes_per_s
    return ladder(_layers(model, job, machine, key), counts, policy, overlap, machine.profile, link)
