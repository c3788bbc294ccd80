"""Solved selections put back into a plan: they fit, they are never slower than the ladder, and say what they do."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autodeploy.search.evaluate import arranged, evaluate
from autodeploy.search.layers import layers_of
from autodeploy.search.result import PlanResult
from autodeploy.search.selecting import WORTH_SWAPPING, live_of
from autodeploy.spec.plan import Overlap, Plan
from tests.search.little import legal_plans_of, little_spaces, shrunk

SPACES = ("dense", "sparse", "mtp", "tight")
EVERY = pytest.mark.parametrize("name", SPACES)
POLICIES = ("solve", "solve+swap", "solve+swap:0.25")


@cache
def pressed(name: str) -> tuple[Plan, ...]:
    """Plans that fit by the ladder only with something rebuilt: up to eight of a little space."""
    space, found = little_spaces()[name], []
    plans = [plan for plan in legal_plans_of(name) if plan.recompute == "fit"]
    order = np.random.default_rng(3).permutation(len(plans))
    for place in order:
        ruled = evaluate(space, plans[int(place)])
        if ruled.fits and any(ruled.arrangement.recompute):
            found.append(plans[int(place)])
        if len(found) == 8:
            break
    return tuple(found)


@cache
def results(name: str, policy: str, small: bool = False) -> tuple[PlanResult, ...]:
    space = shrunk(name, 0.75) if small else little_spaces()[name]
    return tuple(evaluate(space, replace(plan, recompute=policy)) for plan in pressed(name))


@EVERY
def test_there_is_something_to_solve(name: str) -> None:
    assert pressed(name)


@EVERY
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("small", [False, True])
def test_a_solved_plan_is_never_slower_and_fits_where_the_ladder_does(name: str, policy: str, small: bool) -> None:
    for ruled, found in zip(results(name, "fit", small), results(name, policy, small), strict=True):
        if ruled.fits:
            assert found.fits
            assert found.step_time_s <= ruled.step_time_s * (1 + 1e-12)
        assert found.needed_memory_bytes <= found.usable_memory_bytes or not found.fits


@EVERY
def test_some_plan_gets_faster(name: str) -> None:
    pairs = zip(results(name, "fit"), results(name, "solve"), strict=True)
    assert any(found.step_time_s < ruled.step_time_s * (1 - 1e-4) for ruled, found in pairs)


@EVERY
def test_terms_add_up_under_a_solved_selection(name: str) -> None:
    for found in results(name, "solve+swap"):
        assert sum(found.time_terms.values()) == pytest.approx(found.step_time_s, rel=1e-9)
        for stage in found.stages:
            assert sum(stage.memory_terms.values()) == pytest.approx(stage.needed_bytes, rel=1e-9)
            assert min(stage.memory_terms.values()) >= 0.0
            assert stage.host_bytes >= 0.0


@EVERY
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_swaps_hide_behind_the_pass_and_stay_within_the_host(name: str, share: float) -> None:
    space = little_spaces()[name]
    link = share * space.cluster.device.host_bytes_per_s
    for ruled in pressed(name):
        plan = replace(ruled, recompute=f"solve+swap:{share:g}")
        costs, _ = layers_of(space, plan)
        found = arranged(space, plan)
        for stage in found.stages:
            if stage.chosen is None:
                continue
            hidden_s = [
                sum(chunk[kind] * min(costs[kind].forward.busy, costs[kind].backward.busy) for kind in stage.role.kinds)
                for chunk in stage.role.chunks
            ]
            for moved, seconds in zip(stage.chosen.moved_bytes, hidden_s, strict=True):
                assert moved <= link * seconds * (1 + 1e-9)
            live = live_of(found.microbatches, found.case, stage.role)
            most = max(sum(n * b for n, b in zip(m, stage.chosen.moved_bytes, strict=True)) for m in live)
            assert most <= space.cluster.device.host_bytes * (1 + 1e-9)


@EVERY
def test_nothing_is_swapped_unless_asked(name: str) -> None:
    for found in results(name, "solve"):
        assert found.arrangement.swap == ()
        assert all(stage.host_bytes == 0.0 for stage in found.stages)


@EVERY
def test_words_of_a_selection_are_modules_with_their_share(name: str) -> None:
    from autodeploy.spec.target import ALL_MODULES, SWAP_PARTS

    for found in results(name, "solve+swap"):
        for stage, words in enumerate(found.arrangement.recompute):
            assert {word.split(":")[0] for word in words} <= set(ALL_MODULES)
            swapped = found.arrangement.swap[stage] if found.arrangement.swap else ()
            assert {word.split(":")[0] for word in swapped} <= set(SWAP_PARTS) & set(WORTH_SWAPPING)


def test_a_plan_that_fits_as_it_is_rebuilds_nothing() -> None:
    space = little_spaces()["sparse"]
    for plan in legal_plans_of("sparse")[:40]:
        none = evaluate(space, replace(plan, recompute="none"))
        if none.fits:
            found = evaluate(space, replace(plan, recompute="solve"))
            assert found.step_time_s == none.step_time_s
            assert not any(found.arrangement.recompute)


def test_stages_differ_where_their_live_microbatches_do() -> None:
    differ = [
        found
        for found in results("dense", "solve") + results("mtp", "solve")
        if len(set(found.arrangement.recompute)) > 1
    ]
    assert differ


def test_merged_passes_are_solved_too() -> None:
    assert any(plan.overlap is Overlap.PAIR for name in ("sparse", "mtp") for plan in pressed(name))
