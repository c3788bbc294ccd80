"""The exact choice of what a stage rebuilds and swaps, against trying all, and against a mixed-integer solver.

Bounded knapsack with a fixed charge; the solver is HiGHS through scipy.optimize.milp.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.balance.selection import best_effort, frontier, greedy, relaxed_s, select
from autodeploy.balance.selection_values import (
    Counts,
    LayerClass,
    Part,
    Selection,
    StageNeed,
    evaluate,
    fits,
    full_bytes,
)  # fmt: skip

CLOSE = 1e-9


@st.composite
def parts(draw: st.DrawFn) -> Part:
    return Part(
        name="part",
        kept_bytes=float(draw(st.integers(1, 30))),
        rebuild_s=draw(st.none() | st.integers(0, 50).map(float)),
        swap=draw(st.booleans()),
        in_full=draw(st.booleans()),
    )


@st.composite
def stages(draw: st.DrawFn) -> StageNeed:
    moments = draw(st.integers(1, 2))
    number = draw(st.integers(1, 2))
    classes = tuple(
        LayerClass(
            label=str(at),
            count=draw(st.integers(1, 3 if number == 1 else 2)),
            live=tuple(float(draw(st.integers(0, 8))) for _ in range(moments)),
            parts=tuple(draw(st.lists(parts(), min_size=1, max_size=4 if number == 1 else 2))),
            full_s=draw(st.none() | st.integers(0, 80).map(float)),
            link_bytes=draw(st.sampled_from((0.0, 20.0, 50.0, 1000.0))),
            weight=draw(st.sampled_from((1.0, 2.0))),
        )
        for at in range(number)
    )
    return StageNeed(
        classes=classes,
        need_bytes=tuple(float(draw(st.integers(-5, 400))) for _ in range(moments)),
        host_bytes=draw(st.sampled_from((0.0, 100.0, 1e9))),
        swap_s_per_byte=draw(st.sampled_from((0.0, 0.125))),
    )


def ways(layers: LayerClass) -> Iterator[Counts]:
    """Every choice of one class that its link allows."""
    for full in range(layers.count + 1 if layers.full_s is not None else 1):
        options = []
        for part in layers.parts:
            room = layers.count - full * part.in_full
            rebuilt = [(x, 0) for x in range((room if part.rebuild_s is not None else 0) + 1)]
            options.append(rebuilt + [(0, layers.count)] * (part.swap and room == layers.count))
        for chosen in itertools.product(*options):
            moved = sum(y * part.kept_bytes for part, (_, y) in zip(layers.parts, chosen, strict=True))
            if moved <= layers.link_bytes:
                yield Counts(
                    label=layers.label, full=full, rebuilt=tuple(x for x, _ in chosen),
                    swapped=tuple(y for _, y in chosen),
                )  # fmt: skip


def hosted(stage: StageNeed, counts: tuple[Counts, ...]) -> float:
    return sum(
        max(layers.live) * y * part.kept_bytes
        for layers, chosen in zip(stage.classes, counts, strict=True)
        for part, y in zip(layers.parts, chosen.swapped, strict=True)
    )


def every(stage: StageNeed) -> list[Selection]:
    """Every selection that the links and the host allow."""
    return [
        evaluate(stage, counts)
        for counts in itertools.product(*(list(ways(layers)) for layers in stage.classes))
        if hosted(stage, counts) <= stage.host_bytes
    ]


def asked(stage: StageNeed, more: float) -> StageNeed:
    return replace(stage, need_bytes=tuple(need + more for need in stage.need_bytes))


def plan_stage(seed: int, swap: bool, moments: int, count: int, number: int) -> StageNeed:
    """A stage of the size that plans have."""
    rng = np.random.default_rng(seed)
    made = []
    for at in range(number):
        rows = tuple(
            Part(
                name=str(place), kept_bytes=float(rng.integers(10, 500)), swap=swap and place < 6, in_full=place > 0,
                rebuild_s=float(10.0 ** rng.uniform(-4, -2)) if place else None,
            )
            for place in range(9)
        )  # fmt: skip
        size = count * sum(part.kept_bytes for part in rows)
        live = tuple(float(rng.integers(2, 16)) for _ in range(moments))
        made.append(
            LayerClass(
                label=str(at), count=count, live=live, parts=rows, link_bytes=0.3 * size,
                full_s=0.95 * sum(part.rebuild_s or 0.0 for part in rows),
            )
        )  # fmt: skip
    share = rng.uniform(0.1, 0.8)
    need = [share * sum(c.live[t] * c.count * full_bytes(c) for c in made) for t in range(moments)]
    return StageNeed(classes=tuple(made), need_bytes=tuple(need), host_bytes=1e12, swap_s_per_byte=1e-6)


def solved(stage: StageNeed) -> float:
    """The least seconds without swap, by the solver: one run for every threshold of bytes under rebuilding."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    found = []
    sizes = {part.kept_bytes for c in stage.classes for part in c.parts} | {full_bytes(c) for c in stage.classes}
    for most in sizes:
        cost, top, saved, rows = [], [], [], []
        for layers in stage.classes:
            full, whole = len(cost), full_bytes(layers)
            choices = [(layers.full_s, whole), *((part.rebuild_s, part.kept_bytes) for part in layers.parts)]
            for seconds, size in choices:
                cost.append(seconds or 0.0)
                top.append(layers.count if seconds is not None and size <= most else 0)
                saved.append([live * size for live in layers.live])
            rows += [(full, full + 1 + at, layers.count) for at, part in enumerate(layers.parts) if part.in_full]
        pairs = np.zeros((len(rows), len(cost)))
        for at, (full, part, _) in enumerate(rows):
            pairs[at, [full, part]] = 1.0
        limits = [
            LinearConstraint(pairs, -np.inf, [count for *_, count in rows]),
            LinearConstraint(np.array(saved).T, [need + most for need in stage.need_bytes], np.inf),
        ]
        answer = milp(
            np.array(cost), constraints=limits, bounds=Bounds(0, np.array(top)), integrality=np.ones(len(cost)),
            options={"mip_rel_gap": 0.0},
        )  # fmt: skip
        found += [answer.fun] if answer.x is not None else []
    return min(found)


