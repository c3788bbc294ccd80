"""Seconds of communication: which levels a group crosses, and what a collective takes on each (model.md 6).

Times come per lane: `inner` on the links of a node, `outer` on the port to the fabric.
"""

from __future__ import annotations

from typing import NamedTuple

from autodeploy.numeric import Num, ceil, doublings, floor, maximum, minimum, sqrt, where
from autodeploy.spec.cluster import Cluster, Level


class Span(NamedTuple):
    """How a process group lies on the machine: so many ranks in a node, on so many nodes."""

    inner: Num
    nodes: Num


class Lanes(NamedTuple):
    """Seconds on the links of a node and on the port to the fabric."""

    inner: Num
    outer: Num


def span(cluster: Cluster, size: Num, stride: Num) -> Span:
    """A group of `size` ranks, each `stride` ranks from the next (rank order: see spec.plan.RANK_ORDER)."""
    inner = minimum(size, maximum(floor(cluster.inner.size / stride), 1.0))
    return Span(inner=inner, nodes=ceil(size / inner))


def port_bytes_per_s(level: Level, ranks: Num) -> Num:
    """What one rank sends at in a group of `ranks`: a mesh uses ranks - 1 links, a switch one port.

    Source: model.md 6.2; all-reduce on 2/4/8 910B in the ratio 1 : 2.5 : 7.
    """
    if level.topology == "switch":
        return level.effective_bytes_per_s
    return level.effective_bytes_per_s * maximum(ranks - 1.0, 1.0)


def serial(cluster: Cluster, lanes: Lanes) -> Num:
    """Wall time of a collective over two levels: the longer where they stream, else the sum."""
    if cluster.pipelined_collectives:
        return maximum(lanes.inner, lanes.outer)
    return lanes.inner + lanes.outer


class Rates(NamedTuple):
    """A collective whose time is linear in its bytes, per lane."""

    inner_s_per_byte: Num
    inner_s: Num
    inner_ramp: Num
    """Seconds per square root of a byte."""
    outer_s_per_byte: Num
    outer_s: Num
    outer_ramp: Num

    def lanes(self, moved_bytes: Num) -> Lanes:
        """Seconds for so many bytes."""
        root = sqrt(moved_bytes)
        return Lanes(
            inner=self.inner_s_per_byte * moved_bytes + self.inner_ramp * root + self.inner_s,
            outer=self.outer_s_per_byte * moved_bytes + self.outer_ramp * root + self.outer_s,
        )


def gather_rates(cluster: Cluster, group: Span) -> Rates:
    """All-gather or reduce-scatter per byte of the whole tensor; an all-reduce is two of them.

    Formula: (m-1)/m * S / B_node + c sqrt(S), (N-1)/N * (S/m) / B_fabric + c sqrt(S/m), plus latency per doubling
    Source: model.md 6.1; NVIDIA/nccl-tests doc/PERFORMANCE.md; the three terms fit nccl-tests logs within 3 %.
    """
    m, nodes = group
    return Rates(
        inner_s_per_byte=(m - 1.0) / m / port_bytes_per_s(cluster.inner, m),
        inner_s=cluster.inner.latency_s * doublings(m),
        inner_ramp=where(m > 1, cluster.inner.ramp_s_per_sqrt_byte, 0.0),
        outer_s_per_byte=(nodes - 1.0) / nodes / m / cluster.fabric.effective_bytes_per_s,
        outer_s=cluster.fabric.latency_s * doublings(nodes),
        outer_ramp=where(nodes > 1, cluster.fabric.ramp_s_per_sqrt_byte / sqrt(m), 0.0),
    )


def ring_lanes(cluster: Cluster, group: Span, ranks: Num, part_bytes: Num) -> Lanes:
    """ranks - 1 sends of a rank's part to its neighbour; on several nodes some neighbour is across the fabric.

    Formula: (ranks - 1) (latency + S / B). Source: model.md 6.3.
    """
    sends = ranks - 1.0
    inner = sends * (cluster.inner.latency_s + part_bytes / cluster.inner.effective_bytes_per_s)
    outer = sends * (cluster.fabric.latency_s + part_bytes / cluster.fabric.effective_bytes_per_s)
    across = group.nodes > 1
    return Lanes(inner=where(across, 0.0, inner), outer=where(across, outer, 0.0))


def shuffle_lanes(cluster: Cluster, group: Span, ranks: Num, sent_bytes: Num) -> Lanes:
    """An all-to-all in which every rank keeps its own share of `sent_bytes`.

    Formula: S (1 - 1/N) over the fabric, S (1/N - 1/ranks) inside the node. Source: model.md 6.1.
    """
    nodes = group.nodes
    inside, across = sent_bytes * (1.0 / nodes - 1.0 / ranks), sent_bytes * (1.0 - 1.0 / nodes)
    return exchange_lanes(cluster, group, inside, across)


def exchange_lanes(cluster: Cluster, group: Span, inside_bytes: Num, across_bytes: Num) -> Lanes:
    """An all-to-all in which a rank sends so much to ranks of its node and so much to other nodes."""
    m, nodes = group
    return Lanes(
        inner=inside_bytes / port_bytes_per_s(cluster.inner, m) + cluster.inner.latency_s * doublings(m),
        outer=across_s(cluster, nodes, across_bytes) + cluster.fabric.latency_s * doublings(nodes),
    )


def across_s(cluster: Cluster, nodes: Num, sent_bytes: Num) -> Num:
    """An all-to-all over the fabric; what leaves a leaf shares its oversubscribed uplinks.

    Formula: max(S / B, oversubscription S (N - L)/(N - 1) / B), L nodes below a leaf
    Source: uniform traffic over a two-tier Clos network; rings cross a leaf once and are not slowed.
    """
    fabric = cluster.fabric
    alone = sent_bytes / fabric.effective_bytes_per_s
    if not fabric.leaf_size or fabric.oversubscription <= 1.0:
        return alone
    below = fabric.leaf_size / cluster.inner.size
    leaving = maximum(nodes - below, 0.0) / maximum(nodes - 1.0, 1.0)
    return alone * maximum(fabric.oversubscription * leaving, 1.0)


def send_s(cluster: Cluster, ranks_apart: Num, job_ranks: Num, message_bytes: Num) -> Num:
    """Point to point between neighbouring stages: over the fabric unless the whole job sits in one node."""
    inside = cluster.inner.latency_s + message_bytes / cluster.inner.effective_bytes_per_s
    outside = cluster.fabric.latency_s + message_bytes / cluster.fabric.effective_bytes_per_s
    in_node = (job_ranks <= cluster.inner.size) & (ranks_apart < cluster.inner.size)
    return where(in_node, inside, outside)
