"""Claims about expert communication: volumes, times, stalls, and what they buy end to end."""

from __future__ import annotations

from typing import Any

from autodeploy.catalog.lookup import load
from autodeploy.cost.collectives import Span, gather_rates, span
from autodeploy.cost.exchange import WAYS, Routed
from autodeploy.fidelity.claim_jobs import (
    PANGU,
    PLAIN,
    REUSED,
    TUNED,
    Figure,
    Open,
    gain,
    over,
    pangu,
    per_part,
    plan_of,
    share,
    space_of,
    spread,
)
from autodeploy.search.crossover import copies
from autodeploy.search.evaluate import evaluate
from autodeploy.search.result import PlanResult
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model, MoE
from autodeploy.spec.plan import Dispatch, Overlap
from autodeploy.units import GIB, GIGA, MICRO

NODE = 8
TOKENS = 8192 // 8
"""Of a rank: one 8K sequence, cut over TP8."""
HIER: dict[str, Any] = {"dispatch": Dispatch.HIER}
PAIRED: dict[str, Any] = HIER | {"overlap": Overlap.PAIR, "recompute": "solve"}
RECIPE: dict[str, Any] = {"tp": 4, "pp": 16, "dp": 16}
"""DeepSeek-V3 on 1,024 NPUs: MindFormers r1.5.0 pretrain_deepseek3_671b.yaml, 32 microbatches of one 4K sequence."""
LENGTHS = (4096, 8192)
IMBALANCES = (1.2, 1.0, 1.4)


def _routed(name: str, tokens: int, imbalance: float = 1.0) -> Routed:
    model: Model = load(Model, name)
    assert model.moe is not None
    return Routed(2.0 * model.hidden * tokens, model.moe, imbalance)


def volume() -> list[Figure]:
    """Copies across nodes, hierarchical over flat, on four nodes."""
    group, moe = Span(NODE, 4), _moe(PANGU)
    ratio = copies(Dispatch.HIER, 32, group, moe)[0] / copies(Dispatch.FLAT, 32, group, moe)[0]
    return [Figure(scenario="EP32 on 4 nodes, 8 experts a token", ours=spread(ratio))]


def _moe(name: str) -> MoE:
    return _routed(name, 1).moe


