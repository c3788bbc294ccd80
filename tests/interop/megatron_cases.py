"""Layers of Megatron-Core (0.16.1) with options, plain and with modules rebuilt, and all places that each has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.interop.megatron_experts import (
    ACTIVATION_REBUILT,
    BALANCING_LOSS,
    FUSED_SHARED_EXPERTS,
    GROUPED,
    MOE_REBUILT,
    SHARED_EXPERTS,
    SIGMOID_ROUTER,
    SOFTMAX_ROUTER,
    dispatcher,
    fused_sequential,
    sequential,
)
from tests.interop.megatron_places import (
    CORE_REBUILT,
    DENSE,
    DENSE_REBUILT,
    DROPPED_SCORES,
    FUSED_DENSE,
    FUSED_SCORES,
    GQA_INPUT,
    HEADS,
    LATENTS,
    LATENTS_KEPT_WITH_KEYS,
    LATENTS_RMS,
    MLA_CORE_REBUILT,
    NORMS,
    NORMS_REBUILT,
    OUT,
    PACKED_HEADS,
    QK_NORM,
    QK_RMS,
    RMS_NORMS,
    SAVED,
    SCORES,
    UP,
    UP_REBUILT,
    rest,
)
from tests.interop.places import Place

FUSED = {"masked_softmax_fusion": True, "bias_activation_fusion": True}
GROUPS = {"masked_softmax_fusion": True, "moe_grouped_gemm": True}
WIDE = {"moe_router_dtype": "fp32"}
SIGMOID = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
LINES = ("rope", "permute", "accumulate")
MLA_EXPERTS = {"options": GROUPS | SIGMOID, "fused": ("norm", *LINES)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A layer with Megatron's options, ours to compare it with, and all places."""

    layer: str
    places: tuple[Place, ...]
    dense: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    norm: str = "layernorm"
    fused: tuple[str, ...] = ("norm", "activation", *LINES)
    profile: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    """A key and a value for every query head."""
    rebuilt: tuple[str, ...] = ()
    """--recompute-modules, or full."""
    beyond: tuple[str, ...] = ()
    """Rows that Megatron rebuilds with them and we do not."""


