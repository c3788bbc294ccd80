"""Earlier readings of the accuracy table: what it said, and what changed before the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autodeploy.spec.files import parse, read_mapping

HISTORY = Path(__file__).parent / "history.toml"


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


@cache
def readings() -> tuple[Reading, ...]:
    """All readings, the first one first."""
    return parse(History, read_mapping(HISTORY), source=str(HISTORY)).reading
