"""The judge of a study: a point's plan arranged, fitted and simulated, each distinct plan once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autodeploy.search.enumerate import broken_rules
from autodeploy.search.evaluate import arranged
from autodeploy.search.outer import Outer, Point
from autodeploy.search.steps import step_s_of
from autodeploy.spec.plan import Plan

NO_STEP_S = 1e8
"""Objective of a point that names no legal plan: worse than any step."""
LEAST_OVER_FRAC = 1e-9
"""What is missing where something is, but for rounding nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What a study is told of a point: an objective, and how far it is from feasible (0 or less: feasible)."""

    plan: Plan | None
    step_s: float
    broken_rules: int
    over_memory_frac: float = 0.0
    """Of the device's memory, on the fullest stage."""
    over_host_frac: float = 0.0
    """Of the memory that a device has at its host."""

    @property
    def feasible(self) -> bool:
        """Legal and within memory."""
        return self.broken_rules == 0 and self.over_memory_frac <= 0.0 and self.over_host_frac <= 0.0


@dataclass(slots=True)
class Judge:
    """Judges points and remembers the answers."""

    outer: Outer
    known: dict[Plan, Judged] = field(default_factory=dict)
    """Every distinct plan judged so far."""
    library: Mapping[Plan, Judged] = field(default_factory=dict)
    """Judgements made before, by someone else."""

    @property
    def simulated(self) -> int:
        """Distinct plans simulated that are legal and fit; those that do not fit are simulated too, but not counted."""
        return sum(judged.feasible for judged in self.known.values())

    def __call__(self, point: Point) -> Judged:
        """The judgement of a point."""
        plan = self.outer.plan(point)
        if plan is None:
            return Judged(plan=None, step_s=NO_STEP_S, broken_rules=1)
        if plan not in self.known:
            self.known[plan] = self.library.get(plan) or self._judge(plan)
        return self.known[plan]

    def _judge(self, plan: Plan) -> Judged:
        space = self.outer.space
        broken = len(broken_rules(space, plan))
        if broken:
            return Judged(plan=plan, step_s=NO_STEP_S, broken_rules=broken)
        found = arranged(space, plan)
        step = step_s_of(found)
        limits, device = found.limits, space.cluster.device
        on_device = bool(found.peak_bytes <= limits.capacity_bytes)
        on_host = bool(found.host_bytes <= limits.host_bytes)
        return Judged(
            plan=plan, step_s=step, broken_rules=0,
            over_memory_frac=0.0 if on_device else _over_frac(float(found.needed_bytes), device.usable_bytes),
            over_host_frac=0.0 if on_host else _over_frac(float(found.host_bytes), device.host_bytes),
        )  # fmt: skip


def _over_frac(needed_bytes: float, have_bytes: float) -> float:
    """What is missing as a share of what there is; 1 where there is nothing."""
    return max(needed_bytes / have_bytes - 1.0, LEAST_OVER_FRAC) if have_bytes else 1.0
