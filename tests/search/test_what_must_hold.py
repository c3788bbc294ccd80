"""What must hold of any plan on any machine: nothing sent over one rank, nothing gained from a worse machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autodeploy.search.enumerate import enumerate_plans
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import search_exact
from autodeploy.search.result import PlanResult
from autodeploy.search.screen import screen
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space
from tests.builders import SPACE_IDS, SPACES, some_rows, space_of

EVERY_SPACE = pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)
SILENT_AT_ONE = (
    # with a degree of one there is nothing to send, wait for or share
    ("tp", ("tensor_parallel",)),
    ("pp", ("bubble", "pipeline_send", "shared_weights")),
    ("ep", ("expert_exchange",)),
)


def with_fields(space: Space, **fields: Any) -> Space:
    return replace(space, plan=replace(space.plan, **fields))


def fixed(path: Path, policy: str) -> Space:
    """A space whose recompute and layout do not follow the machine."""
    return with_fields(space_of(path), recompute=(policy,), layout=("even",))


def evaluated(space: Space, count: int, seed: int) -> list[PlanResult]:
    legal = enumerate_plans(space).legal
    return [evaluate(space, legal.row(int(i))) for i in some_rows(len(legal), count, seed)]


@pytest.mark.parametrize(("degree", "terms"), SILENT_AT_ONE)
@EVERY_SPACE
def test_a_degree_of_one_costs_nothing(path: Path, degree: str, terms: tuple[str, ...]) -> None:
    space = with_fields(space_of(path), **{degree: (1,)})
    for found in evaluated(space, 20, seed=31):
        if found.plan.etp == 1 or degree != "tp":  # experts cut over etp send as tensor-parallel ranks do
            assert max(abs(found.time_terms[term]) for term in terms) <= 1e-9 * found.step_time_s


@EVERY_SPACE
def test_no_term_is_negative(path: Path) -> None:
    for found in evaluated(space_of(path), 40, seed=32):
        assert min(found.time_terms.values()) >= -1e-9 * found.step_time_s
        assert all(value >= 0.0 for stage in found.stages for value in stage.memory_terms.values())


def better_machines(space: Space) -> list[Space]:
    """The space on machines that are faster in one respect."""
    cluster = space.cluster
    node, fabric = (
        replace(level, link_bytes_per_s=2.0 * level.link_bytes_per_s) for level in (cluster.node, cluster.fabric)
    )
    device = replace(cluster.device, hbm_bytes_per_s=2.0 * cluster.device.hbm_bytes_per_s)
    quick = replace(cluster.device, peak_flop_per_s=2.0 * cluster.device.peak_flop_per_s)
    changed = ({"node": node}, {"fabric": fabric}, {"device": device}, {"device": quick})
    return [replace(space, cluster=replace(cluster, **change)) for change in changed]


@pytest.mark.parametrize("policy", ["none", "full"])
@EVERY_SPACE
def test_a_better_machine_never_takes_longer(path: Path, policy: str) -> None:
    space = fixed(path, policy)
    for before in evaluated(space, 15, seed=33):
        for better in better_machines(space):
            after = evaluate(better, before.plan)
            assert after.step_time_s <= before.step_time_s * (1 + 1e-12)
            assert after.bound_s <= before.bound_s * (1 + 1e-12)
            assert after.peak_memory_bytes == before.peak_memory_bytes


@EVERY_SPACE
def test_a_distributed_optimizer_never_takes_more_memory(path: Path) -> None:
    space = with_fields(fixed(path, "none"), zero=(0, 1))
    for found in evaluated(space, 20, seed=34):
        whole, cut = (evaluate(space, replace(found.plan, zero=zero)).peak_memory_bytes for zero in (0, 1))
        assert cut < whole if found.plan.dp > 1 else cut == whole


@EVERY_SPACE
def test_full_recompute_takes_less_memory_and_more_time(path: Path) -> None:
    for found in evaluated(fixed(path, "none"), 20, seed=35):
        full = evaluate(fixed(path, "full"), replace(found.plan, recompute="full"))
        assert full.step_time_s > found.step_time_s
        kept, all_rows = (max(s.memory_terms["activations"] for s in r.stages) for r in (full, found))
        assert kept < all_rows


@EVERY_SPACE
def test_recompute_that_fits_lies_between_none_and_full(path: Path) -> None:
    space = with_fields(space_of(path), layout=("even",))
    for fit in evaluated(space, 20, seed=36):
        none, full = (evaluate(space, replace(fit.plan, recompute=policy)) for policy in ("none", "full"))
        assert none.bound_s <= fit.bound_s * (1 + 1e-12)
        assert fit.bound_s <= full.bound_s * (1 + 1e-12)
        if none.fits:
            assert fit.step_time_s == none.step_time_s
        if fit.fits < full.fits:
            pytest.fail("full recompute fits where climbing to it does not")


@EVERY_SPACE
def test_more_sequences_take_longer(path: Path) -> None:
    space = fixed(path, "full")
    doubled = replace(space, job=replace(space.job, gbs=2 * space.job.gbs))
    for found in evaluated(space, 20, seed=37):
        assert evaluate(doubled, found.plan).step_time_s > found.step_time_s


def brute_force(space: Space, top: int) -> list[tuple[float, Plan]]:
    """Steps of all plans that fit, best first, each simulated alone."""
    legal = enumerate_plans(space).legal
    fits = screen(space, legal).fits
    each = [(evaluate(space, legal.row(int(i))).step_time_s, legal.row(int(i))) for i in np.nonzero(fits)[0]]
    return sorted(each, key=lambda pair: pair[0])[:top]


def small_pangu() -> Space:
    space = next(space_of(path) for path in SPACES if "718b" in path.stem)
    return with_fields(space, tp=(8,), pp=(8, 16), vpp=(1, 2), ep=(16, 32), etp=(1, 2), mbs=(1, 2))


@pytest.mark.parametrize("space", [space_of(SPACES[0]), small_pangu()], ids=["llama", "pangu"])
@pytest.mark.slow
def test_the_search_finds_what_simulating_everything_finds(space: Space) -> None:
    outcome, best = search_exact(space, top=10), brute_force(space, 10)
    assert outcome.status == "optimal"
    assert outcome.gap_frac == 0.0
    assert outcome.step_s.tolist() == [step for step, _ in best]
    assert outcome.screened.plans.row(int(outcome.rows[0])) in [plan for step, plan in best if step == best[0][0]]
