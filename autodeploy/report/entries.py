"""Catalog entries as a reader wants them: models with their counts, clusters with sources beside the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from autodeploy.analysis.inventory import kind_counts
from autodeploy.analysis.readings import flop_per_token, model_size
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model
from autodeploy.units import GIB, GIGA, MICRO, TERA, format_count

FLOP_SEQ_LEN = 4096


def model_facts(model: Model) -> dict[str, Any]:
    """Shape and counts of a model."""
    size = model_size(model)
    seq_len = min(FLOP_SEQ_LEN, model.max_seq_len)
    return asdict(model) | {
        "total_params": size.total,
        "active_params": size.active,
        "mtp_params": size.mtp,
        "flop_per_token": flop_per_token(model, seq_len, mtp=True),
        "flop_seq_len": seq_len,
    }


def models_table(models: Sequence[Model]) -> Table:
    """All models of the catalog."""
    table = Table(title="Models", title_justify="left")
    for name in ("name", "title"):
        table.add_column(name)
    for name in ("layers", "hidden", "total", "active", "MTP", "experts"):
        table.add_column(name, justify="right")
    for model in models:
        size = model_size(model)
        experts = f"{model.moe.top_k} of {model.moe.experts}" if model.moe else "-"
        table.add_row(
            model.name, model.title, str(model.layers), str(model.hidden), format_count(size.total),
            format_count(size.active), format_count(size.mtp) if size.mtp else "-", experts,
        )  # fmt: skip
    return table


def model_table(model: Model) -> Table:
    """One model."""
    facts = model_facts(model)
    table = _pairs(f"{model.title} ({model.name})")
    for key, value in facts.items():
        if key in ("name", "title", "sources"):
            continue
        if isinstance(value, dict):
            for inner, number in value.items():
                table.add_row(f"{key}.{inner}", str(number))
        else:
            text = f"{value:,.0f} ({format_count(value)})" if isinstance(value, float) else str(value)
            table.add_row(key, text)
    counts = kind_counts(model, mtp=True)
    table.add_row("layers by kind", ", ".join(f"{count} {kind.name.lower()}" for kind, count in counts.items()))
    table.add_row("counts", "total and active without MTP; active without the input embedding")
    for key, text in model.sources.items():
        table.add_row(f"source {key}", text)
    return table


def clusters_table(clusters: Sequence[Cluster]) -> Table:
    """All clusters of the catalog."""
    table = Table(title="Clusters", title_justify="left")
    for name in ("name", "title"):
        table.add_column(name)
    for name in ("peak TF", "usable GiB", "HBM GB/s", "node", "fabric GB/s"):
        table.add_column(name, justify="right")
    for c in clusters:
        node = f"{c.node.size} x {c.node.link_bytes_per_s / GIGA:g} {c.node.topology}"
        table.add_row(
            c.name, c.title, f"{c.device.peak_flop_per_s / TERA:g}", f"{c.device.usable_bytes / GIB:.2f}",
            f"{c.device.hbm_bytes_per_s / GIGA:g}", node,
            f"{c.fabric.link_bytes_per_s / GIGA:g}",
        )  # fmt: skip
    return table


def cluster_table(cluster: Cluster) -> Table:
    """One cluster, every number with its source."""
    table = Table(title=f"{cluster.title} ({cluster.name})", title_justify="left")
    for name in ("field", "value", "source"):
        table.add_column(name)
    facts = asdict(cluster)
    for key in (name for name in ("device", "node", "supernode", "fabric") if facts[name]):
        for name, value in _flat(facts[key]):
            table.add_row(f"{key}.{name}", human(name, value), cluster.sources.get(f"{key}.{name}", ""))
    for name in ("pipelined_collectives", "communicator_bytes", "fragmentation_frac"):
        table.add_row(name, human(name, facts[name]), cluster.sources.get(name, ""))
    return table


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields by their dotted names; tables that are not there are left out."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value


def human(name: str, value: Any) -> str:
    """A value in the unit that people use for it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if name.endswith("_flop_per_s"):
        return f"{value / TERA:g} TFLOP/s"
    if name.endswith("_bytes_per_s"):
        return f"{value / GIGA:g} GB/s"
    if name.endswith("_bytes"):
        return f"{value / GIB:.2f} GiB"
    if name.endswith("_s"):
        return f"{value / MICRO:g} us"
    return f"{value:g}"


def _pairs(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    return table
