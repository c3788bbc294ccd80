"""A search without a space file: one command from a model and a cluster to ranked plans, repeatable from its space."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from autodeploy.catalog.lookup import load
from autodeploy.formats.document import document_plan, document_space
from autodeploy.search.defaults import EFFORTS, default_values
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.evaluate import evaluate
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model
from tests.cli.asking import SMALL, answer, ask, contents, edited, refused
from tests.house.source import ROOT

CONFIGS = ROOT / "tests" / "data" / "hf_configs"
MODELS = {
    "llama-3.1-8b": 64, "mixtral-8x7b": 64, "qwen3-235b-a22b": 256, "deepseek-v3": 1024, "pangu-ultra-moe-718b": 1024,
}  # fmt: skip
CLUSTERS = ("h100-80g", "atlas-800t-a2")


def question(model: object, cluster: str = "h100-80g", devices: int = 64, **more: object) -> list[object]:
    """The words of a quick search."""
    given = {"model": model, "cluster": cluster, "devices": devices, "seq_len": 4096, "gbs": 256, "effort": "fast"}
    words = ((f"--{name.replace('_', '-')}", value) for name, value in (given | more).items())
    return ["search", *(word for pair in words for word in pair)]


def check_plans(document: dict[str, Any], devices: int) -> None:
    """Ranked plans that fit, use every device, and are ordered."""
    plans = document["plans"]
    assert document["status"] == "optimal"
    assert plans
    steps = [plan["step_time_s"] for plan in plans]
    assert steps == sorted(steps)
    for plan in plans:
        p = plan["plan"]
        assert p["tp"] * p["pp"] * p["cp"] * p["dp"] == devices
        assert plan["fits"]
        assert 0.0 < plan["mfu_frac"] < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_shipped_model_gets_ranked_plans(folder: Path, model: str, cluster: str) -> None:
    document = answer(*question(model, cluster, MODELS[model], gbs=MODELS[model], top=4))
    check_plans(document, MODELS[model])
    assert len(document["plans"]) == 4
    inputs = document["inputs"]
    assert inputs["names"] == {"model": model, "cluster": cluster, "target": "generic"}
    assert inputs["space"] == f"{model}_{cluster}_{MODELS[model]}"
    assert contents(folder) == {}


FAMILIES = {
    "llama-3.1-8b": 64, "mistral-7b": 64, "qwen2.5-72b": 256, "qwen3-30b-a3b": 64, "mixtral-8x7b": 64,
    "deepseek-v3": 1024, "gemma-2-9b": 64, "gpt-neox-20b": 64, "glm-4.7-glm-4.5-shape": 512, "gpt-oss-120b": 256,
}  # fmt: skip


FIRST = ("mistral-7b", "qwen3-30b-a3b", "gpt-neox-20b", "gpt-oss-120b")
"""Families of the quick suite."""


@pytest.mark.parametrize(
    "name", [each if each in FIRST else pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES]
)
def test_a_config_of_a_family_gets_ranked_plans_in_one_command(folder: Path, name: str) -> None:
    cluster = CLUSTERS[list(FAMILIES).index(name) % 2]
    shutil.copy(CONFIGS / f"{name}.json", folder / f"{name}.json")
    document = answer(*question(folder / f"{name}.json", cluster, FAMILIES[name], gbs=256, seq_len=2048, top=2))
    check_plans(document, FAMILIES[name])
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    assert document["inputs"]["model"]["layers"] == config["num_hidden_layers"]
    assert document["inputs"]["model"]["sources"]["*"].startswith("published: Hugging Face config.json")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_a_config_gives_the_plans_of_the_shipped_model(folder: Path, name: str, cluster: str) -> None:
    shipped = answer(*question(name, cluster, top=3))
    given = answer(*question(CONFIGS / f"{name}.json", cluster, top=3))
    assert [plan["plan_id"] for plan in given["plans"]] == [plan["plan_id"] for plan in shipped["plans"]]
    assert [plan["step_time_s"] for plan in given["plans"]] == [plan["step_time_s"] for plan in shipped["plans"]]
    assert contents(folder) == {}


def test_a_folder_with_a_config_is_a_model(folder: Path) -> None:
    (folder / "llama").mkdir()
    shutil.copy(CONFIGS / "llama-3.1-8b.json", folder / "llama" / "config.json")
    document = answer(*question(folder / "llama", top=1))
    assert document["inputs"]["model"]["name"] == "llama"


WRITTEN: dict[str, list[object]] = {
    "as_it_is": [],
    "held": ["--fix", "tp=2,schedule=interleaved,recompute=full"],
    "conditions": ["--only", "pp<=4", "--only", "mbs=1", "--ban", "overlap=pair", "--ban", "dp=64"],
    "target": ["--target", "megatron-core"],
    "layouts": ["--fix", "layout=even"],
    "switch": ["--fix", "sp=false,zero=0"],
}


@pytest.mark.parametrize("case", WRITTEN)
@pytest.mark.slow
def test_a_space_that_is_written_gives_the_same_plans(folder: Path, case: str) -> None:
    words = question("mixtral-8x7b", top=5, write_space=folder / "space.toml")
    first = ask(*words, *WRITTEN[case], "--json")
    assert first.exit_code == 0, first.stderr
    assert f"space written to {folder / 'space.toml'}" in first.stderr
    again = answer("search", folder / "space.toml", "--effort", "fast", "--top", "5")
    one = json.loads(first.stdout)
    assert {**one, "run": None} == {**again, "run": None}
    assert len(one["plans"]) == 5


def test_a_space_of_an_imported_model_can_be_searched_again(folder: Path) -> None:
    words = question(CONFIGS / "llama-3.1-8b.json", write_space=folder / "space.toml", top=2)
    first, again = answer(*words), answer("search", folder / "space.toml", "--effort", "fast", "--top", "2")
    assert {**first, "run": None} == {**again, "run": None}


def test_a_written_space_can_be_edited(folder: Path) -> None:
    path = folder / "space.toml"
    assert ask(*question("llama-3.1-8b", write_space=path)).exit_code == 0
    path.write_text(edited(path.read_text(), ("gbs = 256", "gbs = 512")))
    assert answer("search", path, "--effort", "fast")["inputs"]["job"]["gbs"] == 512


@pytest.mark.parametrize("effort", EFFORTS)
def test_effort_widens_what_is_tried(effort: str) -> None:
    model, cluster = load(Model, "qwen3-30b-a3b"), load(Cluster, "h100-80g")
    values = default_values(model, cluster, 64, effort)  # type: ignore[arg-type]
    narrower = default_values(model, cluster, 64, EFFORTS[max(EFFORTS.index(effort) - 1, 0)])  # type: ignore[arg-type]
    for field in ("tp", "pp", "vpp", "ep", "etp", "mbs"):
        assert set(getattr(narrower, field)) <= set(getattr(values, field))
    assert values.etp == (1,) or effort != "fast"


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3, 8, 48, 96, 1000])
def test_any_number_of_devices_has_a_space(folder: Path, devices: int) -> None:
    result = ask(*question("llama-3.1-8b", devices=devices, gbs=devices * 8), "--json")
    assert result.exit_code == (3 if devices < 8 else 0), result.stderr  # 16 B a parameter, 80 GB a device
    if result.exit_code == 0:
        check_plans(json.loads(result.stdout), devices)
    assert contents(folder) == {}


@pytest.mark.parametrize("target", ["megatron-core", "mindspeed-llm", "mindformers-1.5"])
def test_plans_for_a_real_target_keep_its_rules(folder: Path, target: str) -> None:
    words = question("deepseek-v3", "atlas-800t-a2", 1024, target=target, top=3, write_space=folder / "space.toml")
    document = answer(*words)
    check_plans(document, 1024)
    assert document["inputs"]["target"]["name"] == target
    space = document_space(document, "")
    for rank in (1, 2, 3):
        assert broken_rules(space, document_plan(document, rank, "")) == []


def test_the_baseline_stands_in_the_table_and_in_the_document(folder: Path) -> None:
    words = question("mixtral-8x7b", top=3)
    free = answer(*words)
    document = answer(*words, "--baseline", "tp2/pp4/ep8/mbs1/vpp2/nopair/flat")
    assert document["plans"] == free["plans"]
    mine, best = document["baseline"], document["plans"][0]
    assert (mine["plan"]["tp"], mine["plan"]["pp"], mine["plan"]["vpp"], mine["plan"]["ep"]) == (2, 4, 2, 8)
    assert mine["factor_to_best"] == pytest.approx(mine["step_time_s"] / best["step_time_s"], rel=1e-12)
    assert mine["factor_to_best"] >= 1 - 1e-12
    compared = mine["explanation"]["compared_with"]
    assert (compared["plan_id"], compared["step_time_s"]) == (best["plan_id"], best["step_time_s"])
    moved = math.fsum(compared["differences_s"].values())
    assert moved == pytest.approx(mine["step_time_s"] - best["step_time_s"], abs=1e-9 * mine["step_time_s"])
    for term, difference in compared["differences_s"].items():
        assert difference == mine["time_terms"][term] - best["time_terms"][term]
    table = ask(*words, "--baseline", "tp2/pp4/ep8/mbs1/vpp2/nopair/flat").stdout
    (row,) = [line for line in table.splitlines() if "yours" in line]
    assert mine["plan_short"] in row
    assert f"{mine['tokens_per_s_per_device']:.1f}" in row
    assert f"{mine['factor_to_best']:.3f} x slower" in " ".join(table.split())
    assert contents(folder) == {}


@pytest.mark.parametrize("rank", [1, 3])
def test_a_baseline_may_be_a_plan_of_a_document(folder: Path, rank: int) -> None:
    words = question("mixtral-8x7b", top=3)
    document = answer(*words, "--out", folder / "plans.json")
    mine = answer(*words, "--baseline", f"{folder / 'plans.json'}#{rank}")["baseline"]
    stands = document["plans"][rank - 1]
    assert (mine["plan_id"], mine["step_time_s"]) == (stands["plan_id"], stands["step_time_s"])
    assert mine["factor_to_best"] == pytest.approx(stands["step_time_s"] / document["plans"][0]["step_time_s"])
    assert (mine["factor_to_best"] == 1.0) == (rank == 1)


def test_every_ranked_plan_is_a_baseline_with_a_factor_of_at_least_one(folder: Path) -> None:
    space = folder / "space.toml"
    space.write_text(SMALL)
    for plan in answer("search", space, "--top", "6", "--effort", "fast")["plans"]:
        mine = answer("search", space, "--effort", "fast", "--baseline", plan["plan_short"])["baseline"]
        assert mine["plan_id"] == plan["plan_id"]
        assert mine["factor_to_best"] >= 1 - 1e-12


def test_a_baseline_that_does_not_fit_is_shown_as_such(folder: Path) -> None:
    words = question("mixtral-8x7b", gbs=128, top=2)
    mine = answer(*words, "--baseline", "tp1/pp1/ep1/mbs2/vpp1")["baseline"]
    assert (mine["fits"], mine["limited_by"]) == (False, "memory.device")
    table = ask(*words, "--baseline", "tp1/pp1/ep1/mbs2/vpp1").stdout
    (row,) = [line for line in table.splitlines() if "yours" in line]
    assert "memory.device" in row
    assert contents(folder) == {}


def test_a_baseline_where_nothing_fits_has_no_factor(folder: Path) -> None:
    result = ask(*question("mixtral-8x7b", devices=8, gbs=64), "--baseline", "tp2/ep4", "--json")
    assert result.exit_code == 3
    mine = json.loads(result.stdout)["baseline"]
    assert (mine["factor_to_best"], mine["explanation"]["compared_with"]) == (None, None)
    assert contents(folder) == {}


def test_fields_of_a_baseline_that_were_chosen_are_said(folder: Path) -> None:
    mine = answer(*question("mixtral-8x7b", top=2), "--baseline", "tp2/pp4")["baseline"]
    assert mine["chosen"].keys() >= {"vpp", "ep", "mbs"}
    assert contents(folder) == {}


def test_without_a_baseline_there_is_none(folder: Path) -> None:
    assert "baseline" not in answer(*question("llama-3.1-8b", top=1))
    assert "yours" not in ask(*question("llama-3.1-8b", top=1)).stdout
    assert contents(folder) == {}


NEEDED = ("model", "cluster", "devices", "seq-len", "gbs")


@pytest.mark.parametrize("given", [(), ("model",), ("cluster", "gbs"), ("model", "cluster", "devices", "seq-len")])
def test_all_missing_flags_are_named_in_one_message(folder: Path, given: tuple[str, ...]) -> None:
    every = {"model": "llama-3.1-8b", "cluster": "h100-80g", "devices": 64, "seq-len": 4096, "gbs": 64}
    said = refused(folder, "search", *(word for name in given for word in (f"--{name}", every[name])))
    for name in NEEDED:
        assert (f"--{name}: missing" in said) == (name not in given)
    assert said.count("missing") == len(NEEDED) - len(given)


def test_a_file_and_all_that_it_says_are_refused_together(small: Path) -> None:
    words = ("--model", "x", "--cluster", "y", "--target", "z", "--devices", 8, "--seq-len", 8)
    said = refused(small.parent, "search", small, *words)
    for name in ("model", "cluster", "target", "devices", "seq-len"):
        assert f"--{name}: not with a space file" in said


REFUSED: dict[str, tuple[list[object], tuple[str, ...]]] = {
    "effort": (question("llama-3.1-8b", effort="quick"), ("--effort", "'quick'", "fast normal deep")),
    "engine": (question("llama-3.1-8b", engine="tpe"), ("--engine", "'tpe'", "auto exact optuna")),
    "target": (question("llama-3.1-8b", target="megatron"), ("--target", "'megatron'", "megatron-core")),
    "cluster": (question("llama-3.1-8b", "h100"), ("--cluster", "'h100'", "h100-80g")),
    "model": (question("llama3-8b"), ("--model", "'llama3-8b'", "llama-3.1-8b")),
    "three_names": (question("x1", "x2", target="x3"), ("--model", "'x1'", "--cluster", "'x2'", "--target", "'x3'")),
    "config_that_is_not_there": (question("absent/config.json"), ("--model", "absent/config.json")),
    "config_that_is_not_modelled": (question(CONFIGS / "nemotron-3-nano-30b-a3b.json"), ("--model", "Mamba")),
    "config_with_linear_attention": (question(CONFIGS / "minimax-m1.json"), ("--model", "attn_type_list")),
    "sequence_that_is_too_long": (question(CONFIGS / "gpt2.json"), ("job.seq_len", "4096", "up to 1024")),
    "space_for_a_model": (question("space.toml"), ("--model", "space.toml", "unknown key")),
    "model_for_a_cluster": (question("llama-3.1-8b", str(CONFIGS / "gpt2.json")), ("--cluster", "gpt2.json")),
    "baseline_against_a_rule": (question("llama-3.1-8b", baseline="tp5"), ("tp=5", "V20", "tp 1 2 4 8")),
    "baseline_of_too_many": (question("llama-3.1-8b", baseline="tp8/pp16"), ("V01", "tp 1 2 4")),
    "baseline_with_experts": (question("llama-3.1-8b", baseline="ep8"), ("ep=8",)),
    "baseline_twice": (question("llama-3.1-8b", baseline="tp2/tp4"), ("tp is given twice",)),
    "baseline_of_nothing": (question("llama-3.1-8b", baseline="/"), ("not a plan field",)),
    "baseline_beyond_the_last": (question("llama-3.1-8b", baseline="plans.json#9"), ("no rank 9", "#1 to #1")),
    "baseline_of_another_size": (question("llama-3.1-8b", devices=8, gbs=7, baseline="plans.json"), ("plan", "breaks")),
    "only": (question("llama-3.1-8b", only="tpp=2"), ("tpp=2", "did you mean 'tp'")),
    "ban": (question("llama-3.1-8b", ban="schedule>1f1b"), ("schedule has no order",)),
    "fix_of_words": (question("llama-3.1-8b", fix="tp=two"), ("tp=two", "whole number")),
    "fix_twice": (question("llama-3.1-8b", fix="tp=2,tp=4"), ("--fix", "tp twice")),
    "fix_of_nothing": (question("llama-3.1-8b", fix="pp=0"), ("--fix", "pp=0")),
    "fix_that_contradicts": (question("llama-3.1-8b", fix="tp=2,pp=2,dp=3"), ("only dp=3",)),
    "only_against_ban": (question("llama-3.1-8b", only="tp=2", ban="tp=2"), ("no legal plan", "ban tp=2")),
    "out_is_a_folder": (question("llama-3.1-8b", out="."), ("--out", "folder")),
    "out_is_the_space": (question("llama-3.1-8b", out="a.toml", write_space="a.toml"), ("--write-space", "--out")),
    "storage": (question("llama-3.1-8b", engine="optuna", storage="absent/s.log"), ("--storage", "absent/s.log")),
    "storage_url": (question("llama-3.1-8b", engine="optuna", storage="nosql://x"), ("--storage", "nosql://x")),
    "trials": (question("llama-3.1-8b", trials=0), ("--trials",)),
    "workers": (question("llama-3.1-8b", workers=0), ("--workers",)),
    "devices": (question("llama-3.1-8b", devices=0), ("--devices",)),
    "sequence": (question("llama-3.1-8b", seq_len=0), ("--seq-len",)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_question_that_cannot_be_answered_is_refused(folder: Path, case: str) -> None:
    words, parts = REFUSED[case]
    (folder / "space.toml").write_text(SMALL)
    if "plans.json" in str(words):
        assert ask(*question("llama-3.1-8b", top=1, out="plans.json")).exit_code == 0
    said = refused(folder, *words)
    for part in parts:
        assert part in said


UNHELD: dict[str, list[object]] = {
    "space_in_the_form_of_another_file": question("llama-3.1-8b", write_space="space.json"),
    "space_of_devices_that_cannot_be": question("llama-3.1-8b", devices=60, write_space="new.toml"),
    "space_without_a_legal_plan": question("llama-3.1-8b", fix="tp=3", write_space="new.toml"),
    "storage_of_an_engine_that_keeps_nothing": question("llama-3.1-8b", storage="study.log"),
    "trials_of_an_engine_that_makes_none": question("llama-3.1-8b", engine="exact", trials=10),
}


@pytest.mark.parametrize("case", UNHELD)
def test_a_question_that_does_not_mean_what_it_says_is_refused(folder: Path, case: str) -> None:
    refused(folder, *UNHELD[case])


def test_the_winner_is_evaluated_as_it_is_printed(folder: Path) -> None:
    document = answer(*question("llama-3.1-8b", top=2, write_space=folder / "space.toml"))
    space = document_space(document, "")
    for rank in (1, 2):
        result = evaluate(space, document_plan(document, rank, ""))
        assert result.step_time_s == document["plans"][rank - 1]["step_time_s"]
        assert result.plan_id == document["plans"][rank - 1]["plan_id"]
