"""`autodeploy export`."""

from __future__ import annotations

import sys
from pathlib import Path

from autodeploy.cli.exits import BAD_INPUT, DONE, NOTHING_FITS, say
from autodeploy.cli.plans import asked_plan
from autodeploy.formats.document import check_writable, write_text
from autodeploy.formats.export import Export, export, writer
from autodeploy.search.evaluate import evaluate
from autodeploy.search.nearest import miss_of


def run_export(argument: str, *, target: str, space_file: Path | None, out: Path | None, allow_loss: bool) -> int:
    """Write a plan for a target; returns the exit code. With losses nothing is written, unless they are allowed."""
    writer(target)
    if out is not None:
        check_writable(out)
    space, choice = asked_plan(argument, space_file)
    result = evaluate(space, choice.plan)
    found = export(space, result, target)
    if found.losses and not allow_loss:
        say(_refusal(found))
        return BAD_INPUT
    _write(found, out)
    if result.fits:
        return DONE
    say("does not fit: " + miss_of(space, result).text())
    return NOTHING_FITS


def _refusal(found: Export) -> str:
    lines = [f"error: {found.target} would lose {len(found.losses)} of this plan; --allow-loss writes it all the same"]
    return "\n".join([*lines, *(f"  {loss}" for loss in found.losses)])


def _write(found: Export, out: Path | None) -> None:
    """The text, where it is asked for; its losses are in it and on stderr."""
    for loss in found.losses:
        say(f"loss: {loss}")
    if out is None:
        sys.stdout.write(found.text)
        return
    write_text(out, found.text)
    for note in found.notes:
        say(f"note: {note}")
