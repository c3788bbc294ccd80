"""The ranked table of a search and what stands under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from autodeploy.formats.document import varying
from autodeploy.formats.short import short_form
from autodeploy.legality.rules import RULES
from autodeploy.search.exact import Outcome, Progress
from autodeploy.search.result import PlanResult
from autodeploy.spec.space import Space
from autodeploy.units import format_seconds, gib

WIDE = 170
"""Columns where the output is no terminal."""


def console(*, stderr: bool = False) -> Console:
    """A console that does not squeeze tables when the output goes to a file."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, width=WIDE, highlight=False)


def recompute_text(result: PlanResult) -> str:
    """What the stage that rebuilds most rebuilds, and how many stages rebuild anything."""
    most = max(result.arrangement.recompute, key=len)
    busy = sum(1 for modules in result.arrangement.recompute if modules)
    if not most:
        return "-"
    if any("full" in modules for modules in result.arrangement.recompute):
        most = ("full",)
    where = (
        "" if busy == len(result.arrangement.recompute) else f" ({busy} of {len(result.arrangement.recompute)} stages)"
    )
    return "+".join(most) + where


def ranked_table(space: Space, results: Sequence[PlanResult]) -> Table:
    """Rank, plan and the figures that decide between plans."""
    peak = space.cluster.device.peak_flop_per_s / 1e12
    table = Table(title=f"{space.name}: {space.model.title} on {space.devices} x {space.cluster.device.name}, "
                  f"{space.job.seq_len} tokens x {space.job.gbs} sequences", title_justify="left")  # fmt: skip
    table.add_column("#", justify="right")
    table.add_column("plan", no_wrap=True)
    table.add_column("layout")
    table.add_column("tok/s/dev", justify="right")
    table.add_column("step", justify="right")
    table.add_column(f"MFU of {peak:g} TF", justify="right")
    table.add_column(f"peak of {gib(space.cluster.device.usable_bytes):.1f} GiB", justify="right")
    table.add_column("bubble", justify="right")
    table.add_column("exposed comm", justify="right")
    table.add_column("recompute", overflow="fold")
    table.add_column("limited by")
    for rank, result in enumerate(results, 1):
        table.add_row(str(rank), *_cells(space, result))
    return table


def _cells(space: Space, result: PlanResult) -> tuple[str, ...]:
    exposed = result.exposed_communication_s / result.step_time_s
    return (
        short_form(result.plan, varying(space)),
        result.arrangement.layout_rule,
        f"{result.tokens_per_s_per_device:.1f}",
        format_seconds(result.step_time_s),
        f"{result.mfu_frac:.1%}",
        f"{gib(result.peak_memory_bytes):.1f} GiB",
        f"{result.bubble_frac:.1%}",
        f"{exposed:.1%}",
        recompute_text(result),
        result.limited_by,
    )


def refusals(refused: Mapping[str, int], not_fitting: int) -> Table:
    """How many candidates each rule, or memory, refused."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right")
    table.add_column()
    table.add_column()
    for rule, count in refused.items():
        table.add_row(f"{count:,}", rule, RULES[rule].text)
    if not_fitting:
        table.add_row(
            f"{not_fitting:,}",
            "memory.device",
            "legal, but some stage does not fit with its recompute policy",
        )
    return table


def verdict(outcome: Outcome) -> str:
    """How sure the ranking is."""
    arranged = len(outcome.enumeration.legal)
    if outcome.status == "optimal":
        return f"optimal among {arranged:,} arranged plans ({outcome.simulated:,} simulated, the rest bounded)"
    if outcome.status == "infeasible":
        return f"none of {arranged:,} arranged plans fits"
    near = f"within {outcome.gap_frac:.1%} of the best of {arranged:,} arranged plans"
    return f"{outcome.status}: {near} ({outcome.simulated:,} simulated)"


def search_report(outcome: Outcome, results: Sequence[PlanResult]) -> Group:
    """Everything that `search` prints."""
    found = outcome.enumeration
    head = Text(f"{found.candidates:,} candidates, {len(found.legal):,} legal, "
                f"{len(found.legal) - outcome.not_fitting:,} fit. Refused:")  # fmt: skip
    notes = [f"FLOP convention: {results[0].flop_convention}."] if results else []
    if results and outcome.space.model.moe:
        notes.append(f"Experts: busiest rank at {outcome.space.job.expert_imbalance:g} x the mean load (stated input).")
    notes.append("Nothing is calibrated on measured runs yet: trust the order more than the figures.")
    return Group(
        *([ranked_table(outcome.space, results)] if results else []),
        Text(verdict(outcome), style="bold"), head, refusals(outcome.refused, outcome.not_fitting),
        *(Text(note) for note in notes),
    )  # fmt: skip


def progress_line(progress: Progress, elapsed_s: float) -> str:
    """One line while a search runs."""
    best = format_seconds(progress.best_s) if progress.best_s < float("inf") else "-"
    return (
        f"{progress.stage}: {progress.candidates:,} candidates, {progress.legal:,} legal, {progress.fits:,} fit, "
        f"{progress.simulated:,} simulated, best {best}, gap {progress.gap_frac:.1%}, {elapsed_s:.1f} s"
    )
