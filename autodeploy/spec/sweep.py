"""The sweep: many searches as one matrix, and the thresholds that a gate holds them to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autodeploy.spec.checks import Count, Positive

Value = str | int | float | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """What every matching cell must keep."""

    cell: str = ""
    """Words that a cell's name must hold, joined by commas; empty: every cell."""
    fits: bool | None = None
    min_tokens_per_s_per_device: Positive | None = None
    max_memory_bytes: Positive | None = None
    plan_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A sweep file: `[matrix]` lists values of model, cluster, devices, seq_len, gbs, target, or of a model's own
    fields (`layers`, also written `num_layers`; `moe.top_k`); `[base]` holds what all cells share."""

    name: str
    effort: Literal["fast", "normal", "deep"] = "fast"
    engine: Literal["auto", "exact", "optuna"] = "auto"
    seed: int = 0
    trials: Count = 300
    base: dict[str, Value] = field(default_factory=dict)
    matrix: dict[str, tuple[Value, ...]]
    only: tuple[str, ...] = ()
    ban: tuple[str, ...] = ()
    fix: str = ""
    thresholds: tuple[Threshold, ...] = ()
