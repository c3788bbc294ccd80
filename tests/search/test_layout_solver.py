"""The layout solver: against every cut there is on small pipelines, and what must hold on any."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.balance.layouts import cut_notation, own_slots
from autodeploy.balance.partition import partition
from autodeploy.search.enumerate import broken_rules, enumerate_plans
from autodeploy.search.evaluate import evaluate
from autodeploy.search.solve import ruled_layouts, solve_layouts
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space
from tests.builders import SPACE_IDS, SPACES, some_rows, space_of

EVERY_SPACE = pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)
WEIGHTS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=9)


def runs(weights: list[float], cuts: tuple[int, ...]) -> list[float]:
    """What the runs between cuts weigh."""
    edges = [0, *cuts, len(weights)]
    return [sum(weights[a:b]) for a, b in pairwise(edges)]


@given(weights=WEIGHTS, slots=st.integers(1, 4), first=st.floats(0.0, 5.0), last=st.floats(0.0, 5.0))
def test_the_heaviest_run_is_as_light_as_any_cut_makes_it(
    weights: list[float], slots: int, first: float, last: float
) -> None:
    fixed = [0.0] * slots
    fixed[0] += first
    fixed[-1] += last
    counts = partition(weights, fixed, [1] * slots)
    if len(weights) < slots:
        assert counts is None
        return
    assert counts is not None
    assert sum(counts) == len(weights)
    assert min(counts) >= 1
    every = [
        max(run + own for run, own in zip(runs(weights, cuts), fixed, strict=True))
        for cuts in combinations(range(1, len(weights)), slots - 1)
    ]
    edges = tuple(sum(counts[:i]) for i in range(1, slots))
    found = max(run + own for run, own in zip(runs(weights, edges), fixed, strict=True))
    assert found == pytest.approx(min(every))


@pytest.mark.slow
@EVERY_SPACE
def test_a_solved_layout_is_legal_and_no_slower_than_where_it_began(path: Path) -> None:
    space = space_of(path)
    legal = enumerate_plans(space).legal
    chosen = legal.rows((legal.pp > 1) & (legal.pp * legal.vpp <= 8))
    for row in some_rows(len(chosen), 3, 21):
        plan = chosen.row(int(row))
        found = solve_layouts(space, plan)
        assert found
        ruled = [evaluate(space, each) for each in ruled_layouts(space, plan).values()]
        fitting = [each.step_time_s for each in ruled if each.fits]
        if fitting:  # every rule's layout is among the starts
            assert found[0].fits
            assert found[0].step_s <= min(fitting) * (1 + 1e-9)
        for solved in found:
            assert broken_rules(space, solved.plan) == []
            result = evaluate(space, solved.plan)
            assert (result.step_time_s, result.fits) == (pytest.approx(solved.step_s, rel=1e-12), solved.fits)
        assert [each.step_s for each in found if each.fits] == sorted(each.step_s for each in found if each.fits)


def every_cut(space: Space, plan: Plan, ends: str) -> list[float]:
    """Steps of all layouts that fit, with MTP and head placed one way."""
    slots, layers = plan.pp * plan.vpp - own_slots(ends, 0), space.model.layers
    steps = []
    for cuts in combinations(range(1, layers), slots - 1):
        edges = (0, *cuts, layers)
        counts = [b - a for a, b in pairwise(edges)]
        result = evaluate(space, replace(plan, layout=cut_notation(counts, ends, 0)))
        steps += [result.step_time_s] if result.fits else []
    return steps


@pytest.mark.parametrize("pp", [2, 3])
def test_on_a_small_pipeline_the_solver_finds_the_best_of_all_cuts(pp: int) -> None:
    # 18 layers, one cut or two: each way to place the head is enumerated
    space = space_of(next(path for path in SPACES if path.stem.startswith("llama")))
    model = replace(space.model, layers=18)
    space = replace(space, model=model, devices=pp * 64)
    legal = enumerate_plans(replace(space, plan=replace(space.plan, pp=(pp,), vpp=(1,)))).legal
    plan = legal.rows(legal.tp == 8).row(0)
    solved = {each.ends: each.step_s for each in solve_layouts(space, plan)}
    assert "together" in solved
    for ends, step in solved.items():
        assert step <= min(every_cut(space, plan, ends)) * 1.01
