"""What may be fitted of a machine: a few constants, each with the fields that it scales, its prior and its bounds.

A constant is fitted as a factor on what the cluster file states, in logarithms: the prior is centred on 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from autodeploy.spec.cluster import Cluster

MOST_FRAC = 0.98
"""No engine and no link reaches its nominal rate."""
SAME = 1e-9
LEAST_FACTOR, MOST_FACTOR = 0.25, 4.0
"""Further away from what a data sheet or a microbenchmark says a constant stands for something else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """One number to fit."""

    name: str
    fields: tuple[str, ...]
    """Places in the cluster, such as `device.matmul_max_frac`; all are scaled by one factor."""
    sigma_log: float
    """Standard deviation of the prior of the factor's logarithm."""


CONSTANTS = (
    Constant(name="matmul", fields=("device.matmul_max_frac",), sigma_log=0.10),
    Constant(name="narrow", fields=("device.fp8.max_frac", "device.nvfp4.max_frac"), sigma_log=0.10),
    Constant(
        name="attention", fields=("device.attention_forward_frac", "device.attention_backward_frac"), sigma_log=0.20
    ),
    Constant(name="memory", fields=("device.hbm_max_frac",), sigma_log=0.15),
    Constant(name="launch", fields=("device.issue_s", "device.pinned_issue_s"), sigma_log=0.50),
    Constant(name="stall", fields=("device.stall_s", "device.pinned_stall_s"), sigma_log=0.50),
    Constant(name="node", fields=("node.link_max_frac", "supernode.link_max_frac"), sigma_log=0.08),
    Constant(name="fabric", fields=("fabric.link_max_frac",), sigma_log=0.12),
)
"""Seven or eight a chip generation, one of them a link level: more bought nothing on runs that were not fitted."""


def constant_of(name: str) -> Constant:
    """By its name."""
    return next(each for each in CONSTANTS if each.name == name)


def value_at(cluster: Cluster, field: str) -> float | None:
    """What the cluster states; None where it has no such part."""
    found: Any = cluster
    for part in field.split("."):
        found = getattr(found, part) if found is not None else None
    return found


def stated(cluster: Cluster, constant: Constant) -> dict[str, float]:
    """The fields of a constant that a cluster has, with their values; 0 says that it is not stated."""
    found = {field: value_at(cluster, field) for field in constant.fields}
    return {field: value for field, value in found.items() if value}


def factor_bounds(cluster: Cluster, constant: Constant) -> tuple[float, float]:
    """Least and largest factor that is physical."""
    values = stated(cluster, constant)
    shares = [value for field, value in values.items() if field.endswith("_frac")]
    return LEAST_FACTOR, min([MOST_FRAC / value for value in shares] or [MOST_FACTOR])


def scaled(cluster: Cluster, factors: dict[str, float]) -> Cluster:
    """The cluster with constants scaled by name."""
    for name, factor in factors.items():
        for field, value in stated(cluster, constant_of(name)).items():
            cluster = _with(cluster, field.split("."), value * factor)
    return cluster


def _with(owner: Any, path: list[str], value: float) -> Any:
    if len(path) == 1:
        return replace(owner, **{path[0]: value})
    return replace(owner, **{path[0]: _with(getattr(owner, path[0]), path[1:], value)})


LEVEL_FIELDS = ("link_max_frac", "latency_s", "ramp_s_per_sqrt_byte")
FITTED = (
    *(f"{level}.{field}" for level in ("node", "supernode", "fabric") for field in LEVEL_FIELDS),
    "device.tile_overhead_s", "device.kernel_gap_s", "device.host_bytes_per_s", "fragmentation_frac",
)  # fmt: skip
"""What logs, a pace and a memory reserve set beside the constants."""


def changed_fields(before: Cluster, after: Cluster) -> dict[str, float]:
    """Places that differ between two states of a cluster, with their values in the second."""
    places = dict.fromkeys([*(field for each in CONSTANTS for field in each.fields), *FITTED])
    found = {place: value_at(after, place) for place in places}
    return {
        place: value for place, value in found.items() if value is not None and _moved(value_at(before, place), value)
    }


def _moved(before: float | None, after: float) -> bool:
    return before is None or not math.isclose(before, after, rel_tol=SAME)
