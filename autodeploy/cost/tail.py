"""What follows the pipeline on each stage: gradients reduced, optimizer, parameters gathered (physics 5.4, 6.5)."""

from __future__ import annotations

from dataclasses import dataclass

from autodeploy.cost.collectives import gather_lanes, send_s, serial, span
from autodeploy.cost.compute import hbm_s
from autodeploy.numeric import Num, maximum, where
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.plan import Overlap, PlanLike

OPTIMIZER_BYTES = 30.0
"""Per parameter and step: reads gradient (4), master and moments (12), writes these (12) and the weight (2)."""
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


def _dp_s(machine: Machine, plan: PlanLike, dense_bytes: Num, expert_bytes: Num) -> Num:
    """Reduce-scatter or all-gather over both data-parallel groups, one after the other: they share a port."""
    cluster = machine.cluster
    dense = gather_lanes(cluster, span(cluster, plan.dp * plan.cp, plan.tp), dense_bytes)
    expert = gather_lanes(cluster, span(cluster, plan.edp, plan.etp * plan.ep), expert_bytes)
    return serial(cluster, dense) + serial(cluster, expert)


def _exposed(machine: Machine, plan: PlanLike, whole_s: Num, window_s: Num) -> Num:
    """What a pass of the last (first) microbatch does not hide; nothing hides under merged passes.

    Formula: max(T / buckets, T - window * (1 - 1/buckets))
    Source: physics 6.5; MindSpeed fb-overlap excludes overlap-grad-reduce.
    """
    profile = machine.profile
    if not profile.overlap_grad_reduce:
        return whole_s
    piece = 1.0 / profile.grad_buckets
    hidden = maximum(piece * whole_s, whole_s - (1.0 - piece) * window_s)
    return where(plan.overlap == Overlap.PAIR, whole_s, hidden)


def optimizer_s(machine: Machine, plan: PlanLike, dense: Num, experts: Num) -> Num:
    """Adam over the rank's share of the state. Formula: 30 x / D / hbm. Source: physics 5.4."""
    share = dense / where(plan.zero >= 1, plan.dp * plan.cp, 1.0)
    expert_share = experts / where(plan.zero >= 1, plan.edp, 1.0)
    return hbm_s(machine.cluster.device, OPTIMIZER_BYTES * (share + expert_share))


def stage_tail(
    machine: Machine,
    job: Job,
    plan: PlanLike,
    params: tuple[Num, Num],
    windows: tuple[Num, Num],
    shared_params: Num,
) -> StageTail:
    """Tail of a stage from its (dense, expert) parameters, the (forward, backward) seconds of one microbatch, and
    the parameters of vocabulary matrices that it shares with another stage."""
    dense, experts = params
    grads = _dp_s(machine, plan, job.grad_bytes * dense, job.grad_bytes * experts)
    gathered = _dp_s(machine, plan, PARAM_BYTES * dense, PARAM_BYTES * experts)
    # without a distributed optimizer gradients are all-reduced: scattered and gathered again at their own width
    unsharded = 2.0 * grads
    grad_s = _exposed(machine, plan, where(plan.zero >= 1, grads, unsharded), windows[1])
    param_s = where(plan.zero >= 1, _exposed(machine, plan, gathered, windows[0]), 0.0)
    apart = plan.tp * plan.cp * plan.dp
    both_ways = send_s(machine.cluster, apart, apart * plan.pp, job.grad_bytes * shared_params)
    return StageTail(
        grad_sync=grad_s,
        param_sync=param_s,
        optimizer=optimizer_s(machine, plan, dense, experts),
        shared_weights=where(shared_params > 0.0, both_ways, 0.0),
    )
