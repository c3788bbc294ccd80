"""The ranked table of a search and what stands under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from autodeploy.analysis.ops import MODULE_WORDS
from autodeploy.formats.document import varying
from autodeploy.formats.short import short_form
from autodeploy.search.enumerate import describe
from autodeploy.search.exact import Outcome, Progress
from autodeploy.search.result import PlanResult
from autodeploy.spec.space import Space
from autodeploy.units import TERA, format_seconds, gib

WIDE = 200
"""Columns where the output is no terminal."""


def console(*, stderr: bool = False) -> Console:
    """A console that does not squeeze tables when the output goes to a file."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, width=WIDE, highlight=False)


def recompute_text(result: PlanResult) -> str:
    """How far up the ladder the stage goes that rebuilds most, and how many stages rebuild anything."""
    stages = result.arrangement.recompute
    names = {name for modules in stages for name in modules}
    if not names:
        return "-"
    furthest = max(names, key=MODULE_WORDS.index)
    busy = sum(1 for modules in stages if modules)
    where = "" if busy == len(stages) else f", {busy}/{len(stages)} stages"
    return f"to {furthest}{where}"


def ranked_table(space: Space, results: Sequence[PlanResult]) -> Table:
    """Rank, plan and the figures that decide between plans."""
    title = (
        f"{space.model.title} on {space.devices} x {space.cluster.device.name}, {space.job.gbs} sequences of "
        f"{space.job.seq_len} tokens a step"
    )
    table = Table(title=title, title_justify="left")
    plans = [short_form(result.plan, varying(space)) for result in results]
    table.add_column("#", justify="right")
    table.add_column("plan", overflow="fold", min_width=max(map(len, plans)))
    table.add_column("layout")
    peak_tf = space.cluster.device.peak_flop_per_s / TERA
    usable = gib(space.cluster.device.usable_bytes)
    for name in ("tok/s/dev", "step", f"MFU, {peak_tf:g} TF", f"GiB of {usable:.1f}", "bubble", "exposed comm"):
        table.add_column(name, justify="right")
    for name in ("recompute", "limited by"):
        table.add_column(name)
    for rank, (plan, result) in enumerate(zip(plans, results, strict=True), 1):
        table.add_row(str(rank), plan, *_cells(result))
    return table


def _cells(result: PlanResult) -> tuple[str, ...]:
    exposed = result.exposed_communication_s / result.step_time_s
    return (
        result.arrangement.layout_rule,
        f"{result.tokens_per_s_per_device:.1f}",
        format_seconds(result.step_time_s),
        f"{result.mfu_frac:.1%}",
        f"{gib(result.peak_memory_bytes):.1f}",
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
        table.add_row(f"{count:,}", *describe(rule).split(": ", 1))
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
