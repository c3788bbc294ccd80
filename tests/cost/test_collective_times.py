"""Collectives: measured ratios, published volumes, and what no bandwidth or degree may turn around.

Full mesh: all-reduce on 2, 4 and 8 devices of an Atlas 800T A2 node (limulidae README). Volumes of dispatch:
arXiv 2603.07685 table 7; Ascend/MindSpeed moe-hierarchical-alltoallv. Ring formulas:
NVIDIA/nccl-tests:doc/PERFORMANCE.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.cost.collectives import (
    Lanes,
    Span,
    gather_rates,
    port_bytes_per_s,
    ring_lanes,
    send_s,
    serial,
    shuffle_lanes,
    span,
)  # fmt: skip
from autodeploy.cost.exchange import Routed, flat_lanes, hier_lanes
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import MoE
from tests.builders import cluster_of

CLUSTERS = ("atlas-800t-a2", "h100-80g")
DEGREES = st.sampled_from([1, 2, 4, 8, 16, 64, 256])
COPY_BYTES = 2.0**24
EXPERTS = MoE(experts=256, top_k=8, expert_width=1)


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


def sent_bytes(cluster: Cluster, lanes: Lanes) -> tuple[float, float]:
    """Bytes on the links of a switched node, and on the port to the fabric."""
    return lanes.inner * cluster.node.effective_bytes_per_s, lanes.outer * cluster.fabric.effective_bytes_per_s


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
    assert hier_lanes(cluster, alone, Routed(COPY_BYTES, EXPERTS, 1.2)) == Lanes(0.0, 0.0)


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
        lambda c: hier_lanes(c, group, Routed(moved, EXPERTS, 1.2)),
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
