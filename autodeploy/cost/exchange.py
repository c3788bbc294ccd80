"""Dispatch and combine: what each way of bringing tokens to their experts sends, and how long it takes (model.md 6.4).

X is one copy of a rank's tokens; a group lies on N nodes with m of its ranks each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from autodeploy.cost.collectives import Lanes, Span, exchange_lanes, gather_rates, serial, shuffle_lanes
from autodeploy.cost.routing import visited_nodes, visited_ranks
from autodeploy.numeric import Num, doublings, maximum, where
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import MoE
from autodeploy.spec.plan import Dispatch


class Routed(NamedTuple):
    """What is exchanged: one copy of the tokens, by whom it is routed, and the busiest rank's load over the mean."""

    copy_bytes: Num
    moe: MoE
    imbalance: Num = 1.0


def flat_lanes(cluster: Cluster, group: Span, ranks: Num, copy_bytes: Num, top_k: int) -> Lanes:
    """One all-to-all in which every token travels to each of its k experts.

    Formula: k * X * (1 - 1/N) over the fabric, k * X * (1/N - 1/ranks) inside the node
    Source: model.md 6.4.
    """
    return shuffle_lanes(cluster, group, ranks, top_k * copy_bytes)


def hier_lanes(cluster: Cluster, group: Span, routed: Routed) -> Lanes:
    """All-gather between equal positions of the nodes, then an all-to-all inside each node. Every node gathers all
    tokens, however they are routed; the second step ends with the busiest rank.

    Formula: X * (N - 1) over the fabric, then imbalance * k * X * (m - 1)/m inside the node
    Source: model.md 6.4; half of the flat volume across 4 nodes at k = 8.
    """
    m, nodes = group
    inside = routed.imbalance * routed.moe.top_k * routed.copy_bytes * (m - 1.0) / m
    fabric = cluster.fabric
    across = routed.copy_bytes * (nodes - 1.0) / fabric.effective_bytes_per_s + fabric.latency_s * doublings(nodes)
    return exchange_lanes(cluster, group, inside, 0.0)._replace(outer=across)


def dedup_lanes(cluster: Cluster, group: Span, routed: Routed) -> Lanes:
    """Every token once to each node that needs it, and there once to each rank that does.

    Formula: X D (1 - 1/N) over the fabric, X D' (m - 1)/m inside the node; D and D' the nodes and ranks of a token
    Source: model.md 6.4 (DeepEP, HybridEP; MindSpeed moe-zerc); flat over it 1.98 on 8 nodes (arXiv 2603.07685
    table 7).
    """
    m, nodes = group
    across = routed.copy_bytes * visited_nodes(routed.moe, nodes, routed.imbalance) * (1.0 - 1.0 / nodes)
    inside = routed.copy_bytes * visited_ranks(routed.moe, nodes, m, routed.imbalance) * (m - 1.0) / m
    return exchange_lanes(cluster, group, inside, across)


def gather_lanes(cluster: Cluster, group: Span, copy_bytes: Num) -> Lanes:
    """Every rank gathers the tokens of all; combine scatters as much.

    Formula: all-gather of N m X (6.1), whatever the routing. Source: Megatron-Core moe/token_dispatcher.py (allgather).
    """
    return gather_rates(cluster, group).lanes(group.inner * group.nodes * copy_bytes)


class Exchange(NamedTuple):
    """One dispatch or combine: seconds on each level, and of the whole."""

    lanes: Lanes
    alone_s: Num


Way = Callable[[Cluster, Span, Num, Routed], Exchange]


def _flat(cluster: Cluster, group: Span, ranks: Num, routed: Routed) -> Exchange:
    sent = routed.copy_bytes * routed.imbalance
    lanes = flat_lanes(cluster, group, ranks, sent, routed.moe.top_k)
    return Exchange(lanes, maximum(lanes.inner, lanes.outer))


def _hier(cluster: Cluster, group: Span, ranks: Num, routed: Routed) -> Exchange:
    del ranks
    lanes = hier_lanes(cluster, group, routed)
    return Exchange(lanes, lanes.inner + lanes.outer)


def _dedup(cluster: Cluster, group: Span, ranks: Num, routed: Routed) -> Exchange:
    del ranks
    lanes = dedup_lanes(cluster, group, routed)
    return Exchange(lanes, lanes.inner + lanes.outer)


def _gather(cluster: Cluster, group: Span, ranks: Num, routed: Routed) -> Exchange:
    del ranks
    lanes = gather_lanes(cluster, group, routed.copy_bytes)
    return Exchange(lanes, serial(cluster, lanes))


def _fused(cluster: Cluster, group: Span, ranks: Num, routed: Routed) -> Exchange:
    del ranks
    lanes = dedup_lanes(cluster, group, routed)
    return Exchange(lanes, maximum(lanes.inner, lanes.outer))


WAYS: dict[Dispatch, Way] = {
    Dispatch.FLAT: _flat,
    Dispatch.HIER: _hier,
    Dispatch.DEDUP: _dedup,
    Dispatch.GATHER: _gather,
    Dispatch.FUSED: _fused,
}
"""The levels of a flat all-to-all and of a fused kernel run at once, the two steps of the others in turn."""


def exchange_of(
    kinds: tuple[Dispatch, ...], dispatch: Num, cluster: Cluster, group: Span, ranks: Num, routed: Routed
) -> Exchange:
    """One dispatch or combine by the plan's way; `kinds` are all that occur."""
    found = WAYS[kinds[0]](cluster, group, ranks, routed)
    for kind in kinds[1:]:
        other, here = WAYS[kind](cluster, group, ranks, routed), dispatch == kind
        lanes = Lanes(*(where(here, o, f) for o, f in zip(other.lanes, found.lanes, strict=True)))
        found = Exchange(lanes, where(here, other.alone_s, found.alone_s))
    return found


def held_copies(dispatch: Num, group: Span, routed: Routed) -> Num:
    """Copies of a rank's tokens in one buffer of an exchange: of every expert, once a rank, or of all ranks."""
    once = visited_ranks(routed.moe, group.nodes, group.inner, routed.imbalance)
    is_once = (dispatch == Dispatch.DEDUP) | (dispatch == Dispatch.FUSED)
    every = routed.moe.top_k * routed.imbalance
    return where(dispatch == Dispatch.GATHER, group.inner * group.nodes, where(is_once, once, every))
