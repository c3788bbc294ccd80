"""Decoder layers of `transformers` (5.24.0) at small sizes, and the same shapes as the package describes them.

Random weights, bf16, on the CPU, in training mode, without dropout. Needs torch and transformers in functions only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autodeploy.spec.model import GQA, MLA, Model, MoE
from tests.interop.saved import Storage, saved_by


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Symbols of the formulas (docs/model.md 4.2): one shape for every layer."""

    b: int
    s: int
    h: int
    f: int
    a: int
    g: int
    d: int
    r_q: int
    r_kv: int
    d_n: int
    d_r: int
    d_v: int
    E: int
    k: int
    f_e: int

    @property
    def T(self) -> int:  # noqa: N802
        """Tokens."""
        return self.b * self.s

    @property
    def d_qk(self) -> int:
        """Head size of queries and keys under MLA."""
        return self.d_n + self.d_r


ONE = Sizes(
    b=2, s=10, h=48, f=104, a=6, g=2, d=16, r_q=28, r_kv=36, d_n=18, d_r=8, d_v=12, E=8, k=3, f_e=24,
)  # fmt: skip
OTHER = Sizes(
    b=1, s=14, h=80, f=72, a=10, g=5, d=12, r_q=44, r_kv=20, d_n=22, d_r=6, d_v=30, E=12, k=5, f_e=40,
)  # fmt: skip


def _common(z: Sizes) -> dict[str, Any]:
    return {
        "hidden_size": z.h, "intermediate_size": z.f, "num_attention_heads": z.a, "num_hidden_layers": 1,
        "vocab_size": 64, "use_cache": False,
    }  # fmt: skip


def _llama(z: Sizes, _dense: bool) -> tuple[Any, Any, Any]:
    from transformers.models.llama import modeling_llama as source
    from transformers.models.llama.configuration_llama import LlamaConfig

    config = LlamaConfig(**_common(z), num_key_value_heads=z.g, head_dim=z.d)
    return config, source.LlamaDecoderLayer, source.LlamaRotaryEmbedding


def _qwen(z: Sizes, _dense: bool) -> tuple[Any, Any, Any]:
    from transformers.models.qwen3_moe import modeling_qwen3_moe as source
    from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        **_common(z), num_key_value_heads=z.g, head_dim=z.d, num_experts=z.E, num_experts_per_tok=z.k,
        moe_intermediate_size=z.f_e, norm_topk_prob=True,
    )  # fmt: skip
    return config, source.Qwen3MoeDecoderLayer, source.Qwen3MoeRotaryEmbedding


def _deepseek(z: Sizes, dense: bool) -> tuple[Any, Any, Any]:
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as source
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config

    config = DeepseekV3Config(
        **_common(z), num_key_value_heads=z.a, q_lora_rank=z.r_q, kv_lora_rank=z.r_kv, qk_nope_head_dim=z.d_n,
        qk_rope_head_dim=z.d_r, v_head_dim=z.d_v, n_routed_experts=z.E, num_experts_per_tok=z.k, n_group=2,
        topk_group=2, n_shared_experts=1, moe_intermediate_size=z.f_e, first_k_dense_replace=int(dense),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    return config, source.DeepseekV3DecoderLayer, source.DeepseekV3RotaryEmbedding


LAYERS: dict[str, Callable[[Sizes, bool], tuple[Any, Any, Any]]] = {
    "llama": _llama, "qwen3-moe": _qwen, "deepseek-v3": _deepseek,
}  # fmt: skip


def _built(config: Any, kind: Any) -> Any:
    """A layer with weights that are all different from zero, so that no path is cut off."""
    import torch

    torch.manual_seed(0)
    layer = kind(config, 0).to(torch.bfloat16).train()
    for each in layer.parameters():
        torch.nn.init.normal_(each, 0.0, 0.1)
    if hasattr(layer.mlp, "gate"):
        wide = config.model_type == "deepseek_v3"  # its router is declared in fp32, and stays there
        layer.mlp.gate.to(torch.float32 if wide else torch.bfloat16)
    return layer


def storages(name: str, attention: str, z: Sizes, dense: bool = False) -> list[Storage]:
    """What a layer keeps after a forward pass with attention by `eager` or `sdpa`."""
    import torch

    config, kind, rotary = LAYERS[name](z, dense)
    config._attn_implementation, config._experts_implementation = attention, "grouped_mm"
    layer = _built(config, kind)
    x = torch.randn(z.b, z.s, z.h, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.full((1, 1, z.s, z.s), -1e9, dtype=torch.bfloat16).triu(1) if attention == "eager" else None
    turns = rotary(config)(x, torch.arange(z.s)[None])
    return saved_by(layer, (x,), attention_mask=mask, position_embeddings=turns)


def model_like(name: str, z: Sizes, dense: bool = False) -> Model:
    """The same layer for the package."""
    gqa = GQA(heads=z.a, kv_heads=z.g, head_dim=z.d, qk_norm=name == "qwen3-moe")
    mla = MLA(heads=z.a, q_rank=z.r_q, kv_rank=z.r_kv, nope_dim=z.d_n, rope_dim=z.d_r, v_dim=z.d_v)
    moe = MoE(experts=z.E, top_k=z.k, expert_width=z.f_e, shared_width=z.f_e if name == "deepseek-v3" else 0)
    plain = Model(
        name=name, title=name, hidden=z.h, layers=1, vocab=64, attention=mla if name == "deepseek-v3" else gqa,
        ffn_width=z.f, max_seq_len=z.s,
    )  # fmt: skip
    return plain if dense or name == "llama" else replace(plain, moe=moe)
