"""How sure a predicted rate is: the spread of measured over predicted of the nearest group of published runs.

A plan beyond its group has no interval; it is `extrapolated`, and the nearest run is named.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from autodeploy.analysis.readings import model_size
from autodeploy.catalog.generations import family_of
from autodeploy.catalog.measured import Measured, enough, measured
from autodeploy.search.result import PlanResult
from autodeploy.spec.space import Space
from autodeploy.units import GIGA

LEVEL_FRAC = 0.8
"""Share of the group's runs inside an interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs like the plan, and how far they lie from what we say of them."""

    name: str
    rows: tuple[Measured, ...]
    low_frac: float
    high_frac: float
    """Measured over predicted tokens a second."""
    order_frac: float | None
    """Two plans of one job whose predictions are nearer than this are in the wrong order in one of ten cases or more;
    None where the group has no two plans of one job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Between which rates four of five measurements should lie."""

    low_tokens_per_s_per_device: float
    high_tokens_per_s_per_device: float
    group: str
    rows: int
    models: int
    level_frac: float = LEVEL_FRAC


@dataclass(frozen=True, kw_only=True, slots=True)
class Surety:
    """Of one plan: an interval, or why there is none."""

    interval: Interval | None
    beyond: tuple[str, ...]
    """What lies beyond the group; empty with an interval."""
    nearest: str
    """The measured run that is most like it."""


def surety(space: Space, result: PlanResult) -> Surety:
    """How sure the rate of a plan is."""
    group = group_for(space)
    nearest = _nearest(space, result, group.rows if group else _of_kind(space))
    beyond = _beyond(space, result, group)
    if group is None or beyond:
        return Surety(interval=None, beyond=beyond, nearest=nearest)
    rate = result.tokens_per_s_per_device
    interval = Interval(
        low_tokens_per_s_per_device=rate * group.low_frac, high_tokens_per_s_per_device=rate * group.high_frac,
        group=group.name, rows=len(group.rows), models=len({row.model for row in group.rows}),
    )  # fmt: skip
    return Surety(interval=interval, beyond=(), nearest=nearest)


def even_with_first(space: Space, results: Sequence[PlanResult]) -> tuple[bool, ...]:
    """Which plans the data cannot tell from the first: False for all where there is no group to say so."""
    group = group_for(space)
    width = group.order_frac if group else None
    if not results or width is None:
        return tuple(False for _ in results)
    best = results[0].tokens_per_s_per_device
    return tuple(place > 0 and best / each.tokens_per_s_per_device < 1.0 + width for place, each in enumerate(results))


def group_for(space: Space) -> Group | None:
    """The nearest group that is large enough: of the chip and the stack, else of the chip."""
    kind = "moe" if space.model.moe else "dense"
    family = family_of(space.target.name)
    return _group(space.cluster.device.name, kind, family) or _group(space.cluster.device.name, kind, "")


@cache
def _group(device: str, kind: str, family: str) -> Group | None:
    generation = next((row.generation for row in measured() if row.device == device), "")
    rows = tuple(
        row for row in measured()
        if generation and row.generation == generation and row.kind == kind and family in ("", row.family)
    )  # fmt: skip
    if not enough([row.model for row in rows]):
        return None
    ratios = [row.ratio_frac for row in rows]
    edge = 50.0 * (1.0 - LEVEL_FRAC)
    low, high = np.percentile(ratios, [edge, 100.0 - edge])
    kind_word = "MoE" if kind == "moe" else "dense"
    name = f"{generation}, {kind_word}" + (f", {family}" if family else "")
    return Group(name=name, rows=rows, low_frac=float(low), high_frac=float(high), order_frac=_order(rows))


def _order(rows: Sequence[Measured]) -> float | None:
    """The quantile of differences between errors of plans of one model and source that leaves a fifth outside."""
    jobs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        jobs[row.source, row.model, row.device].append(math.log(row.ratio_frac))
    pairs = [abs(a - b) for values in jobs.values() for a, b in combinations(values, 2)]
    return float(np.expm1(np.quantile(pairs, LEVEL_FRAC))) if pairs else None


def _traits(space: Space, result: PlanResult) -> dict[str, int]:
    return {
        "devices": space.devices, "seq_len": space.job.seq_len, "params": int(model_size(space.model).total),
        "ep": result.plan.ep,
    }  # fmt: skip


def _beyond(space: Space, result: PlanResult, group: Group | None) -> tuple[str, ...]:
    if group is None:
        return ("no group of ten runs of three models on this chip",)
    traits = _traits(space, result)
    most = {name: max(getattr(row, name) for row in group.rows) for name in traits}
    return tuple(
        f"{name} {_told(name, traits[name])} over {_told(name, most[name])}"
        for name in traits if traits[name] > most[name]
    )  # fmt: skip


def _told(name: str, value: int) -> str:
    return f"{value / GIGA:.0f}B" if name == "params" else f"{value:,}"


def _of_kind(space: Space) -> tuple[Measured, ...]:
    kind = "moe" if space.model.moe else "dense"
    return tuple(row for row in measured() if row.kind == kind)


def _nearest(space: Space, result: PlanResult, rows: Sequence[Measured]) -> str:
    """The run whose traits differ by the smallest factors."""
    if not rows:
        return ""
    traits = _traits(space, result)
    near = min(rows, key=lambda row: sum(abs(math.log(getattr(row, name) / traits[name])) for name in traits))
    return f"{near.model} on {near.devices} x {near.device}, {near.seq_len} tokens, EP {near.ep} ({near.source})"
