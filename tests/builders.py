"""Builders that tests share: plans with everything at one, catalog entries, a rank's layer costs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from autodeploy.analysis.inventory import Inventory, inventory
from autodeploy.analysis.readings import PLAIN
from autodeploy.catalog.lookup import load, load_space
from autodeploy.cost.layers import LayerCost, layer_costs
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.plan import Dispatch, Overlap, Plan, PlanTable, Schedule
from autodeploy.spec.space import Space
from autodeploy.spec.target import Profile, Target

SPACES = sorted((Path(__file__).parents[1] / "search_spaces").glob("*.toml"))
SPACE_IDS = [path.stem for path in SPACES]


def model_of(name: str) -> Model:
    """A model of the catalog."""
    return load(Model, name)


def cluster_of(name: str = "atlas-800t-a2") -> Cluster:
    """A cluster of the catalog."""
    return load(Cluster, name)


def machine_of(name: str = "atlas-800t-a2", profile: Profile | None = None) -> Machine:
    """A cluster under the generic target, or under another profile."""
    return Machine(cluster=cluster_of(name), profile=profile or load(Target, "generic").profile)


@cache
def space_of(path: Path) -> Space:
    """A space file, read once."""
    return load_space(path)


def plan_of(**given: Any) -> Plan:
    """A plan in which everything not given is one, off or `none`; sp and schedule as tp and vpp imply."""
    values: dict[str, Any] = dict.fromkeys(("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs"), 1)
    values |= {"overlap": Overlap.NONE, "dispatch": Dispatch.FLAT, "zero": 1}
    values |= {"layout": "auto", "recompute": "none", **given}
    values.setdefault("sp", values["tp"] > 1)
    interleaved = values["vpp"] > 1
    values.setdefault("schedule", Schedule.INTERLEAVED if interleaved else Schedule.ONE_F_ONE_B)
    return Plan(**values)


def job_of(seq_len: int = 4096, **given: Any) -> Job:
    """A job with even routing, so that row counts are those of the published tables."""
    return Job(**{"gbs": 64, "seq_len": seq_len, "expert_imbalance": 1.0, **given})


def ops_of(model: Model, plan: Plan | PlanTable, job: Job | None = None, profile: Profile = PLAIN) -> Inventory:
    """The ops of every kind of layer under a plan, nothing padded or fused unless a profile says so."""
    return inventory(model, job or job_of(), profile, plan)


def costs_of(
    model: Model, plan: Plan | PlanTable, job: Job | None = None, machine: Machine | None = None
) -> dict[Kind, LayerCost]:
    """Layer costs under a plan."""
    return layer_costs(model, job or job_of(), machine or machine_of(profile=PLAIN), plan)


def some_rows(size: int, count: int, seed: int) -> np.ndarray:
    """Distinct random rows, in ascending order."""
    return np.sort(np.random.default_rng(seed).choice(size, min(count, size), replace=False))
