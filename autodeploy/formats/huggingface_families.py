"""What the classes of the models imply where a config.json is silent.

Read from the configuration and modelling classes of huggingface/transformers (Grok-1: xai-org/grok-1 model.py and
run.py; Pangu Ultra MoE: arXiv 2505.04519). A family is found by the longest name that its model_type begins with;
a model_type that is no name of this table is read by its keys, and the import says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLAIN = {"gated": False, "norm": "layernorm", "ffn_ratio": 4}
BIASED = {"linear_bias": True, "attention.qkv_bias": True}
GEMMA = {"tied_embeddings": True, "gated": True}
GEMMA_HEADS = {"attention.heads": 8, "attention.kv_heads": 4, "attention.head_dim": 256}
QK_NORM = {"attention.qk_norm": True}

FAMILIES: dict[str, Mapping[str, Any]] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "mixtral", "deepseek", "deepseek_v2", "deepseek_v3", "internlm2", "baichuan", "minicpm",
            "gpt_oss", "glm", "glm4_moe", "hunyuan_v1_moe", "hunyuan_v1_dense", "hunyuan", "pangu_pro_moe", "bailing_moe",
            "minimax_m2", "phi3", "phimoe", "granite", "granitemoe", "dbrx",
        ),
        {},
    ),
    **dict.fromkeys(("qwen2", "qwen2_moe"), {"attention.qkv_bias": True}),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"), QK_NORM | {"attention.head_dim": 128}),
    **dict.fromkeys(("olmo2", "olmo3", "olmoe", "bailing_moe_v2"), QK_NORM),
    "mimo": {"attention.qkv_bias": True},
    "chatglm": {"attention.qkv_bias": True},
    "llama4": {"moe.shared_experts": 1},
    "glm4": {"norms_per_layer": 4},
    "pangu_ultra_moe": {"norms_per_layer": 4},
    **dict.fromkeys(("grok", "grok_1"), {"norms_per_layer": 4, "tied_embeddings": True, "gated": True}),
    "ernie4_5": {"tied_embeddings": True},
    "ernie4_5_moe": {"tied_embeddings": True},
    "gemma": GEMMA | {"vocab": 256000, "max_seq_len": 8192, "attention.head_dim": 256},
    "gemma2": GEMMA | GEMMA_HEADS | {"norms_per_layer": 4, "vocab": 256000, "max_seq_len": 8192},
    "gemma3": GEMMA | GEMMA_HEADS | QK_NORM | {"norms_per_layer": 4, "vocab": 262208, "max_seq_len": 131072},
    "cohere": {"norm": "layernorm", "tied_embeddings": True},
    "gpt2": PLAIN | BIASED | {"tied_embeddings": True, "learned_positions": True},
    "gpt_bigcode": PLAIN | BIASED | {"tied_embeddings": True, "learned_positions": True, "multi_query": True},
    "opt": PLAIN | BIASED | {"tied_embeddings": True, "learned_positions": True},
    "bloom": PLAIN | BIASED | {"tied_embeddings": True},
    "gpt_neox": PLAIN | BIASED,
    "gptj": PLAIN,
    "phi": PLAIN | BIASED,
    "starcoder2": PLAIN | BIASED | {"tied_embeddings": True},
    "falcon": PLAIN | {"tied_embeddings": True, "multi_query": True},
    "mpt": PLAIN | {"tied_embeddings": True},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What the class of a model implies."""

    name: str
    """As the file writes it; empty where it names none."""
    known: bool
    """Its model_type is a name of the table, not only begins with one."""
    values: Mapping[str, Any]


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
