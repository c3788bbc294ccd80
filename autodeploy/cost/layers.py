"""The cost of one layer of each kind, per rank and microbatch: loads, rows, parameters, and the terms behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autodeploy.analysis.inventory import inventory
from autodeploy.analysis.ops import REBUILDABLE, Engine, Group, Module, Op, Shard
from autodeploy.analysis.readings import (
    attention_bytes,
    delayed_bytes,
    grad_live_bytes,
    largest_params,
    params,
    saved_by_module,
    transient_bytes,
    weights_of,
)
from autodeploy.cost.compute import kernels, op_s
from autodeploy.cost.load import Load, sum_loads
from autodeploy.cost.traffic import Traffic
from autodeploy.numeric import Num, maximum, minimum, total
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import LayerLike

ENGINE_WORDS = tuple(engine.name.lower() for engine in Engine)
PASS_TERMS = (*ENGINE_WORDS, "launch", "tensor_parallel", "context_parallel", "expert_exchange")
"""Where the seconds of one pass go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCost:
    """One layer (or end) of the model under a plan. Every value is a number or a column."""

    forward: Load
    backward: Load
    """Without anything rebuilt."""
    weights_s: Num
    """Of the backward pass, its weight gradients."""
    rebuild: tuple[Load, ...]
    """Per rebuildable module: forward work that its recompute repeats."""
    rows_bytes: tuple[Num, ...]
    """Per module of `Module`, KEPT last: bytes kept until the backward pass."""
    attention_bytes: Num
    """Of the rows of FULL: what goes into the attention core and comes out of it."""
    working_bytes: Num
    """Live only while the layer's backward pass runs."""
    forward_bytes: Num
    """Live only while its forward pass runs."""
    delayed_bytes: Num
    """Kept from the backward pass until the weight gradients, where these run apart."""
    exchange_bytes: Num
    """One buffer of the expert all-to-all."""
    dense_params: Num
    """Trained parameters whose state is sharded over dp x cp."""
    split_params: Num
    """Of these, the ones that tensor parallelism divides."""
    expert_params: Num
    """Trained parameters whose state is sharded over edp."""
    largest_params: tuple[Num, Num]
    """Of its largest trained tensor, dense and of experts (all local ones in one)."""
    weights: Mapping[str, Num]
    """Elements of one trained weight of every linear layer, by its name."""
    frozen_params: Num
    frozen_expert_params: Num
    """Parameters of which only the weights are held, by the group that shares them."""
    forward_terms: Mapping[str, Num]
    backward_terms: Mapping[str, Num]


class OpCost(NamedTuple):
    """Seconds of one op, the load of its transfers and its kernels (forward, backward)."""

    forward_s: Num
    backward_s: Num
    traffic: tuple[Load, Load] | None
    kernels: tuple[Num, Num]
    aside: tuple[Num, Num] = (0.0, 0.0)
    """The part of the seconds that no later op of the pass waits for."""
    weights_s: Num = 0.0
    """Of the backward seconds, the weight gradient's."""
    context: tuple[Num, Num] = (0.0, 0.0)
    """The part of `traffic` that is context parallelism in the open."""

    def load(self, op: Op, side: int) -> Load:
        """Of a forward (side 0) or backward (1) pass."""
        seconds, aside = self[side], self.aside[side]
        engine = Load(busy=seconds, experts=seconds - aside if op.of_experts else 0.0, aside=aside)
        return engine.plus(self.traffic[side]) if self.traffic else engine


def layer_costs(model: Model, job: Job, machine: Machine, plan: LayerLike) -> dict[Kind, LayerCost]:
    """The cost of every kind of layer in the model."""
    ops = inventory(model, job, machine.profile, plan)
    traffic = Traffic(model, job, machine, plan)
    # layers of several kinds share the ops of their attention: each distinct op is costed once
    distinct = {id(op): op for kind in ops for op in ops[kind]}
    costs = {key: _op_cost(machine, job, op, traffic) for key, op in distinct.items()}
    return {kind: _layer(machine, job, ops[kind], costs, traffic) for kind in ops}


def _op_cost(machine: Machine, job: Job, op: Op, traffic: Traffic) -> OpCost:
    forward_s, backward_s, weights_s = (
        machine.slowest_over_typical * each for each in op_s(machine.cluster.device, machine.profile, job, op)
    )
    seconds = (forward_s, backward_s)
    aside = seconds if op.module is Module.SHARED_EXPERTS else (0.0, weights_s)
    if not op.transfers:
        return OpCost(*seconds, None, kernels(op), aside, weights_s)
    forward = [traffic.load(transfer, transfer.forward, seconds[0]) for transfer in op.transfers]
    backward = [traffic.load(transfer, transfer.backward, seconds[1]) for transfer in op.transfers]
    context = (_context_s(op, forward), _context_s(op, backward))
    return OpCost(*seconds, (sum_loads(forward), sum_loads(backward)), kernels(op), aside, weights_s, context)


