"""What follows the pipeline on each stage: gradients reduced, optimizer, parameters gathered (model.md 5.4, 6.5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autodeploy.cost.collectives import Rates, gather_rates, send_s, serial, span
from autodeploy.cost.compute import hbm_s
from autodeploy.cost.memory import HOST_PIECES, Params, optimizer_bytes, state_shards
from autodeploy.numeric import Num, is_column, maximum, where
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.plan import PlanLike, States
from autodeploy.spec.target import Profile

ADAM_BYTES = 6.0
"""Per parameter and step: reads the gradient (4) and writes the weight (2), beside reading and writing the state."""
PARAM_BYTES = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTail:
    """Exposed seconds after (and, for the gather, before) the pipeline of one stage."""

    grad_sync: Num
    param_sync: Num
    optimizer: Num
    shared_weights: Num

    @property
    def seconds(self) -> Num:
        """All of it."""
        return self.grad_sync + self.param_sync + self.optimizer + self.shared_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class DataParallel:
    """Rates of the two data-parallel groups, and how many ranks share a state. Per plan, for all its stages."""

    dense: Rates
    experts: Rates
    """Over the ranks of one replica of the sharded state."""
    whole: tuple[Rates, Rates]
    """Over all of data parallelism."""
    dense_copies: Rates
    expert_copies: Rates
    """Over the replicas."""
    dense_shards: Num
    expert_shards: Num
    grad_rounds: Num
    """At the end of a step: 1 with a distributed optimizer (reduce-scatter), 2 without (all-reduce), 0 where every
    microbatch reduces its own (zero 2 and 3)."""
    param_rounds: Num
    """1 where the weights are whole and the optimizer is not (all-gather of its share), else 0."""


def data_parallel(machine: Machine, plan: PlanLike) -> DataParallel:
    """The data-parallel groups of a plan."""
    cluster, sharded = machine.cluster, plan.zero >= 1
    shards, expert_shards = state_shards(plan)
    stride, expert_stride = plan.tp, plan.etp * plan.ep
    return DataParallel(
        dense=gather_rates(cluster, span(cluster, shards, stride)),
        experts=gather_rates(cluster, span(cluster, expert_shards, expert_stride)),
        whole=(
            gather_rates(cluster, span(cluster, plan.dp * plan.cp, stride)),
            gather_rates(cluster, span(cluster, plan.edp, expert_stride)),
        ),
        dense_copies=gather_rates(cluster, span(cluster, plan.replicas, stride * shards)),
        expert_copies=gather_rates(cluster, span(cluster, plan.edp / expert_shards, expert_stride * expert_shards)),
        dense_shards=where(sharded, shards, 1.0),
        expert_shards=where(sharded, expert_shards, 1.0),
        grad_rounds=where(sharded, where(plan.zero >= 2, 0.0, 1.0), 2.0),
        param_rounds=where(sharded & (plan.zero < 3), 1.0, 0.0),
    )


def shard_sync_s(machine: Machine, dp: DataParallel, params: tuple[Num, Num], each_bytes: float) -> Num:
    """Reduce-scatter or all-gather over both data-parallel groups, one after the other: they share a port."""
    return _both_s(machine, (dp.dense, dp.experts), params, each_bytes)


def _both_s(machine: Machine, rates: tuple[Rates, Rates], params: tuple[Num, Num], each_bytes: float) -> Num:
    seconds: Num = 0.0
    for each, count in zip(rates, params, strict=True):
        if is_column(count) or count > 0.0:
            seconds = seconds + serial(machine.cluster, each.lanes(each_bytes * count))
    return seconds


def _copies_s(machine: Machine, plan: PlanLike, dp: DataParallel, params: tuple[Num, Num], each_bytes: float) -> Num:
    """All-reduce of each shard's gradients over the replicas; nothing where there is one."""
    if not is_column(plan.replicas) and plan.replicas == 1:
        return 0.0
    shards = (dp.dense_shards, dp.expert_shards)
    shares = [
        count / each if is_column(count) or count > 0.0 else 0.0 for count, each in zip(params, shards, strict=True)
    ]
    return 2.0 * _both_s(machine, (dp.dense_copies, dp.expert_copies), (shares[0], shares[1]), each_bytes)


