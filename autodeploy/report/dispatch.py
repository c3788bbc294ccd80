"""Ways of dispatch side by side, as tables, a page or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from autodeploy.formats.document import SCHEMA_VERSION, tool_version
from autodeploy.report.markdown import table
from autodeploy.search.crossover import Crossing
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model
from autodeploy.spec.plan import DISPATCH_WORDS
from autodeploy.units import MICRO

Found = Sequence[tuple[Cluster, Sequence[Crossing]]]
COLUMNS = ("ep", "nodes", *DISPATCH_WORDS, "quickest", "why")
PAGE = (
    "Written by `make claims`. Microseconds of one dispatch by each way, by the size of the expert group, and the "
    "quickest of those that a library's collectives make (flat, hier, dedup, gather); `fused` is one kernel that "
    "forwards what it receives, where there is one. Ways within 2 % of the quickest count as equal, the simplest "
    "first. Formulas: [model.md](model.md) 6.4."
)


def _cells(each: Crossing) -> tuple[str, ...]:
    times = [f"{seconds / MICRO:,.0f}" for seconds in each.times_s]
    if each.nodes == 1:
        times[DISPATCH_WORDS.index("hier")] = "-"
    return str(each.ep), str(each.nodes), *times, each.fastest, each.reason


def dispatch_table(model: Model, cluster: Cluster, found: Sequence[Crossing]) -> Table:
    """One cluster."""
    shown = Table(title=f"{model.name} on {cluster.name}: us of one dispatch", title_justify="left")
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name in ("quickest", "why") else "right", overflow="fold")
    for each in found:
        shown.add_row(*_cells(each))
    return shown


def dispatch_page(model: Model, tokens: int, imbalance: float, found: Found) -> str:
    """All clusters as Markdown; clusters with equal tables under one heading."""
    text = f"{model.title}: {tokens:,} tokens a rank, busiest rank at {imbalance:g} x the mean."
    parts = ["# Dispatch by the size of the expert group", PAGE, text]
    equal: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for cluster, rows in found:
        equal.setdefault(tuple(_cells(each) for each in rows), []).append(cluster.name)
    for cells, names in equal.items():
        parts += [f"## {', '.join(names)}", table(COLUMNS, cells)]
    return "\n\n".join(parts) + "\n"


def dispatch_document(model: Model, tokens: int, imbalance: float, found: Found) -> dict[str, Any]:
    """For machines."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": tool_version(),
        "inputs": {"model": model.name, "tokens": tokens, "expert_imbalance": imbalance},
        "clusters": [{"cluster": cluster.name, "rows": [_row(each) for each in rows]} for cluster, rows in found],
    }


def _row(each: Crossing) -> dict[str, Any]:
    facts = asdict(each)
    facts["seconds"] = dict(zip(DISPATCH_WORDS, facts.pop("times_s"), strict=True))
    return facts
