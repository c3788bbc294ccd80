"""What the real frameworks would say to a plan: the rules by which each target refuses it."""

from __future__ import annotations

from dataclasses import replace

from autodeploy.catalog.lookup import load, names
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.result import PlanResult
from autodeploy.spec.space import Space
from autodeploy.spec.target import Target


def refusals_elsewhere(space: Space, result: PlanResult) -> dict[str, list[str]]:
    """Target -> `id: text` of the rules that the plan breaks there, on the very layout it was given."""
    plan = replace(result.plan, layout=result.arrangement.layout)
    others = [name for name in names(Target) if name not in ("generic", space.target.name)]
    return {name: broken_rules(replace(space, target=load(Target, name), only=(), ban=()), plan) for name in others}
