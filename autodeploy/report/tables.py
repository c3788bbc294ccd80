"""The ranked table of a search and what stands under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from autodeploy.analysis.ops import MODULE_WORDS
from autodeploy.formats.document import plan_short
from autodeploy.formats.export import TARGETS
from autodeploy.report.explain import difference_table
from autodeploy.search.elsewhere import refusals_elsewhere
from autodeploy.search.engine import Answer
from autodeploy.search.enumerate import describe
from autodeploy.search.exact import Progress
from autodeploy.search.result import PlanResult
from autodeploy.search.surety import Surety, even_with_first, surety
from autodeploy.spec.plan import LAYOUT_RULES
from autodeploy.spec.space import Space
from autodeploy.units import TERA, format_seconds, gib

EVEN = "~"
"""Before the rank of a plan that the data cannot tell from the first."""
WIDE = 220
"""Columns where the output is no terminal."""
NARROW = 130
"""Below so many columns the table leaves the remarks away."""


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
    furthest = max(names, key=lambda name: MODULE_WORDS.index(name.split(":")[0]))
    busy = sum(1 for modules in stages if modules)
    where = "" if busy == len(stages) else f", {busy}/{len(stages)} stages"
    return f"to {furthest}{where}"


def ranked_table(
    space: Space, results: Sequence[PlanResult], baseline: PlanResult | None = None, width: int = WIDE
) -> Table:
    """Rank, plan and the figures that decide between plans; a baseline stands last. A narrow table keeps the figures
    and leaves the explanations to `explain`."""
    title = (
        f"{space.model.title} on {space.devices} x {space.cluster.device.name}, {space.job.gbs} sequences of "
        f"{space.job.seq_len} tokens a step"
    )
    table = Table(title=title, title_justify="left")
    even = even_with_first(space, results)
    rows = [(f"{EVEN if even[rank - 1] else ''}{rank}", result) for rank, result in enumerate(results, 1)]
    rows += [("yours", baseline)] if baseline is not None else []
    wide = width >= NARROW
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    for name in _figure_names(space):
        table.add_column(name, justify="right", no_wrap=True)
    for name in REMARKS if wide else ():
        table.add_column(name)
    for rank, result in rows:
        cells = (*_figures(space, result), *(_remarks(result) if wide else ()))
        table.add_row(rank, plan_short(space, result.plan), *cells, end_section=bool(results) and result is results[-1])
    return table


REMARKS = ("exposed comm", "layout", "recompute", "limited by")


def _figure_names(space: Space) -> tuple[str, ...]:
    peak_tf = space.cluster.device.peak_flop_per_s / TERA
    usable = gib(space.cluster.device.usable_bytes)
    return ("tok/s/dev", "4 of 5 within", "step", f"MFU, {peak_tf:g} TF", f"GiB of {usable:.1f}", "bubble")


def _figures(space: Space, result: PlanResult) -> tuple[str, ...]:
    return (
        f"{result.tokens_per_s_per_device:.1f}",
        interval_text(surety(space, result)),
        format_seconds(result.step_time_s),
        f"{result.mfu_frac:.1%}",
        f"{gib(result.needed_memory_bytes):.1f}",
        f"{result.bubble_frac:.1%}",
    )


def interval_text(sure: Surety) -> str:
    """Between which rates four of five measurements should lie, in tokens a second and device."""
    if sure.interval is None:
        return "extrapolated"
    return f"{sure.interval.low_tokens_per_s_per_device:.0f}-{sure.interval.high_tokens_per_s_per_device:.0f}"


def surety_lines(space: Space, results: Sequence[PlanResult]) -> list[str]:
    """What the intervals of some plans rest on, or what is missing for one, and which plans are even."""
    if not results:
        return []
    sure = surety(space, results[0])
    if sure.interval:
        group = f"{sure.interval.group} ({sure.interval.rows} runs, {sure.interval.models} models)"
        lines = [f"Four of five runs of {group} were measured within that range of what is predicted without them."]
    else:
        lines = [f"Extrapolated, no interval: {'; '.join(sure.beyond)}."]
    lines += [f"Nearest measurement: {sure.nearest}."] if sure.nearest else []
    even = sum(even_with_first(space, results))
    return lines + ([f"{EVEN} {even} plans that the data cannot tell from #1."] if even else [])


def _remarks(result: PlanResult) -> tuple[str, ...]:
    exposed = result.exposed_communication_s / result.step_time_s
    rule = result.arrangement.layout_rule
    layout = rule if rule in LAYOUT_RULES else "cut"
    return (f"{exposed:.1%}", layout, recompute_text(result), result.limited_by)


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


def verdict(answer: Answer) -> str:
    """How sure the ranking is."""
    simulated = answer.facts()["simulated"]
    if answer.status == "optimal":
        return f"optimal among {answer.legal:,} arranged plans ({simulated:,} simulated, the rest bounded)"
    if answer.status == "infeasible":
        return f"none of {answer.legal:,} arranged plans fits"
    if answer.study:
        reach = f"{answer.study['simulated']:,} plans simulated in {answer.study['trials']:,} trials"
        return f"{answer.status}: {reach}; at most {answer.gap_frac:.1%} above any whole-layer layout"
    near = f"within {answer.gap_frac:.1%} of the best of {answer.legal:,} arranged plans"
    return f"{answer.status}: {near} ({simulated:,} simulated)"


def solved_verdict(solved: Mapping[str, Any]) -> list[str]:
    """How far recompute and swap were solved, and what that may have missed."""
    if not solved.get("plans"):
        return []
    by = f"more than {solved['gap_frac']:.2%} faster" if solved["gap_frac"] else "faster"
    return [
        f"recompute and swap solved for {solved['plans']:,} of them, {solved['fit']:,} fit; "
        f"none of the rest can be {by} than #1"
    ]


def search_report(answer: Answer, baseline: PlanResult | None = None, width: int = WIDE) -> Group:
    """Everything that `search` prints."""
    facts, results, space = answer.facts(), answer.results, answer.space
    parts: list[RenderableType] = [ranked_table(space, results, baseline, width)] if results else []
    parts += [Text(line, style="bold") for line in (verdict(answer), *solved_verdict(facts.get("solved", {})))]
    if baseline is not None and results:
        parts.append(difference_table(space, baseline, results[0]))
    counts = f"{facts['candidates']:,} candidates, {facts['legal']:,} legal, {facts['fits']:,} fit. Refused:"
    parts += [Text(counts), refusals(facts["refused"], facts["refused_by_memory"]["memory.device"])]
    return Group(*parts, *map(Text, _notes(answer)))


def _notes(answer: Answer) -> list[str]:
    """What a reader has to know to read the figures."""
    notes = [f"FLOP convention: {answer.results[0].flop_convention}."] if answer.results else []
    if answer.results and answer.space.model.moe:
        notes.append(f"Experts: busiest rank at {answer.space.job.expert_imbalance:g} x the mean load (stated input).")
    notes += _elsewhere(answer)
    return [*notes, *surety_lines(answer.space, answer.results)]


def _elsewhere(answer: Answer) -> list[str]:
    """Which target that plans are exported to would refuse the winner, and by which rule."""
    if not answer.results:
        return []
    found = refusals_elsewhere(answer.space, answer.results[0], TARGETS)
    takes = [name for name, broken in found.items() if not broken]
    notes = [f"#1 would be refused by {name}: " + "; ".join(broken) + "." for name, broken in found.items() if broken]
    notes += (
        ["With one of them as target (--target, or in the space file) only plans that it takes are ranked."]
        if notes
        else []
    )
    return notes + ([f"#1 keeps the rules of {', '.join(takes)}."] if takes else [])


def progress_line(progress: Progress, elapsed_s: float) -> str:
    """One line while a search runs."""
    best = format_seconds(progress.best_s) if progress.best_s < float("inf") else "-"
    return (
        f"{progress.stage}: {progress.candidates:,} candidates, {progress.legal:,} legal, {progress.fits:,} fit, "
        f"{progress.simulated:,} simulated, best {best}, gap {progress.gap_frac:.1%}, {elapsed_s:.1f} s"
    )
