"""The machine: cluster and profile together, which is all that `cost` takes of either."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from autodeploy.spec.checks import Count
from autodeploy.spec.cluster import Cluster, Level
from autodeploy.spec.target import Profile

RATES = (
    "matmul_max_frac", "attention_forward_frac", "attention_backward_frac", "hbm_max_frac", "host_bytes_per_s",
)  # fmt: skip
TIMES = ("tile_overhead_s", "kernel_gap_s", "issue_s", "stall_s", "pinned_issue_s", "pinned_stall_s")
LEVELS = ("node", "fabric", "supernode")
LEVEL_TIMES = ("latency_s", "ramp_s_per_sqrt_byte")


def paced(cluster: Cluster, pace: float) -> Cluster:
    """A cluster on which everything takes `pace` times as long: every rate divided by it, every time multiplied."""
    return cluster if pace == 1.0 else _paced(cluster, pace)


@lru_cache(maxsize=256)
def _paced(cluster: Cluster, pace: float) -> Cluster:
    device = cluster.device
    changed: dict[str, Any] = {name: getattr(device, name) / pace for name in RATES}
    changed |= {name: getattr(device, name) * pace for name in TIMES}
    for name in ("fp8", "nvfp4"):
        rate = getattr(device, name)
        changed[name] = replace(rate, max_frac=rate.max_frac / pace) if rate else None
    levels: dict[str, Any] = {name: _paced_level(getattr(cluster, name), pace) for name in LEVELS}
    return replace(cluster, device=replace(device, **changed), **levels)


def _paced_level(level: Level | None, pace: float) -> Level | None:
    if level is None:
        return None
    times = {name: getattr(level, name) * pace for name in LEVEL_TIMES}
    return replace(level, link_max_frac=level.link_max_frac / pace, **times)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Hardware and the stack that drives it. Calibration will join them here."""

    cluster: Cluster
    profile: Profile
    devices: Count = 1
    """That work in step."""

    @property
    def issue_s(self) -> float:
        """Host time to launch one kernel."""
        device = self.cluster.device
        return device.pinned_issue_s or device.issue_s if self.profile.pinned_host else device.issue_s

    @property
    def stall_s(self) -> float:
        """Device idle where the host waits for a value from it."""
        device = self.cluster.device
        return device.pinned_stall_s or device.stall_s if self.profile.pinned_host else device.stall_s

    @property
    def slowest_over_typical(self) -> float:
        """Time of the slowest of the devices over the typical one's, where all wait for it.

        Formula: 1 + spread sqrt(2 ln n), the expected largest of n normal deviations
        Source: model.md 7.6; 8 % between equal GPUs of a cluster (arXiv 2208.11035).
        """
        return 1.0 + self.cluster.device.spread_frac * math.sqrt(2.0 * math.log(self.devices))
