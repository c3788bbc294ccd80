"""Schedules with weight gradients apart: complete orders, published bubbles and live counts, an independent simulator.

Bubbles and live counts: arXiv 2401.10241 tables 1 and 2; sail-sg/zero-bubble-pipeline-parallelism README;
deepseek-ai/DualPipe README.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.schedule.bounds import stage_work_s, step_bound_s
from autodeploy.schedule.live import live_chunks
from autodeploy.schedule.orders import op_counts, rank_order
from autodeploy.schedule.program import compile_program
from autodeploy.schedule.shapes import NONE, Shape
from autodeploy.schedule.simulate import simulate
from autodeploy.schedule.steady import Durations, finish_s, rolling_s
from autodeploy.spec.plan import Overlap, Schedule

ONE_CHUNK = (Schedule.ZB_H1, Schedule.ZB_H2)
DUAL = (Schedule.DUALPIPE_V, Schedule.DUALPIPE)
ALL_SPLIT = (*ONE_CHUNK, Schedule.ZB_V, *DUAL)
Part = tuple[int, int]
Op = dict[str, Part]
"""Which of F, B and W an op is, and of which (microbatch, chunk)."""


def shape_of(schedule: Schedule, pp: int, microbatches: int, pair: bool = False, whole: bool = False) -> Shape:
    vpp = 1 if schedule in ONE_CHUNK else 2
    return Shape(schedule, pp, vpp, microbatches, Overlap.PAIR if pair else Overlap.NONE, whole)


def ops_of(shape: Shape, rank: int) -> list[Op]:
    order = rank_order(shape, rank)
    halves = {"F": order[0:2], "B": order[2:4], "W": order[4:6]}
    each = [{n: (int(m[i]), int(c[i])) for n, (m, c) in halves.items() if c[i] != NONE} for i in range(len(order[0]))]
    assert all(each)
    return each


SHAPES = [
    shape_of(schedule, pp, microbatches, pair, whole)
    for schedule in ALL_SPLIT
    for pp in (2, 3, 4)
    for microbatches in (1, 2 * pp, 3 * pp + 1)
    for pair, whole in (product([False, True], repeat=2) if schedule in DUAL else [(False, False)])
    if schedule not in DUAL or (microbatches >= 2 * pp and not pp % 2)
]
ALL = pytest.mark.parametrize("shape", SHAPES, ids=str)


def slot_of(shape: Shape, rank: int, chunk: int) -> int:
    """Down the ranks, and with a second chunk back up; of DualPipe these are two pipelines."""
    return rank if chunk == 0 else 2 * shape.pp - 1 - rank


def ends_of(shape: Shape) -> set[int]:
    """Slots with the loss."""
    last = shape.pp * shape.vpp - 1
    return {shape.pp - 1, last} if shape.schedule is Schedule.DUALPIPE else {last}


@ALL
def test_every_pass_runs_once_and_after_what_it_needs_of_its_own_rank(shape: Shape) -> None:
    every = {(m, c) for m in range(shape.microbatches) for c in range(shape.vpp)}
    for rank in range(shape.pp):
        done: dict[str, list[Part]] = {"F": [], "B": [], "W": []}
        for op in ops_of(shape, rank):
            before = {name: set(parts) for name, parts in done.items()}
            for name, part in op.items():
                done[name].append(part)
            assert "B" not in op or op["B"] in before["F"]
            assert "W" not in op or op["W"] in before["B"] | ({op["B"]} if "B" in op else set())
        assert all(len(parts) == len(every) and set(parts) == every for parts in done.values())


@ALL
def test_only_dualpipe_merges_and_only_whole_backwards(shape: Shape) -> None:
    for rank in range(shape.pp):
        merged = [op for op in ops_of(shape, rank) if {"F", "B"} <= op.keys()]
        assert bool(merged) == (shape.overlap is Overlap.PAIR)
        assert all(op["B"] == op["W"] and op["F"][1] != op["B"][1] for op in merged)


@ALL
def test_op_counts_are_those_of_the_order(shape: Shape) -> None:
    for rank in range(shape.pp):
        counted = Counter("".join(sorted(op)) for op in ops_of(shape, rank))
        counts = op_counts(shape, rank, tuple(range(shape.vpp)))
        found = {"F": counts.forward, "BW": counts.backward, "BFW": counts.merged, "B": counts.inputs}
        found["W"] = counts.weights
        assert {name: int(each.sum()) for name, each in found.items() if each.sum()} == dict(counted)


# An independent simulator: takes whatever op is ready. The port of a rank sends one message at a time.
Times = dict[str, np.ndarray]
"""[pp, vpp] seconds of F, of B without its weight gradients, and of W."""


def walked(shape: Shape, times: Times, merged: np.ndarray, send: float) -> list[float]:
    todo = [ops_of(shape, rank) for rank in range(shape.pp)]
    there: dict[tuple[str, int, int], float] = {}
    clock, port, ends = [0.0] * shape.pp, [0.0] * shape.pp, ends_of(shape)
    holder = {slot_of(shape, rank, chunk): rank for rank in range(shape.pp) for chunk in range(shape.vpp)}

    def needed(rank: int, op: Op) -> list[tuple[str, int, int]]:
        out = []
        if "F" in op and (slot := slot_of(shape, rank, op["F"][1])) > 0 and slot - 1 not in ends:
            out.append(("F", op["F"][0], slot - 1))
        if "B" in op:
            slot = slot_of(shape, rank, op["B"][1])
            out.append(("F", op["B"][0], slot) if slot in ends else ("B", op["B"][0], slot + 1))
        return out

    def seconds(rank: int, op: Op) -> float:
        if {"F", "B"} <= op.keys():
            return float(merged[rank, op["F"][1], op["B"][1]])
        return float(sum(times[name][rank, chunk] for name, (_, chunk) in op.items()))

    while any(todo):
        moved = False
        for rank, ops in enumerate(todo):
            while ops and all(source in there for source in needed(rank, ops[0])):
                op = ops.pop(0)
                clock[rank] = max([clock[rank], *(there[s] for s in needed(rank, op))]) + seconds(rank, op)
                for name, step in (("F", 1), ("B", -1)):
                    if name not in op:
                        continue
                    slot = slot_of(shape, rank, op[name][1])
                    there[name, op[name][0], slot] = clock[rank]
                    if holder.get(slot + step, rank) != rank:
                        port[rank] = max(port[rank], clock[rank]) + send
                        there[name, op[name][0], slot] = port[rank]
                moved = True
        assert moved, "deadlock"
    return clock


def durations(shape: Shape, times: Times, merged: np.ndarray, send: float) -> Durations:
    """The same as the package takes them: at chunk * pp + rank."""
    by_pass = {name: each.T.reshape(-1, 1) for name, each in times.items()}
    pair = merged[..., None] if shape.overlap is Overlap.PAIR else None
    split = np.stack([by_pass["B"], by_pass["W"]])
    return Durations(by_pass["F"], by_pass["B"] + by_pass["W"], pair, np.array([send]), split)


def drawn(shape: Shape, seed: int) -> tuple[Times, np.ndarray]:
    rng = np.random.default_rng(seed)
    times = {name: rng.uniform(0.5, 2.0, (shape.pp, shape.vpp)) for name in "FBW"}
    whole = times["B"] + times["W"]
    longer = np.maximum(times["F"][:, :, None], whole[:, None, :])
    return times, longer + rng.uniform(0.0, 1.0, longer.shape) * np.minimum(times["F"][:, :, None], whole[:, None, :])


@ALL
@pytest.mark.parametrize("send", [0.0, 0.3])
def test_the_simulation_is_that_of_an_independent_walk(shape: Shape, send: float) -> None:
    for seed in range(3):
        times, merged = drawn(shape, seed)
        found = simulate(compile_program(shape), *durations(shape, times, merged, send))[:, 0]
        assert found == pytest.approx(walked(shape, times, merged, send), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 10**6), send=st.sampled_from([0.0, 0.2]))
def test_the_bound_is_never_above_the_simulation(shape: Shape, seed: int, send: float) -> None:
    times, merged = drawn(shape, seed)
    each = durations(shape, times, merged, send)
    ends = simulate(compile_program(shape), *each)
    works, late = [], []
    for rank in range(shape.pp):
        counts = op_counts(shape, rank, tuple(range(shape.vpp)))
        f, b, w = (times[name][rank] for name in "FBW")
        works.append(stage_work_s(counts, list(f), list(b + w), merged[rank].tolist(), (list(b), list(w))))
        late.append(float(counts.weights @ w))
    stages = list(range(shape.pp))
    first = (list(times["F"][:, 0]), list(times["B"][:, 0]))
    filled = [0 if shape.schedule is Schedule.DUALPIPE and 2 * stage >= shape.pp else stage for stage in stages]
    bound = step_bound_s(filled, tuple(stages), *first, works, [0.0] * shape.pp, send, late)
    assert bound <= ends.max() * (1.0 + 1e-12)
    assert max(works) <= rolling_s(shape, ends, each)[0] * (1.0 + 1e-12)


def even(shape: Shape, forward: float, inputs: float, weights: float) -> tuple[Durations, float]:
    """Equal passes, merged ones hide nothing; and the work of a rank."""
    ones = np.ones((shape.pp, shape.vpp))
    times = {"F": forward * ones, "B": inputs * ones, "W": weights * ones}
    whole = forward + inputs + weights
    merged = whole * np.ones((shape.pp, shape.vpp, shape.vpp))
    return durations(shape, times, merged, 0.0), shape.microbatches * shape.vpp * whole


def bubbles(shape: Shape, forward: float, inputs: float, weights: float) -> tuple[float, float]:
    """Of a single step, and from step to step where stages do not wait for each other."""
    each, work = even(shape, forward, inputs, weights)
    ends = simulate(compile_program(shape), *each)
    return float(ends.max()) - work, float(rolling_s(shape, ends, each)[0]) - work


PASSES = [(1.0, 1.0, 1.0), (1.0, 1.4, 0.8), (1.0, 1.2, 1.0)]


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
@pytest.mark.parametrize(("f", "b", "w"), PASSES)
def test_the_bubble_of_zb_h1_is_the_published_one(pp: int, f: float, b: float, w: float) -> None:
    assert bubbles(shape_of(Schedule.ZB_H1, pp, 3 * pp), f, b, w)[0] == pytest.approx((pp - 1) * (f + b - w))


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
@pytest.mark.parametrize(("f", "b", "w"), PASSES)
def test_the_bubble_of_zb_h2_is_the_published_one(pp: int, f: float, b: float, w: float) -> None:
    single, rolling = bubbles(shape_of(Schedule.ZB_H2, pp, 4 * pp), f, b, w)
    assert rolling == pytest.approx((pp - 1) * (f + b - 2.0 * w), abs=1e-9)
    assert single >= (pp - 1) * f - 1e-9  # the last stage begins so late


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_zb_v_has_no_bubble_where_its_passes_take_the_same(pp: int) -> None:
    assert bubbles(shape_of(Schedule.ZB_V, pp, 3 * pp), 1.0, 1.0, 1.0)[1] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("pp", [4, 8])
@pytest.mark.parametrize(("f", "b", "w", "less"), [(1.0, 1.0, 1.0, 0.0), (1.0, 1.7, 0.9, 1.0), (1.0, 2.0, 1.0, 1.0)])
def test_the_bubble_of_dualpipe_v(pp: int, f: float, b: float, w: float, less: float) -> None:
    """(PP/2 - 1)(F&B + B - 3W) of deepseek-ai/DualPipe (PP = 2 pp slots), and one F less where B - W is above F, as
    MindSpeed's docs/zh/features/dualpipev.md has it."""
    shape = shape_of(Schedule.DUALPIPE_V, pp, 3 * pp, pair=True)
    whole = (pp - 1) * (f + b + w + b + w - 3.0 * w)
    assert bubbles(shape, f, b, w)[0] == pytest.approx(whole - less * f)


