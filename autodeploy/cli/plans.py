"""The PLAN argument: FILE, FILE#RANK, or a short form read within a space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autodeploy.catalog.lookup import SUFFIXES
from autodeploy.cli.ask import space_from_file
from autodeploy.errors import spec_error
from autodeploy.formats.document import document_plan, document_space, read_document
from autodeploy.formats.short import read_short
from autodeploy.search.choose import Choice, check_plan, choose
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePlan:
    """A ranked plan of a document."""

    space: Space
    plan: Plan
    rank: int
    best: tuple[Plan, ...]
    """The first two plans of the document."""
    document: Mapping[str, Any]


def names_a_file(argument: str) -> bool:
    """Whether a PLAN argument is FILE or FILE#RANK."""
    return Path(argument.partition("#")[0]).suffix.lower() in SUFFIXES


def plan_from_file(argument: str) -> FilePlan:
    """The plan of FILE (its first) or FILE#RANK, legal in the document's own space."""
    name, _, rank = argument.partition("#")
    if rank and not (rank.isascii() and rank.isdigit()):
        raise spec_error("PLAN", f"rank {rank!r} is not a whole number", "FILE#1, FILE#2, ...")
    data = read_document(Path(name))
    space = document_space(data, name)
    plan = document_plan(data, int(rank or 1), name)
    check_plan(space, plan)
    best = tuple(document_plan(data, i, name) for i in range(1, min(2, len(data["plans"])) + 1))
    return FilePlan(space=space, plan=plan, rank=int(rank or 1), best=best, document=data)


def plan_in_space(argument: str, space: Space) -> Choice:
    """A plan for a given space: a short form is completed in it, a file's plan must be legal in it."""
    if names_a_file(argument):
        plan = plan_from_file(argument).plan
        check_plan(space, plan)
        return Choice(plan=plan, chosen={})
    return choose(space, read_short(argument))


def asked_plan(argument: str, space_file: Path | None, gbs: int | None = None) -> tuple[Space, Choice]:
    """The plan of a PLAN argument and its space: a file holds its own, a short form is read within `space_file`."""
    if names_a_file(argument):
        if space_file is not None or gbs is not None:
            flag = "--space" if space_file is not None else "--gbs"
            raise spec_error(flag, "not with a plan file, which holds its own space", "none")
        found = plan_from_file(argument)
        return found.space, Choice(plan=found.plan, chosen={})
    if space_file is None:
        raise spec_error("--space", "missing: a short form is read within a space", "a space file")
    space = space_from_file(space_file, gbs)
    return space, plan_in_space(argument, space)
