"""Seconds of a layer: what must hold on any machine, and one formula for one plan and for a column of plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.analysis.ops import REBUILDABLE, Engine, Module
from autodeploy.analysis.readings import PLAIN
from autodeploy.catalog.calibration import stated_cluster
from autodeploy.cost.compute import op_s, product_s
from autodeploy.cost.layers import PASS_TERMS, LayerCost
from autodeploy.cost.pairing import paired_s
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.spec.cluster import Cluster, Device
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Dispatch, table_of
from tests.builders import (
    SPACE_IDS,
    SPACES,
    cluster_of,
    costs_of,
    job_of,
    machine_of,
    model_of,
    ops_of,
    plan_of,
    some_rows,
    space_of,
)  # fmt: skip

PLANS = st.fixed_dictionaries({
    "tp": st.sampled_from([1, 2, 4, 8]), "ep": st.sampled_from([1, 8, 32, 256]), "etp": st.sampled_from([1, 2]),
    "mbs": st.integers(1, 3), "dispatch": st.sampled_from(list(Dispatch)),
})  # fmt: skip


def seconds_of(costs: dict[Kind, LayerCost]) -> list[float]:
    """Every time that a layer takes: passes, traffic of each lane, rebuilt work. What nothing waits for is a part of a
    pass, and grows where quicker vector chains hide less of it."""
    loads = [load for cost in costs.values() for load in (cost.forward, cost.backward, *cost.rebuild)]
    return [value for load in loads for value in (*load._replace(aside=0.0), load.alone)]


def with_device(cluster: Cluster, **changed: Any) -> Machine:
    return replace(machine_of(), cluster=replace(cluster, device=replace(cluster.device, **changed)))


def better(cluster: Cluster, what: str, times: float) -> Machine:
    """The machine with one rate better by a factor."""
    device = cluster.device
    if what in ("node", "fabric"):
        level = getattr(cluster, what)
        level = replace(level, link_bytes_per_s=times * level.link_bytes_per_s, latency_s=level.latency_s / times)
        return replace(machine_of(), cluster=replace(cluster, **{what: level}))
    if what in ("kernel_gap_s", "issue_s", "tile_overhead_s"):
        return with_device(cluster, **{what: getattr(device, what) / times})
    return with_device(cluster, **{what: getattr(device, what) * times})


@settings(max_examples=30)
@given(
    plan=PLANS, times=st.floats(1.0, 8.0), name=st.sampled_from(["atlas-800t-a2", "h100-80g"]),
    what=st.sampled_from(
        ["node", "fabric", "peak_flop_per_s", "hbm_bytes_per_s", "kernel_gap_s", "issue_s", "tile_overhead_s"]
    ),
)  # fmt: skip
def test_a_better_machine_is_never_slower(plan: dict[str, Any], times: float, name: str, what: str) -> None:
    model, cluster, job = model_of("pangu-ultra-moe-718b"), cluster_of(name), job_of(expert_imbalance=1.2)
    before = costs_of(model, plan_of(**plan), job, replace(machine_of(), cluster=cluster))
    after = costs_of(model, plan_of(**plan), job, better(cluster, what, times))
    assert all(b <= a * (1 + 1e-12) for a, b in zip(seconds_of(before), seconds_of(after), strict=True))


@pytest.mark.parametrize("ep", [1, 8, 64])
@pytest.mark.parametrize("name", ["deepseek-v3", "pangu-ultra-moe-718b", "llama-3.1-405b"])
def test_one_tensor_parallel_rank_sends_nothing(name: str, ep: int) -> None:
    for cost in costs_of(model_of(name), plan_of(ep=ep)).values():
        assert cost.forward_terms["tensor_parallel"] == cost.backward_terms["tensor_parallel"] == 0.0


@pytest.mark.parametrize("tp", [1, 8])
def test_one_expert_rank_exchanges_nothing(tp: int) -> None:
    for cost in costs_of(model_of("deepseek-v3"), plan_of(tp=tp)).values():
        assert cost.forward.exchange == cost.backward.exchange == 0.0


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_ranks_do_send(tp: int) -> None:
    for cost in costs_of(model_of("llama-3.1-405b"), plan_of(tp=tp)).values():
        assert cost.forward_terms["tensor_parallel"] > 0.0


@given(plan=PLANS)
@settings(max_examples=30)
def test_terms_add_up_to_the_pass(plan: dict[str, Any]) -> None:
    for cost in costs_of(model_of("deepseek-v3"), plan_of(**plan)).values():
        for terms, load in ((cost.forward_terms, cost.forward), (cost.backward_terms, cost.backward)):
            assert set(terms) == set(PASS_TERMS)
            assert sum(terms.values()) == pytest.approx(load.alone, rel=1e-12)


@given(plan=PLANS)
@settings(max_examples=30)
def test_rebuilding_every_module_repeats_the_forward_pass(plan: dict[str, Any]) -> None:
    # all but waiting for the host, which is not repeated work
    for kind, cost in costs_of(model_of("deepseek-v3"), plan_of(**plan)).items():
        if kind in (Kind.DENSE, Kind.SPARSE):
            repeated = sum(cost.rebuild[module].alone for module in REBUILDABLE)
            assert repeated == pytest.approx(cost.forward.alone - cost.forward_terms["launch"], rel=1e-9)


@pytest.mark.parametrize("cluster", ["atlas-800t-a2", "h100-80g", "a100-80g"])
@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-30b-a3b", "llama-3.1-405b"])
def test_no_op_beats_the_peak_or_the_memory(name: str, cluster: str) -> None:
    device = cluster_of(cluster).device
    for ops in ops_of(model_of(name), plan_of()).values():
        for op in ops:
            forward, backward = op_s(device, PLAIN, job_of(), op)[:2]
            assert forward >= op.flop / device.peak_flop_per_s
            assert backward >= (2.0 if op.engine is not Engine.VECTOR else 0.0) * op.flop / device.peak_flop_per_s
            assert forward >= op.forward_bytes / device.hbm_bytes_per_s


# efficiency of square-tile products K / (K + 440) on 24 cube cores of an Ascend 910B2C (mamf-finder, NPU fork)
@pytest.mark.parametrize(("k", "share"), [(256, 0.37), (2048, 0.82), (8192, 0.949)])
def test_short_inner_sizes_lose_what_was_measured(k: int, share: float) -> None:
    base = stated_cluster(cluster_of("atlas-800t-a2-910b2")).device
    device = replace(base, matmul_cores=24, peak_flop_per_s=376e12, kernel_gap_s=1e-12)
    m, n = 128 * 24 * 4, 256 * 10
    seconds = product_s(device, m, n, k, 1.0, 0.0)
    assert 2.0 * m * n * k / seconds / 351.5e12 == pytest.approx(share, rel=0.01)


def waves_s(device: Device) -> tuple[float, float]:
    """(one wave that fills all cores, one more tile), in seconds."""
    full = product_s(device, device.tile_m * device.matmul_cores, device.tile_n, 4096, 1.0, 0.0)
    more = product_s(device, device.tile_m * device.matmul_cores + 1, device.tile_n, 4096, 1.0, 0.0)
    return full - device.kernel_gap_s, more - device.kernel_gap_s


@pytest.mark.parametrize("cluster", ["atlas-800t-a2", "h100-80g"])
def test_one_tile_too_many_costs_a_whole_wave(cluster: str) -> None:
    full, more = waves_s(cluster_of(cluster).device)
    assert more == pytest.approx(2.0 * full, rel=1e-9)


@given(plan=PLANS)
@settings(max_examples=30)
def test_merging_never_takes_longer_than_both_apart(plan: dict[str, Any]) -> None:
    for cost in costs_of(model_of("pangu-ultra-moe-718b"), plan_of(**plan)).values():
        apart = cost.forward.alone + cost.backward.alone
        assert paired_s(cost.forward, cost.backward) <= apart * (1 + 1e-12)


def leaves(tree: Any) -> Iterator[Any]:
    """Every number or column of a layer's cost, in a fixed order."""
    if is_dataclass(tree) and not isinstance(tree, type):
        for field in fields(tree):
            yield from leaves(getattr(tree, field.name))
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


@pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)
def test_layer_costs_of_a_plan_are_those_of_its_column(path: Any) -> None:
    space = space_of(path)
    legal = enumerate_plans(space).legal
    plans = [legal.row(int(i)) for i in some_rows(len(legal), 60, seed=7)]
    args = (space.job, space.machine)
    column = costs_of(space.model, table_of(plans), *args)
    for place, plan in enumerate(plans):
        alone = costs_of(space.model, plan, *args)
        for kind, cost in alone.items():
            for one, many in zip(leaves(cost), leaves(column[kind]), strict=True):
                assert one == np.broadcast_to(many, (len(plans),))[place]


@pytest.mark.parametrize("module", [module for module in Module if module is not Module.KEPT])
def test_rebuilding_without_rows_costs_nothing(module: Module) -> None:
    for cost in costs_of(model_of("deepseek-v3"), plan_of(tp=8, ep=8)).values():
        if not cost.rows_bytes[module]:
            assert cost.rebuild[module].alone == 0.0


@pytest.mark.parametrize("dispatch", list(Dispatch))
@pytest.mark.parametrize("ep", [16, 32, 64])
def test_levels_of_a_flat_or_fused_exchange_run_at_once_and_steps_in_turn(ep: int, dispatch: Dispatch) -> None:
    # one tensor-parallel rank: all traffic of the layer is the exchange
    forward = costs_of(model_of("deepseek-v3"), plan_of(ep=ep, dispatch=dispatch))[Kind.SPARSE].forward
    assert min(forward.inner, forward.outer) > 0.0
    in_turn = dispatch in (Dispatch.HIER, Dispatch.DEDUP, Dispatch.GATHER)
    joined = forward.inner + forward.outer if in_turn else max(forward.inner, forward.outer)
    assert forward.exchange == pytest.approx(joined, rel=1e-12)


@pytest.mark.parametrize(("nodes", "quicker"), [(2, True), (4, True), (16, False)])
def test_gathering_across_nodes_pays_below_as_many_nodes_as_choices(nodes: int, quicker: bool) -> None:
    # k = 8 experts a token: N - 1 copies against 8 (1 - 1/N), arXiv 2603.07685 section 4
    flat, hier = (
        costs_of(model_of("deepseek-v3"), plan_of(tp=8, ep=8 * nodes, dispatch=dispatch))[Kind.SPARSE].forward.outer
        for dispatch in (Dispatch.FLAT, Dispatch.HIER)
    )
    assert (hier < flat) is quicker
