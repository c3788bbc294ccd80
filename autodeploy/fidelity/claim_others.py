"""Claims about other runs (Pangu Ultra 135B, Pangu Pro MoE 72B), and about this tool: speed and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from autodeploy.fidelity.claim_exchange import HIER, LENGTHS
from autodeploy.fidelity.claim_jobs import (
    BRIEF,
    PANGU,
    PARTS,
    PLAIN,
    REUSED,
    TUNED,
    Figure,
    gain,
    over,
    plan_of,
    space_of,
    spread,
)
from autodeploy.fidelity.document import is_ascend, is_ci
from autodeploy.fidelity.predict import Prediction
from autodeploy.search.defaults import default_values
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.search.evaluate import evaluate
from autodeploy.search.result import PlanResult
from autodeploy.search.screen import screen
from autodeploy.spec.plan import Overlap, PlanTable
from autodeploy.spec.space import Space

HOUR_S = 3600.0
SCREENED, SIMULATED = 20_000, 40
ULTRA: dict[str, Any] = {"tp": 8, "pp": 8, "dp": 128}
"""Pangu Ultra 135B on 8,192 NPUs; 16 microbatches follow from the published bubble of 1F1B."""
ULTRA_MICROBATCHES = 16
PRO_BEFORE: dict[str, Any] = {"tp": 1, "ep": 8, "cp": 8, "pp": 6, "vpp": 4, "dp": 85, "overlap": Overlap.PAIR}
PRO_AFTER: dict[str, Any] = {"tp": 8, "pp": 5, "vpp": 5, "dp": 102, "overlap": Overlap.PAIR}
"""Both with merged passes, as the 718B run had them before."""
PRO_BATCHES = {4096: (12, 10), 32768: (6, 5)}
"""Microbatches before and after that make about 4M tokens of 4K and 16M tokens of 32K sequences."""


def _ultra(part: str, vpp: int, seq_len: int, **profile: Any) -> PlanResult:
    plan = plan_of(**ULTRA, vpp=vpp)
    return evaluate(space_of("pangu-ultra-135b", part, plan, ULTRA_MICROBATCHES, seq_len, **profile), plan)


def bubble(vpp: int) -> list[Figure]:
    """Share of the step that equal stages wait: the closed form, (p-1)/v over m + (p-1)/v."""
    waits = (ULTRA["pp"] - 1) / vpp
    return [Figure(scenario="8 stages, 16 microbatches", ours=spread(waits / (ULTRA_MICROBATCHES + waits)))]


def simulated_bubble() -> list[Figure]:
    """The same of the real stages, simulated: 94 layers in 48 chunks, embedding and head at the ends."""

    def waited(part: str, seq_len: int) -> float:
        return _ultra(part, 6, seq_len, **TUNED).bubble_frac

    return [Figure(scenario=name, ours=over(waited, (part,), LENGTHS)) for part, name in PARTS.items()]


def ultra_mfu(profile: dict[str, Any]) -> list[Figure]:
    """MFU of the interleaved run, causal scores halved, against the part's own peak."""

    def mfu(part: str, seq_len: int) -> float:
        return _ultra(part, 6, seq_len, **profile).mfu_frac

    return [Figure(scenario=f"{name}, 4K (8K)", ours=over(mfu, (part,), LENGTHS)) for part, name in PARTS.items()]


def pro() -> list[Figure]:
    """Pangu Pro MoE 72B on 4,080 NPUs: TP1 EP8 CP8 PP6 VPP4 against TP8 EP2 PP5 VPP5, experts whole on TP x EP ranks
    (or cut over TP)."""

    def gained(seq_len: int, part: str, whole: bool) -> float:
        experts = HIER | {"ep": 16} if whole else {"ep": 2, "etp": 8}
        plans = (plan_of(**PRO_BEFORE), plan_of(**PRO_AFTER | experts))
        spaces = [
            space_of("pangu-pro-moe-72b", part, plan, microbatches, seq_len, **PLAIN | REUSED)
            for plan, microbatches in zip(plans, PRO_BATCHES[seq_len], strict=True)
        ]
        return gain(*(evaluate(space, plan) for space, plan in zip(spaces, plans, strict=True)))

    return [
        Figure(scenario=f"sequences of {seq_len:,}", ours=over(gained, (seq_len,), tuple(PARTS), (True, False)))
        for seq_len in PRO_BATCHES
    ]


def _space() -> Space:
    """The 718B run with the plans that a search tries by itself."""
    plan = plan_of(**BRIEF | {"dp": 48})
    space = space_of(PANGU, "atlas-800t-a2", plan, 48, 8192)
    return replace(space, plan=default_values(space.model, space.cluster, space.devices, "normal"))


def screened() -> list[Figure]:
    """Plans an hour that are arranged, costed and bounded, on one core."""
    space = _space()
    legal = enumerate_plans(space).legal
    some = legal.rows(np.linspace(0, len(legal) - 1, min(SCREENED, len(legal))).astype(int))
    screen(space, some)
    return [_rate("screened, one core", len(some), lambda: screen(space, some))]


def simulated() -> list[Figure]:
    """Plans an hour that are simulated op by op and taken apart, one by one, on one core."""
    space = _space()
    legal: PlanTable = enumerate_plans(space).legal
    plans = [legal.row(int(row)) for row in np.linspace(0, len(legal) - 1, SIMULATED)]
    return [_rate("simulated and taken apart, one core", len(plans), lambda: [evaluate(space, plan) for plan in plans])]


def _rate(scenario: str, count: int, work: Callable[[], object]) -> Figure:
    seconds = []
    for _ in range(3):
        begun = perf_counter()
        work()
        seconds.append(perf_counter() - begun)
    each = sorted(HOUR_S * count / spent for spent in seconds)
    return Figure(scenario=scenario, ours=spread(each[1], each))


def accuracy(predictions: Sequence[Prediction]) -> list[Figure]:
    """One less the median error of the step time of published Ascend runs, cropped tests apart."""
    errors = [abs(each.error_frac) for each in predictions if each.error_frac is not None and _counts(each)]
    if not errors:
        return []
    worse, middle, better = (1.0 - float(np.quantile(errors, share)) for share in (0.75, 0.5, 0.25))
    return [Figure(scenario=f"{len(errors)} published Ascend runs; quartiles", ours=spread(middle, (worse, better)))]


def _counts(each: Prediction) -> bool:
    return is_ascend(each) and not is_ci(each)
