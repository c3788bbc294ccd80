"""`autodeploy explain`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autodeploy.balance.solving import is_solved
from autodeploy.cli.ask import space_from_file
from autodeploy.cli.exits import DONE, NOTHING_FITS, say
from autodeploy.cli.plans import names_a_file, plan_from_file
from autodeploy.errors import spec_error
from autodeploy.formats.document import outside, search_document, to_json
from autodeploy.formats.short import read_short
from autodeploy.report.explain import Place, explanation, explanation_facts
from autodeploy.report.memory import choice_facts, choice_tables
from autodeploy.report.tables import console
from autodeploy.search.choose import choose
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import search_exact
from autodeploy.search.memory import memory_of
from autodeploy.search.nearest import miss_of
from autodeploy.search.result import PlanResult
from autodeploy.spec.plan import LAYOUT_RULES, Plan
from autodeploy.spec.space import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The plan to explain, and what is known of its rivals."""

    space: Space
    plan: Plan
    chosen: dict[str, Any]
    rivals: tuple[Plan, ...] = ()
    """The best plans of the document that it came from; empty for a short form."""
    place: Place | None = None
    """Where it stands in that document."""


def run_explain(argument: str, space_file: Path | None, *, gbs: int | None, as_json: bool) -> int:
    """Explain a plan; returns the exit code."""
    subject = _subject(argument, space_file, gbs)
    result = evaluate(subject.space, subject.plan)
    place, other = _place(subject, result)
    if as_json:
        sys.stdout.write(to_json(_document(subject, result, place, other)))
    else:
        held = memory_of(subject.space, subject.plan)
        console().print(explanation(subject.space, result, subject.chosen, place, other), *choice_tables(held))
    if result.fits:
        return DONE
    say("does not fit: " + miss_of(subject.space, result).text())
    return NOTHING_FITS


def _subject(argument: str, space_file: Path | None, gbs: int | None) -> Subject:
    if names_a_file(argument):
        if space_file is not None or gbs is not None:
            raise spec_error("--space/--gbs", "not with a plan file, which holds its own space", "neither")
        found = plan_from_file(argument)
        data = found.document
        stands = data["plans"][found.rank - 1].get("rank")
        place = Place(rank=stands, status=data.get("status", ""), search=data.get("search", {}))
        return Subject(space=found.space, plan=found.plan, chosen={}, rivals=found.best, place=place)
    given = read_short(argument)
    if space_file is None:
        raise spec_error("--space", "missing: a short form is read within a space", "a space file")
    space = space_from_file(space_file, gbs)
    choice = choose(space, given)
    return Subject(space=space, plan=choice.plan, chosen=choice.chosen)


def _place(subject: Subject, result: PlanResult) -> tuple[Place, PlanResult | None]:
    """The plan's rank, and the best of the other plans: the runner-up for the best plan, the best for any other."""
    rivals, place = subject.rivals, subject.place
    if place is None:
        outcome = search_exact(subject.space, top=2, reach_s=result.step_time_s)
        rivals = tuple(outcome.screened.plans.row(int(row)) for row in outcome.rows[:2])
        faster = int((outcome.step_s < result.step_time_s).sum())
        beyond = outside(subject.space, _ruled(subject))
        rank = 1 + faster if result.fits and not beyond else None
        place = Place(rank=rank, outside=beyond, status=outcome.status, search=outcome.facts())
    others = (evaluate(subject.space, plan) for plan in rivals)
    return place, next((each for each in others if each.plan_id != result.plan_id), None)


def _ruled(subject: Subject) -> Plan:
    """The plan as its space lists it: `search` also cuts the layers of what it ranked under `auto`, and solves what it
    ranked under `fit`."""
    plan, values = subject.plan, subject.space.plan
    if is_solved(plan.recompute) and "fit" in values.recompute:
        plan = replace(plan, recompute="fit")
    cut = plan.layout not in ("auto", *LAYOUT_RULES)
    return replace(plan, layout="auto") if cut and values.layout == ("auto",) else plan


def _document(subject: Subject, result: PlanResult, place: Place, other: PlanResult | None) -> dict[str, Any]:
    chosen = {name: getattr(value, "name", value) for name, value in subject.chosen.items()}
    document = search_document(
        subject.space, [result], place.status, place.search, {}, chosen=chosen,
        explanation=explanation_facts(subject.space, result, other)
        | choice_facts(memory_of(subject.space, subject.plan)),
    )  # fmt: skip
    document["plans"][0]["rank"] = place.rank
    return document
