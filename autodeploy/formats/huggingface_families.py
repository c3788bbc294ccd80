"""What the classes of the models imply where a config.json is silent.

Read from the configuration and modelling classes of huggingface/transformers (Grok-1: xai-org/grok-1 model.py and
run.py; Pangu Ultra MoE: arXiv 2505.04519). A family is found by the longest name that its model_type begins with;
a model_type that is no name of this table is read by its keys, and the import says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]

SILENT: Values = {}
PLAIN: Values = {"gated": False, "norm": "layernorm", "ffn_ratio": 4}
BIASED: Values = {"linear_bias": True, "attention.qkv_bias": True}
QKV_BIAS: Values = {"attention.qkv_bias": True}
QK_NORM: Values = {"attention.qk_norm": True}
QWEN3: Values = {**QK_NORM, "attention.head_dim": 128}
LAYERNORM: Values = {"norm": "layernorm"}
SANDWICH: Values = {"norms_per_layer": 4}
TIED: Values = {"tied_embeddings": True}
LEARNED: Values = {"learned_positions": True}
MULTI_QUERY: Values = {"multi_query": True}
GEMMA: Values = {**TIED, "gated": True, "attention.head_dim": 256}
GEMMA_HEADS: Values = {"attention.heads": 8, "attention.kv_heads": 4}

FAMILIES: dict[str, Values] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "mixtral", "deepseek", "deepseek_v2", "deepseek_v3", "internlm2", "baichuan",
            "minicpm", "gpt_oss", "glm", "glm4_moe", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe", "pangu_pro_moe",
            "bailing_moe", "minimax_m2", "phi3", "granite", "granitemoe",
        ),
        SILENT,
    ),
    **dict.fromkeys(("qwen2", "qwen2_moe", "mimo", "chatglm"), QKV_BIAS),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"), QWEN3),
    **dict.fromkeys(("olmo2", "olmo3", "olmoe", "bailing_moe_v2"), QK_NORM),
    **dict.fromkeys(("phimoe", "dbrx"), LAYERNORM),
    **dict.fromkeys(("ernie4_5", "ernie4_5_moe"), TIED),
    **dict.fromkeys(("glm4", "pangu_ultra_moe"), SANDWICH),
    "llama4": {"moe.shared_experts": 1},
    "gemma": {**GEMMA, "vocab": 256000, "max_seq_len": 8192},
    "gemma2": {**GEMMA, **GEMMA_HEADS, **SANDWICH, "vocab": 256000, "max_seq_len": 8192, "window_frac": 0.5},
    "gemma3": {**GEMMA, **GEMMA_HEADS, **SANDWICH, **QK_NORM, "vocab": 262208, "max_seq_len": 131072},
    "cohere": {**LAYERNORM, **TIED},
    "gpt2": {**PLAIN, **BIASED, **TIED, **LEARNED},
    "gpt_bigcode": {**PLAIN, **BIASED, **TIED, **LEARNED, **MULTI_QUERY},
    "opt": {**PLAIN, **BIASED, **TIED, **LEARNED},
    "bloom": {**PLAIN, **BIASED, **TIED, "alibi": True},
    "gpt_neox": {**PLAIN, **BIASED},
    "gptj": PLAIN,
    "phi": {**PLAIN, **BIASED},
    "starcoder2": {**PLAIN, **BIASED, **TIED},
    "falcon": {**PLAIN, **TIED, **MULTI_QUERY},
    "mpt": {**PLAIN, **TIED},
    "grok": {**SANDWICH, **TIED, "gated": True},
    "grok_1": {**SANDWICH, **TIED, "gated": True},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What the class of a model implies."""

    name: str
    """As the file writes it; empty where it names none."""
    known: bool
    """Its model_type is a name of the table, not only begins with one."""
    values: Values


def _bare(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(".", "")


BARE = {_bare(name): values for name, values in FAMILIES.items()}
KNOWN_SUFFIXES = ("", "text")
"""`gemma3_text` is the language model of `gemma3`."""


def family_of(name: str) -> Family:
    """The family of a model_type, or of an architecture (`Qwen3MoeForCausalLM`)."""
    bare = _bare(name).split("forcausallm")[0].split("forconditionalgeneration")[0]
    prefix = max((each for each in BARE if bare.startswith(each)), key=len, default="")
    known = bool(prefix) and bare.removeprefix(prefix) in KNOWN_SUFFIXES
    return Family(name=name, known=known, values=BARE.get(prefix, {}))
