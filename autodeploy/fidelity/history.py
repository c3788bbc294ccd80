"""Earlier readings of the accuracy table: what it said, and what changed before the next."""

from __future__ import annotations

from dataclasses import dataclass

from autodeploy.fidelity.own import own_table


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Figures of one reading, as they were printed."""

    date: str
    dense: str
    moe: str
    ascend: str
    pooled: str
    regret: str
    change: str


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The file of readings."""

    reading: tuple[Reading, ...]


def readings() -> tuple[Reading, ...]:
    """All readings, the first one first."""
    return own_table(History, "history").reading
