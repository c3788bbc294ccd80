"""`autodeploy models`, `clusters` and `schema`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from autodeploy.catalog.lookup import load, names
from autodeploy.cli.exits import DONE
from autodeploy.errors import spec_error
from autodeploy.formats.huggingface import Imported, check_expected, load_model
from autodeploy.report.entries import cluster_table, clusters_table, model_facts, model_table, models_table
from autodeploy.report.tables import console
from autodeploy.spec import files
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model


def _write(value: Any) -> int:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
    return DONE


def show_models(name: str | None, expect_params: str | None, *, as_json: bool) -> int:
    """All models, or one: of the catalog, a file of ours, or a config.json."""
    if name is not None:
        return _show_model(load_model(name), expect_params, as_json=as_json)
    if expect_params is not None:
        raise spec_error("--expect-params", "needs a model", "a name or a file")
    listed = [load(Model, each) for each in names(Model)]
    if as_json:
        return _write([model_facts(model) for model in listed])
    console().print(models_table(listed))
    return DONE


def _show_model(imported: Imported, expect_params: str | None, *, as_json: bool) -> int:
    if expect_params is not None:
        check_expected(imported, expect_params)
    if as_json:
        notes = {"assumed": list(imported.assumed), "ignored": list(imported.ignored)}
        return _write(model_facts(imported.model) | notes)
    console().print(model_table(imported.model))
    for word in ("assumed", "ignored"):
        for text in getattr(imported, word):
            console().print(f"{word}: {text}")
    return DONE


def show_clusters(name: str | None, *, as_json: bool) -> int:
    """All clusters, or one."""
    if name is not None:
        cluster = load(Cluster, name)
        if as_json:
            return _write(asdict(cluster))
        console().print(cluster_table(cluster))
        return DONE
    listed = [load(Cluster, each) for each in names(Cluster)]
    if as_json:
        return _write([asdict(cluster) for cluster in listed])
    console().print(clusters_table(listed))
    return DONE


def show_schema(kind: str) -> int:
    """JSON Schema of a kind of file."""
    return _write(files.schema(kind))
