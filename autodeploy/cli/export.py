"""`autodeploy export`."""

from __future__ import annotations

import sys
from pathlib import Path

from autodeploy.cli.ask import space_from_file
from autodeploy.cli.exits import BAD_INPUT, DONE, NOTHING_FITS, say
from autodeploy.cli.plans import names_a_file, plan_from_file, plan_in_space
from autodeploy.errors import spec_error
from autodeploy.formats.document import check_writable, write_text
from autodeploy.formats.export import Export, export, writer
from autodeploy.search.evaluate import evaluate
from autodeploy.search.nearest import miss_of
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space


def run_export(argument: str, *, target: str, space_file: Path | None, out: Path | None, allow_loss: bool) -> int:
    """Write a plan for a target; returns the exit code. With losses nothing is written, unless they are allowed."""
    writer(target)
    if out is not None:
        check_writable(out)
    space, plan = _subject(argument, space_file)
    result = evaluate(space, plan)
    found = export(space, result, target)
    if found.losses and not allow_loss:
        say(_refusal(found))
        return BAD_INPUT
    _write(found, out)
    if result.fits:
        return DONE
    say("does not fit: " + miss_of(space, result).text())
    return NOTHING_FITS


def _subject(argument: str, space_file: Path | None) -> tuple[Space, Plan]:
    if names_a_file(argument):
        if space_file is not None:
            raise spec_error("--space", "not with a plan file, which holds its own space", "none")
        found = plan_from_file(argument)
        return found.space, found.plan
    if space_file is None:
        raise spec_error("--space", "missing: a short form is read within a space", "a space file")
    space = space_from_file(space_file)
    return space, plan_in_space(argument, space).plan


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
