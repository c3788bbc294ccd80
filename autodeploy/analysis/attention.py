"""Ops of the attention block: norm, projections, core, output projection, residual.

Rows and shapes: model.md 4.2; sequence-parallel traffic: model.md 6.3 (arXiv 2205.05198 section 4.2).
"""

from __future__ import annotations

from dataclasses import replace

from autodeploy.analysis.core import core_ops
from autodeploy.analysis.ops import (
    Group,
    Module,
    Op,
    Row,
    Shard,
    Tokens,
    Transfer,
    gathering,
    matmul,
    vector,
)  # fmt: skip
from autodeploy.analysis.vectors import BF16, norm, residual, rope
from autodeploy.numeric import Num, maximum
from autodeploy.spec.model import GQA, MLA, Model
from autodeploy.spec.target import Profile


def sandwich(name: str, model: Model, profile: Profile, t: Tokens) -> tuple[Op, ...]:
    """The norm on a block's output (Pangu's sandwich), whose input is kept."""
    if model.norms_per_layer != 4:
        return ()
    row = Row(name=f"{name} input", bytes=BF16 * model.hidden * t.part, module=Module.FULL)
    return (norm(name, model, profile, t.part, rows=(row,), module=Module.FULL),)


def gather(bytes_: Num, t: Tokens) -> Transfer:
    """All-gather before a column-parallel product: gathered forward, its gradient scattered, and with sequence
    parallelism the input gathered again for the weight gradient. (Without it, half of an all-reduce each.)"""
    return Transfer(group=Group.TP, bytes=bytes_, forward=1.0, backward=1.0 + t.sp)


def scatter(bytes_: Num) -> Transfer:
    """Reduce-scatter after a row-parallel product, or a gathered tensor that is kept: the gradient goes back once."""
    return Transfer(group=Group.TP, bytes=bytes_, forward=1.0, backward=1.0)


def kept_tokens(profile: Profile, t: Tokens) -> Num:
    """Tokens of the input that a column-parallel product keeps: the rank's own, or all that were gathered."""
    return t.whole if profile.gathered_inputs_saved else t.part


def attention_ops(model: Model, t: Tokens, profile: Profile) -> list[Op]:
    """From the layer input to the residual after attention."""
    h = model.hidden
    entry = Row(name="layer input", bytes=BF16 * h * t.part, module=Module.KEPT)
    normed = Row(name="norm-1 output", bytes=BF16 * h * kept_tokens(profile, t), module=Module.LAYERNORM, taken="only")
    core = _mla(model, model.attention, t, profile) if isinstance(model.attention, MLA) else _gqa(model, t, profile)
    after = Row(name="residual after attention", bytes=BF16 * h * t.part, module=Module.FULL)
    rows = (entry, *_graph_copies(h, t, profile), normed)
    return [
        norm("norm 1", model, profile, t.part, rows=rows, module=Module.LAYERNORM),
        *core,
        *sandwich("norm after attention", model, profile, t),
        residual("residual 1", model, profile, t.part, rows=(after,)),
    ]


def _graph_copies(h: int, t: Tokens, profile: Profile) -> tuple[Row, ...]:
    if not profile.graph_saved_bytes:
        return ()
    return (Row(name="graph copies", bytes=profile.graph_saved_bytes * h * t.part, module=Module.KEPT),)


def _gqa(model: Model, t: Tokens, profile: Profile) -> list[Op]:
    attention = model.attention
    assert isinstance(attention, GQA)
    h, d = model.hidden, attention.head_dim
    heads = attention.heads / t.tp
    groups = maximum(attention.kv_heads / t.tp, 1.0)  # replicated where tp exceeds the groups
    width = (heads + 2.0 * groups) * d
    qkv = Row(name="q, k, v", bytes=BF16 * t.whole * width, module=Module.FULL, grad_live=True)
    turned = t.whole * (heads + groups) * d
    out_bias = 1.0 * h if model.linear_bias else 0.0
    project = matmul(
        "qkv projection", t.whole, width, h, rows=(qkv,), bias=width if attention.qkv_bias else 0.0,
        transfers=(gather(BF16 * h * t.whole, t),),
    )  # fmt: skip
    ops = [gathering(project, kept_tokens(profile, t))]
    if attention.qk_norm:
        row = Row(name="q, k before their norm", bytes=BF16 * turned, module=Module.FULL)
        whole = norm("qk norm", model, profile, turned / d, rows=(row,), module=Module.FULL, width=d)
        ops.append(replace(whole, params=2.0 * d))
    if not (model.learned_positions or model.alibi):
        ops.append(rope(profile, turned, rows=_packed(profile, turned)))
    ops += core_ops(model, profile, t, heads, groups, (d, d))
    out = matmul("output projection", t.whole, h, heads * d, transfers=(scatter(BF16 * h * t.whole),))
    return [*ops, out, *bias("output bias", t, out_bias)]


