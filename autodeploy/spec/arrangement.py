"""The arrangement: what a plan's rules resolve to, in the form in which a launch needs it."""

from __future__ import annotations

from dataclasses import dataclass

from autodeploy.spec.plan import RANK_ORDER


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrangement:
    """Layout and recompute of every stage, and the order of ranks."""

    layout: str
    """Layout notation, one part per slot."""
    layout_rule: str
    """The rule that gave it."""
    recompute: tuple[tuple[str, ...], ...]
    """Per stage: the modules rebuilt in the backward pass (`full` stands alone), in every layer that has them."""
    swap: tuple[tuple[str, ...], ...] = ()
    """Per stage: rows kept on the host. None yet."""
    rank_order: str = RANK_ORDER