def faster(ep: int) -> list[Figure]:
    """Time of a flat over a hierarchical all-to-all of Pangu Ultra MoE."""
    cluster = load(Cluster, "atlas-800t-a2")

    def ratio(tokens: int, imbalance: float) -> float:
        sent = _routed(PANGU, tokens, imbalance)
        flat, hier = (WAYS[way](cluster, Span(NODE, ep // NODE), ep, sent) for way in (Dispatch.FLAT, Dispatch.HIER))
        return float(flat.alone_s / hier.alone_s)

    return [
        Figure(scenario=f"EP{ep}, micro-batch 2 (1) at 8K, TP8", ours=over(ratio, (2 * TOKENS, TOKENS), IMBALANCES))
    ]


def _v3(seq_len: int, microbatches: int, imbalance: float, plan: dict[str, Any], **profile: Any) -> PlanResult:
    wanted = plan_of(**(RECIPE | plan))
    space = space_of("deepseek-v3", "atlas-800t-a2", wanted, microbatches, seq_len, imbalance, **profile)
    return evaluate(space, wanted)


def merged_at_16() -> list[Figure]:
    """Step of DeepSeek-V3 with EP16, hierarchical for flat, nothing overlapped."""

    def gained(seq_len: int, microbatches: int, imbalance: float) -> float:
        asked = (seq_len, microbatches, imbalance)
        flat, hier = (_v3(*asked, {"ep": 16} | way, **PLAIN | REUSED) for way in ({}, HIER))
        return gain(flat, hier)

    ours = over(gained, LENGTHS, (32, 64), IMBALANCES)
    return [Figure(scenario="DeepSeek-V3, TP4 PP16 EP16 DP16, 4K (8K), 32 (64) microbatches", ours=ours)]


def reuse() -> list[Figure]:
    """Step of DeepSeek-V3 with one wait a sparse layer for four; pinned hosts wait less."""

    def gained(pinned: bool, microbatches: int) -> float:
        stack = PLAIN | {"pinned_host": pinned}
        before, after = (_v3(4096, microbatches, 1.2, {"ep": 16}, **stack | counts) for counts in ({}, REUSED))
        return gain(before, after)

    ours = over(gained, (False, True), (32, 64))
    return [Figure(scenario="DeepSeek-V3, TP4 PP16 EP16; waits of 2.1 ms (0.6 ms)", ours=ours)]


def extended() -> list[Figure]:
    """Step of DeepSeek-V3 with experts whole on TP x EP ranks for experts cut over TP."""

    def gained(seq_len: int, imbalance: float) -> float:
        plans = ({"ep": 8, "etp": 4}, {"ep": 32, "etp": 1})
        cut, whole = (_v3(seq_len, 32, imbalance, plan, **PLAIN) for plan in plans)
        return gain(cut, whole)

    ours = over(gained, LENGTHS, IMBALANCES)
    return [Figure(scenario="DeepSeek-V3, TP4 PP16, 4K (8K): EP8 x ETP4 to EP32", ours=ours)]


def whole_stack() -> list[Figure]:
    """DeepSeek-V3 out of the box against extended experts, unpadded attention, counts on the device, fused kernels."""
    after_all = TUNED | {"moe_stalls": 0, "moe_backward_stalls": 0}

    def gained(imbalance: float, merged: bool) -> float:
        before = _v3(4096, 32, imbalance, {"ep": 8, "etp": 4}, **PLAIN)
        return gain(before, _v3(4096, 32, imbalance, {"ep": 32} | (HIER if merged else {}), **after_all))

    ours = over(gained, IMBALANCES, (False, True))
    return [Figure(scenario="DeepSeek-V3, TP4 PP16, 32 microbatches (hierarchical as well)", ours=ours)]


def paired() -> list[Figure]:
    """Step of the brief's plan with merged passes for exposed all-to-alls, both hierarchical."""

    def gained(part: str, left: Open) -> float:
        alone = pangu(part, left, HIER | {"recompute": "solve"}, **PLAIN | REUSED)
        return gain(alone, _paired(part, left))

    return per_part(gained, ", hierarchical both")


def _paired(part: str, left: Open) -> PlanResult:
    return pangu(part, left, PAIRED, **PLAIN | REUSED)


def hidden() -> list[Figure]:
    """Share of the all-to-all that merged passes hide."""
    return per_part(lambda part, left: _paired(part, left).exchange_hidden_frac or 0.0)


def exposed() -> list[Figure]:
    """Share of the step that is exposed all-to-all under merged passes."""
    return per_part(lambda part, left: share(_paired(part, left), "expert_exchange"))


def wasted() -> list[Figure]:
    """Share of the step before any of it in which the busiest stage's engine waits, or works for the busiest rank
    alone: all-to-alls, stalls, bubble, and the excess of the experts."""

    def idle(part: str, left: Open) -> float:
        found = pangu(part, left, devices=4096, **PLAIN)
        excess = share(found, "experts") * (1.0 - 1.0 / left.imbalance)
        return share(found, "expert_exchange", "launch", "bubble") + excess

    return per_part(idle, ", flat, no overlap")


def h100_microseconds(ep: int, way: Dispatch) -> list[Figure]:
    """One dispatch or combine on H100: hidden 7,168, 4,096 tokens a rank, 8 of 256 experts, 4 nodes at most."""
    found = WAYS[way](load(Cluster, "h100-80g"), Span(NODE, ep // NODE), ep, _routed("deepseek-v3", 4096))
    return [Figure(scenario="4,096 tokens a rank, bf16", ours=spread(float(found.alone_s) / MICRO))]


def a3_rate(ranks: int) -> list[Figure]:
    """GB/s of a rank in a dispatch on Atlas 900 A3: k copies of its tokens over the time (once a rank: the other)."""
    cluster, sent = load(Cluster, "atlas-900-a3"), _routed("deepseek-v3", 4096)

    def rate(way: Dispatch) -> float:
        found = WAYS[way](cluster, span(cluster, ranks, 1), ranks, sent)
        return float(sent.moe.top_k * sent.copy_bytes / found.alone_s) / GIGA

    return [Figure(scenario="4,096 tokens of 7,168 a rank", ours=over(rate, (Dispatch.FLAT, Dispatch.FUSED)))]


def mesh_rate(ranks: int, gathers: int) -> list[Figure]:
    """GB/s of a collective inside an Atlas 800T A2 node: bytes over time; an all-reduce is two gathers."""
    cluster = load(Cluster, "atlas-800t-a2")

    def rate(size: float) -> float:
        lanes = gather_rates(cluster, Span(ranks, 1)).lanes(size)
        return size / (gathers * float(lanes.inner)) / GIGA

    return [Figure(scenario="1 GiB (256 MiB, 4 GiB)", ours=over(rate, (GIB, GIB / 4.0, 4.0 * GIB)))]
