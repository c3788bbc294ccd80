"""The catalog: every file loads, and every number in it says where it comes from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autodeploy.catalog.lookup import FOLDERS, ROOT, load, names
from autodeploy.errors import SpecError
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model, decoder_kinds
from autodeploy.spec.target import Target

FILES = sorted(ROOT.glob("*/*.toml"))
IDS = [f"{path.parent.name}-{path.stem}" for path in FILES]
MACHINES = [path for path in FILES if path.parent.name in ("clusters", "targets")]
MACHINE_IDS = [f"{path.parent.name}-{path.stem}" for path in MACHINES]
MODELS = [path for path in FILES if path.parent.name == "models"]
KNOWN = ("measured", "published", "assumed", "calibrated")
CLASSES = {folder: cls for cls, folder in FOLDERS.items()}


def numbers(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted name of every number of a file, switches included, sources apart."""
    for key, value in table.items():
        if key == "sources":
            continue
        if isinstance(value, dict):
            yield from numbers(value, f"{prefix}{key}.")
        elif isinstance(value, (bool, int, float)):
            yield prefix + key


def values(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted name of everything that a file states, sources apart."""
    for key, value in table.items():
        if key == "sources":
            continue
        if isinstance(value, dict):
            yield from values(value, f"{prefix}{key}.")
        else:
            yield prefix + key


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_an_entry_loads_and_bears_the_name_of_its_file(path: Path) -> None:
    entry = load(CLASSES[path.parent.name], path.stem)
    assert entry.name == path.stem
    assert entry.title


@pytest.mark.parametrize("cls", FOLDERS)
def test_names_are_those_of_the_files(cls: type) -> None:
    stems = sorted(path.stem for path in (ROOT / FOLDERS[cls]).iterdir() if path.suffix == ".toml")
    assert names(cls) == stems
    assert stems


@pytest.mark.parametrize("path", MACHINES, ids=MACHINE_IDS)
def test_every_number_has_a_source(path: Path) -> None:
    data = tomllib.loads(path.read_text())
    assert set(numbers(data)) - set(data["sources"]) == set()


@pytest.mark.parametrize("path", MACHINES, ids=MACHINE_IDS)
def test_every_source_belongs_to_something_in_the_file(path: Path) -> None:
    data = tomllib.loads(path.read_text())
    assert set(data["sources"]) - set(values(data)) == set()


@pytest.mark.parametrize("path", MACHINES, ids=MACHINE_IDS)
def test_a_source_begins_with_how_well_the_number_is_known(path: Path) -> None:
    for key, text in tomllib.loads(path.read_text())["sources"].items():
        word, colon, reason = text.partition(":")
        assert word in KNOWN, key
        assert colon, key
        assert reason.strip(), key


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_model_names_its_publication(path: Path) -> None:
    model = load(Model, path.stem)
    assert model.sources
    assert all(len(text) > len("config.json") for text in model.sources.values())


@pytest.mark.parametrize("name", names(Model))
def test_a_model_is_one_that_can_be(name: str) -> None:
    model = load(Model, name)
    assert len(decoder_kinds(model)) == model.layers
    if model.moe:
        assert model.moe.top_k <= model.moe.experts
        assert model.moe.first_dense < model.layers
    kv_heads = getattr(model.attention, "kv_heads", 1)
    assert model.attention.heads % kv_heads == 0


@pytest.mark.parametrize("name", names(Cluster))
def test_a_cluster_is_one_that_can_be(name: str) -> None:
    cluster = load(Cluster, name)
    assert cluster.device.usable_bytes > 0.9 * cluster.device.hbm_bytes
    assert cluster.node.size > 1
    assert cluster.fabric.size == 0
    per_device = cluster.node.link_bytes_per_s * (cluster.node.size - 1 if cluster.node.topology == "mesh" else 1)
    assert per_device > cluster.fabric.link_bytes_per_s
    assert cluster.device.hbm_bytes_per_s > per_device


@pytest.mark.parametrize("name", names(Target))
def test_a_target_lists_a_rule_once(name: str) -> None:
    rules = load(Target, name).rules
    assert rules
    assert len(set(rules)) == len(rules)


@pytest.mark.parametrize(("cls", "name", "near"), [
    (Model, "deepseek-v", "deepseek-v3"), (Cluster, "atlas-800t-a", "atlas-800t-a2"), (Target, "genric", "generic"),
])  # fmt: skip
def test_an_unknown_name_gets_the_nearest_and_all(cls: type, name: str, near: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(cls, name)
    (fault,) = caught.value.faults
    assert f"did you mean {near!r}" in fault.problem
    for each in names(cls):
        assert each in fault.allowed


def test_an_entry_may_be_given_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((ROOT / "models" / "mixtral-8x7b.toml").read_text())
    assert load(Model, str(path)) == load(Model, "mixtral-8x7b")
