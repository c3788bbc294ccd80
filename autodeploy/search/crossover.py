"""Which way of dispatch is quickest, by the size of the expert group: times of one dispatch, and why."""

from __future__ import annotations

from dataclasses import dataclass

from autodeploy.cost.collectives import Lanes, Span, span
from autodeploy.cost.exchange import WAYS, Routed
from autodeploy.cost.routing import visited_nodes, visited_ranks
from autodeploy.search.enumerate import divisors
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model, MoE
from autodeploy.spec.plan import DISPATCH_WORDS, Dispatch

ELEMENT_BYTES = 2.0
STEPS = (Dispatch.FLAT, Dispatch.HIER, Dispatch.DEDUP, Dispatch.GATHER)
"""Made of a library's collectives; a fused kernel is another matter."""
SAME_FRAC = 0.02
"""Ways whose times differ by less are equal here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """One size of the expert group."""

    ep: int
    nodes: int
    times_s: tuple[float, ...]
    """Of one dispatch by each of `DISPATCH_WORDS`; the hierarchical one needs several nodes."""
    fastest: str
    """Of the ways that are made of collectives."""
    reason: str

    def seconds_of(self, way: str) -> float:
        """Seconds by one way."""
        return self.times_s[DISPATCH_WORDS.index(way)]


def crossings(model: Model, cluster: Cluster, tokens: int, imbalance: float = 1.0) -> list[Crossing]:
    """Every group size that the experts divide by, each rank with `tokens` tokens of its own."""
    moe = model.moe
    if moe is None:
        return []
    routed = Routed(ELEMENT_BYTES * model.hidden * tokens, moe, imbalance)
    return [_crossing(cluster, ep, routed) for ep in divisors(moe.experts) if ep > 1]


def _crossing(cluster: Cluster, ep: int, routed: Routed) -> Crossing:
    group = span(cluster, ep, 1)
    found = {way: make(cluster, group, ep, routed) for way, make in WAYS.items()}
    steps = [way for way in STEPS if way is not Dispatch.HIER or group.nodes > 1]
    best = min(steps, key=lambda way: float(found[way].alone_s))
    equal = [way for way in steps if found[way].alone_s <= (1.0 + SAME_FRAC) * found[best].alone_s]
    best = equal[0]
    return Crossing(
        ep=ep,
        nodes=int(group.nodes),
        times_s=tuple(float(found[way].alone_s) for way in Dispatch),
        fastest=DISPATCH_WORDS[best],
        reason=_reason(best, found[best].lanes, ep, group, routed.moe),
    )


def copies(way: Dispatch, ep: int, group: Span, moe: MoE) -> tuple[float, float]:
    """Copies of its tokens that a rank sends: to other nodes, and to other ranks of its node."""
    m, nodes = float(group.inner), float(group.nodes)
    k = float(moe.top_k)
    if way is Dispatch.FLAT:
        return k * (1.0 - 1.0 / nodes), k * (1.0 / nodes - 1.0 / ep)
    if way is Dispatch.HIER:
        return nodes - 1.0, k * (m - 1.0) / m
    if way is Dispatch.GATHER:
        return nodes - 1.0, (m - 1.0) * nodes
    across, inside = float(visited_nodes(moe, nodes)), float(visited_ranks(moe, nodes, m))
    return across * (1.0 - 1.0 / nodes), inside * (m - 1.0) / m


def _reason(best: Dispatch, lanes: Lanes, ep: int, group: Span, moe: MoE) -> str:
    """What bounds the best way, and what it sends where the plain all-to-all would send more."""
    mine, flat = copies(best, ep, group, moe), copies(Dispatch.FLAT, ep, group, moe)
    place = int(lanes.inner > lanes.outer)
    where = ("across nodes", "inside nodes")[place]
    if group.nodes == 1 and best is not Dispatch.FLAT:
        return f"{mine[1]:.1f} for {flat[1]:.1f} copies {where}"
    if best is Dispatch.FLAT:
        return f"{mine[place]:.1f} copies {where}, and both levels at once"
    return f"{mine[0]:.1f} for {flat[0]:.1f} copies across nodes, {mine[1]:.1f} for {flat[1]:.1f} inside; bound {where}"
