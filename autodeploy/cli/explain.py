"""`autodeploy explain`: the PLAN argument, and one plan in full."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autodeploy.catalog.lookup import SUFFIXES, load_space
from autodeploy.cli.exits import DONE, NOTHING_FITS, say
from autodeploy.errors import spec_error
from autodeploy.formats.document import document_plan, document_space, read_document, search_document, to_json
from autodeploy.formats.short import read_short
from autodeploy.report.explain import Place, explanation, explanation_facts
from autodeploy.report.tables import console
from autodeploy.search.choose import check_plan, choose
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import search_exact
from autodeploy.search.nearest import miss_of
from autodeploy.search.result import PlanResult
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The plan that a PLAN argument names."""

    space: Space
    plan: Plan
    chosen: dict[str, Any]
    rivals: tuple[Plan, ...]
    """Plans of the document that it came from, best first; empty for a short form."""
    place: Place | None = None
    """Where it stands in that document."""


def run_explain(argument: str, space_file: Path | None, *, gbs: int | None, as_json: bool) -> int:
    """Explain a plan; returns the exit code."""
    asked = read_plan(argument, space_file, gbs)
    result = evaluate(asked.space, asked.plan)
    place, other = _place(asked, result)
    if as_json:
        sys.stdout.write(to_json(_document(asked, result, place, other)))
    else:
        console().print(explanation(asked.space, result, asked.chosen, place, other))
    if result.fits:
        return DONE
    say("does not fit: " + miss_of(asked.space, result).text())
    return NOTHING_FITS


def read_plan(argument: str, space_file: Path | None, gbs: int | None = None) -> Asked:
    """A plan from FILE, FILE#RANK, or a short form with a space file."""
    name, _, rank = argument.partition("#")
    if Path(name).suffix.lower() in SUFFIXES:
        return _from_document(Path(name), rank, space_file, gbs)
    given = read_short(argument)
    if space_file is None:
        raise spec_error("--space", "missing: a short form is read within a space", "a space file")
    space = load_space(space_file, gbs)
    choice = choose(space, given)
    return Asked(space=space, plan=choice.plan, chosen=choice.chosen, rivals=())


def _from_document(path: Path, rank: str, space_file: Path | None, gbs: int | None) -> Asked:
    if space_file is not None or gbs is not None:
        raise spec_error("--space/--gbs", "not with a plan file, which holds its own space", "neither")
    if rank and not rank.isdigit():
        raise spec_error("PLAN", f"rank {rank!r} is not a whole number", "FILE#1, FILE#2, ...")
    data = read_document(path)
    space = document_space(data, str(path))
    plan = document_plan(data, int(rank or 1), str(path))
    check_plan(space, plan)
    ranked = tuple(document_plan(data, i, str(path)) for i in range(1, min(2, len(data["plans"])) + 1))
    place = Place(rank=int(rank or 1), status=data.get("status", ""), search=data.get("search", {}))
    return Asked(space=space, plan=plan, chosen={}, rivals=ranked, place=place)


def _place(asked: Asked, result: PlanResult) -> tuple[Place, PlanResult | None]:
    """The plan's rank, and the best of the other plans: the runner-up for the best plan, the best for any other."""
    rivals, place = asked.rivals, asked.place
    if place is None:
        outcome = search_exact(asked.space, top=2, reach_s=result.step_time_s)
        rivals = tuple(outcome.screened.plans.row(int(row)) for row in outcome.rows[:2])
        faster = int((outcome.step_s < result.step_time_s).sum())
        place = Place(rank=1 + faster if result.fits else None, status=outcome.status, search=outcome.facts())
    others = (evaluate(asked.space, plan) for plan in rivals)
    return place, next((each for each in others if each.plan_id != result.plan_id), None)


def _document(asked: Asked, result: PlanResult, place: Place, other: PlanResult | None) -> dict[str, Any]:
    chosen = {name: getattr(value, "name", value) for name, value in asked.chosen.items()}
    document = search_document(
        asked.space, [result], place.status, place.search, {}, chosen=chosen,
        explanation=explanation_facts(asked.space, result, other),
    )  # fmt: skip
    document["plans"][0]["rank"] = place.rank
    return document
