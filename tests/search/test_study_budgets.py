"""How a study finds the bytes that a stage misses: which budgets there are, what they mean, that none is worse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from autodeploy.catalog.lookup import load
from autodeploy.search.anneal import cost
from autodeploy.search.crew import run_groups
from autodeploy.search.engine import Request, content_hash, search
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.evaluate import evaluate
from autodeploy.search.judge import Judge, Judged
from autodeploy.search.outer import BUDGETS, FIELDS, FIT, Outer, Point, budgets_of, rule_points
from autodeploy.search.study import Ledger, Settings, open_storage
from autodeploy.spec.plan import States
from autodeploy.spec.space import Space, with_values
from autodeploy.spec.target import Target
from tests.builders import cluster_of, plan_of
from tests.search.little import NAMES, little_spaces, on_devices, outer_of, shrunk, some_points

EVERY_SPACE = pytest.mark.parametrize("name", NAMES)
AT = FIELDS.index("budget")
EXPORT_TARGETS = ("megatron-core", "mindspeed-llm", "mindformers-1.5", "mindformers-2026")


def with_host(space: Space, gb_per_s: float, gib: float) -> Space:
    """The space on devices with another link to the host and other memory there."""
    return on_devices(space, host_bytes_per_s=1e9 * gb_per_s, host_bytes=gib * 2**30)


@cache
def outer(name: str) -> Outer:
    """The two best shapes of a little space, on devices with seven tenths of the memory, so that much is missing."""
    return outer_of(shrunk(name, 0.7), 2)


@cache
def judge(name: str) -> Judge:
    """Its judge."""
    return Judge(outer(name))


def budgets(name: str, point: Point) -> list[Judged]:
    """A point judged with every budget."""
    return [judge(name)((*point[:AT], budget, *point[AT + 1 :])) for budget in range(len(outer(name).budgets))]


def test_every_budget_is_offered_where_target_and_cluster_allow_it() -> None:
    for name in NAMES:
        assert outer(name).budgets == BUDGETS


@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_a_target_that_rebuilds_in_all_layers_or_in_none_leaves_the_ladder(target: str) -> None:
    space = replace(little_spaces()["dense"], target=load(Target, target))
    assert budgets_of(space, outer("dense").shapes) == (FIT,)


@pytest.mark.parametrize(("gb_per_s", "gib"), [(0.0, 0.0), (0.0, 100.0), (20.0, 0.0)])
def test_nothing_is_swapped_without_a_link_to_a_host_with_memory(gb_per_s: float, gib: float) -> None:
    space = with_host(little_spaces()["mtp"], gb_per_s, gib)
    assert budgets_of(space, outer("mtp").shapes) == (FIT, "solve")


def test_without_recompute_that_fits_there_is_nothing_to_fill_in() -> None:
    space = with_values(little_spaces()["tight"], recompute=("none", "full"))
    assert budgets_of(space, [replace(shape, recompute="full") for shape in outer("tight").shapes]) == (FIT,)


@EVERY_SPACE
@pytest.mark.slow
def test_every_point_is_no_plan_a_refused_one_or_one_that_is_judged(name: str) -> None:
    found = [(point, judge(name)(point)) for point in some_points(outer(name), 60)]
    assert len({judged.plan for _, judged in found}) > 20
    for point, judged in found:
        assert judged.plan == outer(name).plan(point)
        if judged.plan is None or judged.broken_rules:
            assert not judged.feasible
            continue
        assert broken_rules(outer(name).space, judged.plan) == []
        full = evaluate(outer(name).space, judged.plan)
        assert (full.step_time_s, full.fits) == (judged.step_s, judged.feasible)


@EVERY_SPACE
@pytest.mark.slow
def test_no_budget_is_worse_than_the_ladder_at_the_same_point(name: str) -> None:
    better = 0
    for point in some_points(outer(name), 25):
        ruled, *others = budgets(name, point)
        for solved in others:
            assert solved.broken_rules == ruled.broken_rules
            if ruled.feasible:
                assert solved.feasible
                assert solved.step_s <= ruled.step_s
                better += solved.step_s < ruled.step_s
    assert better


def test_a_budget_without_meaning_makes_no_other_plan() -> None:
    space = outer("tight").space
    none = space.plan.recompute.index("none")
    place = FIELDS.index("recompute")
    alone, before = Judge(outer("tight")), 0
    for point in some_points(outer("tight"), 30):
        options = [(*point[:place], none, budget, *point[AT + 1 :]) for budget in range(len(BUDGETS))]
        assert len({outer("tight").plan(option) for option in options}) == 1
        assert len({alone(option).plan for option in options}) == 1
        assert len(alone.known) <= before + 1
        before = len(alone.known)


def test_a_policy_that_the_space_lists_is_not_made_twice() -> None:
    both = replace(outer("tight"), space=with_values(outer("tight").space, recompute=("fit", "solve")))
    for point in some_points(outer("tight"), 20):
        head, tail = point[: AT - 1], point[AT + 1 :]
        assert both.plan((*head, 0, 1, *tail)) == both.plan((*head, 1, 0, *tail)) == both.plan((*head, 1, 3, *tail))


def test_seeds_are_filled_in_by_the_ladder() -> None:
    for name in NAMES:
        assert all(point[AT] == 0 for point in rule_points(outer(name)))


def test_state_is_a_variable_where_the_space_lists_several_places() -> None:
    space = with_values(little_spaces()["dense"], states=("device", "host"))
    both = outer_of(space, 2)
    place = FIELDS.index("states")
    assert both.sizes[place] == 2
    for point in some_points(both, 20):
        plans = [both.plan((*point[:place], state, *point[place + 1 :])) for state in (0, 1)]
        if plans[0] is not None and plans[1] is not None:
            assert [plan.states for plan in plans if plan] == [States.DEVICE, States.HOST]
            assert plans[0] == replace(plans[1], states=States.DEVICE)


def test_memory_that_is_missing_at_the_host_is_a_constraint_of_its_own() -> None:
    space = with_values(with_host(little_spaces()["dense"], 50.0, 1.0), states=("device", "host"))
    both = outer_of(space, 2)
    alone, place = Judge(both), FIELDS.index("states")
    point = rule_points(both)[0]
    here, there = (alone((*point[:place], state, *point[place + 1 :])) for state in (0, 1))
    assert here.feasible
    assert here.over_host_frac == 0.0
    assert not there.feasible
    assert there.over_host_frac > 0.0
    assert there.over_memory_frac == 0.0
    assert cost(there) > cost(here)
    roomy = Judge(outer_of(with_host(space, 50.0, 500.0), 2))
    assert roomy((*point[:place], 1, *point[place + 1 :])).feasible


def tiny() -> Outer:
    """One shape of a tight space with its budgets and cuts."""
    whole = outer_of(with_values(outer("tight").space, tp=(4,), pp=(4,), vpp=(2,), ep=(8,), recompute=("fit",)), 1)
    return replace(whole, budgets=BUDGETS)


@pytest.mark.slow
def test_a_study_finds_the_best_of_all_and_nothing_beyond_it() -> None:
    alone = Judge(tiny())
    for point in product(*(range(size) for size in tiny().sizes)):
        alone(point)
    best = min(each.step_s for each in alone.known.values() if each.feasible)
    ruled = min(each.step_s for p, each in alone.known.items() if each.feasible and p.recompute == FIT)
    assert best < ruled
    found = []
    for seed in range(3):
        ledger = Ledger(open_storage(None), "tiny", "0123456789ab")
        found.append(min(run_groups(tiny(), Settings(trials=200, seed=seed), ledger, 1).step_s.values()))
    assert min(found) == best
    assert all(best <= each < ruled for each in found)


def test_ranked_plans_of_a_study_differ_in_more_than_how_bytes_are_found() -> None:
    space = with_values(little_spaces()["tight"], tp=(2, 4), pp=(4,), vpp=(1, 2), ep=(4, 8), recompute=("fit",))
    answer = search(space, Request(engine="optuna", trials=40, top=8))
    stated = [replace(result.plan, layout="", recompute="") for result in answer.results]
    assert len(set(stated)) == len(stated)
    assert any(result.plan.recompute != FIT for result in answer.results)
    steps = [result.step_time_s for result in answer.results]
    assert steps == sorted(steps)
    ruled = search(space, Request(cut_shapes=0, top=8))
    assert all(one <= other.step_time_s for one, other in zip(steps, ruled.results, strict=True))


def test_a_search_that_solves_nothing_has_one_budget() -> None:
    space = with_values(little_spaces()["tight"], tp=(4,), pp=(4,), vpp=(2,), ep=(8,), recompute=("fit",))
    requests = [Request(engine="optuna", trials=20, solve=solve) for solve in (True, False)]
    assert {result.plan.recompute for result in search(space, requests[1]).results} == {FIT}
    assert content_hash(space, requests[0]) != content_hash(space, requests[1])


def test_a_link_is_asked_of_the_cluster_not_of_its_name() -> None:
    assert cluster_of("h100-80g").device.host_bytes > 0.0
    assert cluster_of("atlas-900-a3").device.host_bytes == 0.0
    space = replace(little_spaces()["mtp"], cluster=cluster_of("atlas-900-a3"))
    assert "solve+swap" not in budgets_of(space, [plan_of(recompute=FIT)])
