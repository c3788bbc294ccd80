"""Dispatch and combine: volumes and ratios that were published, what drawn routers do, and which way is quickest where.

arXiv 2603.07685 table 7 (flat and DeepEP on H100); Ascend/MindSpeed moe-hierarchical-alltoallv; deepseek-ai/DeepEP.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.cost.collectives import Lanes, Span, serial
from autodeploy.cost.exchange import WAYS, Routed, dedup_lanes, flat_lanes, gather_lanes, held_copies, hier_lanes
from autodeploy.cost.routing import hit_frac, visited_nodes, visited_ranks
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import MoE
from autodeploy.spec.plan import Dispatch
from tests.cost.test_collective_times import CLUSTERS, COPY_BYTES, without_latency


@pytest.mark.parametrize(("nodes", "ratio"), [(2, 0.25), (4, 0.5), (8, 1.0), (16, 2.0)])
@pytest.mark.parametrize("name", CLUSTERS)
def test_hierarchical_dispatch_sends_n_over_k_of_the_flat_volume(name: str, nodes: int, ratio: float) -> None:
    # k = 8: 1 copy against 4 across two nodes, 3 against 6 across four, 7 against 7 across eight
    cluster, group = without_latency(name), Span(8, nodes)
    hier = hier_lanes(cluster, group, Routed(COPY_BYTES, experts(256, 8)))
    flat = flat_lanes(cluster, group, 8 * nodes, COPY_BYTES, 8)
    assert hier.outer / flat.outer == pytest.approx(ratio, rel=1e-12)


@given(imbalance=st.floats(1.0, 8.0), nodes=st.integers(2, 16))
def test_imbalance_slows_the_exchange_inside_a_node_alone(imbalance: float, nodes: int) -> None:
    # every node gathers every token, wherever it is routed
    cluster, group = without_latency("atlas-800t-a2"), Span(8, nodes)
    even, skewed = (hier_lanes(cluster, group, Routed(COPY_BYTES, experts(256, 8), load)) for load in (1.0, imbalance))
    assert skewed.outer == even.outer
    assert skewed.inner == pytest.approx(imbalance * even.inner, rel=1e-12)


@pytest.mark.parametrize(("nodes", "copies"), [(1, 0.0), (2, 4.0), (4, 6.0), (8, 7.0)])
def test_flat_dispatch_crosses_nodes_with_its_published_share(nodes: int, copies: float) -> None:
    cluster = without_latency("h100-80g")
    flat = flat_lanes(cluster, Span(8, nodes), 8 * nodes, COPY_BYTES, 8)
    assert flat.outer * cluster.fabric.effective_bytes_per_s == pytest.approx(copies * COPY_BYTES, abs=1e-3)


@given(inner=st.sampled_from([2, 4, 8]), nodes=st.integers(1, 32), top_k=st.integers(1, 16))
def test_flat_dispatch_sends_every_copy_that_is_not_its_own(inner: int, nodes: int, top_k: int) -> None:
    cluster, ranks = without_latency("h100-80g"), inner * nodes
    lanes = flat_lanes(cluster, Span(inner, nodes), ranks, COPY_BYTES, top_k)
    sent = lanes.inner * cluster.node.effective_bytes_per_s + lanes.outer * cluster.fabric.effective_bytes_per_s
    assert sent == pytest.approx(top_k * COPY_BYTES * (ranks - 1) / ranks, rel=1e-9)


def experts(count: int, top_k: int, node_limit: int = 0) -> MoE:
    """Routed experts of some model."""
    return MoE(experts=count, top_k=top_k, expert_width=1, node_limit=node_limit)


@pytest.mark.parametrize(("nodes", "found"), [(1, 1.0), (2, 1.99), (4, 3.61), (8, 5.29), (16, 6.52), (32, 7.27)])
def test_the_experts_of_a_token_lie_on_so_many_nodes(nodes: int, found: float) -> None:
    # N (1 - C(E - E/N, k) / C(E, k)) for 8 of 256
    assert visited_nodes(experts(256, 8), nodes) == pytest.approx(found, abs=0.005)


@pytest.mark.parametrize(("count", "top_k", "nodes"), [(256, 8, 8), (128, 8, 16), (16, 4, 4), (8, 2, 8), (64, 6, 2)])
def test_drawing_experts_finds_as_many_nodes(count: int, top_k: int, nodes: int) -> None:
    rng, draws = np.random.default_rng(23), 20_000
    drawn = rng.random((draws, count)).argpartition(top_k, axis=1)[:, :top_k] // (count // nodes)
    found = np.array([(drawn == node).any(axis=1) for node in range(nodes)]).sum(axis=0)
    error = 5.0 * found.std() / draws**0.5
    assert visited_nodes(experts(count, top_k), nodes) == pytest.approx(found.mean(), abs=error + 1e-12)


@given(nodes=st.sampled_from([1, 2, 4, 8, 16, 32]), top_k=st.integers(1, 16), limit=st.integers(1, 8))
def test_a_token_never_visits_more_nodes_than_it_may(nodes: int, top_k: int, limit: int) -> None:
    free = visited_nodes(experts(256, top_k), nodes)
    assert 1.0 - 1e-12 <= free <= min(nodes, top_k) * (1 + 1e-12)
    assert visited_nodes(experts(256, top_k, limit), nodes) == pytest.approx(min(free, limit), rel=1e-12)


def test_a_token_without_a_choice_visits_every_node() -> None:
    assert visited_nodes(experts(16, 16), 4) == 4.0
    assert visited_nodes(experts(16, 1), 4) == pytest.approx(1.0, rel=1e-12)


def sent_bytes(cluster: Cluster, lanes: Lanes) -> tuple[float, float]:
    """Bytes on the links of a switched node, and on the port to the fabric."""
    return lanes.inner * cluster.node.effective_bytes_per_s, lanes.outer * cluster.fabric.effective_bytes_per_s


def test_dispatch_once_a_node_halves_the_flat_exchange_over_eight_nodes() -> None:
    # EP64 of H100, at most 4 nodes a token: 9164 us flat, 4626 us with DeepEP (arXiv 2603.07685 table 7)
    cluster, group = without_latency("h100-80g"), Span(8, 8)
    flat = flat_lanes(cluster, group, 64, COPY_BYTES, 8)
    once = dedup_lanes(cluster, group, Routed(COPY_BYTES, experts(256, 8, 4)))
    assert serial(cluster, flat) / serial(cluster, once) == pytest.approx(9164 / 4626, rel=0.02)


def test_dispatch_once_a_node_is_a_quarter_over_two() -> None:
    # EP16 of H100, combine: 5774 us flat, 1485 us with DeepEP (arXiv 2603.07685 table 7)
    cluster, group = without_latency("h100-80g"), Span(8, 2)
    flat = flat_lanes(cluster, group, 16, COPY_BYTES, 8)
    once = dedup_lanes(cluster, group, Routed(COPY_BYTES, experts(256, 8)))
    assert flat.outer / once.outer == pytest.approx(5774 / 1485, rel=0.04)


@given(nodes=st.sampled_from([2, 4, 8, 16, 32]), top_k=st.integers(1, 16), limit=st.integers(0, 8))
def test_dispatch_once_a_node_never_sends_more_across_nodes(nodes: int, top_k: int, limit: int) -> None:
    # at most a copy for every expert, at most one for every node
    cluster, group, moe = without_latency("h100-80g"), Span(8, nodes), experts(256, top_k, limit)
    once = sent_bytes(cluster, dedup_lanes(cluster, group, Routed(COPY_BYTES, moe)))[1]
    flat = sent_bytes(cluster, flat_lanes(cluster, group, 8 * nodes, COPY_BYTES, top_k))[1]
    gathered = sent_bytes(cluster, hier_lanes(cluster, group, Routed(COPY_BYTES, moe)))[1]
    assert once <= flat * (1 + 1e-12)
    assert once <= gathered * (1 + 1e-12)
    across = visited_nodes(moe, nodes) * (nodes - 1) / nodes
    assert once == pytest.approx(across * COPY_BYTES, rel=1e-12)


def test_more_nodes_are_never_fewer_visited() -> None:
    found = [visited_nodes(experts(256, 8), nodes) for nodes in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    assert all(less <= more for less, more in pairwise(found))
    assert found[-1] == pytest.approx(8.0, rel=1e-12)  # every expert on a node of its own


def routed(draws: int, scores: np.ndarray, top_k: int, seed: int = 7) -> np.ndarray:
    """Experts of `draws` tokens whose logits are `scores` with Gumbel noise: the k largest, as a router takes them."""
    noisy = scores + np.random.default_rng(seed).gumbel(size=(draws, len(scores)))
    return noisy.argpartition(-top_k, axis=1)[:, -top_k:]


SHAPES = [(256, 8, 4), (256, 8, 32), (128, 8, 16), (64, 6, 8), (60, 4, 7)]


@pytest.mark.parametrize(("skew", "each", "whole"), [(0.0, 0.02, 0.01), (0.5, 0.04, 0.015), (1.0, 0.18, 0.06)])
@pytest.mark.parametrize(("count", "top_k", "groups"), SHAPES)
def test_a_skewed_router_visits_a_group_as_often_as_its_load_says(
    count: int, top_k: int, groups: int, skew: float, each: float, whole: float
) -> None:
    """Any number of experts, also one that the groups do not divide; every group, hot or cold. With the busiest group
    at twice the mean (skew 1) few hot experts make its load, which a token takes once each: it is hit more often."""
    scores = skew * np.random.default_rng(3).normal(size=count)
    chosen = routed(20_000, scores, top_k) * groups // count
    inside = [chosen == group for group in range(groups)]
    hits = np.array([found.any(axis=1).mean() for found in inside])
    ours = np.array([hit_frac(1.0 * count, top_k, found.mean()) for found in inside])
    assert ours == pytest.approx(hits, rel=each, abs=0.01)
    assert ours.sum() == pytest.approx(hits.sum(), rel=whole)


@pytest.mark.parametrize(("nodes", "inner", "limit"), [(8, 8, 4), (4, 8, 2), (8, 8, 0), (2, 4, 0), (1, 8, 0)])
def test_copies_to_ranks_are_those_of_a_router_that_is_limited_to_nodes(nodes: int, inner: int, limit: int) -> None:
    """DeepSeek-V3: nodes by the sum of their two best scores, then experts among them (arXiv 2412.19437 2.1.2)."""
    count, top_k, draws = 256, 8, 10_000
    scores = np.random.default_rng(11).gumbel(size=(draws, count))
    if limit:
        by_node = np.sort(scores.reshape(draws, nodes, -1), axis=2)[:, :, -2:].sum(axis=2)
        beyond = by_node.argsort(axis=1)[:, : nodes - limit]
        blocked = np.zeros((draws, nodes), dtype=bool)
        np.put_along_axis(blocked, beyond, True, axis=1)
        scores = np.where(np.repeat(blocked, count // nodes, axis=1), -np.inf, scores)
    chosen = scores.argpartition(-top_k, axis=1)[:, -top_k:]
    ranks = chosen * nodes * inner // count
    distinct = np.array([(ranks == rank).any(axis=1) for rank in range(nodes * inner)]).sum(axis=0).mean()
    found = visited_ranks(experts(count, top_k, limit), nodes, inner)
    assert found == pytest.approx(distinct, rel=0.03)


@given(load=st.floats(1.0, 64.0), nodes=st.sampled_from([2, 4, 8]), limit=st.sampled_from([0, 2, 4]))
def test_the_busiest_node_gets_every_token_once_at_most(load: float, nodes: int, limit: int) -> None:
    moe = experts(256, 8, limit)
    assert visited_nodes(moe, nodes) <= visited_nodes(moe, nodes, load) <= nodes * (1 + 1e-12)
    assert visited_ranks(moe, nodes, 8, load) <= nodes * 8 * (1 + 1e-12)


def test_once_a_rank_is_a_third_less_over_eight_ranks() -> None:
    # 5.29 of 8 copies over 8 ranks, 7.27 over 32 (zero redundancy)
    cluster = without_latency("h100-80g")
    flat = flat_lanes(cluster, Span(8, 1), 8, COPY_BYTES, 8)
    once = dedup_lanes(cluster, Span(8, 1), Routed(COPY_BYTES, experts(256, 8)))
    assert once.inner / flat.inner == pytest.approx(5.29 / 8.0, rel=1e-3)
    assert visited_ranks(experts(256, 8), 4, 8) == pytest.approx(7.27, abs=0.005)


@pytest.mark.parametrize("inner", [2, 4, 8])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_gathering_brings_every_token_to_every_rank(inner: int, nodes: int) -> None:
    cluster, group = without_latency("h100-80g"), Span(inner, nodes)
    inside, across = sent_bytes(cluster, gather_lanes(cluster, group, COPY_BYTES))
    assert inside == pytest.approx((inner - 1) * nodes * COPY_BYTES, rel=1e-12)
    assert across * inner == pytest.approx(inner * (nodes - 1) * COPY_BYTES, rel=1e-12, abs=1e-3)


def test_gathering_for_two_of_eight_experts_is_far_worse_than_sending() -> None:
    """Mixtral on 16 H100, EP8: 230 TFLOP/s with alltoall where all-gather ran first (Megatron-LM issue 756)."""
    found = times("h100-80g", 8, 1, experts(8, 2))
    assert found[Dispatch.GATHER] > 3.0 * found[Dispatch.FLAT]


def test_one_rank_a_choice_makes_gathering_as_good_as_sending() -> None:
    """Eight choices over eight ranks: seven copies either way, whatever the routing."""
    cluster, moe = without_latency("h100-80g"), experts(256, 8)
    sent = flat_lanes(cluster, Span(8, 1), 8, COPY_BYTES, 8).inner
    assert gather_lanes(cluster, Span(8, 1), COPY_BYTES).inner == pytest.approx(sent, rel=1e-12)
    assert dedup_lanes(cluster, Span(8, 1), Routed(COPY_BYTES, moe)).inner < sent


def times(name: str, ranks: int, nodes: int, moe: MoE, imbalance: float = 1.0) -> dict[Dispatch, float]:
    """Seconds of one dispatch by each way, without latency."""
    cluster, group = without_latency(name), Span(ranks // nodes, nodes)
    return {
        kind: float(way(cluster, group, ranks, Routed(COPY_BYTES, moe, imbalance)).alone_s)
        for kind, way in WAYS.items()
    }


@given(
    name=st.sampled_from(CLUSTERS), nodes=st.sampled_from([1, 2, 4, 8, 16]), top_k=st.integers(1, 12),
    imbalance=st.floats(1.0, 4.0),
)  # fmt: skip
def test_a_kernel_that_forwards_is_never_slower_than_two_steps(
    name: str, nodes: int, top_k: int, imbalance: float
) -> None:
    found = times(name, 8 * nodes, nodes, experts(256, top_k), imbalance)
    assert found[Dispatch.FUSED] <= found[Dispatch.DEDUP] * (1 + 1e-12)


@pytest.mark.parametrize(("nodes", "slower"), [(4, 1.0), (8, 4.0 / 7.0 * 3.0), (16, 12.0 / 15.0 * 3.0)])
def test_what_leaves_a_leaf_shares_its_uplinks(nodes: int, slower: float) -> None:
    """Leaves of four nodes, three to one: N - 4 of N - 1 other nodes lie beyond."""
    plain = without_latency("h100-80g")
    shared = replace(plain, fabric=replace(plain.fabric, leaf_size=32, oversubscription=3.0))
    for make in (
        lambda c: flat_lanes(c, Span(8, nodes), 8 * nodes, COPY_BYTES, 8),
        lambda c: dedup_lanes(c, Span(8, nodes), Routed(COPY_BYTES, experts(256, 8))),
    ):
        assert make(shared).outer / make(plain).outer == pytest.approx(max(slower, 1.0), rel=1e-12)
        assert make(shared).inner == make(plain).inner
    gathered = [hier_lanes(c, Span(8, nodes), Routed(COPY_BYTES, experts(256, 8))).outer for c in (shared, plain)]
    assert gathered[0] == gathered[1]  # a ring leaves a leaf once


@pytest.mark.parametrize("ranks", [8, 32])
def test_buffers_hold_what_a_way_brings(ranks: int) -> None:
    group, moe = Span(8, ranks // 8), experts(256, 8)
    copies = {kind: float(held_copies(kind, group, Routed(COPY_BYTES, moe, 1.0))) for kind in Dispatch}
    once = {8: 5.29, 32: 7.27}[ranks]
    assert copies == pytest.approx({0: 8.0, 1: 8.0, 2: once, 3: 1.0 * ranks, 4: once}, abs=0.005)
