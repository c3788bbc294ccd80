"""Plans solved after the proof over rules: as good as solving every plan, and what is left unsolved is bounded."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autodeploy.catalog.lookup import load
from autodeploy.search import engine
from autodeploy.search.engine import Request, search
from autodeploy.search.evaluate import arranged
from autodeploy.search.screen import screen
from autodeploy.search.solved import Promise, freest, promises, solve_plans
from autodeploy.search.steps import step_s_of
from autodeploy.spec.plan import Plan, table_of
from autodeploy.spec.space import Space
from autodeploy.spec.target import Target
from tests.search.little import legal_plans_of, shrunk

NAMES = ("dense", "sparse", "tight")
EVERY = pytest.mark.parametrize("name", [*NAMES, pytest.param("mtp", marks=pytest.mark.slow)])
NO_LIMIT_S = float("inf")


def step_s(space: Space, plan: Plan) -> float:
    found = arranged(space, plan)
    return step_s_of(found) if found.fits else NO_LIMIT_S


@cache
def solved_each(name: str) -> dict[Plan, float]:
    """Every legal plan that leaves open what it rebuilds, solved; its least step with the ladder or so."""
    space = shrunk(name, 0.7)
    plans = [plan for plan in legal_plans_of(name) if plan.recompute == "fit"]
    solved = ((plan, freest(space, plan)) for plan in plans)
    return {plan: min(step_s(space, plan), step_s(space, free)) for plan, free in solved if free is not None}


def promised(name: str) -> list[Promise]:
    space = shrunk(name, 0.7)
    return promises(space, [screen(space, table_of(tuple(solved_each(name))))], NO_LIMIT_S)


@EVERY
@pytest.mark.slow
def test_every_rank_is_that_of_solving_every_plan(name: str) -> None:
    answer = search(shrunk(name, 0.7), Request(cut_shapes=0, solve_plans=10_000))
    assert answer.facts()["solved"]["gap_frac"] == 0.0
    ladder_only = [plan for plan in legal_plans_of(name) if plan.recompute != "fit"]
    brute = sorted([*solved_each(name).values(), *(step_s(shrunk(name, 0.7), plan) for plan in ladder_only)])
    steps = [result.step_time_s for result in answer.results]
    assert steps == brute[: len(steps)]
    assert len(steps) == min(20, sum(step < NO_LIMIT_S for step in brute))


@EVERY
@pytest.mark.slow
def test_no_solved_step_is_below_its_promise_and_no_other_plan_gains(name: str) -> None:
    space = shrunk(name, 0.7)
    found = {each.plan: each for each in promised(name)}
    assert found
    for plan, step in solved_each(name).items():
        if plan in found:
            assert found[plan].bound_s <= step * (1 + 1e-12)
        else:
            assert step == step_s(space, plan)


@pytest.mark.slow
@EVERY
def test_what_is_left_is_bounded(name: str) -> None:
    answer = search(shrunk(name, 0.7), Request(cut_shapes=0, solve_plans=1))
    best = answer.results[0].step_time_s
    assert min(solved_each(name).values()) >= best * (1.0 - answer.facts()["solved"]["gap_frac"]) - 1e-12


def test_plans_that_are_ranked_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "FINALISTS", 1)
    space = shrunk("dense", 0.7)
    ranked = min(solved_each("dense"), key=lambda plan: step_s(space, plan))
    assert promised("dense")[0].plan != ranked
    answer = search(space, Request(top=1, cut_shapes=0, solve_plans=1))
    assert answer.solved is not None
    assert list(answer.solved.step_s) == [freest(space, ranked)]


def test_the_order_of_the_ladder_is_not_that_of_solved_plans() -> None:
    """Otherwise the finalists of the ladder would do."""
    gains = []
    for name in NAMES:
        space = shrunk(name, 0.7)
        ladder = {plan: step_s(space, plan) for plan in solved_each(name)}
        first = sorted(ladder, key=lambda plan: ladder[plan])[:3]
        gains.append(min(solved_each(name)[plan] for plan in first) / min(solved_each(name).values()))
    assert max(gains) > 1.001


@pytest.mark.parametrize("target", ["megatron-core", "mindspeed-llm"])
def test_a_target_that_refuses_solved_selections_has_nothing_to_solve(target: str) -> None:
    space = replace(shrunk("dense", 0.7), target=load(Target, target))
    answer = search(space, Request(cut_shapes=0))
    assert answer.facts()["solved"] == {"plans": 0, "fit": 0, "gap_frac": 0.0}
    assert all(result.plan.recompute == "fit" for result in answer.results)


def test_a_plan_that_names_what_it_rebuilds_stays_as_it_is() -> None:
    space = shrunk("tight", 0.7)
    some = legal_plans_of("tight")[0]
    assert freest(space, replace(some, recompute="none")) is None
    assert freest(space, replace(some, recompute="solve")) == replace(some, recompute="solve")


def test_what_halts_or_interrupts_it_leaves_the_rest_open() -> None:
    space = shrunk("dense", 0.7)
    ordered = promised("dense")
    least = min(promise.bound_s for promise in ordered)
    halted = solve_plans(space, ordered, 10, lambda _: NO_LIMIT_S, halted=lambda: True)
    assert (halted.tried, halted.open_bound_s, halted.interrupted) == (0, least, False)

    def stop() -> bool:
        raise KeyboardInterrupt

    interrupted = solve_plans(space, ordered, 10, lambda _: NO_LIMIT_S, halted=stop)
    assert (interrupted.tried, interrupted.open_bound_s, interrupted.interrupted) == (0, least, True)
    assert interrupted.gap_frac(2 * least) == pytest.approx(0.5)
