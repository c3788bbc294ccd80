"""Published runs that were fitted, each with what was measured over what is predicted where its source was left out.

`make fidelity` writes the table; intervals are read off it (`autodeploy.search.surety`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_suffix(".csv")
READ: dict[str, Callable[[str], Any]] = {"int": int, "float": float}


LEAST_ROWS, LEAST_MODELS = 10, 3
"""Fewer runs say too little, of a factor or of a group."""


def enough(models: Sequence[str]) -> bool:
    """Whether runs of these models (one a run) say something."""
    return len(models) >= LEAST_ROWS and len(set(models)) >= LEAST_MODELS


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One run."""

    id: str
    source: str
    model: str
    device: str
    """Name of the chip, as clusters have it."""
    generation: str
    family: str
    """Of its software; empty where that has no factor of its own."""
    kind: str
    """dense or moe."""
    devices: int
    seq_len: int
    params: int
    ep: int
    ratio_frac: float
    """Measured over predicted tokens a second; the prediction comes from a fit without the run's source."""


@cache
def measured() -> tuple[Measured, ...]:
    """The whole table; empty before the first fit."""
    if not PATH.is_file():
        return ()
    with PATH.open(encoding="utf-8", newline="") as lines:
        return tuple(_row(line) for line in csv.DictReader(lines))


def _row(line: dict[str, str]) -> Measured:
    read: dict[str, Any] = {each.name: READ.get(str(each.type), str)(line[each.name]) for each in fields(Measured)}
    return Measured(**read)


def measured_text(rows: Iterable[Measured]) -> str:
    """The table as it is written."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [each.name for each in fields(Measured)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) | {"ratio_frac": f"{row.ratio_frac:.4f}"} for row in rows)
    return out.getvalue()
