"""A step drawn in the terminal: a line a stage, time from left to right, a letter or digit for the microbatch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase, digits
from typing import NamedTuple

from rich.console import Group
from rich.text import Text

from autodeploy.formats.document import plan_short
from autodeploy.schedule.timeline import BACKWARD, COMPUTE, FORWARD, INPUTS, MERGED, STEP_END, WEIGHTS, Event
from autodeploy.search.timeline import StepTimeline
from autodeploy.spec.space import Space
from autodeploy.units import format_seconds

IDLE = "."


class Mark(NamedTuple):
    """How a kind of event is drawn."""

    signs: str
    """One sign for every microbatch, in turn."""
    style: str
    meaning: str


MARKS = {
    FORWARD: Mark(ascii_lowercase, "black on bright_blue", "forward"),
    BACKWARD: Mark(ascii_uppercase, "black on green", "backward"),
    INPUTS: Mark("ΓΔΘΛΞΠΣΦΨΩ", "black on green", "backward without weight gradients"),
    WEIGHTS: Mark(":", "black on cyan", "weight gradients"),
    MERGED: Mark(digits, "black on yellow", "forward merged with a backward, by its forward"),
    "grad_sync": Mark("=", "red", "gradients"),
    "shared_weights": Mark("~", "red", "shared vocabulary matrices"),
    "optimizer": Mark("#", "magenta", "optimizer"),
    "param_sync": Mark("+", "cyan", "parameters"),
}
"""Signs differ between kinds, so that the drawing can be read without colours."""
LEAST = 20
"""Columns of time that are drawn even where the terminal is narrower."""


def pipeline_drawing(space: Space, timeline: StepTimeline, width: int) -> Group:
    """The drawing, a scale above it and what the signs mean below."""
    result = timeline.result
    names = [f"stage {stage.stage}" for stage in result.stages]
    shares = [f"{stage.busy_s / result.step_time_s:.0%}" for stage in result.stages]
    margin = max(map(len, names)) + 1
    columns = max(width - margin - len(" busy"), LEAST)
    drawn = [each for each in timeline.events if each.lane in (COMPUTE, STEP_END) and each.kind in MARKS]
    # where stages do not wait for each other the last one ends later than a step after its beginning
    span_s = max([result.step_time_s, *(each.end_s for each in drawn)])
    head = Text(f"{plan_short(space, result.plan)}, {result.microbatches} microbatches")
    lines = [Text(f"{'':{margin}}{_scale(span_s, columns)} busy", no_wrap=True)]
    for stage, (name, share) in enumerate(zip(names, shares, strict=True)):
        line = line_of([e for e in drawn if e.rank == stage], span_s, columns)
        lines.append(Text.assemble(f"{name:{margin}}", line, f" {share:>4}", no_wrap=True))
    return Group(head, *lines, _legend({event.kind for event in drawn}, span_s / columns))


def _scale(step_s: float, columns: int) -> str:
    """`0 |---- 12.15 s ----| 24.31 s` over the columns."""
    left, right = "0", format_seconds(step_s)
    middle = format_seconds(step_s / 2) if columns >= 3 * len(right) + 8 else ""
    line = list("-" * columns)
    for word, at in ((left, 0), (middle, (columns - len(middle)) // 2), (right, columns - len(right))):
        line[at : at + len(word)] = word
    return "".join(line)


def line_of(events: Sequence[Event], step_s: float, columns: int) -> Text:
    """One stage: each column shows the kind that fills most of it, and of that kind the longest event."""
    seconds: list[dict[str, float]] = [defaultdict(float) for _ in range(columns)]
    longest: list[dict[str, tuple[float, str]]] = [{} for _ in range(columns)]
    each_s = step_s / columns
    for event in events:
        for column in range(int(event.start_s / each_s), min(int(event.end_s / each_s) + 1, columns)):
            here = min(event.end_s, (column + 1) * each_s) - max(event.start_s, column * each_s)
            seconds[column][event.kind] += here
            longest[column][event.kind] = max((here, _sign(event)), longest[column].get(event.kind, (0.0, "")))
    line = Text(no_wrap=True)
    for filled, signs in zip(seconds, longest, strict=True):
        kind = max(filled, key=lambda name: filled[name], default="")
        idle = not kind or filled[kind] <= each_s - sum(filled.values())
        line.append(IDLE if idle else signs[kind][1], style="dim" if idle else MARKS[kind].style)
    return line


def _sign(event: Event) -> str:
    half, signs = event.forward or event.backward, MARKS[event.kind].signs
    return signs[half.microbatch % len(signs)] if half else signs


def _legend(kinds: set[str], column_s: float) -> Text:
    """What the signs mean that occur in the drawing."""
    text = Text(f"A column is {format_seconds(column_s)} and shows what fills most of it: ")
    for kind, mark in MARKS.items():
        if kind in kinds:
            signs = mark.signs if len(mark.signs) == 1 else f"{mark.signs[0]}-{mark.signs[-1]}"
            text.append(signs, style=mark.style).append(f" {mark.meaning}, ")
    return text.append(IDLE, style="dim").append(" idle. Letters and digits count microbatches from 0, over and over.")
