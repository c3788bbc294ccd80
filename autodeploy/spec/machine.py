"""The machine: cluster and profile together, which is all that `cost` takes of either."""

from __future__ import annotations

from dataclasses import dataclass

from autodeploy.spec.cluster import Cluster
from autodeploy.spec.target import Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Hardware and the stack that drives it. Calibration will join them here."""

    cluster: Cluster
    profile: Profile
