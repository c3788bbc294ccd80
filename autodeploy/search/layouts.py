"""Layouts that a plan may have: those of its rule, less those that the target's rules refuse."""

from __future__ import annotations

from autodeploy.balance.layouts import candidates
from autodeploy.errors import spec_error
from autodeploy.legality.rules import RULES, Question, Rule, allowed_layouts
from autodeploy.spec.layout import Layout
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space


def question_of(space: Space) -> Question:
    """What the rules ask about a space."""
    return Question(model=space.model, job=space.job, cluster=space.cluster, devices=space.devices)


def rules_of(space: Space) -> list[Rule]:
    """The rules of the target; raises `SpecError` for an id that is none."""
    unknown = [rule_id for rule_id in space.target.rules if rule_id not in RULES]
    if unknown:
        raise spec_error("rules", f"unknown rule {unknown[0]!r}", " ".join(RULES), source=space.target.name)
    return [RULES[rule_id] for rule_id in space.target.rules]


def layouts_of(space: Space, plan: Plan) -> list[tuple[str, Layout]]:
    """(rule, layout) pairs of a plan in order of preference; empty where it has none."""
    found = candidates(space.model, space.job, plan.pp, plan.vpp, plan.layout)
    return allowed_layouts(rules_of(space), question_of(space), plan, found)
