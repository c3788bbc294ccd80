"""Layers of Megatron-Core (0.16.1) as one rank of many would hold them: on the meta device, in one process.

The groups are torch's fake ones, that know how many ranks there are and never speak. Needs torch and megatron-core in
functions only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock, patch

from autodeploy.spec.model import GQA, MLA, Model
from autodeploy.spec.plan import Plan

WORLD = 8


@contextmanager
def ranks(plan: Plan) -> Iterator[None]:
    """The process groups of a plan, as rank 0 sees them."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=plan.tp, expert_model_parallel_size=plan.ep, expert_tensor_parallel_size=plan.etp,
        create_gloo_process_groups=False,
    )  # fmt: skip
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _config(model: Model, plan: Plan) -> Any:
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    from torch.nn.functional import silu

    given: dict[str, Any] = {
        "num_layers": 1, "hidden_size": model.hidden, "num_attention_heads": model.attention.heads,
        "ffn_hidden_size": model.ffn_width, "gated_linear_unit": model.gated, "activation_func": silu,
        "add_bias_linear": False, "normalization": "RMSNorm", "tensor_model_parallel_size": plan.tp,
        "expert_model_parallel_size": plan.ep, "expert_tensor_parallel_size": plan.etp,
        "use_cpu_initialization": True, "perform_initialization": False,
    }  # fmt: skip
    given |= of_attention(model) | of_experts(model)
    return (MLATransformerConfig if isinstance(model.attention, MLA) else TransformerConfig)(**given)


def of_attention(model: Model) -> dict[str, Any]:
    """Options of the attention block."""
    a = model.attention
    if isinstance(a, GQA):
        return {
            "num_query_groups": a.kv_heads, "kv_channels": a.head_dim, "qk_layernorm": a.qk_norm,
            "add_qkv_bias": a.qkv_bias,
        }  # fmt: skip
    return {
        "multi_latent_attention": True, "q_lora_rank": a.q_rank or None, "kv_lora_rank": a.kv_rank,
        "qk_head_dim": a.nope_dim, "qk_pos_emb_head_dim": a.rope_dim, "v_head_dim": a.v_dim, "qk_layernorm": True,
        "rope_type": "rope",
    }  # fmt: skip


def of_experts(model: Model) -> dict[str, Any]:
    """Options of the experts."""
    moe = model.moe
    if moe is None:
        return {}
    return {
        "num_moe_experts": moe.experts, "moe_router_topk": moe.top_k, "moe_ffn_hidden_size": moe.expert_width,
        "moe_shared_expert_intermediate_size": moe.shared_width or None, "moe_token_dispatcher_type": "alltoall",
    }  # fmt: skip


def _stand_ins() -> tuple[Any, Any]:
    """For the attention core, which has no parameters, and for Transformer Engine's linear layer, which is whole on
    every rank where Megatron asks for it so."""
    import torch

    class Core(torch.nn.Module):
        """Nothing."""

        def __init__(self, **_: Any) -> None:
            super().__init__()

    class Whole(torch.nn.Linear):
        """A linear layer that may only be duplicated."""

        def __init__(self, inputs: int, outputs: int, *, parallel_mode: str, **_: Any) -> None:
            assert parallel_mode == "duplicated"
            super().__init__(inputs, outputs, bias=False)

    return Core, Whole


def _spec(model: Model, core: Any, whole: Any) -> Any:
    """The layer of Megatron's own parts, with the down-projections that Transformer Engine's layer has under MLA."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    mla = isinstance(model.attention, MLA)
    spec = get_gpt_layer_local_spec(
        num_experts=model.moe.experts if model.moe else None, normalization="RMSNorm", multi_latent_attention=mla,
        qk_layernorm=mla or (isinstance(model.attention, GQA) and model.attention.qk_norm),
    )  # fmt: skip
    attention = spec.submodules.self_attention
    down = {"linear_q_down_proj": whole, "linear_kv_down_proj": whole} if mla else {}
    parts = replace(attention.submodules, core_attention=core, **down)
    return replace(spec, submodules=replace(spec.submodules, self_attention=replace(attention, submodules=parts)))


def parameters(model: Model, plan: Plan) -> dict[str, Any]:
    """Parameters that rank 0 holds of the one layer."""
    import torch
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.spec_utils import build_module

    core, whole = _stand_ins()
    # both are only named here: where buffers lie, and a stream that nothing runs on
    no_gpu = patch.multiple(torch.cuda, current_device=lambda: "meta", Stream=MagicMock())
    engine = patch.object(multi_latent_attention, "TELinear", whole)
    with ranks(plan), no_gpu, engine, torch.device("meta"):
        return dict(build_module(_spec(model, core, whole), config=_config(model, plan)).named_parameters())
