"""Import of Hugging Face config.json: published parameter counts, what is refused, and what must not matter.

The files of tests/data/hf_configs carry their source and the published counts under keys that begin with `_`.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autodeploy.analysis.readings import model_size
from autodeploy.errors import SpecError
from autodeploy.formats.huggingface import Imported, check_expected, is_config, load_model, parse_count, read_config
from autodeploy.spec.model import Kind, decoder_kinds
from tests.builders import model_of

FOLDER = Path(__file__).parents[1] / "data" / "hf_configs"
REFUSED = {
    "deepseek-v4-flash": {"hc_mult", "compress_ratios", "o_lora_rank", "num_hash_layers"},
    "gemma-4-26b-a4b": {
        "text_config.attention_k_eq_v", "text_config.enable_moe_block", "text_config.global_head_dim",
        "text_config.num_global_key_value_heads",
    },
    "minimax-m1": {"attn_type_list"},
    "nemotron-3-nano-30b-a3b": {"hybrid_override_pattern"},
    "qwen3-next-80b-a3b": {"linear_num_value_heads"},
}  # fmt: skip
NAMES = [path.stem for path in sorted(FOLDER.glob("*.json"))]
READ = [name for name in NAMES if name not in REFUSED]
OUTSIDE = {"gemma-3-27b": 0.4}
"""Billions in a published total that are no part of the language model (the vision tower)."""
EXACT = {"llama-3.1-8b": 8030261248, "qwen3-0.6b": 596049920, "mixtral-8x7b": 46702792704}
EXACT |= {"qwen3-30b-a3b": 30532122624, "qwen2.5-72b": 72706203648}
"""Elements in the published weights, as their model pages show them."""
NORMS = {"bloom": 28672, "mpt-7b": -266240}
"""One more norm in the weights; norms without their bias."""
ACTIVE_WITHOUT_EMBEDDING = {
    "deepseek-v3",
    "deepseek-r1",
    "deepseek-v3.2",
    "openpangu-ultra-moe-718b",
    "glm-5",
    "ling-1t",
}
ACTIVE_WITHOUT_EMBEDDING |= {"kimi-k2", "kimi-k2.5-multimodal", "ernie-4.5-300b-a47b", "gpt-oss-120b"}
ACTIVE_WITH_EMBEDDING = {"mixtral-8x7b", "mixtral-8x22b", "qwen3-235b-a22b", "pangu-pro-moe-72b", "llama-4-maverick"}
KINDS = {
    "deepseek-v3": (3, 58), "deepseek-v3.2": (3, 58), "ernie-4.5-300b-a47b": (3, 51), "glm-4.7-glm-4.5-shape": (3, 89),
    "kimi-k2": (1, 60), "ling-1t": (4, 76), "openpangu-ultra-moe-718b": (3, 58), "qwen3-235b-a22b": (0, 94),
    "llama-4-maverick": (24, 24), "grok-1": (0, 64), "pangu-pro-moe-72b": (0, 48), "llama-3.1-405b": (126, 0),
    "hunyuan-a13b": (0, 32), "glm-5": (3, 75), "gpt-oss-120b": (0, 36), "gemma-3-27b": (62, 0),
}  # fmt: skip
MTP = {"deepseek-v3": 1, "glm-5": 1, "openpangu-ultra-moe-718b": 1, "kimi-k2": 0, "minimax-m2.5": 3, "llama-3.1-8b": 0}
SMALL = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "vocab_size": 100}
SMALL |= {"intermediate_size": 128, "max_position_embeddings": 512, "tie_word_embeddings": False}
SPARSE = SMALL | {"model_type": "mixtral", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}


@cache
def fixture(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def read(name: str) -> Imported:
    return read_config(fixture(name), name)


def faults(data: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        read_config(data)
    return {fault.path: f"{fault.problem} ({fault.allowed})" for fault in caught.value.faults}


@pytest.mark.parametrize("name", READ)
def test_total_is_the_published_one(name: str) -> None:
    published = fixture(name)["_total_params_b"] - OUTSIDE.get(name, 0.0)
    assert model_size(read(name).model).total / 1e9 == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("name", [name for name in READ if name in EXACT or "_exact_params" in fixture(name)])
def test_total_is_that_of_the_published_weights(name: str) -> None:
    published = EXACT.get(name) or fixture(name)["_exact_params"]
    assert model_size(read(name).model).total == published - NORMS.get(name, 0)


@pytest.mark.parametrize("name", sorted(ACTIVE_WITHOUT_EMBEDDING | ACTIVE_WITH_EMBEDDING))
def test_active_is_the_published_one_by_its_convention(name: str) -> None:
    size = model_size(read(name).model)
    active = size.active + (size.embedding if name in ACTIVE_WITH_EMBEDDING else 0.0)
    assert active / 1e9 == pytest.approx(fixture(name)["_active_params_b"], rel=0.011)


@pytest.mark.parametrize("name", KINDS)
def test_layers_are_of_the_published_kinds(name: str) -> None:
    counts = Counter(decoder_kinds(read(name).model))
    assert (counts[Kind.DENSE], counts[Kind.SPARSE]) == KINDS[name]


@pytest.mark.parametrize("name", MTP)
def test_mtp_depth_is_the_published_one(name: str) -> None:
    assert read(name).model.mtp_depth == MTP[name]


@pytest.mark.parametrize(
    ("name", "entry"),
    [(name, name) for name in ("deepseek-v3", "llama-3.1-405b", "llama-3.1-70b", "mixtral-8x7b", "qwen3-30b-a3b")]
    + [("openpangu-ultra-moe-718b", "pangu-ultra-moe-718b")],
)
def test_import_agrees_with_the_catalog(name: str, entry: str) -> None:
    ours = model_of(entry)
    assert replace(read(name).model, name=ours.name, title=ours.title) == ours


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_modelled_is_refused_with_the_reason(name: str) -> None:
    found = faults(fixture(name))
    assert set(found) == REFUSED[name]
    assert all("not modelled" in text for text in found.values())


@pytest.mark.parametrize(
    ("change", "key", "reason"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder", "encoder"),
        ({"add_cross_attention": True}, "add_cross_attention", "cross attention"),
        ({"layer_types": ["full_attention"] * 7 + ["conv"]}, "layer_types", "kind conv"),
        ({"attn_output_gate": True}, "attn_output_gate", "output gate"),
        ({"head_dim": 16, "v_head_dim": 8}, "v_head_dim", "beside keys of 16"),
        ({"swa_num_key_value_heads": 2}, "swa_num_key_value_heads", "second kind"),
        ({"num_experts": [4] * 7 + [8], "moe_topk": 2}, "num_experts", "differs between layers"),
        ({"num_experts": [64, 64], "moe_topk": 2}, "num_experts", "a list of 2"),
        ({"num_experts": 4, "moe_topk": 2, "moe_layer_end_index": 3}, "moe_layer_end_index", "follow no pattern"),
        ({"num_experts": 4, "moe_topk": 2, "moe_layer_freq": 0}, "moe_layer_freq", "positive number"),
        ({"num_experts": 4, "moe_topk": 9}, "moe_topk", "9 of 4 experts"),
        ({"num_experts_per_tok": 2}, "n_routed_experts", "missing"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "does not divide"),
        ({"num_attention_heads": 5}, "num_attention_heads", "do not divide"),
        ({"hidden_size": "64"}, "hidden_size", "not '64'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers", "at least 1"),
        ({"num_hidden_layers": 1e9}, "num_hidden_layers", "at most 10000"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "true or false"),
    ],
)  # fmt: skip
def test_a_fault_names_its_key_and_the_reason(change: dict[str, Any], key: str, reason: str) -> None:
    found = faults(SMALL | change)
    assert set(found) == {key}
    assert reason in found[key]


def test_all_faults_come_at_once_with_their_paths() -> None:
    inner = SMALL | {"num_hidden_layers": 0, "vocab_size": None, "intermediate_size": 1.5}
    found = faults({"model_type": "x", "language_config": inner})
    assert set(found) == {f"language_config.{key}" for key in ("num_hidden_layers", "vocab_size", "intermediate_size")}


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, "SSSSSSSS"),
        ({"first_k_dense_replace": 3, "moe_layer_freq": 1}, "DDDSSSSS"),
        ({"num_dense_layers": 1}, "DSSSSSSS"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "DDSDSDSD"),  # DeepSeek: index divisible
        ({"decoder_sparse_step": 2, "mlp_only_layers": []}, "DSDSDSDS"),  # Qwen2-MoE: index + 1 divisible
        ({"decoder_sparse_step": 1, "mlp_only_layers": [0, 1]}, "DDSSSSSS"),
        ({"interleave_moe_layer_step": 2}, "DSDSDSDS"),
        ({"moe_layer_start_index": 3, "moe_layer_end_index": 7, "moe_layer_interval": 2}, "DDDSDSDS"),  # Ernie
        ({"moe_layer_start_index": 1, "moe_layer_end_index": -1}, "DSSSSSSS"),
        ({"moe_layer_freq": [0, 0, 1, 1, 1, 1, 1, 1]}, "DDSSSSSS"),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 7}, "DSSSSSSS"),
        ({"moe_layers_enum": "5,6,7"}, "DDDDDSSS"),
        ({"moe_layers": [7]}, "DDDDDDDS"),
        ({"first_k_dense_replace": 8}, "DDDDDDDD"),
        ({"num_experts": 1}, "DDDDDDDD"),
    ],
)
def test_every_way_to_write_the_sparse_layers_is_understood(change: dict[str, Any], kinds: str) -> None:
    model = read_config(SPARSE | change).model
    assert "".join(kind.name[0] for kind in decoder_kinds(model)) == kinds


def test_mtp_depth_is_read_where_the_layers_are() -> None:
    imported = read_config({"model_type": "x", "num_nextn_predict_layers": 3, "text_config": SMALL})
    assert imported.model.mtp_depth == 0
    assert imported.ignored == ("num_nextn_predict_layers: outside text_config, not read",)
    inner = SMALL | {"mtp_num_hidden_layers": 2}
    assert read_config({"model_type": "x", "text_config": inner}).model.mtp_depth == 2


def test_grok_widening_factor_is_two_thirds() -> None:
    given = fixture("grok-1")
    without = read_config({key: value for key, value in given.items() if key != "intermediate_size"}, "grok-1")
    assert without.model == read("grok-1").model
    assert without.model.moe is not None
    assert without.model.moe.expert_width == 32768


def test_shared_experts_are_given_as_a_number_or_as_a_width() -> None:
    def width(change: dict[str, Any]) -> int:
        moe = read_config(SPARSE | change).model.moe
        assert moe is not None
        return moe.shared_width

    assert width({"n_shared_experts": 2}) == 64
    assert width({"shared_expert_intermediate_size": 96}) == 96
    assert width({"num_shared_expert": [1] * 8, "share_expert_dim": 40}) == 40
    assert width({"shared_intermediate_size": 0}) == 0


def test_tied_embeddings_follow_the_level_then_the_class() -> None:
    silent = {key: value for key, value in SMALL.items() if key != "tie_word_embeddings"}
    assert not read_config(silent).model.tied_embeddings
    assert "tied_embeddings: false, not in the file" in read_config(silent).assumed
    assert read_config(silent | {"model_type": "gemma"}).model.tied_embeddings
    assert read_config({"tie_word_embeddings": True, "text_config": silent}).model.tied_embeddings
    assert not read_config({"tie_word_embeddings": True, "text_config": SMALL}).model.tied_embeddings


def test_what_is_simplified_or_not_read_is_said() -> None:
    assert read("llama-3.1-8b").ignored == ()
    assert read("kimi-k2.5-multimodal").ignored == ("vision_config: the vision tower is left out",)
    assert any(text == "layout: as DeepSeek-V3, by its keys; model_type 'glm_moe_dsa' is not known" for text in
               read("glm-5").assumed)  # fmt: skip
    assert any("half" in text or "50%" in text for text in read("gemma-2-9b").assumed)
    assert any("indexer is left out" in text for text in read("deepseek-v3.2").assumed)
    assert not any("window" in text for text in read("qwen2.5-0.5b").assumed)
    odd = read_config(
        SMALL | {"_note": 1, "rope_theta": 1e4, "new_trick": True, "other_trick": None, "expert_capacity": 2}
    )
    assert odd.ignored == ("expert_capacity: no token is dropped here", "new_trick: not known")
    assert odd.model.sources["attention.kv_heads"] == "assumed: 4, as many as heads"


@pytest.mark.parametrize(
    ("text", "value"),
    [("235B", 235e9), ("1.04T", 1.04e12), ("7.6e9", 7.6e9), (" 500 m ", 5e8), (".5b", 5e8), ("12", 12.0)],
)
def test_counts_are_read_as_people_write_them(text: str, value: float) -> None:
    assert parse_count(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "B", "0B", "-7B", "7Q", "7B8", "1e999", "nan", "1,5B"])
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"235B"):
        parse_count(text)


def test_an_expected_count_guards_against_a_wrong_reading() -> None:
    check_expected(read("qwen3-235b-a22b"), "235B")
    check_expected(read("gemma-3-27b"), "27.4B")
    with pytest.raises(SpecError, match=r"671.03 B \(and 11.61 B of MTP\) counted, 685B expected \(-2.04%\)"):
        check_expected(read("deepseek-v3"), "685B")


def test_a_model_is_loaded_by_name_from_our_form_or_from_a_config(tmp_path: Path) -> None:
    assert load_model("deepseek-v3") == Imported(model=model_of("deepseek-v3"))
    own = Path(__file__).parents[2] / "autodeploy" / "catalog" / "models" / "llama-3.1-70b.toml"
    assert load_model(str(own)) == Imported(model=model_of("llama-3.1-70b"))
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fixture("llama-3.1-8b")), encoding="utf-8")
    by_folder, by_file = load_model(str(folder)), load_model(str(folder / "config.json"))
    assert by_folder == by_file
    assert (by_file.model.name, by_file.model.title) == ("llama-3.1-8b", "Llama-3.1-8B")
    with pytest.raises(SpecError, match="unknown 'lama'"):
        load_model("lama")


def test_other_files_are_told_from_a_config() -> None:
    assert all(is_config(fixture(name)) for name in NAMES)
    assert not any(
        is_config(data)
        for data in ({}, {"hidden_size": 8}, {"model_type": "x"}, {"text_config": SMALL | {"hidden_size": None}})
    )
    with pytest.raises(SpecError, match=r"not a Hugging Face config\.json"):
        read_config({"name": "x", "hidden": 8})


@pytest.mark.parametrize(
    ("name", "window", "share"),
    [
        ("gemma-3-27b", 1024, 5 / 6),  # every sixth layer is full (sliding_window_pattern)
        ("gpt-oss-120b", 128, 0.5),  # layer_types alternate
        ("gemma-2-9b", 4096, 0.5),  # arXiv 2408.00118 table 1
        ("mistral-7b", 4096, 1.0),  # arXiv 2310.06825
        ("qwen2.5-0.5b", 0, 1.0),  # switched off
        ("mixtral-8x7b", 0, 1.0),  # null
    ],
)
def test_windows_are_read(name: str, window: int, share: float) -> None:
    model = read(name).model
    assert (model.window, model.window_frac) == (window, pytest.approx(share))


def test_a_window_that_no_layer_has_is_none() -> None:
    listed = SMALL | {"sliding_window": 512, "layer_types": ["full_attention"] * SMALL["num_hidden_layers"]}
    assert read_config(listed).model.window == 0


@pytest.mark.parametrize(("name", "limit"), [("deepseek-v3", 4), ("kimi-k2", 0), ("mixtral-8x7b", 0)])
def test_groups_of_experts_limit_the_nodes(name: str, limit: int) -> None:
    moe = read(name).model.moe
    assert moe is not None
    assert moe.node_limit == limit