@settings(max_examples=150, deadline=None)
@given(stage=stages())
def test_the_choice_is_the_best_of_all(stage: StageNeed) -> None:
    tried = every(stage)
    enough = [each.added_s for each in tried if fits(stage, each)]
    chosen = select(stage)
    assert (chosen is None) == (not enough)
    assert best_effort(stage).short_bytes == pytest.approx(min(each.short_bytes for each in tried), abs=CLOSE)
    simple = greedy(stage)
    if chosen is not None:
        assert chosen.added_s == pytest.approx(min(enough), abs=CLOSE)
        assert fits(stage, chosen)
        assert chosen.counts in [each.counts for each in tried]
        assert chosen.bound_s <= chosen.added_s
        assert relaxed_s(stage) <= chosen.added_s + CLOSE
    if simple is not None:
        assert simple.counts in [each.counts for each in tried]
        assert chosen is not None
        assert chosen.added_s <= simple.added_s + CLOSE


@settings(max_examples=40, deadline=None)
@given(stage=stages(), more=st.floats(0.0, 100.0))
def test_more_need_never_costs_less(stage: StageNeed, more: float) -> None:
    less, greater = select(stage), select(asked(stage, more))
    if greater is not None:
        assert less is not None
        assert less.added_s <= greater.added_s + CLOSE


@settings(max_examples=25, deadline=None)
@given(stage=stages())
def test_the_frontier_is_what_select_finds(stage: StageNeed) -> None:
    points = frontier(stage, 5)
    assert all(a.added_s <= b.added_s + CLOSE for a, b in itertools.pairwise(points))
    assert points[0].saved_bytes == 0.0
    for point in points:
        chosen = select(asked(stage, point.saved_bytes - max(stage.need_bytes)))
        assert chosen is not None
        assert chosen.added_s == pytest.approx(point.added_s, abs=CLOSE)


@pytest.mark.parametrize(("seed", "moments"), [(seed, moments) for seed in range(3) for moments in (1, 2)])
@pytest.mark.parametrize(("count", "number"), [(3, 3), (12, 1)])
def test_a_solver_finds_no_less(seed: int, moments: int, count: int, number: int) -> None:
    stage = plan_stage(seed, False, moments, count, number)
    chosen = select(stage)
    assert chosen is not None
    assert chosen.added_s == pytest.approx(solved(stage), rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_swap_and_slack_never_cost_more(seed: int) -> None:
    plain, swapping = select(plan_stage(seed, False, 1, 4, 2)), select(plan_stage(seed, True, 1, 4, 2))
    assert plain is not None
    assert swapping is not None
    assert swapping.added_s <= plain.added_s + CLOSE
    near = select(plan_stage(seed, True, 1, 4, 2), within_s=1e-3)
    assert near is not None
    assert swapping.added_s - CLOSE <= near.added_s <= swapping.added_s + 1e-3
    assert near.bound_s <= swapping.added_s


def test_a_stage_that_fits_or_has_nothing_to_choose() -> None:
    empty = StageNeed(classes=(), need_bytes=(-1.0,))
    fitting = select(empty)
    assert fitting is not None
    assert fitting.added_s == 0.0
    assert select(asked(empty, 2.0)) is None
    assert best_effort(asked(empty, 2.0)).short_bytes == 1.0
