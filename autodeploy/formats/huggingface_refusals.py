"""What is not read: layers and attention of a kind that the model does not have, refused with the reason; and what is
read as something simpler, noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autodeploy.formats.huggingface_sheet import Sheet, shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Keys that switch something on, and what that means for us."""

    keys: tuple[str, ...]
    text: str


REFUSALS = (
    Rule(
        keys=(
            "hybrid_override_pattern", "layers_block_type", "mamba_num_heads", "mamba_d_state", "mamba_d_ssm",
            "mamba_expand", "ssm_state_size", "ssm_cfg", "attn_layer_period",
        ),
        text="Mamba layers are not modelled",
    ),
    Rule(
        keys=("linear_num_value_heads", "linear_num_key_heads", "linear_attn_config", "full_attention_interval"),
        text="linear-attention layers are not modelled",
    ),
    Rule(keys=("block_types", "lru_width"), text="recurrent layers are not modelled"),
    Rule(keys=("hc_mult",), text="hyper-connections (several residual streams) are not modelled"),
    Rule(keys=("compress_ratios",), text="compressed attention is not modelled"),
    Rule(keys=("o_lora_rank",), text="an output projection through a latent is not modelled"),
    Rule(
        keys=("is_encoder_decoder", "encoder_layers", "num_encoder_layers", "num_decoder_layers", "encoder"),
        text="models with an encoder are not modelled",
    ),
    Rule(keys=("type_vocab_size",), text="encoders (BERT) are not modelled"),
    Rule(
        keys=("add_cross_attention", "cross_attention_layers", "cross_attention_hidden_size"),
        text="cross attention is not modelled",
    ),
    Rule(keys=("block_configs",), text="layers with a shape of their own each are not modelled"),
    Rule(
        keys=("attn_output_gate", "attention_output_gate", "use_output_gate", "mla_use_output_gate"),
        text="an output gate in the attention is not modelled: it adds a projection as wide as the queries",
    ),
    Rule(keys=("attention_k_eq_v",), text="keys that serve as values are not modelled"),
    Rule(keys=("num_kv_shared_layers",), text="keys and values shared between layers are not modelled"),
    Rule(
        keys=("hidden_size_per_layer_input", "altup_num_inputs", "laurel_rank"),
        text="embeddings for every layer (Gemma 3n) are not modelled",
    ),
    Rule(
        keys=("enable_moe_block", "parallel_attn_mlp_res", "zero_expert_num"),
        text="a dense and a sparse feed-forward in one layer are not modelled",
    ),
    Rule(keys=("moe_latent_size", "routed_expert_hidden_size"), text="experts behind a latent are not modelled"),
    Rule(keys=("num_hash_layers",), text="layers routed by a hash are not modelled"),
)  # fmt: skip
"""Refused where any of the keys is neither null nor zero, false or empty."""

TWINS = {
    "global_head_dim": "attention.head_dim",
    "num_global_key_value_heads": "attention.kv_heads",
    "swa_num_attention_heads": "attention.heads",
    "swa_num_key_value_heads": "attention.kv_heads",
    "swa_head_dim": "attention.head_dim",
    "swa_v_head_dim": "attention.v_dim",
}
"""Sizes of a second kind of attention layer: read only where they equal those of the first."""

FULL = ("full_attention", "attention", "global_attention", "global", "softmax", "1")
WINDOWED = ("sliding_attention", "chunked_attention", "local_attention", "local")
INDEXED = ("deepseek_sparse_attention",)
LAYER_LISTS = ("layer_types", "attn_type_list")
LINEAR = {"0": "0 (linear attention)"}

NOTES = (
    Rule(
        keys=("attention_chunk_size", "sliding_window_size", "hybrid_layer_pattern"),
        text="sliding window, costed as full causal attention",
    ),
    Rule(
        keys=(
            "index_topk", "index_n_heads", "index_head_dim", "index_topk_freq", "index_topk_pattern", "indexer_types",
            "index_share_for_mtp_iteration", "index_skip_topk_offset", "sparse_attention_config",
        ),
        text="sparse attention, costed as full causal attention; the indexer is left out",
    ),
    Rule(
        keys=("parallel_attn", "use_parallel_residual"),
        text="attention and feed-forward side by side, costed one after the other",
    ),
)  # fmt: skip
LOOKED_AT = {key for rule in (*REFUSALS, *NOTES) for key in rule.keys} | {*TWINS, *LAYER_LISTS}


def refuse(sheet: Sheet) -> bool:
    """Notes a fault for everything that is not modelled; whether there is any."""
    data = sheet.level.data
    for rule in REFUSALS:
        key = next((key for key in rule.keys if data.get(key)), None)
        if key is not None:
            sheet.fault(key, f"{rule.text} ({shown(data[key])})")
    for key, reason in (*_foreign_layers(sheet), *_second_shapes(sheet), *_attention_shapes(sheet)):
        sheet.fault(key, reason)
    return bool(sheet.faults)


def _foreign_layers(sheet: Sheet) -> Iterator[tuple[str, str]]:
    """Kinds of layers in the lists that some files have."""
    for key in LAYER_LISTS:
        listed = sheet.level.data.get(key, [])
        kinds = {str(each) for each in (listed if isinstance(listed, list) else [listed])}
        for kind in sorted(kinds - {*FULL, *WINDOWED, *INDEXED}):
            yield key, f"layers of kind {LINEAR.get(kind, kind)} are not modelled"


def _second_shapes(sheet: Sheet) -> Iterator[tuple[str, str]]:
    for key, name in TWINS.items():
        first, second = sheet.value(name), sheet.level.data.get(key)
        if second is not None and second != first:
            problem = f"a second kind of attention layer ({shown(second)}, the first has {sheet.key(name)} {first!r})"
            yield key, problem + " is not modelled"


def _attention_shapes(sheet: Sheet) -> Iterator[tuple[str, str]]:
    """Grouped-query attention has values as wide as its keys."""
    value, head = sheet.value("attention.v_dim"), sheet.value("attention.head_dim")
    if not sheet.value("attention.kv_rank") and value is not None and value != head:
        yield str(sheet.key("attention.v_dim")), f"values of {value!r} beside keys of {head!r} are not modelled"


def simplify(sheet: Sheet) -> None:
    """Notes what is read as something simpler."""
    data = sheet.level.data
    off = ("hybrid_layer_pattern",) if data.get("use_sliding_window") is False else ()
    for rule in NOTES:
        key = next((key for key in rule.keys if data.get(key) and key not in off), None)
        if key is not None:
            sheet.assumed.append(f"attention: {rule.text} ({key} {shown(data[key])})")
    if data.get("attention_bias") is True and not sheet.value("linear_bias"):
        counted = "no biases" if sheet.value("attention.kv_rank") else "biases of q, k and v"
        sheet.assumed.append(f"attention: {counted}; others, if any (output projection, experts), are left out")