@pytest.mark.parametrize("pp", [4, 8, 16])
@pytest.mark.parametrize(("f", "b", "w"), [(1.0, 1.7, 0.9), (1.0, 2.0, 1.0), (1.0, 1.4, 0.8)])
def test_the_bubble_of_dualpipe_v_with_a_whole_drain_is_the_published_one(
    pp: int, f: float, b: float, w: float
) -> None:
    # (PP - 1)(F&B + B - W) - F: Ascend/MindSpeed docs/zh/features/dualpipev.md
    shape = shape_of(Schedule.DUALPIPE_V, pp, 3 * pp, pair=True, whole=True)
    assert bubbles(shape, f, b, w)[0] == pytest.approx((pp - 1) * (f + 2.0 * (b + w) - w) - f)


def most(shape: Shape, rank: int) -> int:
    """Chunks held at once, waiting ones too."""
    return max(map(sum, live_chunks(shape, rank)))


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_live_chunks_are_the_published_ones(pp: int) -> None:
    """In chunks: pp on every rank; 2 pp - 1; no more than 1F1B's fullest rank (two chunks a microbatch); 2 pp + 1."""
    h1, h2, zbv, dual = (
        [most(shape_of(schedule, pp, 6 * pp), rank) for rank in range(pp)]
        for schedule in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_V, Schedule.DUALPIPE_V)
    )
    assert h1 == [pp] * pp
    assert h2 == [2 * pp - 1] * pp
    assert max(zbv) <= 2 * pp
    assert dual == [2 * pp + 1] * pp


