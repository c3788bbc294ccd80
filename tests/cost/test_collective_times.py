"""Collectives: measured ratios, published volumes, and what no bandwidth or degree may turn around.

Full mesh: all-reduce on 2, 4 and 8 devices of an Atlas 800T A2 node (limulidae README). Volumes of dispatch:
arXiv 2603.07685 table 7; Ascend/MindSpeed moe-hierarchical-alltoallv. Ring formulas:
NVIDIA/nccl-tests:doc/PERFORMANCE.md.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.cost.collectives import (
    Lanes,
    Span,
    dedup_lanes,
    distinct_nodes,
    flat_lanes,
    gather_rates,
    hier_lanes,
    port_bytes_per_s,
    ring_lanes,
    send_s,
    serial,
    shuffle_lanes,
    span,
)  # fmt: skip
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import MoE
from tests.builders import cluster_of

CLUSTERS = ("atlas-800t-a2", "h100-80g")
DEGREES = st.sampled_from([1, 2, 4, 8, 16, 64, 256])
COPY_BYTES = 2.0**24


def without_latency(name: str) -> Cluster:
    """A cluster on which only bytes take time."""
    cluster = cluster_of(name)
    node, fabric = (replace(level, latency_s=0.0, ramp_s_per_sqrt_byte=0.0) for level in (cluster.node, cluster.fabric))
    return replace(cluster, node=node, fabric=fabric)


def faster(cluster: Cluster, times: float) -> Cluster:
    """The same cluster with faster links."""
    node, fabric = (
        replace(level, link_bytes_per_s=times * level.link_bytes_per_s) for level in (cluster.node, cluster.fabric)
    )
    return replace(cluster, node=node, fabric=fabric)


def test_a_mesh_of_eight_has_seven_times_the_bandwidth_of_two() -> None:
    node = cluster_of("atlas-800t-a2").node
    assert port_bytes_per_s(node, 8) / port_bytes_per_s(node, 2) == pytest.approx(7.0, rel=1e-12)


def test_a_switch_gives_every_group_the_same_bandwidth() -> None:
    # A800 all-reduce 143, 156, 156 GB/s on 2, 4, 8 devices
    node = cluster_of("h100-80g").node
    assert len({port_bytes_per_s(node, ranks) for ranks in (2, 4, 8)}) == 1


def test_all_reduce_on_a_mesh_is_the_measured_bandwidth() -> None:
    # bus bandwidth 18, 45 and 126 GB/s on 2, 4, 8 devices of 910B; an all-reduce is a scatter and a gather
    cluster = without_latency("atlas-800t-a2")
    for ranks, gb_per_s in ((2, 18.0), (4, 45.0), (8, 126.0)):
        lanes = gather_rates(cluster, Span(ranks, 1)).lanes(1.0)
        bus = 2.0 * (ranks - 1) / ranks / (2.0 * lanes.inner) / 1e9
        assert bus == pytest.approx(gb_per_s, rel=0.25)


@pytest.mark.parametrize(("nodes", "ratio"), [(2, 0.25), (4, 0.5), (8, 1.0), (16, 2.0)])
@pytest.mark.parametrize("name", CLUSTERS)
def test_hierarchical_dispatch_sends_n_over_k_of_the_flat_volume(name: str, nodes: int, ratio: float) -> None:
    # k = 8: 1 copy against 4 across two nodes, 3 against 6 across four, 7 against 7 across eight
    cluster, group = without_latency(name), Span(8, nodes)
    hier = hier_lanes(cluster, group, COPY_BYTES, 8, 1.0)
    flat = flat_lanes(cluster, group, 8 * nodes, COPY_BYTES, 8)
    assert hier.outer / flat.outer == pytest.approx(ratio, rel=1e-12)


@given(imbalance=st.floats(1.0, 8.0), nodes=st.integers(2, 16))
def test_imbalance_slows_the_exchange_inside_a_node_alone(imbalance: float, nodes: int) -> None:
    # every node gathers every token, wherever it is routed
    cluster, group = without_latency("atlas-800t-a2"), Span(8, nodes)
    even, skewed = (hier_lanes(cluster, group, COPY_BYTES, 8, load) for load in (1.0, imbalance))
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
    assert distinct_nodes(experts(256, 8), nodes) == pytest.approx(found, abs=0.005)


@pytest.mark.parametrize(("count", "top_k", "nodes"), [(256, 8, 8), (128, 8, 16), (16, 4, 4), (8, 2, 8), (64, 6, 2)])
def test_drawing_experts_finds_as_many_nodes(count: int, top_k: int, nodes: int) -> None:
    rng, draws = np.random.default_rng(23), 20_000
    drawn = rng.random((draws, count)).argpartition(top_k, axis=1)[:, :top_k] // (count // nodes)
    found = np.array([(drawn == node).any(axis=1) for node in range(nodes)]).sum(axis=0)
    error = 5.0 * found.std() / draws**0.5
    assert distinct_nodes(experts(count, top_k), nodes) == pytest.approx(found.mean(), abs=error + 1e-12)


@given(nodes=st.sampled_from([1, 2, 4, 8, 16, 32]), top_k=st.integers(1, 16), limit=st.integers(1, 8))
def test_a_token_never_visits_more_nodes_than_it_may(nodes: int, top_k: int, limit: int) -> None:
    free = distinct_nodes(experts(256, top_k), nodes)
    assert 1.0 - 1e-12 <= free <= min(nodes, top_k) * (1 + 1e-12)
    assert distinct_nodes(experts(256, top_k, limit), nodes) == min(free, limit)


def test_a_token_without_a_choice_visits_every_node() -> None:
    assert distinct_nodes(experts(16, 16), 4) == 4.0
    assert distinct_nodes(experts(16, 1), 4) == pytest.approx(1.0, rel=1e-12)


def sent_bytes(cluster: Cluster, lanes: Lanes) -> tuple[float, float]:
    """Bytes on the links of a switched node, and on the port to the fabric."""
    return lanes.inner * cluster.node.effective_bytes_per_s, lanes.outer * cluster.fabric.effective_bytes_per_s


def test_dispatch_once_a_node_halves_the_flat_exchange_over_eight_nodes() -> None:
    # EP64 of H100, at most 4 nodes a token: 9164 us flat, 4626 us with DeepEP (arXiv 2603.07685 table 7)
    cluster, group = without_latency("h100-80g"), Span(8, 8)
    flat = flat_lanes(cluster, group, 64, COPY_BYTES, 8)
    once = dedup_lanes(cluster, group, COPY_BYTES, experts(256, 8, 4))
    assert serial(cluster, flat) / serial(cluster, once) == pytest.approx(9164 / 4626, rel=0.02)


def test_dispatch_once_a_node_is_a_quarter_over_two() -> None:
    # EP16 of H100, combine: 5774 us flat, 1485 us with DeepEP (arXiv 2603.07685 table 7)
    cluster, group = without_latency("h100-80g"), Span(8, 2)
    flat = flat_lanes(cluster, group, 16, COPY_BYTES, 8)
    once = dedup_lanes(cluster, group, COPY_BYTES, experts(256, 8))
    assert flat.outer / once.outer == pytest.approx(5774 / 1485, rel=0.04)


@given(nodes=st.sampled_from([2, 4, 8, 16, 32]), top_k=st.integers(1, 16), limit=st.integers(0, 8))
def test_dispatch_once_a_node_never_sends_more_across_nodes(nodes: int, top_k: int, limit: int) -> None:
    # at most a copy for every expert, at most one for every node
    cluster, group, moe = without_latency("h100-80g"), Span(8, nodes), experts(256, top_k, limit)
    once = sent_bytes(cluster, dedup_lanes(cluster, group, COPY_BYTES, moe))[1]
    flat = sent_bytes(cluster, flat_lanes(cluster, group, 8 * nodes, COPY_BYTES, top_k))[1]
    gathered = sent_bytes(cluster, hier_lanes(cluster, group, COPY_BYTES, top_k, 1.0))[1]
    assert once <= flat * (1 + 1e-12)
    assert once <= gathered * (1 + 1e-12)
    across = distinct_nodes(moe, nodes) * (nodes - 1) / nodes
    assert once == pytest.approx(across * COPY_BYTES, rel=1e-12)


@given(size=DEGREES, stride=DEGREES, moved=st.floats(0.0, 1e11), ramp=st.floats(0.0, 1e-6))
def test_a_ramp_adds_the_root_of_the_bytes_that_a_port_sends(size: int, stride: int, moved: float, ramp: float) -> None:
    # t = a + c sqrt(S) + S / B; each of the m ports of a node sends 1/m of the tensor
    plain = without_latency("h100-80g")
    node, fabric = (replace(level, ramp_s_per_sqrt_byte=ramp) for level in (plain.node, plain.fabric))
    group = span(plain, size, stride)
    before = gather_rates(plain, group).lanes(moved)
    after = gather_rates(replace(plain, node=node, fabric=fabric), group).lanes(moved)
    added = [later - earlier for earlier, later in zip(before, after, strict=True)]
    inner = ramp * moved**0.5 if group.inner > 1 else 0.0
    outer = ramp * (moved / group.inner) ** 0.5 if group.nodes > 1 else 0.0
    assert added == pytest.approx([inner, outer], rel=1e-6, abs=1e-12)


@given(ranks=st.sampled_from([1, 2, 4, 8, 16, 64]), stride=st.sampled_from([1, 2, 8]))
def test_a_ring_brings_every_part_that_is_missing(ranks: int, stride: int) -> None:
    cluster = without_latency("h100-80g")
    group = span(cluster, ranks, stride)
    inner, outer = sent_bytes(cluster, ring_lanes(cluster, group, ranks, COPY_BYTES))
    assert inner + outer == pytest.approx((ranks - 1) * COPY_BYTES, rel=1e-12)
    assert (outer > 0.0) is (ranks > 1 and ranks * stride > 8)  # some neighbour is across the fabric, and all wait
    assert min(inner, outer) == 0.0


@pytest.mark.parametrize(("ranks", "size"), [(4, 4), (16, 16)])
def test_every_send_of_a_ring_waits_once(ranks: int, size: int) -> None:
    cluster = cluster_of("h100-80g")
    level = cluster.node if size <= 8 else cluster.fabric
    lanes = ring_lanes(cluster, span(cluster, size, 1), ranks, 0.0)
    assert lanes.inner + lanes.outer == pytest.approx((ranks - 1) * level.latency_s, rel=1e-12)


@given(inner=st.sampled_from([1, 2, 4, 8]), nodes=st.sampled_from([1, 2, 4]))
def test_an_exchange_sends_all_but_the_own_share(inner: int, nodes: int) -> None:
    # all-to-all of S bytes: (m - 1)/m S, NVIDIA/nccl-tests doc/PERFORMANCE.md
    cluster, ranks = without_latency("h100-80g"), inner * nodes
    inside, across = sent_bytes(cluster, shuffle_lanes(cluster, Span(inner, nodes), ranks, COPY_BYTES))
    assert inside + across == pytest.approx((ranks - 1) / ranks * COPY_BYTES, rel=1e-12, abs=1e-3)
    assert across == pytest.approx((nodes - 1) / nodes * COPY_BYTES, rel=1e-12, abs=1e-3)


def test_more_nodes_are_never_fewer_visited() -> None:
    found = [distinct_nodes(experts(256, 8), nodes) for nodes in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    assert all(less <= more for less, more in pairwise(found))
    assert found[-1] == pytest.approx(8.0, rel=1e-12)  # every expert on a node of its own


@given(inner=st.sampled_from([1, 2, 4, 8]), nodes=st.integers(1, 32))
def test_a_gather_brings_every_part_that_is_missing(inner: int, nodes: int) -> None:
    # each of the m ports of a node brings 1/m of what other nodes hold; each rank gets (m-1)/m inside
    cluster = without_latency("h100-80g")
    lanes = gather_rates(cluster, Span(inner, nodes)).lanes(1.0)
    outside = lanes.outer * cluster.fabric.effective_bytes_per_s * inner
    assert outside == pytest.approx((nodes - 1) / nodes, rel=1e-12)
    assert lanes.inner * cluster.node.effective_bytes_per_s == pytest.approx((inner - 1) / inner, rel=1e-12)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_group_of_one_takes_no_time(name: str) -> None:
    cluster, alone = cluster_of(name), Span(1, 1)
    assert gather_rates(cluster, alone).lanes(COPY_BYTES) == Lanes(0.0, 0.0)
    assert flat_lanes(cluster, alone, 1, COPY_BYTES, 8) == Lanes(0.0, 0.0)
    assert hier_lanes(cluster, alone, COPY_BYTES, 8, 1.2) == Lanes(0.0, 0.0)


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("size", [1, 2, 8, 48, 256])
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_span_covers_the_group(name: str, size: int, stride: int) -> None:
    # ranks 0, stride, 2 stride, ...: count the nodes of eight that they touch
    found = span(cluster_of(name), size, stride)
    touched = [rank * stride // 8 for rank in range(size)]
    assert found.nodes == len(set(touched))
    assert found.inner == touched.count(0)


def test_a_supernode_keeps_its_groups_off_the_fabric() -> None:
    # 384 devices on one set of links, as CloudMatrix384 has them (arXiv 2506.12708)
    node = cluster_of("atlas-800t-a2")
    joined = replace(node, supernode=replace(node.fabric, name="links", size=384))
    for size, stride in ((384, 1), (48, 8), (16, 16)):
        assert span(joined, size, stride) == Span(size, 1)
        assert gather_rates(joined, span(joined, size, stride)).lanes(1.0).outer == 0.0
    assert span(joined, 768, 1) == Span(384, 2)


@given(
    name=st.sampled_from(CLUSTERS), size=DEGREES, stride=DEGREES, moved=st.floats(0.0, 1e11), times=st.floats(1.0, 10.0)
)
def test_more_bandwidth_is_never_slower(name: str, size: int, stride: int, moved: float, times: float) -> None:
    slow = cluster_of(name)
    fast = faster(slow, times)
    group = span(slow, size, stride)
    for make in (
        lambda c: gather_rates(c, group).lanes(moved),
        lambda c: flat_lanes(c, group, size, moved, 8),
        lambda c: hier_lanes(c, group, moved, 8, 1.2),
    ):
        assert all(after <= before for before, after in zip(make(slow), make(fast), strict=True))
        assert serial(fast, make(fast)) <= serial(slow, make(slow))
    assert send_s(fast, stride, size, moved) <= send_s(slow, stride, size, moved)


@given(name=st.sampled_from(CLUSTERS), size=DEGREES, stride=DEGREES, moved=st.floats(0.0, 1e11))
def test_more_bytes_are_never_faster(name: str, size: int, stride: int, moved: float) -> None:
    cluster = cluster_of(name)
    group = span(cluster, size, stride)
    for make in (gather_rates(cluster, group).lanes, lambda b: flat_lanes(cluster, group, size, b, 8)):
        assert all(more >= less for less, more in zip(make(moved), make(2.0 * moved), strict=True))


@given(inner=st.floats(0.0, 10.0), outer=st.floats(0.0, 10.0))
def test_streaming_levels_take_the_longer_and_others_the_sum(inner: float, outer: float) -> None:
    cluster = cluster_of("h100-80g")
    stream, apart = (replace(cluster, pipelined_collectives=flag) for flag in (True, False))
    assert serial(stream, Lanes(inner, outer)) == max(inner, outer)
    assert serial(apart, Lanes(inner, outer)) == inner + outer


@pytest.mark.parametrize(
    ("ranks_apart", "job_ranks", "inside"), [(1, 8, True), (4, 8, True), (8, 64, False), (2, 16, False)]
)
def test_messages_stay_in_the_node_only_where_the_job_does(ranks_apart: int, job_ranks: int, inside: bool) -> None:
    cluster = cluster_of("h100-80g")
    level = cluster.node if inside else cluster.fabric
    expected = level.latency_s + COPY_BYTES / level.effective_bytes_per_s
    assert send_s(cluster, ranks_apart, job_ranks, COPY_BYTES) == expected
