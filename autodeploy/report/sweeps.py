"""Results of a sweep, and the violations that a gate found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from autodeploy.sweep.gate import Violation
from autodeploy.sweep.lines import Line
from autodeploy.units import format_seconds, gib


def results_table(lines: Sequence[Line]) -> Table:
    """One row a cell."""
    table = Table(title="Sweep", title_justify="left")
    for name in ("cell", "status", "plan"):
        table.add_column(name, overflow="fold")
    for name in ("tok/s/dev", "step", "peak GiB", "gap"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(line["cell"], line["status"], *_figures(line))
    return table


def _figures(line: Line) -> tuple[str, ...]:
    if not line.get("plan_id"):
        return (line.get("error") or "nothing fits", "", "", "", "")
    return (
        line["plan_short"],
        f"{line['tokens_per_s_per_device']:.1f}",
        format_seconds(line["step_time_s"]),
        f"{gib(line['peak_memory_bytes']):.1f}",
        f"{line['gap_frac']:.1%}",
    )


def violations_table(found: Sequence[Violation]) -> Table:
    """One row a violation."""
    table = Table(title="Violations", title_justify="left")
    for name in ("cell", "rule", "wanted", "found"):
        table.add_column(name, overflow="fold")
    for each in found:
        table.add_row(each.cell, each.rule, each.wanted, each.found)
    return table
