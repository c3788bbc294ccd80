"""Everything about the memory of one plan."""

from __future__ import annotations

from dataclasses import dataclass

from autodeploy.search.choices import Item, Tradeoff, items_of, tradeoffs
from autodeploy.search.evaluate import arranged, evaluate
from autodeploy.search.layers import layers_of
from autodeploy.search.pressure import Pressure, pressures
from autodeploy.search.result import PlanResult, StageResult
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanMemory:
    """A plan, its fullest stage, and how much more it bears."""

    result: PlanResult
    fullest: StageResult
    items: tuple[tuple[Item, ...], ...]
    """Of every stage: what it rebuilds and swaps."""
    tradeoffs: tuple[Tradeoff, ...]
    """Of the fullest stage."""
    pressures: tuple[Pressure, ...]
    """What breaks first; empty where the plan does not fit as it is."""


def memory_of(space: Space, plan: Plan) -> PlanMemory:
    """The memory of a legal plan. Raises `SpecError` where it has no layout."""
    result, found, (_, rungs) = evaluate(space, plan), arranged(space, plan), layers_of(space, plan)
    fullest = max(result.stages, key=lambda stage: stage.needed_bytes)
    return PlanMemory(
        result=result,
        fullest=fullest,
        items=tuple(tuple(items_of(space, plan, found, rungs, stage)) for stage in range(plan.pp)),
        tradeoffs=tuple(tradeoffs(space, plan, found, fullest.stage)),
        pressures=tuple(pressures(space, plan, found, rungs)) if result.fits else (),
    )
