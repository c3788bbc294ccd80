"""Layouts that a plan may have: those of its rule, less those that the target's rules refuse; and what is wrong with
the layouts that a user cuts."""

from __future__ import annotations

from collections.abc import Sequence

from autodeploy.balance.layouts import candidates
from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.legality.rules import RULES, Question, Rule, allowed_layouts
from autodeploy.spec.layout import Layout
from autodeploy.spec.layout_words import check_layers, check_writing, notation_of
from autodeploy.spec.placement import placement_of
from autodeploy.spec.plan import LAYOUT_RULES, Plan
from autodeploy.spec.space import Space

MOST_REASONS = 3
"""Of those for which a layout lies on no shape, one message names so many."""


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
    found = candidates(space.model, space.job, plan.pp, plan.vpp, plan.layout, placement=placement_of(plan.schedule))
    return allowed_layouts(rules_of(space), question_of(space), plan, found)


def layout_faults_of(space: Space, shapes: Sequence[tuple[int, int]]) -> list[Fault]:
    """What is wrong with the layouts of a space: those that lie on no pipeline of its model; else, where none lies on
    any of some shapes (pp, vpp), why each does not."""
    by_hand = [text for text in space.plan.layout if text not in ("auto", *LAYOUT_RULES)]
    faults = [fault for text in by_hand if (fault := _fault_anywhere(space, text)) is not None]
    if faults or len(by_hand) < len(space.plan.layout):
        return faults
    found = [shape_fault(space, text, shapes) for text in by_hand]
    return [fault for fault in found if fault is not None] if None not in found else []


def _fault_anywhere(space: Space, text: str) -> Fault | None:
    try:
        check_writing(text)
        check_layers(space.model, space.job.mtp, text)
    except SpecError as error:
        return _fault(text, error.faults[0].problem, error.faults[0].allowed)
    return None


def shape_fault(space: Space, text: str, shapes: Sequence[tuple[int, int]]) -> Fault | None:
    """Why a layout cut by hand lies on none of some shapes (pp, vpp); None where it lies on one. One fault, however
    many shapes there are."""
    reasons: dict[Fault, tuple[int, int]] = {}
    for shape in shapes:
        try:
            notation_of(space.model, space.job.mtp, *shape, text)
        except SpecError as error:
            reasons.setdefault(error.faults[0], shape)
        else:
            return None
    if len(reasons) == 1:
        only = next(iter(reasons))
        return _fault(text, only.problem, only.allowed)
    named = [f"on pp {pp} x vpp {vpp}: {fault.problem}" for fault, (pp, vpp) in reasons.items()]
    more = f"; and {len(named) - MOST_REASONS} more" if len(named) > MOST_REASONS else ""
    return _fault(text, "lies on no pp x vpp of the space; " + "; ".join(named[:MOST_REASONS]) + more)


def _fault(text: str, problem: str, allowed: str = "") -> Fault:
    named = problem if repr(text) in problem else f"{text!r}: {problem}"
    return Fault(path="plan.layout", problem=named, allowed=allowed)
