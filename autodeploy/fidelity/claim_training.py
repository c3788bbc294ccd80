"""Claims about the run of Pangu Ultra MoE 718B: tokens a second, memory, balance, kernels and hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autodeploy.analysis.inventory import kind_counts
from autodeploy.catalog.lookup import load
from autodeploy.fidelity.claim_exchange import HIER, PAIRED
from autodeploy.fidelity.claim_jobs import (
    BRIEF,
    PANGU,
    PARTS,
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
from autodeploy.search.evaluate import evaluate
from autodeploy.search.layers import layers_of
from autodeploy.search.result import COMPUTE_TERMS, PlanResult
from autodeploy.spec.model import Model

CUT = 0.70
"""Published share of activations that recompute and swap take away."""
BALANCED = 1.05
"""Busiest rank over the mean after experts have moved (assumed)."""
FASTER: dict[str, tuple[float, float]] = {
    "attention": (1.5, 1.3), "matmul": (1.1, 1.1), "experts": (1.1, 1.1), "vector": (3.0, 3.0),
}  # fmt: skip
"""Published gains of operators, forward and backward."""
BACKWARD = {"attention": 2.5 / 3.5}
"""Share of the backward pass in a term; of the others two thirds."""
BEFORE, AFTER, ALL = "before", "after", "all"
STATES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    BEFORE: (4096, {}, PLAIN),
    AFTER: (6144, PAIRED, PLAIN | REUSED),
    ALL: (6144, PAIRED, TUNED),
}
"""Devices, plan and stack of the three published states of the run: flat and exposed; hierarchical, merged passes,
counts used again, solved recompute; and then kernels, hosts and balance as well."""


def _state(name: str, part: str, left: Open) -> PlanResult:
    devices, plan, profile = STATES[name]
    load_then = min(left.imbalance, BALANCED) if name == ALL else left.imbalance
    return pangu(part, left._replace(imbalance=load_then), plan, devices, **profile)


def tokens(name: str) -> list[Figure]:
    """Tokens a second of the whole machine."""
    return per_part(lambda part, left: STATES[name][0] * _state(name, part, left).tokens_per_s_per_device)


def grown(first: str, then: str) -> list[Figure]:
    """Tokens a second and device of one state over another: what published MFUs have in common, whatever their peak."""
    return per_part(lambda part, left: 1.0 + gain(_state(first, part, left), _state(then, part, left)))


def layers() -> list[Figure]:
    """61 against 66 decoder layers under the brief's plan."""
    return per_part(lambda part, left: gain(_with_layers(66, part, left), _with_layers(61, part, left)))


def _with_layers(count: int, part: str, left: Open) -> PlanResult:
    model = replace(load(Model, PANGU), layers=count)
    plan = plan_of(**(BRIEF | {"dp": 48, "layout": left.layout} | PAIRED))
    stack = PLAIN | REUSED
    return evaluate(space_of(model, part, plan, left.microbatches, 8192, left.imbalance, **stack), plan)


def saved() -> list[Figure]:
    """Activations that solved recompute and swap take away so that a micro-batch of 2 fits."""

    def gone(part: str, policy: str) -> float:
        whole, less = (_rows(_of_batch(part, each)) for each in ("none", policy))
        return 1.0 - less / whole

    policies = ("solve+swap", "solve", "fit")
    return [Figure(scenario=name, ours=over(gone, (part,), policies)) for part, name in PARTS.items()]


def _of_batch(part: str, policy: str, mbs: int = 2) -> PlanResult:
    return pangu(part, Open(), PAIRED | {"mbs": mbs, "recompute": policy}, **PLAIN | REUSED)


def _rows(found: PlanResult) -> float:
    return max(stage.memory_moments["backward"]["activations"] for stage in found.stages)


def largest_batch() -> list[Figure]:
    """The largest micro-batch that fits once 70 % of its activations are gone from every stage; with all of them not
    even one sequence fits."""

    def largest(part: str) -> float:
        return float(max((mbs for mbs in range(1, 9) if _fits_cut(_of_batch(part, "none", mbs))), default=0))

    return [Figure(scenario=name, ours=spread(largest(part))) for part, name in PARTS.items()]


def _fits_cut(found: PlanResult) -> bool:
    return all(
        stage.needed_bytes - CUT * stage.memory_moments["backward"]["activations"] <= found.usable_memory_bytes
        for stage in found.stages
    )


def balanced() -> list[Figure]:
    """Experts moved (load to 1.05) and stages balanced (even layers against the best rule)."""

    def gained(part: str, left: Open) -> float:
        before = pangu(part, left, PAIRED | {"layout": "even"}, **PLAIN | REUSED)
        return gain(before, pangu(part, left._replace(imbalance=BALANCED), PAIRED, **PLAIN | REUSED))

    return per_part(gained)


def operators() -> list[Figure]:
    """The step of the run with every operator as much faster as published."""

    def gained(part: str, left: Open) -> float:
        found = _state(AFTER, part, left)
        less = sum(found.time_terms[name] * _less(name) for name in FASTER)
        return found.step_time_s / (found.step_time_s - less) - 1.0

    return per_part(gained)


def _less(term: str) -> float:
    forward, backward = FASTER[term]
    behind = BACKWARD.get(term, 2.0 / 3.0)
    return 1.0 - (1.0 - behind) / forward - behind / backward


def _layer_terms(part: str, **profile: Any) -> dict[str, float]:
    """Seconds of every engine in all layers of the model, forward and backward, of one microbatch."""
    plan = plan_of(**(BRIEF | {"dp": 48}))
    space = space_of(PANGU, part, plan, 48, 8192, **profile)
    costs, counts = layers_of(space, plan)[0], kind_counts(space.model, space.job.mtp)
    passes = [(count, costs[kind].forward_terms, costs[kind].backward_terms) for kind, count in counts.items()]
    return {name: float(sum(n * (there[name] + back[name]) for n, there, back in passes)) for name in COMPUTE_TERMS}


def vector_ratio() -> list[Figure]:
    """Seconds of the vector chains line by line over fused."""

    def ratio(part: str) -> float:
        slow, fast = (_layer_terms(part, **PLAIN | {"fused": each["fused"]}) for each in (PLAIN, TUNED))
        return slow["vector"] / fast["vector"]

    return [Figure(scenario="norms, SwiGLU, rotary positions, permutation", ours=over(ratio, tuple(PARTS)))]


def engines() -> list[Figure]:
    """Share of the engines' time that attention, the dense products and vector chains take; grouped products apart."""

    def taken(part: str) -> float:
        terms = _layer_terms(part, **PLAIN)
        return 1.0 - terms["experts"] / sum(terms.values())

    return [Figure(scenario=name, ours=over(taken, (part,))) for part, name in PARTS.items()]


def hosts(counts: dict[str, Any], note: str) -> list[Figure]:
    """Waits of 2.1 ms against 0.6 ms, launches as much quicker; without merged passes."""

    def gained(part: str, left: Open) -> float:
        plan, stack = HIER | {"recompute": "solve"}, PLAIN | counts
        slow, quick = (pangu(part, left, plan, **stack | {"pinned_host": pinned}) for pinned in (False, True))
        return gain(slow, quick)

    return per_part(gained, note)


def idle() -> list[Figure]:
    """Share of the step that the device waits for its host, all tuned."""
    return per_part(lambda part, left: share(_state(ALL, part, left), "launch"))
