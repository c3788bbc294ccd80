"""`autodeploy trace`."""

from __future__ import annotations

from pathlib import Path

from autodeploy.cli.exits import DONE, NOTHING_FITS, say
from autodeploy.cli.plans import asked_plan
from autodeploy.errors import spec_error
from autodeploy.formats.document import check_writable, write_text
from autodeploy.report.explain import chosen_words
from autodeploy.report.pipeline import pipeline_drawing
from autodeploy.report.tables import console
from autodeploy.report.trace import trace_text
from autodeploy.search.arrange import microbatches_of
from autodeploy.search.nearest import miss_of
from autodeploy.search.timeline import timeline_of
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space

MOST_PASSES = 200_000
"""Of all stages: a few hundred megabytes of trace."""


def run_trace(argument: str, *, space_file: Path | None, gbs: int | None, out: Path | None, draw: bool) -> int:
    """Write or draw one step of a plan; returns the exit code."""
    _check(argument, space_file, out, draw)
    space, choice = asked_plan(argument, space_file, gbs)
    _check_size(space, choice.plan)
    timeline = timeline_of(space, choice.plan)
    if choice.chosen:
        say(chosen_words(choice.named()))
    if out is not None:
        write_text(out, trace_text(space, timeline))
        say(f"written to {out}; open it in ui.perfetto.dev")
    if draw:
        screen = console()
        screen.print(pipeline_drawing(space, timeline, screen.width))
    if timeline.result.fits:
        return DONE
    say("does not fit: " + miss_of(space, timeline.result).text())
    return NOTHING_FITS


def _check_size(space: Space, plan: Plan) -> None:
    """Refuse a step whose trace no viewer opens."""
    passes = int(microbatches_of(space, plan)) * plan.pp * plan.vpp
    if passes > MOST_PASSES:
        problem = f"{passes:,} chunk passes in a step are too many to trace"
        raise spec_error("gbs", problem, f"pp x vpp x microbatches up to {MOST_PASSES:,}, with a smaller --gbs")


def _check(argument: str, space_file: Path | None, out: Path | None, draw: bool) -> None:
    """Refuse a trace that goes nowhere, or over what it is made from."""
    if out is None and not draw:
        raise spec_error("trace", "nowhere to write or draw it", "--out FILE, --ascii, or both")
    if out is None:
        return
    check_writable(out)
    read = [Path(argument.partition("#")[0]), *([space_file] if space_file else [])]
    if out.resolve() in {path.resolve() for path in read}:
        raise spec_error("--out", f"{out} is the file that is read", "another file")
