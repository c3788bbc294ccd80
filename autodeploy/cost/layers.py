"""The cost of one layer of each kind, per rank and microbatch: loads, rows, parameters, and the terms behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autodeploy.analysis.inventory import Inventory, inventory
from autodeploy.analysis.ops import REBUILDABLE, Engine, Group, Module, Op, Shard, Transfer
from autodeploy.analysis.readings import grad_live_bytes, params, saved_bytes, transient_bytes
from autodeploy.cost.collectives import Lanes, flat_lanes, gather_lanes, hier_lanes, serial, span
from autodeploy.cost.compute import kernels, op_s
from autodeploy.cost.load import Load
from autodeploy.numeric import Num, maximum, total, where
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import Dispatch, PlanLike

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
    gathered_bytes: Num
    """Tokens of other nodes, gathered for a hierarchical dispatch."""
    dense_params: Num
    """Parameters whose state is sharded over dp x cp."""
    expert_params: Num
    """Parameters whose state is sharded over edp."""
    forward_terms: Mapping[str, Num]
    backward_terms: Mapping[str, Num]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpCost:
    """Seconds of one op: engine, and per group its traffic."""

    forward_s: Num
    backward_s: Num
    tp_forward: Load
    tp_backward: Load
    ep_forward: Load
    ep_backward: Load


def layer_costs(model: Model, job: Job, machine: Machine, plan: PlanLike) -> dict[Kind, LayerCost]:
    """The cost of every kind of layer in the model."""
    ops = inventory(model, job, machine.profile, plan)
    costs = _op_costs(model, job, machine.cluster, plan, ops)
    return {kind: _layer(machine.cluster, plan, ops[kind], costs) for kind in ops}


def _op_costs(model: Model, job: Job, cluster: Cluster, plan: PlanLike, ops: Inventory) -> dict[int, OpCost]:
    """Each distinct op once: layers of several kinds share the ops of their attention."""
    distinct = {id(op): op for kind in ops for op in ops[kind]}
    traffic = _Traffic(model, job, cluster, plan)
    return {key: _op_cost(cluster, op, job.grad_bytes, traffic) for key, op in distinct.items()}


class _Traffic:
    """Load of a transfer under one plan."""

    def __init__(self, model: Model, job: Job, cluster: Cluster, plan: PlanLike) -> None:
        self.cluster = cluster
        self.top_k = model.moe.top_k if model.moe else 0
        self.plan = plan
        self.imbalance = where(plan.ep > 1, job.expert_imbalance, 1.0)
        self.spans = {
            Group.TP: span(cluster, plan.tp, 1),
            Group.ETP: span(cluster, plan.etp, 1),
            Group.EP: span(cluster, plan.ep, plan.etp),
        }

    def load(self, transfer: Transfer) -> Load:
        """One collective of the transfer."""
        if transfer.group is Group.EP:
            return self._exchange(transfer.bytes)
        lanes = gather_lanes(self.cluster, self.spans[transfer.group], transfer.bytes)
        return Load(busy=serial(self.cluster, lanes), inner=lanes.inner, outer=lanes.outer)

    def _exchange(self, copy_bytes: Num) -> Load:
        """Dispatch or combine by the plan's method; the busiest receiver sets the time."""
        group, plan = self.spans[Group.EP], self.plan
        sent = copy_bytes * self.imbalance
        flat = flat_lanes(self.cluster, group, plan.ep, sent, self.top_k)
        hier = hier_lanes(self.cluster, group, sent, self.top_k)
        is_hier = plan.dispatch == Dispatch.HIER
        lanes = Lanes(*(where(is_hier, h, f) for h, f in zip(hier, flat, strict=True)))
        both_at_once = maximum(lanes.inner, lanes.outer)
        alone = where(is_hier, lanes.inner + lanes.outer, both_at_once)
        return Load(exchange=alone, inner=lanes.inner, outer=lanes.outer)


def _op_cost(cluster: Cluster, op: Op, grad_bytes: float, traffic: _Traffic) -> OpCost:
    forward_s, backward_s = op_s(cluster.device, op, grad_bytes)
    sums = {key: Load() for key in ("tp_forward", "tp_backward", "ep_forward", "ep_backward")}
    for transfer in op.transfers:
        load = traffic.load(transfer)
        side = "ep" if transfer.group is Group.EP else "tp"
        sums[f"{side}_forward"] = sums[f"{side}_forward"].plus(load.times(transfer.forward))
        sums[f"{side}_backward"] = sums[f"{side}_backward"].plus(load.times(transfer.backward))
    return OpCost(forward_s=forward_s, backward_s=backward_s, **sums)


def _layer(cluster: Cluster, plan: PlanLike, ops: tuple[Op, ...], costs: Mapping[int, OpCost]) -> LayerCost:
    forward_terms, forward = _pass(cluster, ops, costs, "forward")
    backward_terms, backward = _pass(cluster, ops, costs, "backward")
    return LayerCost(
        forward=forward,
        backward=backward,
        rebuild=tuple(_rebuild([op for op in ops if op.module is module], costs) for module in REBUILDABLE),
        rows_bytes=tuple(saved_bytes(ops, module) for module in Module),
        working_bytes=maximum(grad_live_bytes(ops), transient_bytes(ops)),
        exchange_bytes=total([op.exchange_bytes for op in ops]),
        gathered_bytes=_gathered_bytes(cluster, plan, ops),
        dense_params=params(ops, Shard.TP) + params(ops, Shard.REPLICATED),
        expert_params=params(ops, Shard.EXPERT),
        forward_terms=forward_terms,
        backward_terms=backward_terms,
    )


def _gathered_bytes(cluster: Cluster, plan: PlanLike, ops: tuple[Op, ...]) -> Num:
    copies = [t.bytes for op in ops for t in op.transfers if t.group is Group.EP]
    if not copies:
        return 0.0
    nodes = span(cluster, plan.ep, plan.etp).nodes
    return where(plan.dispatch == Dispatch.HIER, nodes * copies[0], 0.0)


def _pass(
    cluster: Cluster, ops: tuple[Op, ...], costs: Mapping[int, OpCost], side: str
) -> tuple[dict[str, Num], Load]:
    """Terms and load of a forward or backward pass. The host must launch every kernel: a floor under the engines."""
    mine = [(op, costs[id(op)]) for op in ops]
    terms: dict[str, Num] = {
        word: total([getattr(cost, f"{side}_s") for op, cost in mine if op.engine is engine])
        for word, engine in zip(ENGINE_WORDS, Engine, strict=True)
    }
    engines = total(list(terms.values()))
    launches = sum(kernels(op)[side == "backward"] for op in ops)
    terms["launch"] = maximum(launches * cluster.device.issue_s - engines, 0.0)
    traffic = Load()
    for _, cost in mine:
        traffic = traffic.plus(getattr(cost, f"tp_{side}")).plus(getattr(cost, f"ep_{side}"))
    terms |= {"tensor_parallel": traffic.busy, "expert_exchange": traffic.exchange}
    return terms, traffic.plus(Load(busy=engines + terms["launch"]))


def _rebuild(ops: list[Op], costs: Mapping[int, OpCost]) -> Load:
    load = Load()
    for op in ops:
        cost = costs[id(op)]
        load = load.plus(Load(busy=cost.forward_s)).plus(cost.tp_forward).plus(cost.ep_forward)
    return load
