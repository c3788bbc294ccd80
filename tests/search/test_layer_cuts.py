"""How a study cuts layers: every cut is a layout that the notation allows, points and values match, seeds are rules."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.balance.layouts import resolve, spread
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.outer import (
    CUT_AT,
    ENDS,
    FIELDS,
    FIRST,
    LAST,
    LEAN,
    SHAPE_FIELDS,
    Outer,
    cut_layers,
    cut_plans,
    neighbours,
    rule_points,
)
from autodeploy.spec.model import Model
from tests.builders import job_of, model_of
from tests.search.little import NAMES, little_spaces, outer_of

EVERY_SPACE = pytest.mark.parametrize("name", NAMES)
CUTS = list(product(range(len(FIRST)), range(len(LAST)), range(len(ENDS)), range(len(LEAN))))
MODELS = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3")


def slots_of(notation: str) -> list[str]:
    """A layout written out: groups first, then single letters."""
    while found := re.search(r"\(([^()]*)\)\*(\d+)", notation):
        notation = notation[: found.start()] + found[1] * int(found[2]) + notation[found.end() :]
    return re.sub(r"(\w)\*(\d+)", lambda m: m[1] * int(m[2]), notation).split("|")


def check_layout(notation: str, model: Model, slots: int, modules: int) -> None:
    """Each decoder layer once and in order, E first, MTP after the last of them, L last, nothing empty."""
    written = slots_of(notation)
    assert len(written) == slots
    assert "".join(written) == "E" + "t" * model.layers + "m" * modules + "L"
    assert all(written)


@settings(deadline=None)
@given(
    base=st.sampled_from(MODELS),
    layers=st.integers(1, 130),
    slots=st.integers(1, 66),
    modules=st.integers(0, 3),
    mtp=st.booleans(),
    cut=st.sampled_from(CUTS),
)
def test_every_cut_is_a_layout(base: str, layers: int, slots: int, modules: int, mtp: bool, cut: tuple) -> None:
    model = replace(model_of(base), layers=layers, mtp_depth=modules)
    notation = cut_layers(model, job_of(mtp=mtp), slots, cut)
    if notation is not None:
        check_layout(notation, model, slots, modules if mtp else 0)
        assert resolve(model, job_of(mtp=mtp), slots, 1, notation) is not None


@pytest.mark.parametrize(("base", "layers", "slots"), [("llama-3.1-8b", 32, 8), ("deepseek-v3", 61, 16)])
def test_cuts_are_those_that_are_stated(base: str, layers: int, slots: int) -> None:
    model = replace(model_of(base), layers=layers)
    modules = model.mtp_depth
    for cut in CUTS:
        first, last, ends, lean = FIRST[cut[0]], LAST[cut[1]], ENDS[cut[2]], LEAN[cut[3]]
        mtp = "m" * modules
        after_the_last_layers = {
            "together": [mtp + "L"], "apart": ["", mtp, "L"] if modules else ["", "L"], "after": ["", mtp + "L"],
            "head": [mtp, "L"],
        }[ends]  # fmt: skip
        own = len(after_the_last_layers) - 1
        share = round(layers / (slots - own))
        notation = cut_layers(model, job_of(), slots, cut)
        assert notation is not None
        written = slots_of(notation)
        counts = [slot.count("t") for slot in written[: slots - own]]
        assert (counts[0], counts[-1]) == (share + first, share + last)
        assert max(counts[1:-1]) - min(counts[1:-1]) <= 1
        assert counts[1:-1] == sorted(counts[1:-1], reverse=lean == "early")
        assert [slot.lstrip("t") for slot in written[-1 - own :]] == after_the_last_layers


@pytest.mark.parametrize("slots", range(1, 70))
def test_a_cut_is_refused_only_where_a_slot_would_be_empty_or_its_count_negative(slots: int) -> None:
    model = replace(model_of("llama-3.1-8b"), layers=31)
    for cut in CUTS:
        own = ENDS[cut[2]] != "together"
        left = slots - own
        share = round(31 / left) if left else 0
        head, tail = share + FIRST[cut[0]], share + LAST[cut[1]]
        if left < 3:
            possible = left > 0 and FIRST[cut[0]] == LAST[cut[1]] == 0
        else:
            possible = head >= 0 and tail >= own and 31 - head - tail >= left - 2
        if ENDS[cut[2]] == "after":
            possible = possible and left > 0
        assert (cut_layers(model, job_of(), slots, cut) is not None) == possible


@cache
def outers(name: str) -> Outer:
    """The four best shapes of a little space."""
    return outer_of(little_spaces()[name], 4)


@EVERY_SPACE
def test_sizes_and_points_match_the_values(name: str) -> None:
    outer = outers(name)
    values = outer.space.plan
    codes = (values.mbs, values.overlap, values.dispatch, values.recompute, outer.budgets, values.states)
    assert outer.sizes == tuple(map(len, (outer.shapes, *codes, FIRST, LAST, ENDS, LEAN)))
    assert len(FIELDS) == len(outer.sizes)
    points = list(outer.points())
    assert len(set(points)) == len(points) == prod(outer.sizes)
    assert all(0 <= place < size for point in points for place, size in zip(point, outer.sizes, strict=True))


@EVERY_SPACE
def test_a_point_decodes_to_the_values_that_it_names(name: str) -> None:
    outer = outers(name)
    values = outer.space.plan
    for point in list(outer.points())[::17]:
        plan = outer.plan(point)
        if plan is None:
            continue
        shape, mbs, overlap, dispatch, recompute, budget, states, *_ = point
        for field in SHAPE_FIELDS:
            assert getattr(plan, field) == getattr(outer.shapes[shape], field)
        policy = values.recompute[recompute]
        assert (plan.mbs, plan.recompute) == (values.mbs[mbs], outer.budgets[budget] if policy == "fit" else policy)
        assert plan.states.name.lower() == values.states[states]
        assert plan.overlap.name.lower() == values.overlap[overlap]
        assert plan.dispatch.name.lower() == values.dispatch[dispatch]
        model, job = outer.space.model, outer.space.job
        check_layout(plan.layout, model, plan.pp * plan.vpp, model.mtp_depth if job.mtp else 0)


@EVERY_SPACE
def test_shapes_are_distinct_and_each_a_legal_plan_that_fits(name: str) -> None:
    outer = outers(name)
    shapes = [tuple(getattr(plan, field) for field in SHAPE_FIELDS) for plan in outer.shapes]
    assert len(set(shapes)) == len(shapes) == 4
    assert all(broken_rules(outer.space, plan) == [] for plan in outer.shapes)


@EVERY_SPACE
def test_neighbours_differ_in_one_variable_by_one(name: str) -> None:
    outer = outers(name)
    for point in list(outer.points())[::53]:
        near = neighbours(outer, point)
        assert len(set(near)) == len(near)
        for other in near:
            steps = [abs(a - b) for a, b in zip(point, other, strict=True)]
            assert sorted(steps) == [0] * (len(steps) - 1) + [1]
            assert all(0 <= place < size for place, size in zip(other, outer.sizes, strict=True))
            assert point in neighbours(outer, other)
        inner = sum((place > 0) + (place < size - 1) for place, size in zip(point, outer.sizes, strict=True))
        assert len(near) == inner


@EVERY_SPACE
def test_seeds_are_layouts_of_the_rules(name: str) -> None:
    outer = outers(name)
    model, job = outer.space.model, outer.space.job
    seeds = rule_points(outer)
    assert [point[0] for point in seeds] == [shape for shape in range(len(outer.shapes)) for _ in (0, 1)]
    for point, rule in zip(seeds, ("even", "apart") * len(outer.shapes), strict=True):
        plan, shape = outer.plan(point), outer.shapes[point[0]]
        ruled = resolve(model, job, shape.pp, shape.vpp, rule)
        if plan is None or ruled is None:
            assert ruled is None or model.layers < 2 * shape.pp * shape.vpp
            continue
        assert replace(plan, layout=shape.layout) == shape
        counts, stated = ([slot.count("t") for slot in slots_of(text)] for text in (plan.layout, ruled.notation))
        assert sorted(counts) == sorted(stated)  # which slots take the layers that remain may differ
        ends = [slot.replace("t", "") for slot in slots_of(plan.layout)]
        assert ends == [slot.replace("t", "") for slot in slots_of(ruled.notation)]


@pytest.mark.parametrize("slots", [2, 4, 8, 16])
def test_seeds_of_layers_that_divide_are_the_rules_themselves(slots: int) -> None:
    model, job = model_of("llama-3.1-8b"), job_of()
    even = resolve(model, job, slots, 1, "even")
    assert even is not None
    assert cut_layers(model, job, slots, (FIRST.index(0), LAST.index(0), 0, 0)) == even.notation


@settings(deadline=None)
@given(layers=st.integers(3, 130), slots=st.integers(3, 64))
def test_a_seed_is_even(layers: int, slots: int) -> None:
    model = replace(model_of("llama-3.1-8b"), layers=layers)
    notation = cut_layers(model, job_of(), slots, (FIRST.index(0), LAST.index(0), 0, 0))
    if notation is not None and layers >= slots:
        counts = [slot.count("t") for slot in slots_of(notation)]
        assert sorted(counts, reverse=True) == spread(layers, slots)


@EVERY_SPACE
def test_cut_plans_are_every_cut_of_every_shape_with_its_own_codes(name: str) -> None:
    outer = outers(name)
    plans = cut_plans(outer)
    stated = set()
    for shape in outer.shapes:
        for cut in CUTS:
            layout = cut_layers(outer.space.model, outer.space.job, shape.pp * shape.vpp, cut)
            if layout is not None:
                stated.add(replace(shape, layout=layout))
    assert len(plans) == len(set(plans))
    assert set(plans) == stated


def test_the_cut_begins_where_it_says() -> None:
    assert FIELDS[CUT_AT:] == ("first", "last", "ends", "lean")
