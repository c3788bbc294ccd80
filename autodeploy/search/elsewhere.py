"""What the real frameworks would say to a plan: the rules by which each target refuses it."""

from __future__ import annotations

from dataclasses import replace

from autodeploy.catalog.lookup import load
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.result import PlanResult
from autodeploy.spec.space import Space
from autodeploy.spec.target import Target


def refusals_elsewhere(space: Space, result: PlanResult, targets: tuple[str, ...]) -> dict[str, list[str]]:
    """Each of the targets -> `id: text` of the rules that the plan breaks there, on the very layout it was given."""
    plan = replace(result.plan, layout=result.arrangement.layout)
    others = [name for name in targets if name != space.target.name]
    return {name: broken_rules(replace(space, target=load(Target, name), only=(), ban=()), plan) for name in others}
