"""The space that a search uses when no file says one: what an engineer would try for this model on this cluster."""

from __future__ import annotations

from typing import Literal, get_args

from autodeploy.search.enumerate import divisors
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model
from autodeploy.spec.space import DispatchWord, PlanValues, ScheduleWord

Effort = Literal["fast", "normal", "deep"]
EFFORTS: tuple[Effort, ...] = ("fast", "normal", "deep")
MOST_TP = 16
MOST_STAGES = 64
VPP = {"fast": (1, 2, 4), "normal": tuple(range(1, 9)), "deep": tuple(range(1, 17))}
DISPATCH: dict[Effort, tuple[DispatchWord, ...]] = {
    "fast": ("flat", "fused", "hier"),
    "normal": ("flat", "fused", "dedup", "gather", "hier"),
    "deep": ("flat", "fused", "dedup", "gather", "hier"),
}
"""The last one needs several nodes."""
MBS = {"fast": (1, 2), "normal": (1, 2, 4), "deep": (1, 2, 3, 4, 6, 8)}


SCHEDULES: tuple[ScheduleWord, ...] = get_args(ScheduleWord)


def is_power_of_two(number: int) -> bool:
    """1, 2, 4, 8, ..."""
    return number & (number - 1) == 0


def default_values(model: Model, cluster: Cluster, devices: int, effort: Effort) -> PlanValues:
    """Values for every plan field. `fast` keeps to powers of two, experts whole and few micro-batches."""
    stages = [d for d in divisors(devices) if d <= min(MOST_STAGES, model.layers)]
    if effort == "fast":
        stages = [d for d in stages if is_power_of_two(d)] or [1]
    return PlanValues(
        tp=_tp(model, cluster, devices),
        pp=tuple(stages),
        vpp=tuple(v for v in VPP[effort] if v == 1 or stages[-1] > 1),
        ep=_ep(model, devices, effort),
        etp=_etp(model, cluster, devices, effort),
        schedule=SCHEDULES if effort == "deep" and stages[-1] > 1 else None,
        mbs=MBS[effort],
        overlap=("none", "pair") if model.moe else ("none",),
        dispatch=DISPATCH[effort][: None if devices > cluster.inner.size else -1] if model.moe else ("flat",),
    )


def _tp(model: Model, cluster: Cluster, devices: int) -> tuple[int, ...]:
    """Within the fast links; a tensor-parallel group on the fabric never pays."""
    most = min(cluster.inner.size, devices, MOST_TP)
    return tuple(d for d in divisors(model.attention.heads) if d <= most and cluster.inner.size % d == 0)


def _ep(model: Model, devices: int, effort: Effort) -> tuple[int, ...]:
    if model.moe is None:
        return (1,)
    fitting = [d for d in divisors(model.moe.experts) if d <= devices]
    return tuple(d for d in fitting if effort != "fast" or is_power_of_two(d))


def _etp(model: Model, cluster: Cluster, devices: int, effort: Effort) -> tuple[int, ...]:
    if model.moe is None or effort == "fast":
        return (1,)
    most = min(cluster.node.size, devices)
    return tuple(d for d in divisors(model.moe.expert_width) if d <= most and is_power_of_two(d))
