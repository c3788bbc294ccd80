"""A sweep file to its cells: their order, names and values; every fault of a file at once."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from autodeploy.catalog.lookup import load
from autodeploy.errors import SpecError
from autodeploy.search.defaults import default_values
from autodeploy.spec.model import GQA, MLA, Model, MoE
from autodeploy.spec.sweep import Sweep
from autodeploy.sweep.cells import OWN_FIELDS, Cell, cells_of, own_fields, read_sweep, with_own_fields
from autodeploy.sweep.run import cell_space
from autodeploy.units import GIB
from tests.house.source import ROOT
from tests.sweep.little import write_sweep

SHIPPED = sorted((ROOT / "search_spaces" / "sweeps").glob("*.toml"))
BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "cluster": "h100-80g", "devices": 64, "seq_len": 4096, "gbs": 256}


def sweep_of(matrix: dict[str, Any], **changed: Any) -> Sweep:
    """A sweep with a base that needs nothing more."""
    base = {key: value for key, value in BASE.items() if key not in matrix}
    return Sweep(**{"name": "s", "base": base, "matrix": matrix, **changed})


def cell_of(**values: Any) -> Cell:
    """A cell with some values changed."""
    return Cell(name="cell", values={**BASE, **values})


def test_the_last_key_runs_fastest() -> None:
    matrix = {"gbs": (8, 16), "devices": (1, 2, 4), "model": ("b", "a")}
    cells = cells_of(sweep_of(matrix))
    assert [cell.name for cell in cells] == [
        f"gbs={gbs},devices={devices},model={model}" for gbs in (8, 16) for devices in (1, 2, 4) for model in ("b", "a")
    ]
    assert len({cell.name for cell in cells}) == 12
    for cell, (gbs, devices, model) in zip(cells, product(*matrix.values()), strict=True):
        assert (cell.values["gbs"], cell.values["devices"], cell.values["model"]) == (gbs, devices, model)
        assert (cell.values["cluster"], cell.values["seq_len"]) == ("h100-80g", 4096)


def test_the_order_of_the_keys_in_a_file_is_the_order_of_the_cells(tmp_path: Path) -> None:
    text = 'name = "s"\n[matrix]\n{}\n[base]\nmodel = "llama-3.1-8b"\ncluster = "h100-80g"\nseq_len = 4096\n'
    one, other = "devices = [8, 16]\ngbs = [32, 64]", "gbs = [32, 64]\ndevices = [8, 16]"
    names = [
        [cell.name for cell in cells_of(read_sweep(write_sweep(tmp_path, text.format(keys))))] for keys in (one, other)
    ]
    assert names[0] == ["devices=8,gbs=32", "devices=8,gbs=64", "devices=16,gbs=32", "devices=16,gbs=64"]
    assert names[1] == ["gbs=32,devices=8", "gbs=32,devices=16", "gbs=64,devices=8", "gbs=64,devices=16"]


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_a_shipped_sweep_is_read_and_its_cells_can_be_searched(path: Path) -> None:
    sweep = read_sweep(path)
    cells = cells_of(sweep)
    assert 2 <= len(cells) <= 100
    spaces = [cell_space(sweep, cell) for cell in cells]
    assert [space.name for space in spaces] == [cell.name for cell in cells]


def test_a_cell_is_the_space_that_a_search_without_a_file_makes() -> None:
    sweep = sweep_of({"gbs": (64,)}, effort="normal")
    (cell,) = cells_of(sweep)
    space = cell_space(sweep, cell)
    assert space.model == load(Model, "qwen3-30b-a3b")
    assert (space.devices, space.job.gbs, space.job.seq_len, space.target.name) == (64, 64, 4096, "generic")
    assert space.plan == default_values(space.model, space.cluster, 64, "normal")


def test_conditions_and_fixed_fields_of_a_sweep_reach_every_cell() -> None:
    sweep = sweep_of({"gbs": (64, 128)}, only=("pp<=4",), ban=("schedule=1f1b",), fix="tp=2,dp=8")
    for cell in cells_of(sweep):
        space = cell_space(sweep, cell)
        assert space.plan.tp == (2,)
        assert (space.only, space.ban) == (("pp<=4", "dp=8"), ("schedule=1f1b",))


def test_a_target_may_be_listed() -> None:
    sweep = sweep_of({"target": ("generic", "megatron-core")})
    assert [cell_space(sweep, cell).target.name for cell in cells_of(sweep)] == ["generic", "megatron-core"]


def test_num_layers_is_layers() -> None:
    model = load(Model, "qwen3-30b-a3b")
    for key in ("layers", "num_layers"):
        own = own_fields(cell_of(**{key: 12}))
        assert own == {"layers": 12}
        assert with_own_fields(model, own) == replace(model, layers=12)


def test_a_field_of_a_part_of_the_model() -> None:
    model = load(Model, "qwen3-30b-a3b")
    assert isinstance(model.attention, GQA)
    assert model.moe is not None
    changed = with_own_fields(model, {"moe.top_k": 4, "moe.experts": 64, "attention.kv_heads": 2, "hidden": 1024})
    assert changed == replace(
        model, hidden=1024, moe=replace(model.moe, top_k=4, experts=64), attention=replace(model.attention, kv_heads=2)
    )


def test_a_field_of_latent_attention() -> None:
    model = load(Model, "deepseek-v3")
    assert isinstance(model.attention, MLA)
    assert with_own_fields(model, {"attention.kv_rank": 256}).attention == replace(model.attention, kv_rank=256)


def test_every_number_of_a_model_can_be_swept() -> None:
    parts = {"": Model, "moe.": MoE, "attention.": GQA}
    for prefix, cls in parts.items():
        for field in fields(cls):
            apart = field.name in ("name", "title", "attention", "moe", "sources", "kind")
            assert (prefix + field.name in OWN_FIELDS) != apart
    assert {f"attention.{field.name}" for field in fields(MLA)} - {"attention.kind"} <= set(OWN_FIELDS)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("llama-3.1-8b", "moe.top_k"),
        ("qwen3-30b-a3b", "attention.kv_rank"),
        ("deepseek-v3", "attention.kv_heads"),
    ],
)
def test_a_field_that_the_model_has_not(model: str, key: str) -> None:
    with pytest.raises(SpecError, match="has no such field") as caught:
        with_own_fields(load(Model, model), {key: 4})
    assert caught.value.faults[0].path == key
    assert model in str(caught.value)


WRONG_FIELDS: dict[str, Any] = {
    "word_for_a_count": ("layers", "many"),
    "no_layer": ("layers", 0),
    "negative": ("layers", -3),
    "half_a_layer": ("layers", 2.5),
    "switch_for_a_count": ("layers", True),
    "number_for_a_switch": ("tied_embeddings", 3),
    "unknown_norm": ("norm", "batchnorm"),
    "three_norms": ("norms_per_layer", 3),
    "no_expert": ("moe.experts", 0),
    "no_head": ("attention.heads", 0),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
def test_a_field_of_the_model_is_checked_like_a_file(case: str) -> None:
    key, value = WRONG_FIELDS[case]
    with pytest.raises(SpecError) as caught:
        with_own_fields(load(Model, "qwen3-30b-a3b"), {key: value})
    assert key in str(caught.value)


def faults(folder: Path, text: str) -> dict[str, str]:
    """Place -> message, for the faults of a sweep file."""
    with pytest.raises(SpecError) as caught:
        read_sweep(write_sweep(folder, text))
    assert str(folder) in str(caught.value)
    return {fault.path: str(fault) for fault in caught.value.faults}


HEAD = 'name = "s"\n[base]\ncluster = "h100-80g"\nseq_len = 4096\ngbs = 64\ndevices = 8\n'
ONE_FAULT: dict[str, tuple[str, str, str]] = {
    "unknown_in_the_matrix": (
        HEAD + '[matrix]\nmodel = ["a"]\ndevcies = [8]', "matrix.devcies", "did you mean 'devices'",
    ),
    "unknown_in_the_base": (HEAD + 'modle = "a"\n[matrix]\nmodel = ["a"]', "base.modle", "did you mean 'model'"),
    "unknown_part": (HEAD + '[matrix]\nmodel = ["a"]\n"moe.topk" = [8]', "matrix.moe.topk", "did you mean 'moe.top_k'"),
    "like_nothing": (
        HEAD + '[matrix]\nmodel = ["a"]\nzzz = [8]', "matrix.zzz", "model cluster target devices seq_len gbs",
    ),
    "missing": (HEAD + "[matrix]\nlayers = [8]", "matrix.model", "missing"),
    "in_both": (HEAD + '[matrix]\nmodel = ["a"]\ngbs = [8]', "matrix.gbs", "also in base"),
    "no_value": (HEAD + "[matrix]\nmodel = []", "matrix.model", "no value"),
    "number_for_a_name": (HEAD + "[matrix]\nmodel = [1]", "matrix.model", "not a name: 1"),
    "switch_for_a_name": (HEAD + "[matrix]\nmodel = [true]", "matrix.model", "not a name: True"),
    "half_a_device": (HEAD.replace("devices = 8", "devices = 8.5") + '[matrix]\nmodel = ["a"]', "base.devices", "8.5"),
    "text_for_a_count": (
        HEAD.replace("devices = 8", 'devices = "8"') + '[matrix]\nmodel = ["a"]', "base.devices", "'8'",
    ),
    "switch_for_a_count": (HEAD.replace("gbs = 64", "gbs = true") + '[matrix]\nmodel = ["a"]', "base.gbs", "True"),
    "no_device": (HEAD.replace("devices = 8", "devices = 0") + '[matrix]\nmodel = ["a"]', "base.devices", "from 1: 0"),
    "negative": (HEAD.replace("gbs = 64\n", "") + '[matrix]\nmodel = ["a"]\ngbs = [8, -8]', "matrix.gbs", "-8"),
    "no_list": (HEAD + '[matrix]\nmodel = "a"', "matrix.model", "array"),
    "no_matrix": (HEAD, "matrix", "missing"),
    "no_name": (HEAD.replace('name = "s"\n', "") + '[matrix]\nmodel = ["a"]', "name", "missing"),
    "unknown_at_the_top": ("efort = 'fast'\n" + HEAD + '[matrix]\nmodel = ["a"]', "efort", "did you mean 'effort'"),
    "effort": ("effort = 'slow'\n" + HEAD + '[matrix]\nmodel = ["a"]', "effort", "'slow'"),
    "engine": ("engine = 'best'\n" + HEAD + '[matrix]\nmodel = ["a"]', "engine", "'best'"),
    "trials": ("trials = 0\n" + HEAD + '[matrix]\nmodel = ["a"]', "trials", "greater than 0"),
    "unquoted_part": (HEAD + '[matrix]\nmodel = ["a"]\nmoe.top_k = [8]', "matrix.moe", "array"),
    "threshold_key": (
        HEAD + '[matrix]\nmodel = ["a"]\n[[thresholds]]\nmax_memry_gib = 3', "thresholds[0].max_memry_gib",
        "did you mean 'max_memory_",
    ),
    "threshold_value": (
        HEAD + '[matrix]\nmodel = ["a"]\n[[thresholds]]\nmax_memory_gib = -3', "thresholds[0].max_memory_gib", "-3",
    ),
    "threshold_type": (HEAD + '[matrix]\nmodel = ["a"]\n[[thresholds]]\nfits = 1', "thresholds[0].fits", "boolean"),
}  # fmt: skip


@pytest.mark.parametrize("case", ONE_FAULT)
def test_a_fault_is_named_with_its_place(tmp_path: Path, case: str) -> None:
    text, place, part = ONE_FAULT[case]
    found = faults(tmp_path, text)
    assert list(found) == [place]
    assert part in found[place]


def test_all_faults_of_both_tables_are_named_at_once(tmp_path: Path) -> None:
    text = (
        'name = "s"\n[base]\ncluster = 1\ngbs = 64.5\nmodle = "a"\nlayers = 8\n'
        '[matrix]\ndevices = [8, "x", 0]\ngbs = []\nlayers = [1]\nzzz = [1]\n'
    )
    found = faults(tmp_path, text)
    assert found.keys() == {
        "base.cluster", "base.gbs", "base.modle", "matrix.devices", "matrix.gbs", "matrix.layers", "matrix.model",
        "matrix.seq_len", "matrix.zzz",
    }  # fmt: skip


def test_a_whole_number_may_be_written_as_a_float(tmp_path: Path) -> None:
    text = HEAD.replace("devices = 8", "devices = 8.0") + '[matrix]\nmodel = ["llama-3.1-8b"]'
    sweep = read_sweep(write_sweep(tmp_path, text))
    assert cell_space(sweep, cells_of(sweep)[0]).devices == 8


def test_thresholds_are_written_in_human_units(tmp_path: Path) -> None:
    text = HEAD + '[matrix]\nmodel = ["a"]\n[[thresholds]]\nmax_memory_gib = 59.5\nmin_tokens_per_s_per_device = 7\n'
    (threshold,) = read_sweep(write_sweep(tmp_path, text)).thresholds
    assert threshold.max_memory_bytes == 59.5 * GIB
    assert threshold.min_tokens_per_s_per_device == 7.0
    assert (threshold.cell, threshold.fits, threshold.plan_id) == ("", None, None)


def test_a_sweep_may_be_yaml_or_json(tmp_path: Path) -> None:
    yaml = "name: s\nbase: {cluster: h100-80g, seq_len: 4096, gbs: 64, devices: 8}\nmatrix:\n  model: [a, b]\n"
    json = (
        '{"name": "s", "base": {"cluster": "h100-80g", "seq_len": 4096, "gbs": 64, "devices": 8},'
        ' "matrix": {"model": ["a", "b"]}}'
    )
    toml = HEAD + '[matrix]\nmodel = ["a", "b"]'
    read = [read_sweep(write_sweep(tmp_path, text, f"s.{suffix}")) for suffix, text in
            (("yaml", yaml), ("json", json), ("toml", toml))]  # fmt: skip
    assert read[0] == read[1] == read[2]


def test_too_many_cells_are_refused_before_any_is_run() -> None:
    many = tuple(range(1, 102))
    with pytest.raises(SpecError, match="10,201 cells"):
        cells_of(sweep_of({"gbs": many, "devices": many}))
    assert len(cells_of(sweep_of({"gbs": many[:100], "devices": many[:100]}))) == 10_000


UNHELD = {
    "value_twice": HEAD + '[matrix]\nmodel = ["a", "a"]',
    "one_field_by_two_names": HEAD + '[matrix]\nmodel = ["a"]\nlayers = [8]\nnum_layers = [4]',
    "one_field_by_two_names_in_both": HEAD + 'num_layers = 8\n[matrix]\nmodel = ["a"]\nlayers = [4]',
    "matrix_without_a_key": HEAD + 'model = "a"\n[matrix]\n',
    "condition": 'only = ["ttp=2"]\n' + HEAD + '[matrix]\nmodel = ["a"]',
    "ban": 'ban = ["overlap=pairs"]\n' + HEAD + '[matrix]\nmodel = ["a"]',
    "fix": 'fix = "tp>2"\n' + HEAD + '[matrix]\nmodel = ["a"]',
    "fix_of_no_field": 'fix = "xp=2"\n' + HEAD + '[matrix]\nmodel = ["a"]',
}


@pytest.mark.parametrize("case", UNHELD)
def test_a_sweep_that_no_cell_can_keep_is_refused(tmp_path: Path, case: str) -> None:
    faults(tmp_path, UNHELD[case])


@pytest.mark.parametrize("fix", ["tp=2,tp=4", "tp=0", "zero=4"])
def test_a_fixed_field_is_checked_like_that_of_a_search(tmp_path: Path, fix: str) -> None:
    faults(tmp_path, f'fix = "{fix}"\n' + HEAD + '[matrix]\nmodel = ["a"]')


@pytest.mark.parametrize("value", ["inf", "nan", "[1]", "{a = 1}"])
def test_one_mistake_is_one_fault(tmp_path: Path, value: str) -> None:
    text = HEAD.replace("gbs = 64", f"gbs = {value}") + '[matrix]\nmodel = ["a"]'
    assert list(faults(tmp_path, text)) == ["base.gbs"]
