"""Published claims beside ours: the table, each row with its range, its ratio and what to make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from autodeploy.fidelity import claim_exchange as exchange
from autodeploy.fidelity import claim_others as others
from autodeploy.fidelity import claim_training as training
from autodeploy.fidelity.claim_jobs import PLAIN, REUSED, TUNED, Figure, Range, spread
from autodeploy.fidelity.own import own_table
from autodeploy.fidelity.predict import Prediction
from autodeploy.spec.plan import Dispatch

NEAR = 0.25
"""A prediction that is off by no more agrees."""
Kind = Literal["input", "identity", "predicted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What was published."""

    id: str
    claim: str
    source: str
    published: float
    unit: str
    sense: Literal["about", "at_least", "at_most"] = "about"
    kind: Kind
    inputs: str
    why: str = ""
    """Why ours is further off than `NEAR`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """The file of claims."""

    claim: tuple[Claim, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A claim beside ours in one scenario."""

    claim: Claim
    scenario: str
    ours: Range

    @property
    def over_published(self) -> float:
        """Our nominal over the published figure."""
        return self.ours.nominal / self.claim.published

    @property
    def agrees(self) -> bool:
        """Within a quarter."""
        return abs(self.over_published - 1.0) <= NEAR

    @property
    def verdict(self) -> str:
        """What to make of it."""
        if self.claim.kind == "identity":
            return "arithmetic of the claim"
        because = f": {self.claim.why}" if self.claim.why else ""
        if self.claim.sense != "about" and (self._bound_holds or self.agrees):
            return ("the bound holds" if self._bound_holds else "near, short of the bound") + because
        if self.agrees:
            return "agrees" if self.claim.kind == "predicted" else "follows from its inputs"
        inside = self.ours.low <= self.claim.published <= self.ours.high
        return f"{'in range' if inside else 'off'}: {self.claim.why}"

    @property
    def _bound_holds(self) -> bool:
        ours, published = self.ours.nominal, self.claim.published
        return {"about": False, "at_least": ours >= published, "at_most": ours <= published}[self.claim.sense]


def _same(value: float) -> list[Figure]:
    return [Figure(scenario="", ours=spread(value))]


MEASURES: dict[str, Callable[[], list[Figure]]] = {
    "scenarios-screened": others.screened,
    "scenarios-simulated": others.simulated,
    "merge-volume": exchange.volume,
    "merge-time": partial(exchange.faster, 32),
    "merge-time-16": partial(exchange.faster, 16),
    "merge-step": exchange.merged_at_16,
    "count-reuse": exchange.reuse,
    "extend": exchange.extended,
    "whole-stack": exchange.whole_stack,
    "adaptive-pipe": exchange.paired,
    "hidden": exchange.hidden,
    "exposed": exchange.exposed,
    "one-copy": partial(_same, 1.0 / 2.0),
    "edpb": training.balanced,
    "together": partial(_same, 1.375 * 1.255 - 1.0),
    "waste": exchange.wasted,
    "operators": training.operators,
    "vector": training.vector_ratio,
    "engines": training.engines,
    "host": partial(training.hosts, {}, ", four waits a sparse layer"),
    "host-one": partial(training.hosts, REUSED, ", one wait a sparse layer"),
    "host-idle": training.idle,
    "activations": training.saved,
    "micro-batch": training.largest_batch,
    "tokens-before": partial(training.tokens, training.BEFORE),
    "tokens-after": partial(training.tokens, training.AFTER),
    "tokens-all": partial(training.tokens, training.ALL),
    "mfu-after-before": partial(training.grown, training.BEFORE, training.AFTER),
    "mfu-all-after": partial(training.grown, training.AFTER, training.ALL),
    "layers": training.layers,
    "ultra-bubble": partial(others.bubble, 1),
    "ultra-bubble-6": partial(others.bubble, 6),
    "ultra-simulated": others.simulated_bubble,
    "ultra-mfu": partial(others.ultra_mfu, PLAIN),
    "ultra-mfu-after": partial(others.ultra_mfu, TUNED | {"overlap_tensor": True}),
    "pro": others.pro,
    "h100-flat-64": partial(exchange.h100_microseconds, 64, Dispatch.FLAT),
    "h100-fused-64": partial(exchange.h100_microseconds, 64, Dispatch.FUSED),
    "h100-flat-16": partial(exchange.h100_microseconds, 16, Dispatch.FLAT),
    "h100-fused-16": partial(exchange.h100_microseconds, 16, Dispatch.FUSED),
    **{f"a3-{ranks}": partial(exchange.a3_rate, ranks) for ranks in (8, 16, 32, 64, 128)},
    **{f"mesh-gather-{ranks}": partial(exchange.mesh_rate, ranks, 1) for ranks in (2, 4, 8)},
    "mesh-reduce-8": partial(exchange.mesh_rate, 8, 2),
}
"""By the id of the claim."""


def claims() -> tuple[Claim, ...]:
    """All of them, in the order of the file."""
    return own_table(Claims, "claims").claim


def outcomes(predictions: Sequence[Prediction]) -> Iterator[Outcome]:
    """Every claim beside ours; `predictions` are those of published runs, for the accuracy."""
    measures = MEASURES | {"accuracy": lambda: others.accuracy(predictions)}
    for claim in claims():
        for figure in measures[claim.id]():
            yield Outcome(claim=claim, scenario=figure.scenario, ours=figure.ours)
