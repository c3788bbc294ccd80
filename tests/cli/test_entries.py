"""`models`, `clusters` and `schema`: every entry can be shown, and what is shown agrees with the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autodeploy.catalog.lookup import ROOT, load, names
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model
from tests.cli.asking import ask

ENTRIES = [("models", Model), ("clusters", Cluster)]


def shown(*words: object) -> Any:
    """What a command prints as JSON."""
    result = ask(*words, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.mark.parametrize(("command", "cls"), ENTRIES)
def test_the_list_holds_every_entry_of_the_catalog(command: str, cls: type) -> None:
    assert [entry["name"] for entry in shown(command)] == names(cls)
    table = ask(command).stdout
    for name in names(cls):
        assert name in table


@pytest.mark.parametrize("name", names(Model))
def test_a_model_shows_its_shape_and_counts(name: str) -> None:
    facts = shown("models", name)
    model = load(Model, name)
    assert facts["name"] == name
    assert facts["hidden"] == model.hidden
    assert 0 < facts["active_params"] <= facts["total_params"]
    assert (facts["mtp_params"] > 0) == (model.mtp_depth > 0)
    assert facts["flop_per_token"] > 6 * facts["active_params"]
    table = ask("models", name).stdout
    assert model.title in table
    assert "source" in table


@pytest.mark.parametrize("name", names(Cluster))
def test_a_cluster_shows_the_source_beside_every_number(name: str) -> None:
    table = ask("clusters", name).stdout
    cluster = load(Cluster, name)
    for key in cluster.sources:
        assert key in table
    facts = shown("clusters", name)
    assert facts["device"]["hbm_bytes"] == cluster.device.hbm_bytes
    assert facts["sources"] == cluster.sources


@pytest.mark.parametrize(
    ("command", "folder_name", "name"), [("models", "models", "mixtral-8x7b"), ("clusters", "clusters", "atlas-900-a3")]
)
def test_a_file_is_shown_like_an_entry(folder: Path, command: str, folder_name: str, name: str) -> None:
    copy = folder / "copy.toml"
    copy.write_text((ROOT / folder_name / f"{name}.toml").read_text())
    assert shown(command, copy) == shown(command, name)


KINDS = {
    "model": {"hidden", "layers", "attention", "moe", "vocab"},
    "job": {"gbs", "seq_len", "expert_imbalance"},
    "cluster": {"device", "node", "fabric"},
    "target": {"rules", "profile"},
    "plan": {"tp", "pp", "vpp", "ep", "etp", "dp", "mbs", "layout", "recompute"},
    "space": {"model", "cluster", "devices", "job", "plan"},
}
KNOWN_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}


def check_schema(node: Any, root: dict[str, Any]) -> None:
    """What JSON Schema asks of the parts that these schemas use: types, required names, references that resolve."""
    if isinstance(node, list):
        for item in node:
            check_schema(item, root)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("type"), str):
        assert node["type"] in KNOWN_TYPES
    if "$ref" in node:
        target: Any = root
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
    if isinstance(node.get("required"), list) and isinstance(node.get("properties"), dict):
        assert set(node["required"]) <= set(node["properties"])
    for value in node.values():
        check_schema(value, root)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_names_the_fields_and_forbids_others(kind: str) -> None:
    result = ask("schema", kind)
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    assert schema["type"] == "object"
    assert schema["properties"].keys() >= KINDS[kind]
    assert schema["additionalProperties"] is False
    check_schema(schema, schema)
