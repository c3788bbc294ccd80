"""What one stage may rebuild or swap, and what was chosen: values without a machine or a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SLACK_FRAC = 1e-12
"""Of the bytes asked for: what rounding may take from a sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Rows of one layer that are dealt with together."""

    name: str
    kept_bytes: float
    """Per live microbatch. Above zero."""
    rebuild_s: float | None
    """Rebuilding them once; None where only the whole layer can be rebuilt."""
    swap: bool
    """Whether they may go to the host; then all layers of the class send them, or none."""
    in_full: bool
    """Whether rebuilding the whole layer drops them; the layer's input stays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerClass:
    """Layers of one chunk and kind, which are alike."""

    label: str
    count: int
    live: tuple[float, ...]
    """Live microbatches of the chunk, one entry a moment; every class of a stage lists the same moments."""
    parts: tuple[Part, ...]
    full_s: float | None
    """Rebuilding all of one layer; None where that is not offered."""
    link_bytes: float = 0.0
    """Most that all layers of the class may swap in one pass: what hides behind the pass."""
    weight: float = 1.0
    """Passes: what a second of this class counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageNeed:
    """A stage that must save memory: at every moment as much as asked, and what the saving itself works on."""

    classes: tuple[LayerClass, ...]
    need_bytes: tuple[float, ...]
    """One entry a moment; zero or below where the stage fits."""
    host_bytes: float = 0.0
    swap_s_per_byte: float = 0.0
    """What a swapped byte adds although the copy hides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Layers of a class that rebuild everything, and per part those that rebuild it or swap it."""

    label: str
    full: int
    rebuilt: tuple[int, ...]
    swapped: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What a stage rebuilds and swaps."""

    counts: tuple[Counts, ...]
    """One entry a class, in the order of the stage."""
    added_s: float
    saved_bytes: float
    """At the moment that is nearest to its need; what the saving works on is not taken off."""
    transient_bytes: float
    """What rebuilding and swapping work on: asked for on top of the need."""
    short_bytes: float
    """What is missing at the worst moment; below zero what is to spare."""
    bound_s: float
    """No choice that fits adds less, by the linear relaxation. Zero where the choice was not made for time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """Memory against time."""

    saved_bytes: float
    """At every moment relative to its need, net of what the saving works on."""
    added_s: float
    """The least that saves so much."""


def full_bytes(layers: LayerClass) -> float:
    """What one layer drops when all of it is rebuilt."""
    return sum(part.kept_bytes for part in layers.parts if part.in_full)


def evaluate(stage: StageNeed, counts: Sequence[Counts], bound_s: float = 0.0) -> Selection:
    """What given counts save, add and work on."""
    rebuild, buffer, added = 0.0, 0.0, 0.0
    per_live = []
    for layers, chosen in zip(stage.classes, counts, strict=True):
        whole = full_bytes(layers)
        rows = list(zip(layers.parts, chosen.rebuilt, chosen.swapped, strict=True))
        per_live.append(chosen.full * whole + sum(p.kept_bytes * (x + y) for p, x, y in rows))
        rebuild = max([rebuild, whole * (chosen.full > 0), *(p.kept_bytes for p, x, _ in rows if x)])
        buffer = max(buffer, 2.0 * sum(p.kept_bytes for p, _, y in rows if y))
        work = chosen.full * (layers.full_s or 0.0) + sum(x * (p.rebuild_s or 0.0) for p, x, _ in rows)
        swapped = sum(y * p.kept_bytes for p, _, y in rows)
        added += layers.weight * (work + swapped * stage.swap_s_per_byte)
    saved = [
        sum(layers.live[moment] * each for layers, each in zip(stage.classes, per_live, strict=True))
        for moment in range(len(stage.need_bytes))
    ]
    short = [need + rebuild + buffer - each for need, each in zip(stage.need_bytes, saved, strict=True)]
    worst = max(range(len(short)), key=lambda moment: short[moment])
    return Selection(
        counts=tuple(counts), added_s=added, saved_bytes=saved[worst], transient_bytes=rebuild + buffer,
        short_bytes=short[worst], bound_s=min(bound_s, added),
    )  # fmt: skip


def fits(stage: StageNeed, selection: Selection) -> bool:
    """Whether nothing is missing, but for rounding."""
    return selection.short_bytes <= slack_bytes(stage)


def slack_bytes(stage: StageNeed) -> float:
    """What rounding may take from a sum of this stage."""
    most = sum(max(c.live) * c.count * sum(p.kept_bytes for p in c.parts) for c in stage.classes)
    return SLACK_FRAC * (most + max(abs(need) for need in stage.need_bytes))
