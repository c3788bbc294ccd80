"""The drawing of a step: 1F1B as the papers draw it, and a text that is read without colours."""

from __future__ import annotations

import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from autodeploy.report.pipeline import IDLE, MARKS, line_of, pipeline_drawing
from autodeploy.schedule.program import compile_program
from autodeploy.schedule.steady import Durations
from autodeploy.schedule.timeline import BACKWARD, COMPUTE, FORWARD, MERGED, Event, Pass, step_events
from autodeploy.search.timeline import timeline_of
from autodeploy.spec.plan import Overlap
from tests.builders import plan_of
from tests.schedule.oracle import shape_of
from tests.search.little import little_spaces


def lines(pp: int, microbatches: int, step: int, per_second: int = 1, pair: bool = False) -> list[str]:
    """Stages drawn at so many columns a second, a forward of one second and a backward of two."""
    shape = shape_of(pp, 1, microbatches, pair)
    merged = np.full((pp, 1, 1, 1), 3.0) if pair else None
    durations = Durations(np.full((pp, 1), 1.0), np.full((pp, 1), 2.0), merged, np.zeros(1))
    events = [event for event in step_events(compile_program(shape), durations) if event.lane == COMPUTE]
    drawn = [line_of([e for e in events if e.rank == rank], float(step), step * per_second) for rank in range(pp)]
    return [line.plain for line in drawn]


def test_1f1b_is_drawn_as_by_hand() -> None:
    # arXiv 2104.04473 figure 4 with two stages
    assert lines(2, 3, 12) == ["ab..AAcBB.CC", ".aAAbBBcCC.."]
    assert lines(2, 1, 6, per_second=2) == ["aa......AAAA", "..aaAAAA...."]


def test_merged_passes_are_digits() -> None:
    assert lines(1, 3, 9, pair=True) == ["a111222CC"]


def test_a_column_shows_what_fills_most_of_it() -> None:
    spans = [("F", 0.0, 0.4), ("optimizer", 0.4, 0.5), ("F", 1.0, 0.3), ("F", 2.2, 0.3), ("F", 2.5, 0.3)]
    events = [
        Event(rank=0, lane=COMPUTE, kind=kind, forward=Pass(m, 0) if kind == "F" else None, start_s=at, duration_s=took)
        for m, (kind, at, took) in enumerate(spans)
    ]
    assert line_of(events, 3.0, 3).plain == "#" + IDLE + "e"


def test_microbatches_begin_again_after_the_alphabet() -> None:
    assert lines(1, 28, 84)[0].endswith("zZZaAAbBB")


PLANS = {
    "dense": plan_of(tp=4, pp=8, dp=2, vpp=5),
    "mtp": plan_of(tp=2, pp=4, dp=16, ep=32, vpp=3, overlap=Overlap.PAIR, recompute="fit"),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_plan_is_drawn_within_the_terminal(name: str, width: int) -> None:
    plan, space = PLANS[name], little_spaces()[name]
    timeline = timeline_of(space, plan)
    paper = Console(width=width, file=StringIO(), color_system=None)
    paper.print(pipeline_drawing(space, timeline, width))
    head, scale, *rest = paper.file.getvalue().splitlines()  # type: ignore[attr-defined]
    stages, legend = rest[: plan.pp], " ".join(rest[plan.pp :])
    assert f"{timeline.result.microbatches} microbatches" in head
    assert re.fullmatch(r" +0-+(.+ s-+)?[0-9.]+ m?s busy", scale)
    assert all(re.fullmatch(r"stage \d+ +\S+ +\d+%", line) for line in stages)
    assert {len(line) for line in [scale, *stages]} == {width}
    signs = {sign for line in stages for sign in line.split()[2]}
    assert signs <= {sign for mark in MARKS.values() for sign in mark.signs} | {IDLE}
    assert "forward" in legend
    assert ("merged" in legend) == bool(plan.overlap)


def test_signs_and_colours_tell_kinds_apart() -> None:
    signs = "".join(mark.signs for mark in MARKS.values()) + IDLE
    assert len(set(signs)) == len(signs)
    assert len({MARKS[kind].style for kind in (FORWARD, BACKWARD, MERGED)}) == 3
