"""The cost of one layer of each kind, per rank and microbatch: loads, rows, parameters, and the terms behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autodeploy.analysis.inventory import inventory
from autodeploy.analysis.ops import REBUILDABLE, Engine, Group, Module, Op, Shard, Transfer
from autodeploy.analysis.readings import grad_live_bytes, params, saved_by_module, transient_bytes
from autodeploy.cost.collectives import Lanes, flat_lanes, gather_rates, hier_lanes, serial, span
from autodeploy.cost.compute import kernels, op_s
from autodeploy.cost.load import Load, sum_loads
from autodeploy.numeric import Num, maximum, total, where
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import Dispatch, LayerLike

ENGINE_WORDS = tuple(engine.name.lower() for engine in Engine)
PASS_TERMS = (*ENGINE_WORDS, "launch", "tensor_parallel", "expert_exchange")
"""Where the seconds of one pass go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCost:
    """One layer (or end) of the model under a plan. Every value is a number or a column."""

    forward: Load
    backward: Load
    """Without anything rebuilt."""
    rebuild: tuple[Load, ...]
    """Per rebuildable module: forward work that its recompute repeats."""
    rows_bytes: tuple[Num, ...]
    """Per module of `Module`, KEPT last: bytes kept until the backward pass."""
    working_bytes: Num
    """Live only while the layer's backward pass runs."""
    exchange_bytes: Num
    """One buffer of the expert all-to-all."""
    dense_params: Num
    """Parameters whose state is sharded over dp x cp."""
    expert_params: Num
    """Parameters whose state is sharded over edp."""
    forward_terms: Mapping[str, Num]
    backward_terms: Mapping[str, Num]


class OpCost(NamedTuple):
    """Seconds of one op, the load of its transfers and its kernels (forward, backward)."""

    forward_s: Num
    backward_s: Num
    traffic: tuple[Load, Load] | None
    kernels: tuple[int, int]


def layer_costs(model: Model, job: Job, machine: Machine, plan: LayerLike) -> dict[Kind, LayerCost]:
    """The cost of every kind of layer in the model."""
    ops = inventory(model, job, machine.profile, plan)
    traffic = Traffic(model, job, machine.cluster, plan)
    # layers of several kinds share the ops of their attention: each distinct op is costed once
    distinct = {id(op): op for kind in ops for op in ops[kind]}
    costs = {key: _op_cost(machine.cluster, op, job.grad_bytes, traffic) for key, op in distinct.items()}
    return {kind: _layer(machine.cluster, ops[kind], costs, traffic) for kind in ops}


class Traffic:
    """Load of a transfer under one plan (or a table)."""

    def __init__(self, model: Model, job: Job, cluster: Cluster, plan: LayerLike) -> None:
        self.cluster = cluster
        self.top_k = model.moe.top_k if model.moe else 0
        self.plan = plan
        self.imbalance = where(plan.ep > 1, job.expert_imbalance, 1.0)
        self.tp = gather_rates(cluster, span(cluster, plan.tp, 1))
        self.etp = gather_rates(cluster, span(cluster, plan.etp, 1))
        self.ep = span(cluster, plan.ep, plan.etp)
        self.is_hier = plan.dispatch == Dispatch.HIER

    def load(self, transfer: Transfer) -> Load:
        """One collective of the transfer."""
        if transfer.group is Group.EP:
            return self._exchange(transfer.bytes)
        lanes = (self.tp if transfer.group is Group.TP else self.etp).lanes(transfer.bytes)
        return Load(serial(self.cluster, lanes), 0.0, lanes.inner, lanes.outer)

    def _exchange(self, copy_bytes: Num) -> Load:
        """Dispatch or combine by the plan's method; the busiest receiver sets the time. The levels of a flat
        all-to-all run at once, the two steps of a hierarchical one in turn."""
        sent = copy_bytes * self.imbalance
        flat = flat_lanes(self.cluster, self.ep, self.plan.ep, sent, self.top_k)
        hier = hier_lanes(self.cluster, self.ep, copy_bytes, self.top_k, self.imbalance)
        lanes = Lanes(*(where(self.is_hier, h, f) for h, f in zip(hier, flat, strict=True)))
        alone = where(self.is_hier, lanes.inner + lanes.outer, maximum(lanes.inner, lanes.outer))
        return Load(0.0, alone, lanes.inner, lanes.outer)

    def gathered_bytes(self, copy_bytes: Num) -> Num:
        """Tokens of all nodes, held while a hierarchical dispatch runs."""
        return where(self.is_hier, self.ep.nodes * copy_bytes, 0.0)


