"""Where a step goes on the average stage: useful work, and what a pipeline loses of it."""

from __future__ import annotations

from collections.abc import Mapping

from autodeploy.cost.layers import ENGINE_WORDS, LayerCost
from autodeploy.search.arranged import Arranged, StageCost
from autodeploy.search.exchanges import unit_of
from autodeploy.search.result import StageResult
from autodeploy.search.steps import Apart
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Overlap

SPLIT_TERMS = ("compute", "recompute", "communication", "ideal_bubble", "imbalance", "after")
"""Compute with its launches; forward work repeated; communication in the open; the bubble of equal stages; what
unequal ones add (below 0 where they do better); gradients, optimizer and parameters after the pipeline."""


def step_split(
    found: Arranged, stages: tuple[StageResult, ...], costs: Mapping[Kind, LayerCost], step_s: float, apart: Apart
) -> dict[str, float]:
    """The step as a sum of `SPLIT_TERMS`, seconds.

    ideal_bubble is the simulated pipeline with every slot at the mean, less its work; imbalance is the rest.
    """
    role_of_stage = found.case.layout.role_of_stage
    roles = [found.stages[role_of_stage[stage.stage]] for stage in stages]
    compute = _mean([_compute_s(found, role, costs) for role in roles])
    recompute = _mean([recompute_s(found, role) for role in roles])
    busy = _mean([stage.busy_s for stage in stages])
    sends = step_s - float(apart.without_sends_s[0])
    terms = {
        "compute": compute,
        "recompute": recompute,
        "communication": busy - compute - recompute + sends,
        "ideal_bubble": max(float(apart.equal_s[0]) - busy, 0.0),
        "after": _mean([stage.tail_s for stage in stages]),
    }
    terms["imbalance"] = step_s - sum(terms.values())
    return {name: terms[name] for name in SPLIT_TERMS}


def recompute_s(found: Arranged, cost: StageCost) -> float:
    """Engine seconds that one stage of a role repeats in a step."""
    return float(found.microbatches * sum(cost.role.count(kind) * cost.extra[kind].busy for kind in cost.role.kinds))


def exchange_s(found: Arranged, cost: StageCost) -> float:
    """Expert all-to-all of one stage of a role in a step, hidden or not."""
    passes = zip(cost.role.content_counts, cost.forward, cost.backward, strict=True)
    return float(found.microbatches * sum(count * (f.exchange + b.exchange) for count, f, b in passes))


def alternating_by(found: Arranged, cost: StageCost) -> str | None:
    """The unit in which merged passes of a role's fullest chunk alternate (`cost.pairing.UNITS`); None without any."""
    if found.case.overlap == Overlap.NONE:
        return None
    forward = max(cost.forward, key=lambda load: float(load.exchange))
    backward = max(cost.backward, key=lambda load: float(load.exchange))
    return unit_of(forward, backward, float(found.pipe.sends_s), found.case.taken_frac)


def _compute_s(found: Arranged, cost: StageCost, costs: Mapping[Kind, LayerCost]) -> float:
    each = {
        kind: _engines_s(costs[kind].forward_terms) + _engines_s(costs[kind].backward_terms) for kind in cost.role.kinds
    }
    return float(found.microbatches * sum(cost.role.count(kind) * each[kind] for kind in cost.role.kinds))


def _engines_s(terms: Mapping[str, float]) -> float:
    return sum(terms[name] for name in (*ENGINE_WORDS, "launch"))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
