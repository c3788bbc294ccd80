"""Layers of Megatron-Core (0.16.1) that run: bf16, on the CPU, on one rank, of its local parts (no Transformer Engine).

What asks for a device is answered with the CPU: where buffers lie, streams, states of random numbers, the causal mask.
Kernels that the CPU lacks are stood in for by PyTorch's own: the fused soft-max and dropout, and the grouped products,
which keep what theirs keep: both factors and the counts. Functions that a GPU would compile run as their lines.
Needs torch and megatron-core in functions only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from autodeploy.spec.model import GQA, MLA, Model
from tests.builders import plan_of
from tests.interop.hf_layers import Sizes
from tests.interop.megatron import of_attention, of_experts, ranks
from tests.interop.saved import Storage, saved_by

MASKED = -10000.0


def _causal(size: int) -> Any:
    """What may not be seen."""
    import torch

    return torch.triu(torch.ones(size, size), diagonal=1).bool()


def _softmax(scores: Any, scale: Any) -> Any:
    """The kernel for scale, mask and soft-max."""
    import torch

    return torch.softmax((scores * scale).masked_fill(_causal(scores.shape[-1]), MASKED), -1)


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """The kernel that runs on a GPU, which keeps a mask of one byte; with none dropped there is nothing to do."""
    import torch

    assert not inplace
    return torch.native_dropout(x, p, training)[0] if p else x


def _grouped(rows: Any, weights: Any, counts: Any, trans_b: bool) -> Any:
    """One product per expert, of consecutive rows."""
    import torch

    assert not trans_b

    class Products(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Any, weights: Any, counts: Any) -> Any:
            ctx.save_for_backward(rows, weights, counts)
            parts = zip(rows.split(counts.tolist()), weights, strict=True)
            return torch.cat([part @ weight for part, weight in parts])

    return Products.apply(rows, weights, counts)


def _no_device() -> list[Any]:
    """In place of what needs a device."""
    import torch
    from megatron.core.fusions import fused_softmax
    from megatron.core.tensor_parallel import random

    no_state: dict[str, Any] = {"_get_cuda_rng_state": lambda **_: torch.empty(0), "_set_cuda_rng_state": MagicMock()}
    return [
        patch.multiple(
            torch.cuda, current_device=lambda: "cpu", Stream=MagicMock(), current_stream=MagicMock(),
            stream=lambda _: nullcontext(),
        ),
        patch.object(random.CudaRNGStatesTracker, "fork", lambda *_: nullcontext()),
        patch.multiple(random, **no_state),
        patch.object(fused_softmax, "get_default_causal_mask", _causal),
        torch.compiler.set_stance("force_eager"),
    ]  # fmt: skip


def _no_engine() -> list[Any]:
    """Names that are asked for, though Transformer Engine, which has them, is not there."""
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils

    return [
        patch.object(multi_latent_attention, "HAVE_TE", False),
        patch.object(moe_utils, "te_general_gemm", None, create=True),
        patch.object(random, "FP8GlobalStateManager", MagicMock(is_fp8_enabled=lambda: False), create=True),
        patch.object(random, "activation_recompute_forward", lambda **_: nullcontext(), create=True),
    ]


def _kernels() -> list[Any]:
    """In place of kernels."""
    import torch
    from megatron.core.transformer.moe import grouped_gemm_util

    fused = {
        "scaled_upper_triang_masked_softmax_cuda": SimpleNamespace(forward=_softmax),
        "scaled_masked_softmax_cuda": SimpleNamespace(get_batch_per_block=lambda *_: 1),
    }
    return [
        patch.dict(sys.modules, fused),
        patch.object(torch.nn.functional, "dropout", _dropout),
        patch.multiple(grouped_gemm_util, grouped_gemm=True, ops=SimpleNamespace(gmm=_grouped)),
    ]


@contextmanager
def _on_cpu() -> Iterator[None]:
    with ranks(plan_of()), ExitStack() as stack:
        for each in (*_no_device(), *_no_engine(), *_kernels()):
            stack.enter_context(each)
        yield


def _config(model: Model, options: dict[str, Any]) -> Any:
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    a = model.attention
    given: dict[str, Any] = {
        "num_layers": 1, "hidden_size": model.hidden, "num_attention_heads": a.heads,
        "ffn_hidden_size": model.ffn_width, "gated_linear_unit": model.gated,
        "activation_func": torch.nn.functional.silu, "add_bias_linear": False,
        "normalization": "LayerNorm" if model.norm == "layernorm" else "RMSNorm", "use_cpu_initialization": True,
        "perform_initialization": False, "bf16": True, "params_dtype": torch.bfloat16, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "moe_use_legacy_grouped_gemm": bool(options.get("moe_grouped_gemm")),
    }  # fmt: skip
    given |= of_attention(model) | of_experts(model)
    given |= {"kv_channels": a.v_dim} if isinstance(a, MLA) else {}
    return (MLATransformerConfig if isinstance(a, MLA) else TransformerConfig)(**given | options)


def _spec(model: Model, config: Any) -> Any:
    """The local layer; under MLA its attention core is told two sizes of heads and looks at neither."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class Core(DotProductAttention):  # type: ignore[misc, unused-ignore]
        """The core of this class takes no such names."""

        def __init__(self, *, k_channels: int = 0, v_channels: int = 0, **given: Any) -> None:
            del k_channels, v_channels
            super().__init__(**given)

    mla, grouped = isinstance(model.attention, MLA), config.moe_grouped_gemm
    spec = get_gpt_layer_local_spec(
        num_experts=model.moe.experts if model.moe else None, moe_grouped_gemm=grouped,
        moe_use_legacy_grouped_gemm=grouped, normalization=config.normalization, multi_latent_attention=mla,
        qk_layernorm=mla or (isinstance(model.attention, GQA) and model.attention.qk_norm),
    )  # fmt: skip
    if not mla:
        return spec
    attention = spec.submodules.self_attention
    attention = replace(attention, submodules=replace(attention.submodules, core_attention=Core))
    return replace(spec, submodules=replace(spec.submodules, self_attention=attention))


def _built(spec: Any, config: Any) -> Any:
    """The layer, or under full recompute the block of it, which is what rebuilds it."""
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_block import TransformerBlock

    if config.recompute_granularity == "full":
        return TransformerBlock(config, spec, post_layer_norm=False)
    return build_module(spec, config=config)


def storages(model: Model, options: dict[str, Any], z: Sizes) -> list[Storage]:
    """What a layer keeps after a forward pass; all weights are different from zero, so that no path is cut off."""
    import torch
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

    with _on_cpu():
        torch.manual_seed(0)
        config = _config(model, options)
        layer = _built(_spec(model, config), config).train()
        for each in layer.parameters():
            torch.nn.init.normal_(each, 0.0, 0.1)
        x = torch.randn(z.s, z.b, z.h, dtype=torch.bfloat16, requires_grad=True)
        a = model.attention
        turns = RotaryEmbedding(a.head_dim, 1.0, use_cpu_initialization=True)(z.s) if isinstance(a, GQA) else None
        return saved_by(layer, (x,), attention_mask=None, rotary_pos_emb=turns)
