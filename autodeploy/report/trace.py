"""A step as a trace for ui.perfetto.dev: a process a stage, a thread a lane, memory as a counter (docs/trace.md)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autodeploy.formats.document import plan_short, tool_version
from autodeploy.schedule.timeline import (
    BACKWARD,
    COMPUTE,
    EXCHANGE,
    FORWARD,
    INPUTS,
    MERGED,
    PORT,
    SEND,
    STEP_END,
    WEIGHTS,
    Event,
    Level,
    Pass,
)
from autodeploy.search.result import StageResult
from autodeploy.search.timeline import StepTimeline
from autodeploy.spec.space import Space
from autodeploy.units import MICRO, gib

COLOURS = {
    FORWARD: "rail_response",
    BACKWARD: "rail_load",
    INPUTS: "rail_load",
    WEIGHTS: "cq_build_passed",
    MERGED: "rail_idle",
    SEND: "generic_work",
    "dispatch": "thread_state_iowait",
    "combine": "thread_state_runnable",
    "grad_sync": "rail_animation",
    "shared_weights": "olive",
    "optimizer": "yellow",
    "param_sync": "background_memory_dump",
}
"""Reserved colour names of chrome://tracing: blue, green, orange, grey, purple, light blue, red, olive,
yellow, teal."""
PLAIN = "grey"
LANES = (COMPUTE, EXCHANGE, PORT, STEP_END)
"""From top to bottom."""
NS_DIGITS = 3
"""Timestamps are microseconds with so many digits: whole nanoseconds, the finest that viewers keep."""
GIB_DIGITS = 4
THREADS = 1000
"""Thread ids of a stage are process id x this + row: no two threads of a trace share an id."""


def trace_text(space: Space, timeline: StepTimeline) -> str:
    """The JSON of a trace, without blanks: a trace has thousands of events."""
    return json.dumps(trace_document(space, timeline), separators=(",", ":")) + "\n"


def trace_document(space: Space, timeline: StepTimeline) -> dict[str, Any]:
    """Events of all stages in the JSON object format."""
    result = timeline.result
    of_stage: dict[int, list[Event]] = defaultdict(list)
    for event in timeline.events:
        of_stage[event.rank].append(event)
    listed: list[dict[str, Any]] = []
    for stage, levels in zip(result.stages, timeline.memory, strict=True):
        listed += _stage(stage, of_stage[stage.stage], levels)
    facts = {
        "tool": f"autodeploy {tool_version()}",
        "plan": plan_short(space, result.plan),
        "plan_id": result.plan_id,
        "layout": result.arrangement.layout,
        "microbatches": result.microbatches,
        "step_time_s": result.step_time_s,
    }
    return {"traceEvents": listed, "displayTimeUnit": "ms", "otherData": facts}


def _stage(stage: StageResult, events: Sequence[Event], levels: Sequence[Level]) -> Iterator[dict[str, Any]]:
    """One process. Its id counts from 1: 0 is the idle process of viewers."""
    process = stage.stage + 1
    yield _name("process", process, f"stage {stage.stage}: {' | '.join(stage.layers)}")
    yield _order("process", process, stage.stage)
    for row, (name, placed) in enumerate(lanes_of(events).items()):
        thread = {"pid": process, "tid": THREADS * process + row}
        yield _name("thread", process, name) | thread
        yield _order("thread", process, row) | thread
        for event in placed:
            start, end = (round(at / MICRO, NS_DIGITS) for at in (event.start_s, event.end_s))
            colour = COLOURS.get(event.kind, PLAIN)
            named = {"name": label(event), "ph": "X", "ts": start, "dur": round(end - start, NS_DIGITS)}
            yield named | thread | {"cname": colour}
    for level in levels:
        value = {"GiB": round(gib(level.live_bytes), GIB_DIGITS)}
        at = round(level.at_s / MICRO, NS_DIGITS)
        yield {"name": "memory", "ph": "C", "ts": at, "pid": process, "args": value}


def _name(what: str, process: int, name: str) -> dict[str, Any]:
    return {"name": f"{what}_name", "ph": "M", "pid": process, "args": {"name": name}}


def _order(what: str, process: int, place: int) -> dict[str, Any]:
    return {"name": f"{what}_sort_index", "ph": "M", "pid": process, "args": {"sort_index": place}}


def lanes_of(events: Sequence[Event]) -> Mapping[str, list[Event]]:
    """The events of a rank lane by lane: the known lanes first, then others as they are first used."""
    used = {event.lane for event in events}
    lanes: dict[str, list[Event]] = defaultdict(list, {lane: [] for lane in LANES if lane in used})
    for event in sorted(events, key=lambda each: each.start_s):
        lanes[event.lane].append(event)
    return lanes


def label(event: Event) -> str:
    """`F 12.1` is the forward of microbatch 12 in chunk 1. Viewers that colour by name leave numbers away."""
    alone = event.weights if event.kind == WEIGHTS else None
    parts = ((FORWARD, event.forward), (INPUTS if event.kind == INPUTS else BACKWARD, event.backward), (WEIGHTS, alone))
    halves = [_half(name, each) for name, each in parts if each]
    words = " + ".join(halves)
    if event.lane in (PORT, EXCHANGE):
        return f"{event.kind} {words}"
    return words or event.kind.replace("_", " ")


def _half(name: str, each: Pass) -> str:
    return f"{name} {each.microbatch}.{each.chunk}"
