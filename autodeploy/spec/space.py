"""The space: which plans are asked about. `SpaceFile` is what a file says, `Space` the same with names resolved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from autodeploy.spec.checks import Count
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine, paced
from autodeploy.spec.model import Model
from autodeploy.spec.target import Target

Degrees = tuple[Count, ...] | Literal["divisors"]
"""Exact values, or all divisors of what the degree divides."""


ScheduleWord = Literal["1f1b", "interleaved", "zbh1", "zbh2", "zbv", "dualpipev", "dualpipe"]
DispatchWord = Literal["flat", "hier", "dedup", "gather", "fused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanValues:
    """Values to try, one tuple per plan field. dp follows from the devices; sp and schedule, unset, from tp and vpp."""

    tp: Degrees
    pp: Degrees
    vpp: tuple[Count, ...] = (1,)
    cp: Degrees = (1,)
    ep: Degrees = (1,)
    etp: Degrees = (1,)
    mbs: tuple[Count, ...] = (1,)
    sp: tuple[bool, ...] | None = None
    """Sequence parallelism; unset: on wherever tp > 1."""
    schedule: tuple[ScheduleWord, ...] | None = None
    """Orders of passes; unset: 1f1b with one chunk, interleaved with more."""
    overlap: tuple[Literal["none", "pair"], ...] = ("none",)
    dispatch: tuple[DispatchWord, ...] = ("flat",)
    zero: tuple[Literal[0, 1, 2, 3], ...] = (1,)
    cp_comm: tuple[Literal["ring", "kvgather", "ulysses"], ...] = ("ring",)
    replicas: tuple[Count, ...] = (1,)
    states: tuple[Literal["device", "reuse", "host"], ...] = ("device",)
    layout: tuple[str, ...] = ("auto",)
    recompute: tuple[str, ...] = ("fit",)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceFile:
    """A space as a file states it: names of catalog entries, or paths of files of the same form."""

    name: str = ""
    model: str
    cluster: str
    target: str = "generic"
    devices: Count
    job: Job
    plan: PlanValues
    only: tuple[str, ...] = ()
    """Conditions that every plan must meet, such as `schedule=interleaved` (see spec.conditions)."""
    ban: tuple[str, ...] = ()
    """Conditions that no plan may meet, such as `etp>1`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """A space with everything in it that a search needs."""

    name: str
    model: Model
    cluster: Cluster
    target: Target
    devices: Count
    job: Job
    plan: PlanValues
    only: tuple[str, ...] = ()
    ban: tuple[str, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    """The names as asked, for reports."""

    @property
    def machine(self) -> Machine:
        """Cluster at the pace of the stack, profile and how many devices work in step."""
        profile = self.target.profile
        return Machine(cluster=paced(self.cluster, profile.pace), profile=profile, devices=self.devices)


def with_values(space: Space, **values: Any) -> Space:
    """The space with some plan fields held at other values."""
    return replace(space, plan=replace(space.plan, **values))
