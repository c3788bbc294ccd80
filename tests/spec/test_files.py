"""Files to values: three notations of one content, human units, and faults that name the key as it was written."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from autodeploy.catalog.lookup import ROOT, load, load_space
from autodeploy.errors import SpecError
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.files import parse, read_mapping, schema, with_human_units
from autodeploy.spec.job import Job
from autodeploy.spec.model import GQA, MLA, Model
from autodeploy.units import GIB

H100 = ROOT / "clusters" / "h100-80g.toml"
MIXTRAL = ROOT / "models" / "mixtral-8x7b.toml"


def written(folder: Path, name: str, data: Any) -> Path:
    """Data as a file of the notation that the name asks for."""
    path = folder / name
    if path.suffix == ".json":
        path.write_text(json.dumps(data))
    else:
        with path.open("w") as file:
            YAML().dump(data, file)
    return path


def faults(cls: type, data: dict[str, Any]) -> dict[str, str]:
    """Path to text of every fault."""
    with pytest.raises(SpecError) as caught:
        parse(cls, data, "file")
    return {fault.path: str(fault) for fault in caught.value.faults}


@pytest.mark.parametrize("path", sorted(ROOT.glob("*/*.toml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml", ".JSON"])
def test_toml_yaml_and_json_of_one_content_are_one_content(tmp_path: Path, path: Path, suffix: str) -> None:
    data = tomllib.loads(path.read_text())
    assert read_mapping(written(tmp_path, f"copy{suffix.lower()}", data)) == data


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_a_space_is_the_same_in_every_notation(tmp_path: Path, suffix: str) -> None:
    text = (
        'name = "one"\nmodel = "mixtral-8x7b"\ncluster = "h100-80g"\ndevices = 64\n[job]\ngbs = 128\nseq_len = 4096\n'
        'expert_imbalance = 1.0\n[plan]\ntp = "divisors"\npp = [1, 2]\nsp = [true]\nrecompute = ["none", "moe_act"]\n'
    )
    (tmp_path / "one.toml").write_text(text)
    other = written(tmp_path, f"one{suffix}", tomllib.loads(text))
    assert load_space(tmp_path / "one.toml") == load_space(other)


@pytest.mark.parametrize("suffix", [".txt", "", ".tom", ".toml.bak"])
def test_another_suffix_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"space{suffix}"
    path.write_text("a = 1")
    with pytest.raises(SpecError, match="unknown file type"):
        read_mapping(path)


@pytest.mark.parametrize("name", ["list.json", "text.yaml", "number.yaml"])
def test_a_file_must_hold_named_fields(tmp_path: Path, name: str) -> None:
    data = {"list.json": [1], "text.yaml": "text", "number.yaml": 3}[name]
    with pytest.raises(SpecError, match="not named fields"):
        read_mapping(written(tmp_path, name, data))


def cluster(**device: Any) -> dict[str, Any]:
    """The H100 cluster as a file states it, with some device keys replaced; None takes one out."""
    data = tomllib.loads(H100.read_text())
    data["device"] = {key: value for key, value in (data["device"] | device).items() if value is not None}
    return data


UNITS = {
    "hbm_gib": (80, 80 * 2**30),
    "hbm_mib": (81559, 81559 * 2**20),
    "hbm_gb": (80, 80e9),
    "hbm_bytes": (8e10, 8e10),
}


@pytest.mark.parametrize("key", UNITS)
def test_memory_may_be_written_in_any_unit(key: str) -> None:
    value, expected = UNITS[key]
    device = parse(Cluster, cluster(**{"hbm_gib": None, key: value})).device
    assert device.hbm_bytes == expected


def test_gb_and_gib_are_not_the_same() -> None:
    gib, gb = (parse(Cluster, cluster(**{"hbm_gib": None, key: 64})).device for key in ("hbm_gib", "hbm_gb"))
    assert gib.hbm_bytes / gb.hbm_bytes == pytest.approx(1.0737, abs=1e-4)


def test_si_keys_and_human_keys_give_equal_values() -> None:
    human = parse(Cluster, cluster())
    si = cluster(hbm_gib=None, peak_tflop_per_s=None, hbm_gb_per_s=None, issue_us=None, hbm_bytes=79.1 * GIB,
                 peak_flop_per_s=989.4e12, hbm_bytes_per_s=3350e9, issue_s=6.0 * 1e-6)  # fmt: skip
    assert parse(Cluster, si) == human


def test_a_loaded_cluster_read_back_is_itself() -> None:
    loaded = load(Cluster, "h100-80g")
    assert parse(Cluster, asdict(loaded)) == loaded


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_a_loaded_model_read_back_is_itself(name: str) -> None:
    loaded = load(Model, name)
    assert parse(Model, asdict(loaded)) == loaded
    assert isinstance(loaded.attention, MLA if name == "deepseek-v3" else GQA)


def test_sources_take_part_in_no_comparison() -> None:
    loaded = load(Cluster, "h100-80g")
    assert replace(loaded, sources={}) == loaded


WRONG = {
    "unit_misspelt": ({"hbm_gib": None, "hbm_gibs": 80}, {"device.hbm_gibs", "device.hbm_bytes"}),
    "unit_unknown": ({"hbm_gib": None, "hbm_tib": 1}, {"device.hbm_tib", "device.hbm_bytes"}),
    "unit_of_another_kind": (
        {"hbm_gb_per_s": None, "hbm_gb_per_us": 1},
        {"device.hbm_gb_per_us", "device.hbm_bytes_per_s"},
    ),
    "negative": ({"hbm_gib": -80}, {"device.hbm_gib"}),
    "zero_rate": ({"peak_tflop_per_s": 0}, {"device.peak_tflop_per_s"}),
    "text": ({"hbm_gib": "80"}, {"device.hbm_gib"}),
    "boolean": ({"hbm_gib": True}, {"device.hbm_gib"}),
    "not_a_number": ({"hbm_gib": float("nan")}, {"device.hbm_gib"}),
    "infinite": ({"hbm_gib": float("inf")}, {"device.hbm_gib"}),
    "share_in_percent": ({"hbm_max_frac": 87}, {"device.hbm_max_frac"}),
    "share_of_nothing": ({"matmul_max_frac": 0}, {"device.matmul_max_frac"}),
    "float_for_a_count": ({"tile_m": 128.0}, {"device.tile_m"}),
    "two_at_once": ({"tile_m": 0, "hbm_gib": "x"}, {"device.tile_m", "device.hbm_gib"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_fault_stands_under_the_key_as_written(case: str) -> None:
    change, paths = WRONG[case]
    assert set(faults(Cluster, cluster(**change))) == paths


def test_a_misspelt_unit_gets_the_unit_that_was_meant() -> None:
    found = faults(Cluster, cluster(hbm_gib=None, hbm_gibs=80))
    assert "did you mean 'hbm_gib'" in found["device.hbm_gibs"]


def test_a_fault_shows_the_value_as_written() -> None:
    assert "not -80" in faults(Cluster, cluster(hbm_gib=-80))["device.hbm_gib"] + " "
    assert "e+" not in faults(Cluster, cluster(peak_tflop_per_s=-989))["device.peak_tflop_per_s"]
    assert "-989" in faults(Cluster, cluster(peak_tflop_per_s=-989))["device.peak_tflop_per_s"]


@pytest.mark.parametrize("second", ["hbm_bytes", "hbm_gb", "hbm_mib"])
def test_one_number_in_two_units_is_refused(second: str) -> None:
    faults(Cluster, cluster(**{second: 7}))


def test_a_node_holds_at_least_one_device() -> None:
    data = cluster()
    data["node"]["size"] = 0
    faults(Cluster, data)


def test_the_context_leaves_some_memory() -> None:
    faults(Cluster, cluster(context_gib=100))


def model(**fields: Any) -> dict[str, Any]:
    """Mixtral as its file states it, with some fields replaced."""
    return tomllib.loads(MIXTRAL.read_text()) | fields


def attention(**fields: Any) -> dict[str, Any]:
    """The same with some fields of its attention replaced."""
    data = model()
    data["attention"] |= fields
    return data


BAD_MODELS = {
    "attention_kind": (attention(kind="mqa"), "attention.kind", ("'mqa'", "gqa", "mla")),
    "field_of_the_other_attention": (attention(kv_rank=512), "attention.kv_rank", ("unknown key", "kv_heads")),
    "attention_value": (attention(kv_heads=0), "attention.kv_heads", ("greater than 0", "0")),
    "layers": (model(layers="32"), "layers", ("integer", "'32'")),
    "norm": (model(norm="batchnorm"), "norm", ("'rmsnorm'", "'layernorm'", "'batchnorm'")),
    "unknown": (model(hiden=1), "hiden", ("did you mean 'hidden'",)),
    "experts": (model(moe={"experts": 8, "top_k": 2}), "moe.expert_width", ("missing",)),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_faulty_model_is_refused_in_plain_words(case: str) -> None:
    data, path, parts = BAD_MODELS[case]
    found = faults(Model, data)
    assert set(found) == {path}
    for part in parts:
        assert part in found[path]
    assert "GQA" not in found[path]


def test_all_faults_of_all_tables_come_at_once() -> None:
    data = attention(heads=-1) | {"hidden": 0, "moe": {"experts": "8", "top_k": 2, "expert_width": 1}, "extra": 1}
    assert set(faults(Model, data)) == {"attention.heads", "hidden", "moe.experts", "extra"}


def test_a_job_states_its_defaults() -> None:
    job = parse(Job, {"gbs": 8, "seq_len": 4096})
    assert (job.precision, job.grad_precision, job.grad_bytes, job.mtp) == ("bf16", "fp32", 4.0, True)


def test_human_spellings_hold_the_si_name_and_convert() -> None:
    spellings = with_human_units("hbm_bytes")
    assert {"hbm_bytes", "hbm_gib", "hbm_mib", "hbm_gb"} <= set(spellings)
    assert with_human_units("layers") == ["layers"]


@pytest.mark.parametrize("kind", ["model", "job", "cluster", "target", "plan", "space"])
def test_schemas_are_json_and_closed(kind: str) -> None:
    found = json.loads(json.dumps(schema(kind)))
    assert found["additionalProperties"] is False
    assert found["properties"]


def test_strange_yaml_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("a: 1\na: 2\n")
    with pytest.raises(SpecError, match="YAML"):
        read_mapping(path)


@pytest.mark.parametrize("text", ["1: 2\n", "? [a]\n: 1\n", "a: &x [*x]\n"])
def test_yaml_that_no_file_can_mean_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        load_space(path)
