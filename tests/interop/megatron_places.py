"""Lines of Megatron-Core (0.16.1) that have storages saved: the parts that layers are put together of."""

from __future__ import annotations

from tests.interop.places import Formula, Place, Tail, hidden, nothing

LINEAR = "LinearWithGradAccumulationAndAsyncCommunication.apply("
SAVED = "return CheckpointFunction.apply("
DISCARDED = "CheckpointWithoutOutputFunction.apply("
ATTENTION, CORE, SOFTMAX = (
    "self_attention", "self_attention.core_attention", "self_attention.core_attention.scale_mask_softmax",
)  # fmt: skip


def linear(row: str, module: str, more: Formula = nothing) -> Place:
    """The input of a linear layer."""
    return Place(row=row, module=module, line=LINEAR, more=more)


def rms_norm(module: str, row: str, ours: str, elements: Formula, width: Formula) -> tuple[Place, ...]:
    """PyTorch's RMSNorm, which is no kernel on the CPU: its input and the product before the weight, both in fp32,
    4 bytes each for 2 in our rows, of which one stands beside the input; one fp32 scale a vector."""
    line = f"{module.rpartition('.')[2]}("
    return (
        Place(row=f"{row}+{ours} line by line", module=module, line=line, tail=lambda z: (width(z),),
              more=lambda z: 2 * elements(z)),
        Place(row=f"{module}: scales", module=module, line=line, tail=lambda _: (1,),
              more=lambda z: 4 * elements(z) // width(z)),
    )  # fmt: skip


def layer_norm(module: str, row: str, elements: Formula, width: Formula, more: Formula = nothing) -> tuple[Place, ...]:
    """PyTorch's LayerNorm, one kernel: its input, and mean and scale in fp32."""
    line = f"{module.rpartition('.')[2]}("
    return (
        Place(row=row, module=module, line=line, tail=lambda z: (width(z),), more=more),
        Place(row=f"{module}: mean and scale", module=module, line=line, tail=lambda _: (1,),
              more=lambda z: 2 * 4 * elements(z) // width(z)),
    )  # fmt: skip


def rest(module: str, row: str, line: str, kind: str, more: Formula, tail: Tail | None = None) -> Place:
    """A row that we have not, or have in other types: all that is held is given."""
    return Place(row=row, module=module, line=line, dtype=kind, more=more, tail=tail)


RMS_NORMS = (
    *rms_norm("input_layernorm", "layer input", "norm 1", hidden, lambda z: z.h),
    *rms_norm("pre_mlp_layernorm", "residual after attention", "norm 2", hidden, lambda z: z.h),
)
NORM_1 = layer_norm("input_layernorm", "layer input", hidden, lambda z: z.h)
NORM_2 = layer_norm("pre_mlp_layernorm", "residual after attention", hidden, lambda z: z.h)
NORMS = (*NORM_1, *NORM_2)
NORMS_REBUILT = (Place(row="layer input+residual after attention", module="", line=DISCARDED),)
"""Both inputs are saved by one line."""


def turns(width: Formula) -> Place:
    """cos and sin of queries and of keys, each layer its own."""
    return rest(ATTENTION, "cos and sin", "t = (t * cos_)", "bfloat16", lambda z: 4 * 2 * z.s * width(z))


OUT = linear("attention output", "self_attention.linear_proj")
GQA_INPUT = (linear("norm-1 output", "self_attention.linear_qkv"), turns(lambda z: z.d))
HEADS = (
    # keys and values are repeated for every query head (repeat_interleave), and saved so
    Place(row="q, k, v", module=CORE, line="torch.baddbmm(", more=lambda z: 2 * z.T * (z.a - z.g) * z.d),
    Place(row="q, k, v", module=CORE, line="torch.bmm(attention_probs, value", tail=lambda z: (z.s, z.d),
          more=lambda z: 2 * z.T * (z.a - z.g) * z.d),
)  # fmt: skip
PACKED_HEADS = (
    # with one key and value a query head values are a view of the packed projection
    Place(row="q, k, v+packed q and k", module=CORE, line="torch.baddbmm("),
    Place(row="q, k, v+packed q and k", module=CORE, line="torch.bmm(attention_probs, value",
          tail=lambda z: (z.s, z.d)),
)  # fmt: skip
FUSED_SCORES = (
    Place(row="scores", module=SOFTMAX, line="ScaledUpperTriangMaskedSoftmax.apply(", dtype="bfloat16"),
    rest(SOFTMAX, "softmax scale", "ScaledUpperTriangMaskedSoftmax.apply(", "float32", lambda _: 4),
)
SCORES = (
    # one mask, which layers share; soft-max in fp32, and its copy in bf16, which is the row
    rest(SOFTMAX, "causal mask", "attention_scores.masked_fill_(", "bool", lambda z: z.s * z.s),
    rest(SOFTMAX, "scores", "softmax_fn(mask_output)", "float32", lambda z: 4 * z.T * z.s * z.a),
    Place(row="scores", module=CORE, line="torch.bmm(attention_probs, value", tail=lambda z: (z.s, z.s)),
)
DROPPED_SCORES = (
    *FUSED_SCORES,
    Place(row="scores", module=f"{CORE}.attention_dropout", line="torch.native_dropout(", dtype="bool"),
    Place(row="scores", module=CORE, line="torch.bmm(attention_probs, value", tail=lambda z: (z.s, z.s)),
)
CORE_REBUILT = (
    # values are a view of the packed projection here as well
    Place(row="q, k, v+packed q and k", module=ATTENTION, line=SAVED, dtype="bfloat16"),
    rest(ATTENTION, "kind of the mask", SAVED, "int32", lambda _: 4),
)
QK_RMS = (
    *rms_norm("self_attention.q_layernorm", "q, k before their norm", "qk norm", lambda z: z.T * z.a * z.d,
              lambda z: z.d),
    *rms_norm("self_attention.k_layernorm", "q, k before their norm", "qk norm", lambda z: z.T * z.g * z.d,
              lambda z: z.d),
)  # fmt: skip
QK_NORM = (
    *layer_norm("self_attention.q_layernorm", "q, k before their norm", lambda z: z.T * z.a * z.d, lambda z: z.d),
    # keys are a view of the packed projection, which holds queries and values
    *layer_norm("self_attention.k_layernorm", "q, k before their norm", lambda z: z.T * z.g * z.d, lambda z: z.d,
                lambda z: 2 * z.T * (z.a + z.g) * z.d),
)  # fmt: skip
LATENTS = (
    linear("norm-1 output", "self_attention.linear_q_down_proj"),
    *layer_norm("self_attention.q_layernorm", "q latent", lambda z: z.T * z.r_q, lambda z: z.r_q),
    # a view of the down-projection, which holds the rotated part of the keys
    *layer_norm("self_attention.kv_layernorm", "kv latent", lambda z: z.T * z.r_kv, lambda z: z.r_kv,
                lambda z: 2 * z.T * z.d_r),
)  # fmt: skip
LATENTS_RMS = (
    linear("norm-1 output", "self_attention.linear_q_down_proj"),
    *rms_norm("self_attention.q_layernorm", "q latent", "q latent norm", lambda z: z.T * z.r_q, lambda z: z.r_q),
    *rms_norm("self_attention.kv_layernorm", "kv latent", "kv latent norm", lambda z: z.T * z.r_kv, lambda z: z.r_kv),
)
UP = (
    linear("q latent normed", "self_attention.linear_q_up_proj"),
    linear("kv latent normed", "self_attention.linear_kv_up_proj"),
    turns(lambda z: z.d_r),
    Place(row="q", module=CORE, line="torch.baddbmm(", tail=lambda z: (z.s, z.d_qk)),
    Place(row="k", module=CORE, line="torch.baddbmm(", tail=lambda z: (z.d_qk, z.s)),
    Place(row="v", module=CORE, line="torch.bmm(attention_probs, value", tail=lambda z: (z.s, z.d_v)),
)
UP_REBUILT = (
    Place(row="q latent normed", module=ATTENTION, line=DISCARDED, tail=lambda z: (z.r_q,)),
    Place(row="kv latent normed", module=ATTENTION, line=DISCARDED, tail=lambda z: (z.r_kv,)),
    # angles in fp32, each layer its own
    rest(ATTENTION, "cos and sin", DISCARDED, "float32", lambda z: 4 * z.s * z.d_r, lambda z: (1, 1, z.d_r)),
)
LATENTS_KEPT_WITH_KEYS = rest(
    ATTENTION, "kv latent", DISCARDED, "bfloat16", lambda z: 2 * z.T * z.d_r, lambda z: (z.d_r,)
)
"""Where the norm keeps a copy of its own, the rotated part of the keys is held by who rebuilds the up-projection."""
MLA_CORE_REBUILT = (
    Place(row="q+k", module=ATTENTION, line=SAVED, tail=lambda z: (z.d_qk,)),
    Place(row="v", module=ATTENTION, line=SAVED, tail=lambda z: (z.d_v,)),
    rest(ATTENTION, "kind of the mask", SAVED, "int32", lambda _: 4),
)


def swiglu(module: str, fc1: str, name: str, width: Formula) -> tuple[Place, ...]:
    """As its lines run: silu(gate) and, as an offset is added to it, a copy of up are kept beside gate and up."""
    both = f"{fc1}+{name}, gate"
    return (
        Place(row=both, module=module, line="self.config.activation_func(x_glu) * (", more=lambda z: 2 * width(z)),
        linear(f"{name} output", f"{module}.linear_fc2"),
    )


def fused_swiglu(module: str, fc1: str, name: str) -> tuple[Place, ...]:
    """One kernel: its input."""
    return (
        Place(row=fc1, module=module, line="SwiGLUFunction.apply(", dtype="bfloat16"),
        linear(f"{name} output", f"{module}.linear_fc2"),
    )


FC1_INPUT = linear("norm-2 output", "mlp.linear_fc1")
DENSE = (FC1_INPUT, *swiglu("mlp", "fc1 output", "activation", lambda z: z.T * z.f))
FUSED_DENSE = (FC1_INPUT, *fused_swiglu("mlp", "fc1 output", "activation"))
DENSE_REBUILT = (Place(row="norm-2 output", module="", line=SAVED),)
