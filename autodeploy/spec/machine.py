"""The machine: cluster and profile together, which is all that `cost` takes of either."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autodeploy.spec.checks import Count
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.target import Profile


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
