"""How many destinations the experts of one token lie on (model.md 6.4)."""

from __future__ import annotations

from autodeploy.numeric import Num, maximum, minimum
from autodeploy.spec.model import MoE


def hit_frac(experts: Num, top_k: int, share: Num) -> Num:
    """Chance that at least one of a token's k distinct experts lies in a group that gets `share` of all copies.

    Formula: 1 - C(E - E share, k) / C(E, k), continued to any E share: a group with so much of the load counts as so
    many of the experts
    Source: model.md 6.4. Exact under even routing; of drawn routers within 4 % where the busiest group has 1.4 times
    the mean, up to 18 % low at twice the mean, where few hot experts make its load.
    """
    missed: Num = 1.0
    outside = experts * (1.0 - minimum(share, 1.0))
    for taken in range(top_k):
        missed = missed * maximum(outside - taken, 0.0) / maximum(experts - taken, 1.0)
    return 1.0 - missed


def visited_nodes(moe: MoE, nodes: Num, load: Num = 1.0) -> Num:
    """Copies a token that `nodes` nodes would get if each had the `load` of the busiest (over the mean); with even
    load the expected number of nodes that a token visits, at most the model's node limit.

    Source: model.md 6.4; 1.99 / 3.61 / 5.29 / 6.52 of 2 / 4 / 8 / 16 nodes for 8 of 256 experts.
    """
    found = nodes * hit_frac(1.0 * moe.experts, moe.top_k, load / nodes)
    if not moe.node_limit:
        return found
    even = nodes * hit_frac(1.0 * moe.experts, moe.top_k, 1.0 / nodes)
    return minimum(found * minimum(moe.node_limit / even, 1.0), 1.0 * nodes)


def visited_ranks(moe: MoE, nodes: Num, inner: Num, load: Num = 1.0) -> Num:
    """The same for the `inner` ranks of each node; under a node limit all k experts lie on the ranks of so many."""
    among = minimum(nodes, 1.0 * moe.node_limit) if moe.node_limit else nodes
    ranks = among * inner
    return ranks * hit_frac(moe.experts * among / nodes, moe.top_k, load / ranks)
