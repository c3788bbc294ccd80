"""The model to train: shapes only, as its authors publish them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Literal

from autodeploy.spec.checks import Count, Frac, Natural


@dataclass(frozen=True, kw_only=True, slots=True)
class GQA:
    """Grouped-query attention; multi-head attention is `kv_heads == heads`."""

    kind: Literal["gqa"] = "gqa"
    heads: Count
    kv_heads: Count
    head_dim: Count
    qkv_bias: bool = False
    qk_norm: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MLA:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    kind: Literal["mla"] = "mla"
    heads: Count
    q_rank: Natural = 0
    """0: the queries come straight from the hidden state (DeepSeek-V2-Lite)."""
    kv_rank: Count
    nope_dim: Count
    rope_dim: Count
    v_dim: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class MoE:
    """Routed and shared experts of the sparse layers."""

    experts: Count
    top_k: Count
    expert_width: Count
    shared_width: Natural = 0
    """Width of all shared experts together."""
    first_dense: Natural = 0
    """So many layers at the bottom stay dense."""
    every: Count = 1
    """Above those, every n-th layer is sparse."""
    node_limit: Natural = 0
    """A token's experts lie on at most so many nodes (DeepSeek's group-limited routing); 0: on any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A decoder-only transformer. Widths and counts, no precision and no parallelism."""

    name: str
    title: str
    hidden: Count
    layers: Count
    vocab: Count
    attention: GQA | MLA
    ffn_width: Count
    gated: bool = True
    """Three matrices (SwiGLU, GeGLU); False: two (GELU, squared ReLU)."""
    moe: MoE | None = None
    mtp_depth: Natural = 0
    norms_per_layer: Literal[2, 4] = 2
    """4 with sandwich norms: one more after attention and one after the feed-forward."""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    linear_bias: bool = False
    tied_embeddings: bool = False
    learned_positions: Natural = 0
    alibi: bool = False
    """Positions are a bias on the scores: nothing is rotated."""
    window: Natural = 0
    """Keys that a query of a windowed layer sees; 0: all before it."""
    window_frac: Frac = 1.0
    """Share of the layers that are windowed, where there is a window."""
    max_seq_len: Count
    sources: dict[str, str] = field(default_factory=dict, compare=False)


class Kind(IntEnum):
    """What a pipeline slot can hold, in the order in which a forward pass meets them."""

    EMBEDDING = 0
    DENSE = 1
    SPARSE = 2
    MTP = 3
    HEAD = 4


KINDS = tuple(Kind)


@lru_cache(maxsize=64)
def decoder_kinds(model: Model) -> tuple[Kind, ...]:
    """The kind of every decoder layer, bottom to top."""
    moe = model.moe
    if moe is None:
        return (Kind.DENSE,) * model.layers
    return tuple(
        Kind.DENSE if i < moe.first_dense or (i - moe.first_dense) % moe.every != 0 else Kind.SPARSE
        for i in range(model.layers)
    )


def mtp_kind(model: Model) -> Kind:
    """The layer inside an MTP module: like the topmost decoder layer."""
    return decoder_kinds(model)[-1]


@lru_cache(maxsize=64)
def present_kinds(model: Model, mtp: bool) -> tuple[Kind, ...]:
    """The kinds that occur in the model as it is trained."""
    layers = set(decoder_kinds(model)) | {Kind.EMBEDDING, Kind.HEAD}
    return tuple(kind for kind in KINDS if kind in layers or (kind is Kind.MTP and mtp and model.mtp_depth > 0))
