"""Plans whose schedule runs weight gradients apart: screen, bound, search, memory and timeline agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autodeploy.schedule.orders import rank_order
from autodeploy.schedule.shapes import NONE
from autodeploy.schedule.timeline import COMPUTE, PORT
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.search.evaluate import arranged, evaluate
from autodeploy.search.exact import search_exact
from autodeploy.search.layers import layers_of
from autodeploy.search.screen import screen
from autodeploy.search.solved import promises
from autodeploy.search.steps import step_s_of
from autodeploy.search.timeline import timeline_of
from autodeploy.spec.layout import Role
from autodeploy.spec.model import KINDS
from autodeploy.spec.plan import SCHEDULE_WORDS, Overlap, Plan, PlanTable, Schedule
from autodeploy.spec.space import Space, with_values
from tests.builders import some_rows
from tests.search.little import assert_screened_alike, little_spaces

NAMES = pytest.mark.parametrize("name", ["dense", "sparse", "mtp"])


def split_space(name: str, *, rolling: bool = True) -> Space:
    """A little space with every schedule that runs weight gradients apart."""
    space = with_values(little_spaces()[name], vpp=(1, 2), schedule=SCHEDULE_WORDS[Schedule.ZB_H1 :])
    profile = replace(space.target.profile, rolling_update=rolling)
    return replace(space, target=replace(space.target, profile=profile))


def some(space: Space, count: int, seed: int) -> PlanTable:
    """Some legal plans, of every schedule."""
    legal = enumerate_plans(space).legal
    rows = np.concatenate([
        np.nonzero(legal.schedule == code)[0][some_rows(int((legal.schedule == code).sum()), count, seed)]
        for code in np.unique(legal.schedule)
    ])  # fmt: skip
    assert len(np.unique(legal.schedule[rows])) == 5
    return legal.rows(rows)


@NAMES
def test_one_plan_is_evaluated_as_its_column_is_screened(name: str) -> None:
    space = split_space(name)
    sample = some(space, 10, seed=1)
    assert_screened_alike(space, sample)


@pytest.mark.parametrize("rolling", [True, False])
@NAMES
def test_the_bound_is_never_above_the_step(name: str, rolling: bool) -> None:
    space = split_space(name, rolling=rolling)
    sample = some(space, 8, seed=2)
    for i in range(len(sample)):
        found = evaluate(space, sample.row(i))
        assert found.bound_s <= found.step_time_s * (1 + 1e-12)


@NAMES
def test_stages_that_wait_for_each_other_take_longer(name: str) -> None:
    space = split_space(name)
    sample, later = some(space, 4, seed=3), 0
    for i in range(len(sample)):
        apart = arranged(space, sample.row(i))
        rolling_s, single_s = step_s_of(apart), step_s_of(replace(apart, rolls=False))
        assert rolling_s <= single_s
        later += rolling_s < single_s
    assert later


@NAMES
def test_the_search_finds_the_best_of_all(name: str) -> None:
    space = with_values(split_space(name), mbs=(1,), sp=None)
    legal = enumerate_plans(space).legal
    every = [evaluate(space, legal.row(i)) for i in range(len(legal))]
    best = min(result.step_time_s for result in every if result.fits)
    assert search_exact(space, top=3).step_s[0] == best


def held(space: Space, plan: Plan, role: Role, stage: int, microbatches: int) -> float:
    """Rows, what waits for weight gradients, and what a pass works on, at the worst moment of a stage, over every op of
    its order."""
    found, (_, rungs) = arranged(space, plan), layers_of(space, plan)
    cost = found.stages[found.case.layout.role_of_stage[stage]]
    rung = int(cost.memory.rung)
    kept = [sum(chunk[k] * rungs.kept_bytes[k][rung] for k in KINDS if chunk[k]) for chunk in role.chunks]
    late = [sum(chunk[k] * rungs.delayed_bytes[k] for k in KINDS if chunk[k]) for chunk in role.chunks]
    works = float(max(rungs.transient_bytes[kind][rung] for kind in role.kinds))
    order, now, worst = rank_order(found.case.shape(microbatches), stage), 0.0, 0.0
    for f, b, w in zip(order.f_chunk.tolist(), order.b_chunk.tolist(), order.w_chunk.tolist(), strict=True):
        if NONE not in (f, b):
            now -= kept[b]
        now += kept[f] if f != NONE else 0.0
        worst = max(worst, now + works * (f != NONE or b != NONE))
        if b != NONE and f == NONE:
            now -= kept[b]
        now += late[b] if b != NONE and w == NONE else 0.0
        now -= late[w] if w != NONE and b == NONE else 0.0
        worst = max(worst, now)
    return worst


@NAMES
def test_a_stage_holds_what_a_walk_along_its_order_meets(name: str) -> None:
    space = split_space(name)
    sample = some(space, 3, seed=4)
    for i in range(len(sample)):
        plan = sample.row(i)
        found, result = arranged(space, plan), evaluate(space, plan)
        for stage in result.stages:
            cost = found.stages[found.case.layout.role_of_stage[stage.stage]]
            terms, limits = stage.memory_moments["backward"], found.limits
            rows = terms["activations"] + terms["transient"] - float(cost.held.always + limits.boundary)
            walked = held(space, plan, cost.role, stage.stage, result.microbatches)
            assert rows == pytest.approx(walked, rel=1e-12)
            assert stage.peak_memory_bytes <= float(found.peak_bytes) * (1 + 1e-12)


@pytest.mark.parametrize(("name", "share"), [("dense", 0.6), ("sparse", 0.8)])
def test_solved_selections_fit_and_are_no_slower(name: str, share: float) -> None:
    space = split_space(name)
    little = replace(space.cluster.device, hbm_bytes=share * space.cluster.device.hbm_bytes)
    space = replace(space, cluster=replace(space.cluster, device=little))
    sample, better = some(space, 6, seed=5), 0
    for i in range(len(sample)):
        ruled = evaluate(space, sample.row(i))
        solved = evaluate(space, replace(sample.row(i), recompute="solve"))
        assert solved.fits >= ruled.fits
        if ruled.fits:
            assert solved.step_time_s <= ruled.step_time_s
            better += solved.step_time_s < ruled.step_time_s
    assert better


@NAMES
def test_the_timeline_is_the_simulated_step(name: str) -> None:
    space = split_space(name, rolling=False)
    sample = some(space, 2, seed=6)
    for i in range(len(sample)):
        drawn = timeline_of(space, sample.row(i))
        result, plan = drawn.result, drawn.result.plan
        ops = [event for event in drawn.events if event.lane == COMPUTE]
        assert max(event.end_s for event in drawn.events) == pytest.approx(result.step_time_s, rel=1e-12)
        parts = [(event.rank, part) for event in ops for part in (event.forward, event.backward, event.weights) if part]
        assert len(parts) == 3 * plan.pp * plan.vpp * result.microbatches
        sends = sum(event.lane == PORT for event in drawn.events)
        assert sends == 2 * plan.vpp * (plan.pp - 1) * result.microbatches
        for stage, levels in zip(result.stages, drawn.memory, strict=True):
            most = stage.memory_moments["backward"]
            peak = sum(value for term, value in most.items())
            assert max(level.live_bytes for level in levels) <= peak * (1 + 1e-12)


def test_pairs_of_dualpipe_hide_the_all_to_all() -> None:
    space = split_space("sparse")
    legal = enumerate_plans(space).legal
    dual = legal.rows(legal.schedule == Schedule.DUALPIPE_V)
    pairs = [dual.row(i) for i in range(len(dual)) if dual.overlap[i] == Overlap.PAIR]
    assert pairs
    for plan in pairs[:6]:
        paired, alone = (evaluate(space, each) for each in (plan, replace(plan, overlap=Overlap.NONE)))
        assert paired.exchange_hidden_frac is not None
        assert paired.exchange_hidden_frac > 0.1
        assert alone.exchange_hidden_frac == pytest.approx(0.0, abs=1e-9)


def test_plans_whose_ladder_does_not_fit_are_solved_after_all_others() -> None:
    space = split_space("dense")
    little = replace(space.cluster.device, hbm_bytes=0.45 * space.cluster.device.hbm_bytes)
    space = replace(space, cluster=replace(space.cluster, device=little))
    screened = screen(space, enumerate_plans(space).legal)
    found = promises(space, [screened], float("inf"))
    doubts = [promise.doubtful for promise in found]
    assert True in doubts
    assert False in doubts
    assert doubts == sorted(doubts)
    assert all(evaluate(space, promise.plan).fits != promise.doubtful for promise in found[:4] + found[-4:])
