"""`autodeploy memory`."""

from __future__ import annotations

import sys
from pathlib import Path

from autodeploy.cli.exits import DONE, NOTHING_FITS, say
from autodeploy.cli.plans import asked_plan
from autodeploy.formats.document import to_json
from autodeploy.report.memory import memory_document, memory_report
from autodeploy.report.tables import console
from autodeploy.search.memory import memory_of
from autodeploy.search.nearest import miss_of


def run_memory(argument: str, space_file: Path | None, *, gbs: int | None, as_json: bool) -> int:
    """Show what a plan holds on every stage; returns the exit code."""
    space, choice = asked_plan(argument, space_file, gbs)
    found = memory_of(space, choice.plan)
    if as_json:
        sys.stdout.write(to_json(memory_document(space, found, choice.named())))
    else:
        console().print(memory_report(space, found, choice.named()))
    if found.result.fits:
        return DONE
    say("does not fit: " + miss_of(space, found.result).text())
    return NOTHING_FITS