def _packed(profile: Profile, turned: Num) -> tuple[Row, ...]:
    """Queries and keys before their rotation, where the values hold them."""
    if not profile.packed_qkv_saved:
        return ()
    return (Row(name="packed q and k", bytes=BF16 * turned, module=Module.FULL),)


def bias(name: str, t: Tokens, params: Num) -> tuple[Op, ...]:
    """The bias of a row-parallel product, on every tp rank and fused into what follows: parameters only."""
    if isinstance(params, float) and params == 0.0:
        return ()
    return (vector(name, 0.0 * t.part, 0.0 * t.part, params=params, kernels=0),)


def _mla(model: Model, a: MLA, t: Tokens, profile: Profile) -> list[Op]:
    """Multi-head latent attention, un-absorbed as in training. The down-projections run on each rank's own
    tokens (replicated weights), so tensor parallelism gathers latents, not hidden states."""
    h, heads = model.hidden, a.heads / t.tp
    qk_dim = a.nope_dim + a.rope_dim
    v_dim = max(qk_dim, a.v_dim) if profile.padded_values else a.v_dim
    kv_latent = BF16 * t.part * a.kv_rank
    k = Row(name="k", bytes=BF16 * t.whole * heads * qk_dim, module=Module.MLA_UP_PROJ, grad_live=True)
    v = Row(name="v", bytes=BF16 * t.whole * heads * v_dim, module=Module.MLA_UP_PROJ, grad_live=True)
    return [
        *_mla_queries(model, a, t, profile),
        matmul(
            "kv down", t.part, a.kv_rank + a.rope_dim, h, shard=Shard.REPLICATED,
            rows=(Row(name="kv latent", bytes=kv_latent, module=Module.FULL),),
        ),
        replace(
            _latent_norm("kv", model, profile, t.part, a.kv_rank, BF16 * t.whole * a.kv_rank),
            transfers=(scatter(BF16 * t.whole * (a.kv_rank + a.rope_dim)),),
        ),
        matmul("kv up", t.whole, heads * (a.nope_dim + a.v_dim), a.kv_rank, module=Module.MLA_UP_PROJ, rows=(k, v)),
        rope(profile, 2.0 * t.whole * heads * a.rope_dim, Module.MLA_UP_PROJ),
        *core_ops(model, profile, t, heads, heads, (qk_dim, v_dim)),
        matmul("output projection", t.whole, h, heads * a.v_dim, transfers=(scatter(BF16 * h * t.whole),)),
    ]  # fmt: skip


def _latent_norm(name: str, model: Model, profile: Profile, tokens: Num, rank: int, kept: Num) -> Op:
    """RMSNorm over a latent."""
    row = Row(name=f"{name} latent normed", bytes=kept, module=Module.FULL, taken="only")
    plain = norm(f"{name} latent norm", model, profile, tokens, rows=(row,), module=Module.FULL, width=rank)
    return replace(plain, params=1.0 * rank)


def _mla_queries(model: Model, a: MLA, t: Tokens, profile: Profile) -> list[Op]:
    """Through their latent, or straight from the hidden state."""
    h, width = model.hidden, a.heads / t.tp * (a.nope_dim + a.rope_dim)
    q = Row(name="q", bytes=BF16 * t.whole * width, module=Module.MLA_UP_PROJ, grad_live=True)
    if not a.q_rank:
        into = (gather(BF16 * h * t.whole, t),)
        whole = matmul("q projection", t.whole, width, h, module=Module.MLA_UP_PROJ, rows=(q,), transfers=into)
        return [gathering(whole, kept_tokens(profile, t))]
    latent = BF16 * t.part * a.q_rank
    kept = Row(name="q latent", bytes=latent, module=Module.FULL)
    into = (gather(BF16 * t.whole * a.q_rank, t),)
    up = matmul("q up", t.whole, width, a.q_rank, module=Module.MLA_UP_PROJ, rows=(q,), transfers=into)
    return [
        matmul("q down", t.part, a.q_rank, h, shard=Shard.REPLICATED, rows=(kept,)),
        _latent_norm("q", model, profile, t.part, a.q_rank, latent),
        gathering(up, t.part),
    ]
