"""`autodeploy dispatch`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autodeploy.catalog.lookup import load, names
from autodeploy.cli.exits import DONE
from autodeploy.cli.validate import deliver
from autodeploy.errors import spec_error
from autodeploy.formats.document import check_writable, to_json
from autodeploy.formats.huggingface import load_model
from autodeploy.report.dispatch import dispatch_document, dispatch_page, dispatch_table
from autodeploy.report.tables import console
from autodeploy.search.crossover import crossings
from autodeploy.spec.cluster import Cluster


def run_dispatch(
    model: str, clusters: Sequence[str], tokens: int, imbalance: float, form: str, out: Path | None
) -> int:
    """Compare the ways of dispatch; returns the exit code."""
    if out is not None:
        check_writable(out)
    if not imbalance >= 1.0:
        raise spec_error("--imbalance", f"{imbalance:g} is no load of the busiest over the mean", "1 or more")
    shape = load_model(model).model
    if shape.moe is None:
        raise spec_error("--model", f"{shape.name} has no experts", "a model with experts (autodeploy models)")
    found = [
        (machine, crossings(shape, machine, tokens, imbalance))
        for machine in (load(Cluster, name) for name in clusters or names(Cluster))
    ]
    if form == "text" and out is None:
        for machine, rows in found:
            console().print(dispatch_table(shape, machine, rows))
        return DONE
    if form == "json":
        deliver(to_json(dispatch_document(shape, tokens, imbalance, found)), out)
    else:
        deliver(dispatch_page(shape, tokens, imbalance, found), out)
    return DONE
