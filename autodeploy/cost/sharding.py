"""Traffic of sharded weights and gradients (ZeRO 2 and 3, FSDP): every microbatch gathers a layer's weights before it
uses them and scatters its gradients after (model.md 6.3; arXiv 1910.02054)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from autodeploy.cost.layers import LayerCost
from autodeploy.cost.tail import PARAM_BYTES, DataParallel, shard_sync_s
from autodeploy.numeric import Num, maximum, where
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Overlap, PlanLike

GATHERED_LAYERS = 2.0
"""Layers whose weights are whole at a time: the one at work and the one gathered ahead."""


class ShardTraffic(NamedTuple):
    """Seconds in the open that sharding adds to one layer's forward and backward pass."""

    forward: Num
    backward: Num


def shard_traffic(
    machine: Machine, job: Job, plan: PlanLike, dp: DataParallel, costs: Mapping[Kind, LayerCost]
) -> dict[Kind, ShardTraffic]:
    """Per kind of layer; empty where no plan shards more than the optimizer."""
    if not np.any(plan.zero >= 2):  # static: whether any plan asks
        return {}
    return {kind: _of_layer(machine, job, plan, dp, cost) for kind, cost in costs.items()}


def _of_layer(machine: Machine, job: Job, plan: PlanLike, dp: DataParallel, cost: LayerCost) -> ShardTraffic:
    held = (cost.dense_params + cost.frozen_params, cost.expert_params + cost.frozen_expert_params)
    gather = where(plan.zero >= 3, shard_sync_s(machine, dp, held, PARAM_BYTES), 0.0)
    trained = (cost.dense_params, cost.expert_params)
    scatter = where(plan.zero >= 2, shard_sync_s(machine, dp, trained, job.grad_bytes), 0.0)
    beside = [where(plan.overlap == Overlap.PAIR, load.busy, load.alone) for load in (cost.forward, cost.backward)]
    return ShardTraffic(_open(machine, gather, beside[0]), _open(machine, gather + scatter, beside[1]))


def _open(machine: Machine, transfer_s: Num, beside_s: Num) -> Num:
    """What the layer before does not hide: with its engine in merged passes, which hide its all-to-all beside the other
    pass; else also while it waits for that.

    Formula: max(transfer - layer, 0); all of it without overlap.
    """
    return maximum(transfer_s - beside_s, 0.0) if machine.profile.overlap_weight_gather else transfer_s


def gathered_bytes(job: Job, plan: PlanLike, costs: Mapping[Kind, LayerCost]) -> dict[Kind, Num]:
    """Whole weights and gradients of one kind of layer beside the sharded ones: two layers' weights under zero 3, one
    layer's gradients from zero 2 on; empty where no plan shards them. Source: model.md 3; PyTorch FSDP prefetches one
    unit."""
    if not np.any(plan.zero >= 2):  # static: whether any plan asks
        return {}
    return {kind: _whole_bytes(job, plan, cost) for kind, cost in costs.items()}


def _whole_bytes(job: Job, plan: PlanLike, cost: LayerCost) -> Num:
    trained = cost.dense_params + cost.expert_params
    held = trained + cost.frozen_params + cost.frozen_expert_params
    weights = where(plan.zero >= 3, GATHERED_LAYERS * PARAM_BYTES * held, 0.0)
    return weights + where(plan.zero >= 2, job.grad_bytes * trained, 0.0)