GQA_FUSED = (*GQA_INPUT, *HEADS, *FUSED_SCORES, OUT)
GQA_LINES = (*GQA_INPUT, *HEADS, *SCORES, OUT)
MLA_FUSED = (*LATENTS, *UP, *FUSED_SCORES, OUT)
PACKED = {"packed_qkv_saved": True}
PLAINLY = {
    "gqa": Case(layer="llama", norm="rmsnorm", fused=LINES, places=(*RMS_NORMS, *GQA_LINES, *DENSE)),
    "gqa, fused": Case(layer="llama", options=FUSED, places=(*NORMS, *GQA_FUSED, *FUSED_DENSE)),
    "gqa, dropout": Case(
        layer="llama", options=FUSED | {"attention_dropout": 0.1}, profile={"score_saved_bytes": 5.0},
        places=(*NORMS, *GQA_INPUT, *HEADS, *DROPPED_SCORES, OUT, *FUSED_DENSE),
    ),
    "mha, fused": Case(
        layer="llama", options=FUSED, profile=PACKED, whole=True,
        places=(*NORMS, *GQA_INPUT, *PACKED_HEADS, *FUSED_SCORES, OUT, *FUSED_DENSE),
    ),
    "experts": Case(
        layer="qwen3-moe", options=WIDE, norm="rmsnorm", fused=LINES,
        places=(*RMS_NORMS, *QK_RMS, *GQA_LINES, *SOFTMAX_ROUTER, *dispatcher("float32"), *sequential("float32")),
    ),
    "experts, fused": Case(
        layer="qwen3-moe", options=FUSED | WIDE | {"moe_aux_loss_coeff": 0.01},
        places=(*NORMS, *QK_NORM, *GQA_FUSED, *SOFTMAX_ROUTER, *BALANCING_LOSS, *dispatcher("float32"),
                *fused_sequential("float32")),
    ),
    "experts, gathered": Case(
        layer="qwen3-moe", options=FUSED | {"moe_token_dispatcher_type": "allgather"},
        places=(*NORMS, *QK_NORM, *GQA_FUSED, *SOFTMAX_ROUTER,
                *dispatcher("bfloat16", "self.local_probs = self.local_probs.T"), *fused_sequential("bfloat16")),
    ),
    "mla": Case(
        layer="deepseek-v3", dense=True, norm="rmsnorm", fused=LINES,
        places=(*RMS_NORMS, *LATENTS_RMS, *UP, *SCORES, OUT, *DENSE),
    ),
    "mla, fused": Case(
        layer="deepseek-v3", dense=True, options=FUSED, places=(*NORMS, *MLA_FUSED, *FUSED_DENSE),
    ),
    "mla, experts": Case(
        layer="deepseek-v3", options=FUSED | SIGMOID,
        places=(*NORMS, *MLA_FUSED, *SIGMOID_ROUTER, *dispatcher("bfloat16"), *fused_sequential("bfloat16"),
                *FUSED_SHARED_EXPERTS),
    ),
    "mla, grouped experts": Case(
        layer="deepseek-v3", **MLA_EXPERTS,
        places=(*NORMS, *MLA_FUSED, *SIGMOID_ROUTER, *dispatcher("bfloat16"), *GROUPED, *SHARED_EXPERTS),
    ),
}  # fmt: skip
ROUTED = (*SIGMOID_ROUTER, *dispatcher("bfloat16"))
ANGLES = rest("", "cos and sin", SAVED, "float32", lambda z: 4 * z.s * z.d, lambda z: (1, 1, z.d))
"""Of all layers."""
REBUILT = {
    "gqa, layernorm": Case(
        layer="llama", options=FUSED, rebuilt=("layernorm",),
        places=(*NORMS_REBUILT, GQA_INPUT[1], *HEADS, *FUSED_SCORES, OUT, *FUSED_DENSE[1:]),
    ),
    "gqa, core_attn": Case(
        layer="llama", options=FUSED, profile=PACKED, rebuilt=("core_attn",),
        places=(*NORMS, *GQA_INPUT, *CORE_REBUILT, OUT, *FUSED_DENSE),
    ),
    "gqa, mlp": Case(
        layer="llama", norm="rmsnorm", fused=LINES, rebuilt=("mlp",), places=(*RMS_NORMS, *GQA_LINES, *DENSE_REBUILT),
    ),
    "gqa, layernorm, core_attn, mlp": Case(
        layer="llama", options=FUSED, profile=PACKED, rebuilt=("layernorm", "core_attn", "mlp"),
        places=(*NORMS_REBUILT, GQA_INPUT[1], *CORE_REBUILT, OUT),
    ),
    "gqa, full": Case(
        layer="llama", norm="rmsnorm", fused=LINES, rebuilt=("full",),
        places=(Place(row="layer input", module="", line=SAVED, dtype="bfloat16"), ANGLES),
    ),
    "mla, mla_up_proj": Case(
        layer="deepseek-v3", dense=True, options=FUSED, rebuilt=("mla_up_proj",),
        places=(*NORMS, *LATENTS, *UP_REBUILT, *FUSED_SCORES, OUT, *FUSED_DENSE),
    ),
    "mla, line by line, mla_up_proj": Case(
        layer="deepseek-v3", dense=True, norm="rmsnorm", fused=LINES, rebuilt=("mla_up_proj",),
        places=(*RMS_NORMS, *LATENTS_RMS, *UP_REBUILT, LATENTS_KEPT_WITH_KEYS, *SCORES, OUT, *DENSE),
    ),
    "mla, core_attn": Case(
        layer="deepseek-v3", dense=True, options=FUSED, rebuilt=("core_attn",),
        places=(*NORMS, *LATENTS, *UP[:3], *MLA_CORE_REBUILT, OUT, *FUSED_DENSE),
    ),
    "mla, experts, layernorm": Case(
        layer="deepseek-v3", **MLA_EXPERTS, rebuilt=("layernorm",),
        places=(*NORMS_REBUILT, *LATENTS[1:], *UP, *FUSED_SCORES, OUT, *ROUTED[1:], *GROUPED, *SHARED_EXPERTS),
    ),
    "mla, experts, moe_act": Case(
        layer="deepseek-v3", **MLA_EXPERTS, rebuilt=("moe_act",),
        places=(*NORMS, *MLA_FUSED, *ROUTED, *ACTIVATION_REBUILT, *SHARED_EXPERTS),
    ),
    "mla, experts, shared_experts": Case(
        layer="deepseek-v3", **MLA_EXPERTS, rebuilt=("shared_experts",),
        places=(*NORMS, *MLA_FUSED, *ROUTED, *GROUPED),
    ),
    "mla, experts, moe": Case(
        layer="deepseek-v3", **MLA_EXPERTS, rebuilt=("moe",), places=(*NORMS, *MLA_FUSED, *MOE_REBUILT),
    ),
    "mla, experts, all modules": Case(
        layer="deepseek-v3", **MLA_EXPERTS,
        rebuilt=("layernorm", "moe_act", "mla_up_proj", "shared_experts", "moe", "core_attn"),
        places=(*NORMS_REBUILT, *LATENTS[1:], *UP_REBUILT, MLA_CORE_REBUILT[-1], OUT),
    ),
    "mla, experts, full": Case(
        layer="deepseek-v3", **MLA_EXPERTS, rebuilt=("full",),
        places=(Place(row="layer input", module="", line=SAVED),),
    ),
}  # fmt: skip
CASES = PLAINLY | REBUILT