@pytest.mark.parametrize("pp", [4, 8, 16])
def test_dualpipe_holds_one_chunk_more_than_it_has_stages(pp: int) -> None:
    assert [most(shape_of(Schedule.DUALPIPE, pp, 6 * pp), rank) for rank in range(pp)] == [pp + 1] * pp


@pytest.mark.parametrize("pp", [8, 16])
def test_the_bubble_of_dualpipe_is_that_of_half_as_many_ranks_on_a_v(pp: int) -> None:
    """Cut in half: sail-sg's note on DualPipe; deepseek-ai/DualPipe README, one formula for both."""
    for f, b, w in (*PASSES, (1.0, 2.0, 1.0)):
        two = bubbles(shape_of(Schedule.DUALPIPE, pp, 2 * pp, pair=True), f, b, w)
        one = bubbles(shape_of(Schedule.DUALPIPE_V, pp // 2, 2 * pp, pair=True), f, b, w)
        assert two == pytest.approx(one)
    assert bubbles(shape_of(Schedule.DUALPIPE, pp, 2 * pp, pair=True), 1.0, 1.0, 1.0)[0] == pytest.approx(
        (pp // 2 - 1) * (3.0 + 2.0 - 3.0)
    )


@ALL
def test_live_chunks_are_those_met_on_a_walk(shape: Shape) -> None:
    for rank in range(shape.pp):
        live, waiting, seen = Counter[int](), Counter[int](), set()

        def note(live: Counter[int] = live, waiting: Counter[int] = waiting, seen: set = seen) -> None:
            seen.add((*(live[c] for c in range(shape.vpp)), *(waiting[c] for c in range(shape.vpp))))

        for op in ops_of(shape, rank):
            merged = {"F", "B"} <= op.keys()
            live[op["B"][1] if merged else -1] -= 1
            live[op["F"][1] if "F" in op else -1] += 1
            note()
            if "B" in op and not merged:
                live[op["B"][1]] -= 1
            if "B" in op and "W" not in op:
                waiting[op["B"][1]] += 1
            if "W" in op and "B" not in op:
                waiting[op["W"][1]] -= 1
            note()
        largest = {one for one in seen if not any(o != one and all(map(int.__ge__, o, one)) for o in seen)}
        assert set(live_chunks(shape, rank)) == largest


@pytest.mark.parametrize("schedule", ALL_SPLIT)
def test_more_microbatches_add_nothing_to_what_is_live(schedule: Schedule) -> None:
    for pp in (2, 4, 8) if schedule in DUAL else (2, 3, 5, 8):
        for rank in range(pp):
            some, many = (live_chunks.__wrapped__(shape_of(schedule, pp, n * pp), rank) for n in (4, 9))
            whole = live_of_all(shape_of(schedule, pp, 9 * pp), rank)
            assert set(some) == set(many) == whole


def live_of_all(shape: Shape, rank: int) -> set[tuple[int, ...]]:
    """Live counts with no microbatch left out."""
    from autodeploy.schedule import live

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "steady_microbatches", lambda shape: shape)
        return set(live_chunks.__wrapped__(shape, rank))


@pytest.mark.parametrize("schedule", ALL_SPLIT)
def test_long_runs_end_when_they_would_step_by_step(schedule: Schedule) -> None:
    for pair in (False, True) if schedule in DUAL else (False,):
        shape = shape_of(schedule, 4, 40 * 4 + 2, pair)
        for seed in range(4):
            times = durations(shape, *drawn(shape, seed), 0.1)
            whole = simulate(compile_program(shape), *times)
            assert finish_s(shape, times, groups=12) == pytest.approx(whole, rel=1e-9)