def _exposed(profile: Profile, plan: PlanLike, paired: bool, whole_s: Num, window_s: Num) -> Num:
    """What the passes of the last (first) microbatches do not hide; all of it where the stack does not overlap.

    A chunk's gradients are complete in its last backward pass, bucket by bucket; chunks end pp passes apart, and the
    port takes them one after the other. So the last bucket, the last chunk or all of them may outlast the pipeline.
    Formula: max(T/(v n), T/v - (1 - 1/n) W/v, T - ((v - 1) pp + 1 - 1/n) W/v), n buckets a chunk, W one microbatch
    through all chunks
    Source: model.md 6.5; Megatron-LM schedules.py grad_sync_func; MindSpeed fb-overlap excludes overlap-grad-reduce.
    """
    overlaps = profile.overlap_grad_reduce_paired if paired else profile.overlap_grad_reduce
    if not overlaps:
        return whole_s
    piece, chunk_s, pass_s = 1.0 / profile.grad_buckets, whole_s / plan.vpp, window_s / plan.vpp
    alone = maximum(piece * chunk_s, chunk_s - (1.0 - piece) * pass_s)
    return maximum(alone, whole_s - ((plan.vpp - 1.0) * plan.pp + 1.0 - piece) * pass_s)


def optimizer_s(machine: Machine, job: Job, plan: PlanLike, dp: DataParallel, params: tuple[Num, Num]) -> Num:
    """Adam over the rank's share of the state, which comes from the host and goes back piece by piece where it lies
    there: both ways at once, beside the update of the piece before.

    Formula: (6 + 2 s) x / D / hbm, s = 12 bytes of state (8 with bf16 moments); from the host
    max(that, s x / D / B) + s x / D / B / 16
    Source: model.md 5.4, 9.2; MindSpeed swap-optimizer.
    """
    share = params[0] / dp.dense_shards + params[1] / dp.expert_shards
    state = optimizer_bytes(job, machine.profile)
    adam = hbm_s(machine.cluster.device, (ADAM_BYTES + 2.0 * state) * share)
    if not np.any(plan.states == States.HOST):  # static: whether any plan asks
        return adam
    moved = state * share / machine.cluster.device.host_bytes_per_s
    return where(plan.states == States.HOST, maximum(adam, moved) + moved / HOST_PIECES, adam)


def stage_tail(
    machine: Machine,
    job: Job,
    plan: PlanLike,
    dp: DataParallel,
    paired: bool,
    params: Params,
    windows: tuple[Num, Num],
    shared_params: Num,
) -> StageTail:
    """Tail of a stage (of plans that all merge passes, `paired`, or all do not) from its parameters, the seconds of one
    microbatch (forward, backward), and the parameters of vocabulary matrices that it shares with another stage."""
    profile = machine.profile
    trained = (params.dense, params.experts)
    grads = dp.grad_rounds * shard_sync_s(machine, dp, trained, job.grad_bytes)
    grads = grads + _copies_s(machine, plan, dp, trained, job.grad_bytes)
    if not profile.scatter_gradients:
        grads = where(plan.zero >= 2, grads, 2.0 * _both_s(machine, dp.whole, trained, job.grad_bytes))
    gathered = dp.param_rounds * shard_sync_s(machine, dp, trained, PARAM_BYTES)
    return StageTail(
        grad_sync=_exposed(profile, plan, paired, grads, windows[1]),
        param_sync=_exposed(profile, plan, paired, gathered, windows[0]) if profile.overlap_param_gather else gathered,
        optimizer=optimizer_s(machine, job, plan, dp, trained),
        shared_weights=_shared_s(machine, job, plan, shared_params),
    )


def _shared_s(machine: Machine, job: Job, plan: PlanLike, shared_params: Num) -> Num:
    """Gradients of shared vocabulary matrices summed between two stages: (m-1)/m of an all-reduce of two ranks."""
    if not is_column(shared_params) and shared_params == 0.0:
        return 0.0
    apart = plan.tp * plan.cp * plan.dp
    return send_s(machine.cluster, apart, apart * plan.pp, job.grad_bytes * shared_params)
