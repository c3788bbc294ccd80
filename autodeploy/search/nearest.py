"""When nothing fits: the plan that misses by least, and what it would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autodeploy.search.enumerate import divisors, enumerate_plans
from autodeploy.search.evaluate import evaluate
from autodeploy.search.result import PlanResult, StageResult
from autodeploy.search.screen import Screened, screen
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space, with_values
from autodeploy.units import format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class NearestMiss:
    """The least over memory, its worst stage, and changes to the space that would fit."""

    result: PlanResult
    stage: StageResult
    remedies: tuple[str, ...]

    def text(self) -> str:
        """One sentence for the user."""
        term = max(self.stage.memory_terms, key=lambda name: self.stage.memory_terms[name])
        need, have = format_bytes(self.stage.needed_bytes), format_bytes(self.result.usable_memory_bytes)
        cure = "; ".join(self.remedies) or "nothing tried here is enough: more devices are needed"
        return f"needs {need} of {have} on stage {self.stage.stage}, most of it {term}; {cure}"


def nearest_miss(space: Space, screened: Screened) -> NearestMiss:
    """The plan with the smallest peak, and what would make some plan of a wider space fit."""
    row = int(np.argmin(screened.needed_bytes))
    result = evaluate(space, screened.plans.row(row))
    return miss_of(space, result)


def miss_of(space: Space, result: PlanResult) -> NearestMiss:
    """The miss of one plan that does not fit."""
    stage = max(result.stages, key=lambda stage: stage.needed_bytes)
    return NearestMiss(result=result, stage=stage, remedies=tuple(_remedies(space, result)))


def _remedies(space: Space, result: PlanResult) -> Iterator[str]:
    """Physical changes, one at a time, that make a plan fit, cheapest first."""
    held = _held(space, result)
    if "fit" not in space.plan.recompute and result.plan.recompute != "fit":
        fitted = _first_that_fits(with_values(held, recompute=("fit",)))
        if fitted is not None:
            modules = max(evaluate(space, fitted).arrangement.recompute, key=len)
            yield "fits with recompute of " + " + ".join(modules)
    for name, options in _wider(space, result).items():
        plan = _first_that_fits(with_values(held, **{name: options, "recompute": ("fit",)}))
        if plan is not None:
            yield f"fits with {name} {getattr(plan, name)}"


def _held(space: Space, result: PlanResult) -> Space:
    """The space of that one plan's degrees."""
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "zero", "replicas", "recompute")
    one: dict[str, Any] = {name: (getattr(result.plan, name),) for name in names}
    return with_values(space, **one, sp=None, overlap=("none",), dispatch=("flat",), layout=("auto",))


def _wider(space: Space, result: PlanResult) -> dict[str, tuple[int, ...]]:
    p, moe = result.plan, space.model.moe
    node = space.cluster.inner.size
    options = {
        "mbs": tuple(range(1, p.mbs)),
        "zero": (1,) if p.zero == 0 else (),
        "tp": tuple(d for d in divisors(node) if d > p.tp),
        "pp": tuple(d for d in divisors(space.devices) if p.pp < d <= space.model.layers),
        "ep": tuple(d for d in divisors(moe.experts) if d > p.ep) if moe else (),
    }
    return {name: values for name, values in options.items() if values}


def _first_that_fits(space: Space) -> Plan | None:
    """The plan with the smallest product of degrees that fits, or None."""
    legal = enumerate_plans(space).legal
    if not len(legal):
        return None
    fits = np.nonzero(screen(space, legal).fits)[0]
    if not len(fits):
        return None
    size = legal.tp * legal.pp * legal.ep / legal.mbs
    return legal.row(int(fits[np.argmin(size[fits])]))
