"""What breaks first: below the value found the plan fits as it is, from it on it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.search.evaluate import arranged, evaluate
from autodeploy.search.layers import layers_of
from autodeploy.search.pressure import Pressure, pressures
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space
from tests.search.little import legal_plans_of, little_spaces

POLICIES = ("none", "full", "layernorm+mlp_act", "layernorm+moe_act")
NEAR = 1e-4


def fitting(name: str, policy: str, count: int) -> list[Plan]:
    space = little_spaces()[name]
    plans = [replace(plan, recompute=policy) for plan in legal_plans_of(name)[::7]]
    return [plan for plan in plans if evaluate(space, plan).fits][:count]


def found_for(space: Space, plan: Plan) -> dict[str, Pressure]:
    _, rungs = layers_of(space, plan)
    return {each.name: each for each in pressures(space, plan, arranged(space, plan), rungs)}


def grown(space: Space, plan: Plan, name: str, value: float) -> tuple[Space, Plan]:
    job, cluster = space.job, space.cluster
    if name == "imbalance":
        return replace(space, job=replace(job, expert_imbalance=value)), plan
    if name == "sequence":
        return replace(space, job=replace(job, seq_len=round(value))), plan
    if name == "fragmentation":
        return replace(space, cluster=replace(cluster, fragmentation_frac=value)), plan
    return space, replace(plan, mbs=round(value))


@pytest.mark.parametrize("name", ["dense", "sparse", "mtp"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.slow
def test_a_plan_fits_below_and_not_from_there_on(name: str, policy: str) -> None:
    space = little_spaces()[name]
    for plan in fitting(name, policy, 3):
        # of one layout: which the plan then has by name
        held = replace(plan, layout=arranged(space, plan).case.layout.notation)
        for each in found_for(space, held).values():
            if each.breaks_at is None or each.name == "microbatch":
                continue
            at = replace(held), each.breaks_at
            assert not evaluate(*grown(space, at[0], each.name, each.breaks_at * (1 + NEAR))).fits
            assert evaluate(*grown(space, held, each.name, each.breaks_at * (1 - NEAR))).fits


@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_a_larger_microbatch_breaks_where_evaluate_says(name: str) -> None:
    space = little_spaces()[name]
    for plan in fitting(name, "none", 4):
        found = found_for(space, plan)["microbatch"]
        if found.breaks_at is None:
            continue
        gbs = space.job.gbs * round(found.breaks_at) // plan.mbs  # as many microbatches as before
        more = replace(space, job=replace(space.job, gbs=gbs))
        assert not evaluate(more, replace(plan, mbs=round(found.breaks_at))).fits


def test_the_soonest_comes_first_and_says_where() -> None:
    space = little_spaces()["sparse"]
    for plan in fitting("sparse", "none", 6):
        _, rungs = layers_of(space, plan)
        found = pressures(space, plan, arranged(space, plan), rungs)
        assert [each.growth for each in found] == sorted(each.growth for each in found)
        assert {each.name for each in found} == {"sequence", "microbatch", "fragmentation"} | (
            {"imbalance"} if plan.ep > 1 else set()
        )
        assert all((each.stage is None) == (each.breaks_at is None) for each in found)
        assert all(each.stage is None or 0 <= each.stage < plan.pp for each in found)


def test_a_solved_plan_has_hardly_any_room() -> None:
    space = little_spaces()["tight"]
    tight = []
    for plan in legal_plans_of("tight"):
        if plan.recompute != "fit" or len(tight) == 3:
            continue
        solved = replace(plan, recompute="solve")
        found = evaluate(space, solved)
        if found.fits and found.needed_memory_bytes > 0.99 * found.usable_memory_bytes:
            tight.append(found_for(space, solved)["fragmentation"])
    assert tight
    assert all(each.breaks_at is not None and each.growth < 1.3 for each in tight)
