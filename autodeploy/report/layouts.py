"""Layouts of one plan side by side: by rule, by hand and solved, with what each loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from autodeploy.search.result import PlanResult
from autodeploy.search.split import SPLIT_TERMS
from autodeploy.units import format_seconds, gib

NAIVE = "rule even"
"""The row that the others are compared with; where no even cut is legal, the first."""
LOST = ("ideal_bubble", "imbalance", "recompute", "communication")
"""Parts of the step that a layout moves (`search.split`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A layout of the plan."""

    names: tuple[str, ...]
    """How it came about, each way that led to it: `asked`, `rule even`, `solved, MTP and head each alone`."""
    result: PlanResult

    @property
    def name(self) -> str:
        """All its names."""
        return "; ".join(self.names)

    def gain_frac(self, naive: Row) -> float:
        """How much less time a step takes than on the naive layout."""
        return naive.result.step_time_s / self.result.step_time_s - 1.0


def naive_of(rows: Sequence[Row]) -> Row:
    """The row that the others are compared with, also where it has more names than `rule even`."""
    return next((row for row in rows if NAIVE in row.names), rows[0])


def layouts_table(title: str, rows: Sequence[Row], naive: Row) -> Table:
    """One row a layout, the best first."""
    table = Table(title=title, title_justify="left")
    over = NAIVE if NAIVE in naive.names else naive.names[0]
    for name in ("how", "layout"):
        table.add_column(name, overflow="fold")
    for name in ("step", f"gain over {over}", "memory GiB", "fits", *(name.replace("_", " ") for name in LOST)):
        table.add_column(name, justify="right")
    for row in rows:
        result = row.result
        lost = (f"{result.time_split[name] / result.step_time_s:.1%}" for name in LOST)
        table.add_row(
            row.name, result.arrangement.layout, format_seconds(result.step_time_s), f"{row.gain_frac(naive):+.1%}",
            f"{gib(result.needed_memory_bytes):.1f}", "yes" if result.fits else "NO", *lost,
        )  # fmt: skip
    return table


def layouts_facts(rows: Sequence[Row], naive: Row) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {
            "how": row.name,
            "layout": row.result.arrangement.layout,
            "step_time_s": row.result.step_time_s,
            "gain_frac": row.gain_frac(naive),
            "peak_memory_bytes": row.result.peak_memory_bytes,
            "fits": row.result.fits,
            "time_split": {name: row.result.time_split[name] for name in SPLIT_TERMS},
        }
        for row in rows
    ]
