"""How true it is, as a Markdown page: figures, what changed, where the errors lie, the worst rows, what has no data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from autodeploy.catalog.calibration import factors
from autodeploy.fidelity.aims import AIMS, one_run_buys, reached, within_interval
from autodeploy.fidelity.document import Validation, is_ascend, summary
from autodeploy.fidelity.history import readings
from autodeploy.fidelity.predict import Prediction
from autodeploy.fidelity.reasons import suspected
from autodeploy.fidelity.residuals import Residual, residuals
from autodeploy.fidelity.score import errors_by, groups_of
from autodeploy.fidelity.stacks import stacks
from autodeploy.report.accuracy import ERROR_COLUMNS, error_cells, facts, group_cells
from autodeploy.report.accuracy_memory import memory_parts
from autodeploy.report.markdown import table

WORST = 20
MOST_SOURCES = 5
SAME = {
    "runs of its model, chip and source": ("source", "model", "device", "family"),
    "all runs of its source": ("source",),
}
NAMES = {"calibrate": "calibrate", "validate": "validate (never fitted)", "none": "without a mark"}


def accuracy_page(found: Validation) -> str:
    """The page."""
    figures = summary(found)
    parts = [
        "# Accuracy",
        "Written by `make fidelity` from the published runs in `benchmarks/fidelity`. Constants of a chip generation "
        "and one factor a software family are fitted to the rows marked `calibrate` (below; `autodeploy clusters NAME` "
        "says which); rows marked `validate` were never fitted. Errors are of the step time, predicted over measured "
        "less one: above 0 we are too slow.",
        *(f"- {line}" for line in facts(figures)),
        *_aims(found),
        "## What was fitted",
        _factors(),
        "## By class",
        _errors(figures["classes"]),
        "## What the sources state",
        _errors(_stated(figures)),
        "## Readings",
        _history(),
        "## By hardware",
        _errors(figures["hardware"]),
        "## By source",
        _errors(figures["sources"]),
        "## Planner's score",
        "Groups share source, model, machine, job and release, and hold at least four distinct plans; pairs within 4 % "
        "are ties. Regret: how much slower the plan that we put first was measured than the best of its group.",
        _groups(found),
        *memory_parts(found, figures),
        "## Where the errors lie",
        _residuals(residuals(found.known)),
        f"## The {WORST} worst rows",
        _worst(found.known),
        "## What has no data",
        _coverage(found.known),
        "## What was not read",
        table(("rows", "reason"), ((str(n), reason) for reason, n in figures["unread"].items())),
        "## What is assumed",
        "Where a row leaves something out, one assumption holds for its whole source "
        "(`autodeploy/fidelity/assumptions.toml`).",
        _assumptions(),
    ]
    return "\n\n".join(_joined(parts)) + "\n"


def _joined(parts: Sequence[str]) -> Iterable[str]:
    """List items stand under each other without a gap."""
    block: list[str] = []
    for part in parts:
        if part.startswith("- "):
            block.append(part)
            continue
        if block:
            yield "\n".join(block)
            block = []
        yield part


def _errors(rows: Mapping[str, Any]) -> str:
    return table(("", *ERROR_COLUMNS), ((name, *error_cells(errors)) for name, errors in rows.items()))


def _stated(figures: Mapping[str, Any]) -> dict[str, Any]:
    rows = {"whole configuration stated": figures["complete_rows"], "something left out": figures["partial_rows"]}
    rows |= {NAMES.get(use, use): errors for use, errors in figures["use"].items()}
    return {name: errors for name, errors in rows.items() if errors}


def _aims(found: Validation) -> list[str]:
    """The table of aims, rows that are not read, how often intervals hold, and which sources keep a line from its aim;
    nothing without rows that are kept for that."""
    known = [each for each in found.known if each.run.row.use == "validate"]
    if not known:
        return []
    rows = ((each.name, each.aim, each.reached, "yes" if each.met else "no") for each in reached(found.predictions))
    names = ("rows", "aim", "reached", "met")
    return ["## Aims and what is reached, on `validate` rows", table(names, rows), *_limits(found, known)]


def _limits(found: Validation, known: Sequence[Prediction]) -> list[str]:
    unread = [line for line in found.unread if line.use == "validate"]
    errors = [abs(each.error_frac or 0.0) for each in known] + [1.0] * len(unread)
    inside = [hit for each in known if (hit := within_interval(each)) is not None]
    lines = [
        f"- {len(unread)} of {len(known) + len(unread)} validate rows cannot be read; counted as an error of 100 % the "
        f"pooled median is {median(errors):.1%}."
    ]
    if inside:
        share = sum(inside) / len(inside)
        lines.append(
            f"- {len(inside)} validate rows have an interval that four of five should lie in: {share:.0%} do; the "
            f"other {len(known) - len(inside)} are extrapolated."
        )
    for title, same in SAME.items():
        if bought := one_run_buys(same):
            lines.append(
                f"- A single run that sets the pace (`calibrate --pace`) for {title}, its source left out of the fit: "
                f"median error of {bought[2]} other calibrate rows {bought[0]:.1%} without, {bought[1]:.1%} with it."
            )
    return [*lines, "Sources of these lines with the largest errors, of three rows and more:", _sources_of(known)]


def _sources_of(known: Sequence[Prediction]) -> str:
    """The five worst sources of every aim."""
    rows = []
    for aim in AIMS:
        errors = errors_by([each for each in known if aim.mine(each)], lambda p: p.run.row.source)
        listed = sorted((each for each in errors.items() if each[1].runs >= 3), key=lambda e: -e[1].median_abs_frac)
        rows += [(aim.name, name, *error_cells(asdict(some))) for name, some in listed[:MOST_SOURCES]]
    return table(("rows", "source", *ERROR_COLUMNS), rows)


def _factors() -> str:
    names = ("owner", "number", "factor", "rows", "models", "median error")
    rows = (
        (each.owner, each.name, f"{each.factor:.3f}", str(each.rows), str(each.models), f"{each.error_frac:.1%}")
        for each in factors()
    )
    return (
        "Factors on what the cluster files state; `pace` is of time. Rows and models are those that see it.\n\n"
        + table(names, rows)
    )


def _history() -> str:
    names = ("reading", "dense A100/H100", "MoE NVIDIA", "Ascend without CI", "pooled", "regret mean", "what changed")
    rows = (
        (each.date, each.dense, each.moe, each.ascend, each.pooled, each.regret, each.change) for each in readings()
    )
    return "Median / 90th percentile of the absolute error.\n\n" + table(names, rows)


def _groups(found: Validation) -> str:
    groups = sorted(groups_of(found.known), key=lambda each: -each.regret_frac)
    rows = ((g.source, g.model, g.cluster, g.job, *group_cells(g)) for g in groups)
    return table(("source", "model", "cluster", "job", "plans", "regret", "tau", "spread"), rows)


def _residuals(found: Sequence[Residual]) -> str:
    rows = (
        (
            each.factor,
            each.bin,
            str(each.errors.runs),
            f"{each.errors.bias_frac:+.1%}",
            f"{each.errors.median_abs_frac:.1%}",
        )
        for each in found
    )
    return table(("factor", "bin", "runs", "bias", "median error"), rows)


def _worst(known: Sequence[Prediction]) -> str:
    ordered = sorted(known, key=lambda each: -abs(each.error_frac or 0.0))[:WORST]
    rows = (
        (
            each.run.row.id,
            each.run.row.model,
            each.run.space.cluster.name,
            each.run.plan_text,
            f"{each.error_frac:+.0%}",
            suspected(each),
        )
        for each in ordered
    )
    return table(("row", "model", "cluster", "plan", "error", "suspected reason"), rows)


def _coverage(known: Sequence[Prediction]) -> str:
    """The largest of everything that is measured, per machine family and kind of model: beyond it we extrapolate."""
    found: dict[tuple[str, str], list[Prediction]] = defaultdict(list)
    for each in known:
        found["Ascend" if is_ascend(each) else "NVIDIA", each.run.kind].append(each)
    rows = []
    for (family, kind), members in sorted(found.items()):
        largest = [max(getattr(each.run.plan, name) for each in members) for name in ("tp", "pp", "cp", "ep")]
        devices = max(each.run.space.devices for each in members)
        rows.append((family, kind, str(len(members)), str(devices), *map(str, largest)))
    return (
        "The largest measured here. What lies beyond is `extrapolated`: Ascend MoE above this expert degree and scale, "
        "supernodes (Atlas 900 A3, CloudMatrix384) as a whole, and hierarchical dispatch on any machine.\n\n"
        + table(("machines", "model", "runs", "devices", "tp", "pp", "cp", "ep"), rows)
    )


def _assumptions() -> str:
    rows = (
        (each.name, each.target, each.recompute, str(each.zero), each.grad_precision, each.reason) for each in stacks()
    )
    return table(("stack", "profile", "recompute", "ZeRO", "gradients", "reason"), rows)
