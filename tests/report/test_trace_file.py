"""The trace of a step: valid in the Trace Event Format, and in keeping with what `evaluate` says of the plan.

Format: the Trace Event Format document of Chrome's trace viewer: complete events X, metadata M, counters C,
microseconds; none of the events of a thread may overlap without lying within another.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from autodeploy.balance.moments import MEMORY_TERMS
from autodeploy.report.trace import COLOURS, trace_text
from autodeploy.schedule.timeline import COMPUTE
from autodeploy.search.evaluate import arranged
from autodeploy.search.timeline import AFTER, VARYING, StepTimeline, timeline_of
from autodeploy.spec.plan import FIRST_SPLIT, Overlap, Plan, Schedule
from autodeploy.units import GIB, MICRO
from tests.builders import SPACES, plan_of, space_of
from tests.search.little import little_spaces

NS = 1e-3
"""A nanosecond in the unit of a trace."""


PAIR: dict[str, Any] = {"overlap": Overlap.PAIR}
FIT: dict[str, Any] = {"recompute": "fit"}
CASES: list[tuple[str, Plan]] = [
    ("dense", plan_of(tp=8, pp=8)),
    ("dense", plan_of(tp=4, pp=8, dp=2, vpp=5)),
    ("sparse", plan_of(tp=2, pp=1, dp=32, ep=8, **PAIR)),
    ("sparse", plan_of(tp=2, pp=4, dp=8, ep=8, vpp=4, zero=3)),
    ("mtp", plan_of(tp=2, pp=4, dp=16, ep=32, vpp=3, **PAIR, **FIT)),
    ("mtp", plan_of(tp=1, pp=4, dp=32, ep=32, zero=2, **FIT)),
    ("dense", plan_of(tp=8, pp=8, schedule=Schedule.ZB_H2)),
    ("mtp", plan_of(tp=2, pp=4, dp=16, ep=32, vpp=2, schedule=Schedule.ZB_V, **FIT)),
    ("sparse", plan_of(tp=2, pp=4, dp=8, ep=8, vpp=2, schedule=Schedule.DUALPIPE_V, **PAIR)),
    ("sparse", plan_of(tp=2, pp=4, dp=8, ep=8, vpp=2, schedule=Schedule.DUALPIPE, **PAIR)),
    ("tight", plan_of(tp=4, pp=4, dp=2, ep=8, vpp=2, **FIT)),
]
EVERY_CASE = pytest.mark.parametrize("case", range(len(CASES)))


@cache
def traced(case: int) -> tuple[StepTimeline, dict[str, Any]]:
    """A timeline and its trace, read back."""
    name, plan = CASES[case]
    timeline = timeline_of(little_spaces()[name], plan)
    return timeline, json.loads(trace_text(little_spaces()[name], timeline))


def of_kind(trace: dict[str, Any], ph: str) -> list[dict[str, Any]]:
    """Events of a phase."""
    return [event for event in trace["traceEvents"] if event["ph"] == ph]


@EVERY_CASE
def test_events_have_what_the_format_asks_for(case: int) -> None:
    _, trace = traced(case)
    assert trace["displayTimeUnit"] == "ms"
    wanted = {
        "X": {"name", "ts", "dur", "pid", "tid"},
        "M": {"name", "pid", "args"},
        "C": {"name", "ts", "pid", "args"},
    }
    for event in trace["traceEvents"]:
        assert wanted[event["ph"]] <= event.keys()
        assert event["pid"] > 0
        if event["ph"] != "M":
            assert event["ts"] >= 0.0
        if event["ph"] == "X":
            assert event["dur"] >= 0.0
            assert event["cname"] in COLOURS.values()


@EVERY_CASE
def test_every_process_and_thread_has_a_name_and_a_place(case: int) -> None:
    timeline, trace = traced(case)
    named = {(e["name"], e["pid"], e.get("tid")) for e in of_kind(trace, "M")}
    threads = {(e["pid"], e["tid"]) for e in of_kind(trace, "X")}
    assert {pid for pid, _ in threads} == {stage.stage + 1 for stage in timeline.result.stages}
    for pid, tid in threads:
        assert {("thread_name", pid, tid), ("thread_sort_index", pid, tid)} <= named
        assert {("process_name", pid, None), ("process_sort_index", pid, None)} <= named
    assert len({tid for _, tid in threads}) == len(threads)


@EVERY_CASE
def test_no_two_events_of_a_thread_overlap(case: int) -> None:
    _, trace = traced(case)
    threads: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in of_kind(trace, "X"):
        threads[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        assert all(a[1] <= b[0] + NS / 2 for a, b in pairwise(sorted(spans)))


@EVERY_CASE
def test_compute_adds_up_to_busy_and_the_last_event_ends_the_step(case: int) -> None:
    timeline, trace = traced(case)
    compute = {e["tid"] for e in of_kind(trace, "M") if e["name"] == "thread_name" and e["args"]["name"] == COMPUTE}
    spans = of_kind(trace, "X")
    for stage in timeline.result.stages:
        mine = [e["dur"] for e in spans if e["pid"] == stage.stage + 1 and e["tid"] in compute]
        assert sum(mine) * MICRO == pytest.approx(stage.busy_s, rel=1e-6)
    assert max(e["ts"] + e["dur"] for e in spans) * MICRO == pytest.approx(timeline.result.step_time_s, rel=1e-9)
    assert trace["otherData"]["step_time_s"] == timeline.result.step_time_s


@EVERY_CASE
def test_every_pass_of_a_microbatch_is_named_once_on_every_stage(case: int) -> None:
    timeline, trace = traced(case)
    plan, result = timeline.result.plan, timeline.result
    every = {f"{side} {m}.{c}" for side in "FB" for m in range(result.microbatches) for c in range(plan.vpp)}
    ops: dict[int, list[str]] = defaultdict(list)
    late: dict[int, set[str]] = defaultdict(set)
    for event in of_kind(trace, "X"):
        if event["name"].startswith(("F ", "B ", "Bi ")):
            ops[event["pid"]] += event["name"].replace("Bi", "B").split(" + ")
        if event["name"].startswith(("Bi ", "W ")):  # each of the two, for the same passes
            late[event["pid"]] ^= {event["name"].split()[1]}
    assert len(ops) == plan.pp
    assert not any(late.values())
    assert bool(late) == (plan.schedule >= FIRST_SPLIT)
    for names in ops.values():
        assert len(names) == len(every)
        assert set(names) == every


@EVERY_CASE
def test_memory_peaks_at_the_terms_of_the_stage(case: int) -> None:
    # a role's terms are those of its first stage, which holds most live microbatches; the others hold less
    timeline, trace = traced(case)
    firsts = {role.stages[0] for role in arranged(little_spaces()[CASES[case][0]], CASES[case][1]).case.layout.roles}
    for stage in timeline.result.stages:
        counted = [e["args"]["GiB"] * GIB for e in of_kind(trace, "C") if e["pid"] == stage.stage + 1]
        peak = sum(stage.memory_moments["backward"].values())
        if CASES[case][1].schedule >= FIRST_SPLIT:  # a forward counts with what a backward works on
            assert max(counted) == pytest.approx(peak, rel=1e-3)
            assert max(counted) <= peak + 1e-4 * GIB
        elif stage.stage in firsts:
            assert max(counted) == pytest.approx(peak, abs=1e-4 * GIB)
        else:
            assert max(counted) <= peak + 1e-4 * GIB
        static = sum(value for name, value in stage.memory_moments["backward"].items() if name not in VARYING)
        assert counted[-1] == pytest.approx(static, abs=1e-4 * GIB)


def test_names_of_terms_are_those_of_the_results() -> None:
    timeline, _ = traced(0)
    assert set(VARYING) <= set(MEMORY_TERMS)
    assert set(AFTER) <= timeline.result.time_terms.keys()
    assert set(AFTER) <= COLOURS.keys()


def test_the_trace_of_the_largest_plan_stays_small() -> None:
    space = next(space_of(path) for path in SPACES if "718b" in path.stem)
    plan = plan_of(tp=8, pp=16, vpp=2, ep=32, dp=48, overlap=Overlap.PAIR, recompute="fit")
    text = trace_text(space, timeline_of(space, plan))
    assert len(text) < 20e6
    assert len(json.loads(text)["traceEvents"]) > 10_000
