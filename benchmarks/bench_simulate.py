"""The simulator: plans of one shape together against one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from event_loop import Loop, Op
from measure import answer, arguments, median_s, say

from autodeploy.schedule.orders import rank_order
from autodeploy.schedule.program import Program, compile_program
from autodeploy.schedule.shapes import Shape
from autodeploy.schedule.simulate import simulate
from autodeploy.schedule.steady import Durations, finish_s
from autodeploy.spec.plan import Overlap, Schedule

BATCHES = (1, 64, 1024)
PP, VPP, MICROBATCHES = 16, 2, 48


def shape_of(overlap: Overlap, pp: int, vpp: int, microbatches: int) -> Shape:
    """1F1B without interleaving, else interleaved."""
    schedule = Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B
    return Shape(schedule, pp, vpp, microbatches, overlap)


def durations(shape: Shape, plans: int) -> Durations:
    """Random slot times of some plans, unequal over slots."""
    draw = np.random.default_rng(0)
    slots = (shape.pp * shape.vpp, plans)
    forward, backward = draw.uniform(0.8, 1.2, slots), draw.uniform(1.6, 2.4, slots)
    merged = None
    if shape.overlap == Overlap.PAIR:
        merged = draw.uniform(2.4, 3.6, (shape.pp, shape.vpp, shape.vpp, plans))
    return Durations(forward, backward, merged, draw.uniform(0.0, 0.1, plans))


def columns(times: Durations, first: int, stop: int) -> Durations:
    """Some plans of a batch, in arrays of their own."""
    forward, backward, merged, send, _ = times
    own = None if merged is None else merged[..., first:stop].copy()
    return Durations(forward[:, first:stop].copy(), backward[:, first:stop].copy(), own, send[first:stop].copy())


def by_events(shape: Shape, times: Durations) -> np.ndarray:
    """[pp, 1] the first plan by an independent event loop."""
    forward, backward, merged, send, _ = (None if part is None else part[..., 0] for part in times)
    assert forward is not None
    assert backward is not None
    assert send is not None
    seconds: dict[Op, float] = {}
    orders: list[list[Op]] = []
    for rank in range(shape.pp):
        orders.append([])
        for f_m, f_c, b_m, b_c in zip(*(column.tolist() for column in rank_order(shape, rank)[:4]), strict=True):
            f, b = f_c * shape.pp + rank, b_c * shape.pp + rank
            op: Op = ((("F", f_m, f),) if f_c >= 0 else ()) + ((("B", b_m, b),) if b_c >= 0 else ())
            orders[-1].append(op)
            if len(op) == 1:
                seconds[op] = float(forward[f] if f_c >= 0 else backward[b])
            elif merged is not None:
                seconds[op] = float(merged[rank, f_c, b_c])
    return np.array(Loop(orders, seconds, float(send), shape.pp * shape.vpp).run())[:, None]


def again(program: Program, times: Durations, loops: int) -> np.ndarray:
    """The same simulation so many times: one alone is too short to time."""
    for _ in range(loops - 1):
        simulate(program, *times)
    return simulate(program, *times)


def measure(shape: Shape, batches: Sequence[int], repeats: int) -> tuple[dict[str, float], bool]:
    """CPU seconds to compile, of the event loop, and per plan at every batch size; whether all agree."""
    compile_s, _ = median_s(lambda: compile_program.__wrapped__(shape), repeats)
    program, seconds = compile_program(shape), {"compile_cpu": compile_s}
    whole = durations(shape, max(batches))
    together = simulate(program, *whole)
    seconds["event_loop_cpu"], events = median_s(lambda: by_events(shape, whole), repeats)
    equal = bool(np.allclose(events, together[:, :1], rtol=1e-12, atol=0.0))
    for plans in batches:
        times = columns(whole, 0, plans)
        loops = max(max(batches) // plans // 16, 1)
        cpu_s, ends = median_s(partial(again, program, times, loops), repeats)
        seconds[f"per_plan_at_{plans}_cpu"] = cpu_s / loops / plans
        equal &= bool((ends == together[:, :plans]).all())
    return seconds, equal


def long_run(pp: int, vpp: int, repeats: int) -> float:
    """CPU seconds of 4,096 microbatches over those of 20 groups, programs made in both."""
    shapes = [shape_of(Overlap.NONE, pp, vpp, count) for count in (20 * pp, 4096)]
    times = durations(shapes[0], 64)
    seconds = []
    for shape in shapes:
        cpu_s, _ = median_s(lambda shape=shape: (compile_program.cache_clear(), finish_s(shape, times)), repeats)
        seconds.append(cpu_s)
    return seconds[1] / seconds[0]


def run(pp: int, vpp: int, microbatches: int, repeats: int, batches: Sequence[int] = BATCHES) -> dict[str, Any]:
    """Plans per CPU second of every batch size, without overlap and with merged passes."""
    work: dict[str, Any] = {"pp": pp, "vpp": vpp, "microbatches": microbatches, "batches": list(batches)}
    seconds: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    equal = True
    for overlap in Overlap:
        word, shape = overlap.name.lower(), shape_of(overlap, pp, vpp, microbatches)
        seconds[word], held = measure(shape, batches, repeats)
        equal &= held
        each = {plans: seconds[word][f"per_plan_at_{plans}_cpu"] for plans in batches}
        work[f"{word}_ops"] = len(compile_program(shape).ops.rank)
        work[f"{word}_plans_per_cpu_s"] = {str(plans): round(1.0 / cpu_s) for plans, cpu_s in each.items()}
        single = each[min(batches)]
        ratios[f"{word}_event_loop_over_1"] = seconds[word]["event_loop_cpu"] / single
        ratios |= {f"{word}_{plans}_over_1": single / cpu_s for plans, cpu_s in each.items() if plans > min(batches)}
    ratios["4096_microbatches_over_20_groups"] = long_run(pp, vpp, repeats)
    return answer("simulate", work, seconds, ratios, batches_single_and_events_agree=equal)


if __name__ == "__main__":
    asked = arguments(
        "Plans simulated per CPU second.",
        plans=(1024, "plans of the largest batch"),
        pp=(PP, "stages"),
        vpp=(VPP, "chunks a stage"),
        microbatches=(MICROBATCHES, "microbatches"),
        repeats=(5, "timed repeats"),
    )
    sizes = (*(plans for plans in BATCHES if plans < asked.plans), asked.plans)
    say(run(asked.pp, asked.vpp, asked.microbatches, asked.repeats, sizes))
