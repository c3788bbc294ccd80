"""How true it is, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table

from autodeploy.fidelity.document import Validation, summary
from autodeploy.fidelity.score import Group, groups_of

MOST_GROUPS = 12
ERROR_COLUMNS = ("runs", "median error", "90 % within", "bias")


def error_cells(errors: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Runs, median and 90th percentile of the absolute errors, median of the signed ones."""
    return (
        str(errors["runs"]),
        f"{errors['median_abs_frac']:.1%}",
        f"{errors['p90_abs_frac']:.1%}",
        f"{errors['bias_frac']:+.1%}",
    )


def errors_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Signed step-time errors, one row a name; above 0 we are too slow."""
    table = Table(title=title, title_justify="left")
    table.add_column("", overflow="fold")
    for name in ERROR_COLUMNS:
        table.add_column(name, justify="right")
    for name, errors in rows.items():
        table.add_row(name, *error_cells(errors))
    return table


def groups_table(groups: Sequence[Group]) -> Table:
    """The planner's score, the worst picks first."""
    table = Table(title="Planner's score: groups of plans of one job, machine and release", title_justify="left")
    for name in ("source", "model", "cluster", "job"):
        table.add_column(name, overflow="fold")
    for name in ("plans", "regret", "tau", "spread"):
        table.add_column(name, justify="right")
    for group in sorted(groups, key=lambda each: -each.regret_frac)[:MOST_GROUPS]:
        table.add_row(group.source, group.model, group.cluster, group.job, *group_cells(group))
    return table


def group_cells(group: Group) -> tuple[str, str, str, str]:
    """Distinct plans, regret of our pick, rank correlation, slowest over fastest."""
    tau = "-" if group.kendall_tau is None else f"{group.kendall_tau:.2f}"
    return str(group.plans), f"{group.regret_frac:.1%}", tau, f"{group.spread:.2f}"


def facts(figures: Mapping[str, Any]) -> list[str]:
    """What a reader wants to know first, one line each."""
    complete, fits, groups = figures["complete"], figures["fits"], figures["groups"]
    known = fits["right"] + fits["ran_but_refused"] + fits["ran_out_but_called_fitting"]
    lines = [
        f"{figures['read']} of {figures['rows']} rows read, {figures['with_step_time']} of them with a step time; of "
        f"those whose source states the whole configuration {complete['read']} read and {complete['unread']} not.",
    ]
    if figures["pooled"]:
        middle = figures["median_of_source_medians"]
        lines.append(
            f"Step time: median error {figures['pooled']['median_abs_frac']:.1%} pooled, {middle:.1%} as the median of "
            f"the sources' medians."
        )
    if figures["memory"]:
        memory = figures["memory"]
        lines.append(
            f"Peak memory: median error {memory['median_abs_frac']:.1%}, bias {memory['bias_frac']:+.1%}, "
            f"{memory['runs']} rows."
        )
    ranks = figures["ranks"]["all"]
    if ranks["peak"]:
        lines.append(
            f"Single ranks: allocated after the first step within 2 % on {ranks['allocated_within_2_percent_frac']:.0%}"
            f" of {ranks['allocated']['runs']}, median {ranks['allocated']['median_abs_frac']:.1%}; first peak median "
            f"{ranks['peak']['median_abs_frac']:.1%}, within 18 % on {ranks['peak_within_18_percent_frac']:.0%}."
        )
    if known:
        lines.append(
            f"Fits or not: {fits['right'] / known:.1%} of {known} right; {fits['ran_but_refused']} ran though we "
            f"refuse them, {fits['ran_out_but_called_fitting']} ran out of memory though we call them fitting."
        )
    if groups["count"]:
        tau = groups["kendall_tau_median"]
        ranks = f"Kendall's tau median {tau:.2f}" if tau is not None else "all of them ties"
        lines.append(
            f"Planner: {groups['count']} groups, regret median {groups['regret_median_frac']:.1%}, mean "
            f"{groups['regret_mean_frac']:.1%}, worst {groups['regret_max_frac']:.1%}; {ranks}."
        )
    return lines


def accuracy_report(found: Validation) -> RenderableType:
    """Figures first, then by class, hardware and source, then the groups and what was not read."""
    figures = summary(found)
    parts: list[RenderableType] = ["\n".join(facts(figures)), ""]
    for title, key in (("By class", "classes"), ("By hardware", "hardware"), ("By source", "sources")):
        if figures[key]:
            parts.append(errors_table(title, figures[key]))
    groups = groups_of(found.known)
    if groups:
        parts.append(groups_table(groups))
    if figures["unread"]:
        parts.append(unread_table(figures["unread"]))
    return Stack(*parts)


def unread_table(reasons: Mapping[str, int]) -> Table:
    """Why rows were not read."""
    table = Table(title="Not read", title_justify="left")
    table.add_column("rows", justify="right")
    table.add_column("reason", overflow="fold")
    for reason, count in reasons.items():
        table.add_row(str(count), reason)
    return table