def _op_cost(cluster: Cluster, op: Op, grad_bytes: float, traffic: Traffic) -> OpCost:
    forward_s, backward_s = op_s(cluster.device, op, grad_bytes)
    if not op.transfers:
        return OpCost(forward_s, backward_s, None, kernels(op))
    loads = [(traffic.load(transfer), transfer) for transfer in op.transfers]
    forward = sum_loads([load.times(transfer.forward) for load, transfer in loads])
    backward = sum_loads([load.times(transfer.backward) for load, transfer in loads])
    return OpCost(forward_s, backward_s, (forward, backward), kernels(op))


def _layer(cluster: Cluster, ops: tuple[Op, ...], costs: Mapping[int, OpCost], traffic: Traffic) -> LayerCost:
    forward_terms, forward = _pass(cluster, ops, costs, 0)
    backward_terms, backward = _pass(cluster, ops, costs, 1)
    copies = [t.bytes for op in ops for t in op.transfers if t.group is Group.EP]
    gathered = traffic.gathered_bytes(copies[0]) if copies else 0.0
    return LayerCost(
        forward=forward,
        backward=backward,
        rebuild=_rebuild(ops, costs),
        rows_bytes=saved_by_module(ops),
        working_bytes=maximum(grad_live_bytes(ops), transient_bytes(ops)) + gathered,
        exchange_bytes=total([op.exchange_bytes for op in ops]),
        dense_params=params(ops, Shard.TP) + params(ops, Shard.REPLICATED),
        expert_params=params(ops, Shard.EXPERT),
        forward_terms=forward_terms,
        backward_terms=backward_terms,
    )


def _pass(cluster: Cluster, ops: tuple[Op, ...], costs: Mapping[int, OpCost], side: int) -> tuple[dict[str, Num], Load]:
    """Terms and load of a forward (side 0) or backward (1) pass. The host must launch every kernel: a floor under
    the engines."""
    mine = [costs[id(op)] for op in ops]
    by_engine: list[list[Num]] = [[] for _ in Engine]
    for op, cost in zip(ops, mine, strict=True):
        by_engine[op.engine].append(cost[side])
    terms: dict[str, Num] = {word: total(seconds) for word, seconds in zip(ENGINE_WORDS, by_engine, strict=True)}
    engines = total(list(terms.values()))
    launches = sum([cost.kernels[side] for cost in mine])
    terms["launch"] = maximum(launches * cluster.device.issue_s - engines, 0.0)
    traffic = sum_loads([cost.traffic[side] for cost in mine if cost.traffic])
    terms |= {"tensor_parallel": traffic.busy, "expert_exchange": traffic.exchange}
    return terms, traffic._replace(busy=traffic.busy + engines + terms["launch"])


def _rebuild(ops: tuple[Op, ...], costs: Mapping[int, OpCost]) -> tuple[Load, ...]:
    """Forward load of the ops of every rebuildable module."""
    mine: list[list[OpCost]] = [[] for _ in Module]
    for op in ops:
        mine[op.module].append(costs[id(op)])
    return tuple(_forward_load(mine[module]) for module in REBUILDABLE)


def _forward_load(costs: list[OpCost]) -> Load:
    traffic = sum_loads([cost.traffic[0] for cost in costs if cost.traffic])
    return traffic._replace(busy=traffic.busy + total([cost.forward_s for cost in costs]))
