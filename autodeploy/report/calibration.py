"""What a calibration found, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from autodeploy.fidelity.calibration import Calibration, Parameter
from autodeploy.fidelity.own_machine import OwnFit


def parameters_table(title: str, parameters: Sequence[Parameter]) -> Table:
    """Each fitted number with what it rests on."""
    table = Table(title=title, title_justify="left")
    table.add_column("number")
    for name in ("factor", "±", "of the prior's variance", "rows", "models", "median error"):
        table.add_column(name, justify="right")
    for each in parameters:
        table.add_row(
            each.name, f"{each.factor:.3f}", f"{each.spread_log:.1%}", f"-{each.gain_frac:.0%}", str(each.rows),
            str(each.models), f"{each.error_frac:.1%}",
        )  # fmt: skip
    return table


def _pair(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.1%} / {pair[1]:.1%}"


def calibration_report(found: Calibration) -> RenderableType:
    """Of the catalog's own factors."""
    count = len(found.parameters)
    lines = (
        f"{found.rows} rows, {count} fitted: {found.rows / max(count, 1):.0f} rows a fitted number.",
        "Median / 90th percentile of the absolute error, rows that are set aside too:",
        f"  as stated {_pair(found.before_frac)}, fitted {_pair(found.after_frac)},",
        f"  source left out {_pair(found.unseen_source_frac)}, model left out {_pair(found.unseen_model_frac)}",
    )
    return Group(parameters_table("Fitted on the calibrate rows", found.parameters), "\n".join(lines))


def fit_report(found: OwnFit) -> RenderableType:
    """Of a user's machine: numbers, errors, every residual."""
    unseen = f", model left out {_pair(found.unseen_model_frac)}" if found.unseen_model_frac else ""
    lines = [
        f"{len(found.residuals)} rows, {len(found.parameters)} fitted: "
        f"{len(found.residuals) / max(len(found.parameters), 1):.0f} rows a fitted number.",
        "Median / 90th percentile of the absolute error: "
        f"as stated {_pair(found.before_frac)}, fitted {_pair(found.after_frac)}{unseen}",
    ]
    if found.kept:
        lines.append(f"Kept as stated, the runs do not tell them: {', '.join(found.kept)}")
    return Group(parameters_table("Fitted", found.parameters), "\n".join(lines), _residuals(found))


def _residuals(found: OwnFit) -> Table:
    table = Table(title="Step time, predicted over measured less one", title_justify="left")
    table.add_column("run")
    table.add_column("model")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for each in found.residuals:
        table.add_row(each.id, each.model, f"{each.before_frac:+.1%}", f"{each.after_frac:+.1%}")
    return table
