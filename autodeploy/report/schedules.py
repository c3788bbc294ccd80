"""Schedules side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from autodeploy.schedule.compare import Comparison
from autodeploy.spec.plan import OVERLAP_WORDS, SCHEDULE_WORDS
from autodeploy.units import format_seconds

COLUMNS = ("step", "bubble", "share", "closed form", "live on stage 0", "messages")


def schedules_table(found: Sequence[Comparison]) -> Table:
    """One row a schedule."""
    shape = found[0].shape
    title = f"{shape.pp} stages, {shape.microbatches} microbatches"
    table = Table(title=title, title_justify="left")
    for name in ("schedule", "vpp", "overlap"):
        table.add_column(name)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for each in found:
        closed = "-" if each.closed_form_s is None else format_seconds(each.closed_form_s)
        table.add_row(
            *_words(each), format_seconds(each.step_s), format_seconds(each.bubble_s), f"{each.bubble_frac:.1%}",
            closed, f"{each.live_stages:.2f}", f"{each.messages:,}",
        )  # fmt: skip
    return table


def _words(each: Comparison) -> tuple[str, str, str]:
    shape = each.shape
    return SCHEDULE_WORDS[shape.schedule], str(shape.vpp), OVERLAP_WORDS[shape.overlap]


def schedules_facts(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {
            "schedule": SCHEDULE_WORDS[each.shape.schedule],
            "pp": each.shape.pp,
            "vpp": each.shape.vpp,
            "microbatches": each.shape.microbatches,
            "overlap": OVERLAP_WORDS[each.shape.overlap],
            "step_s": each.step_s,
            "bubble_s": each.bubble_s,
            "bubble_frac": each.bubble_frac,
            "closed_form_bubble_s": each.closed_form_s,
            "live_stages": each.live_stages,
            "messages": each.messages,
        }
        for each in found
    ]
