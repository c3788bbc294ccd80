"""One plan and a column of plans: the screen, the bound, the memory and the simulated step agree bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autodeploy.search.enumerate import Enumeration, enumerate_plans
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import search_exact
from autodeploy.search.screen import screen
from autodeploy.spec.plan import Plan, PlanTable, table_of
from autodeploy.spec.space import Space
from tests.builders import SPACE_IDS, SPACES, some_rows, space_of
from tests.search.little import assert_screened_alike

EVERY_SPACE = pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)
VARIANTS = {
    "as stated": {},
    "rules apart": {"layout": ("even", "light", "apart")},
    "policies": {"recompute": ("none", "full", "layernorm+mlp_act", "moe_act+mla_up_proj")},
    "no sharding": {"zero": (0, 1)},
}


def varied(path: Path, variant: str) -> tuple[Space, PlanTable]:
    """A space with some fields changed, and all of its legal plans."""
    space = space_of(path)
    space = replace(space, plan=replace(space.plan, **VARIANTS[variant]))
    return space, enumerate_plans(space).legal


@pytest.mark.parametrize("variant", VARIANTS)
@EVERY_SPACE
def test_one_plan_is_evaluated_as_its_column_is_screened(path: Path, variant: str) -> None:
    space, legal = varied(path, variant)
    sample = legal.rows(some_rows(len(legal), 80 if variant == "as stated" else 20, seed=11))
    assert_screened_alike(space, sample)


@EVERY_SPACE
def test_a_plan_does_not_depend_on_its_neighbours(path: Path) -> None:
    space, legal = varied(path, "as stated")
    rows = some_rows(len(legal), 60, seed=5)
    shuffled = np.random.default_rng(6).permutation(rows)
    one, other = screen(space, legal.rows(rows)), screen(space, legal.rows(shuffled))
    back = np.searchsorted(rows, shuffled)
    for name in ("screen_s", "bound_s", "needed_bytes", "fits"):
        assert np.array_equal(getattr(one, name)[back], getattr(other, name))


@pytest.mark.slow
@EVERY_SPACE
def test_ranked_steps_are_those_of_each_plan_alone(path: Path) -> None:
    outcome = search_exact(space_of(path), top=20)
    assert len(outcome.rows) == 20
    for row, step in zip(outcome.rows, outcome.step_s, strict=True):
        assert evaluate(outcome.space, outcome.screened.plans.row(int(row))).step_time_s == step


@EVERY_SPACE
def test_the_bound_is_never_above_the_step(path: Path) -> None:
    space, legal = varied(path, "as stated")
    for row in some_rows(len(legal), 60, seed=2):
        found = evaluate(space, legal.row(int(row)))
        assert found.bound_s <= found.step_time_s * (1 + 1e-12)
        assert found.bound_s <= found.screen_s


@EVERY_SPACE
def test_terms_add_up_to_step_and_peak(path: Path) -> None:
    space, legal = varied(path, "as stated")
    for row in some_rows(len(legal), 30, seed=4):
        found = evaluate(space, legal.row(int(row)))
        assert sum(found.time_terms.values()) == pytest.approx(found.step_time_s, rel=1e-9)
        for stage in found.stages:
            assert sum(stage.memory_terms.values()) == pytest.approx(stage.needed_bytes, rel=1e-9)
        most = max(stage.needed_bytes for stage in found.stages)
        assert most == pytest.approx(found.needed_memory_bytes, rel=1e-12)


def enumerated(path: Path) -> Enumeration:
    return enumerate_plans(space_of(path))


@EVERY_SPACE
def test_every_candidate_is_legal_or_refused_once(path: Path) -> None:
    found = enumerated(path)
    assert found.candidates == len(found.legal) + sum(found.refused.values())


@EVERY_SPACE
def test_plans_survive_the_table(path: Path) -> None:
    legal = enumerated(path).legal
    plans = [legal.row(int(i)) for i in some_rows(len(legal), 50, seed=1)]
    table = table_of(plans)
    assert [table.row(i) for i in range(len(plans))] == plans
    assert [table.edp[i] for i in range(len(plans))] == [plan.edp for plan in plans]


def uses_all_devices(space: Space, plan: Plan) -> bool:
    dense = plan.tp * plan.cp * plan.dp * plan.pp
    experts = plan.etp * plan.ep * plan.edp * plan.pp
    return dense == experts == space.devices


@EVERY_SPACE
def test_legal_plans_use_every_device_and_sequence(path: Path) -> None:
    space, legal = varied(path, "as stated")
    for row in some_rows(len(legal), 200, seed=9):
        plan = legal.row(int(row))
        microbatches = space.job.gbs / (plan.mbs * plan.dp)
        assert uses_all_devices(space, plan)
        assert microbatches == int(microbatches) >= 1
        assert plan.vpp == 1 or microbatches % plan.pp == 0
        assert space.model.attention.heads % plan.tp == 0