def _context_s(op: Op, loads: list[Load]) -> Num:
    """The part of an op's traffic that is context parallelism."""
    return total([load.busy for load, t in zip(loads, op.transfers, strict=True) if t.group is Group.CP])


def _layer(machine: Machine, job: Job, ops: tuple[Op, ...], costs: Mapping[int, OpCost], traffic: Traffic) -> LayerCost:
    forward_terms, forward = _pass(machine, ops, costs, 0)
    backward_terms, backward = _pass(machine, ops, costs, 1)
    copies = [t.bytes for op in ops for t in op.transfers if t.group is Group.EP]
    gathered = traffic.gathered_bytes(copies[0]) if copies else 0.0
    buffer = traffic.buffer_bytes(copies[0]) if copies else 0.0
    trained, frozen = [op for op in ops if op.trained], [op for op in ops if not op.trained]
    return LayerCost(
        forward=forward,
        backward=backward,
        weights_s=total([costs[id(op)].weights_s for op in ops]),
        rebuild=_rebuild(ops, costs),
        rows_bytes=saved_by_module(ops),
        attention_bytes=attention_bytes(ops),
        working_bytes=_working_bytes(machine, job, ops) + gathered,
        forward_bytes=transient_bytes(ops) + gathered,
        delayed_bytes=delayed_bytes(ops),
        exchange_bytes=buffer,
        dense_params=params(trained, Shard.TP) + params(trained, Shard.REPLICATED),
        split_params=params(trained, Shard.TP),
        expert_params=params(trained, Shard.EXPERT),
        largest_params=(largest_params(trained, Shard.TP, Shard.REPLICATED), largest_params(trained, Shard.EXPERT)),
        weights=weights_of(trained) if machine.profile.stand_in_bytes else {},
        frozen_params=params(frozen, Shard.TP) + params(frozen, Shard.REPLICATED),
        frozen_expert_params=params(frozen, Shard.EXPERT),
        forward_terms=forward_terms,
        backward_terms=backward_terms,
    )


def _working_bytes(machine: Machine, job: Job, ops: tuple[Op, ...]) -> Num:
    """What a backward pass works on at most: gradients of rows, one op, or a gradient on its way into fp32."""
    rows = maximum(grad_live_bytes(ops), transient_bytes(ops))
    each = machine.profile.gradient_cast_bytes
    if not each or job.grad_precision != "fp32":
        return rows
    return maximum(rows, each * largest_params([op for op in ops if op.trained], *Shard))


def _pass(machine: Machine, ops: tuple[Op, ...], costs: Mapping[int, OpCost], side: int) -> tuple[dict[str, Num], Load]:
    """Terms and load of a forward (side 0) or backward (1) pass. The host must launch every kernel: a floor under
    the engines."""
    mine = [costs[id(op)] for op in ops]
    by_engine: list[list[Num]] = [[] for _ in Engine]
    for op, cost in zip(ops, mine, strict=True):
        by_engine[op.engine].append(cost[side])
    terms: dict[str, Num] = {word: total(seconds) for word, seconds in zip(ENGINE_WORDS, by_engine, strict=True)}
    hidden = _hidden_vector_s(machine, mine, terms, side)
    terms["vector"] = terms["vector"] - hidden
    engines = total(list(terms.values()))
    launches = total([cost.kernels[side] for cost in mine])
    profile = machine.profile
    issue_s = 0.0 if profile.graphs else machine.issue_s
    stalls = (profile.moe_backward_stalls if side else profile.moe_stalls) * sum(op.counts_rows for op in ops)
    terms["launch"] = maximum(launches * issue_s - engines, 0.0) + stalls * machine.stall_s
    context = total([cost.context[side] for cost in mine])
    collectives = total([cost.traffic[side].busy for cost in mine if cost.traffic])
    terms |= {"tensor_parallel": collectives - context, "context_parallel": context}
    load = sum_loads([cost.load(op, side) for op, cost in zip(ops, mine, strict=True)])
    terms["expert_exchange"] = load.exchange
    return terms, load._replace(busy=load.busy + terms["launch"] - hidden, aside=load.aside - hidden)


def _hidden_vector_s(machine: Machine, costs: list[OpCost], terms: Mapping[str, Num], side: int) -> Num:
    """Vector chains of a backward pass that run beside its weight gradients, on cores of their own.

    Formula: min(vector, weight gradients): the longer of both counts, not the sum
    Source: Ascend 910B: two vector cores beside each cube core; model.md 7.4.
    """
    if not side or not (machine.profile.overlap_vector and machine.cluster.device.vector_cores):
        return 0.0
    return minimum(terms["vector"], total([cost.weights_s for cost in costs]))


def _rebuild(ops: tuple[Op, ...], costs: Mapping[int, OpCost]) -> tuple[Load, ...]:
    """Forward load of the ops of every rebuildable module."""
    mine: list[list[Load]] = [[] for _ in Module]
    for op in ops:
        mine[op.module].append(costs[id(op)].load(op, 0))
    return tuple(sum_loads(mine[module]) for module in REBUILDABLE)
