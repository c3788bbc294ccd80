"""Ops of the attention block: norm, projections, core, output projection, residual.

Rows and shapes: model.md 4.2; sequence-parallel traffic: model.md 6.3 (arXiv 2205.05198 section 4.2).
"""

from __future__ import annotations

from autodeploy.analysis.ops import (
    Engine,
    Group,
    Module,
    Op,
    Row,
    Shard,
    Tokens,
    Transfer,
    matmul,
    vector,
)  # fmt: skip
from autodeploy.numeric import Num, maximum
from autodeploy.spec.model import GQA, MLA, Model

BF16 = 2.0
FP32 = 4.0


def norm(name: str, model: Model, tokens: Num, *, rows: tuple[Row, ...], module: Module) -> Op:
    """RMSNorm or LayerNorm over the hidden size, fused: reads and writes once, its backward once more."""
    params = 1.0 * model.hidden if model.norm == "rmsnorm" else 2.0 * model.hidden
    traffic = BF16 * model.hidden * tokens
    return vector(name, 2.0 * traffic, 3.0 * traffic, params=params, rows=rows, module=module)


def residual(name: str, model: Model, tokens: Num, rows: tuple[Row, ...] = ()) -> Op:
    """Residual addition: two reads and a write, forward and backward."""
    traffic = 3.0 * BF16 * model.hidden * tokens
    return vector(name, traffic, traffic, rows=rows)


def sandwich(name: str, model: Model, t: Tokens) -> tuple[Op, ...]:
    """The norm on a block's output (Pangu's sandwich), whose input is kept."""
    if model.norms_per_layer != 4:
        return ()
    row = Row(name=f"{name} input", bytes=BF16 * model.hidden * t.part, module=Module.FULL)
    return (norm(name, model, t.part, rows=(row,), module=Module.FULL),)


def gather(bytes_: Num, t: Tokens) -> Transfer:
    """All-gather before a column-parallel product: gathered forward, its gradient scattered, and with sequence
    parallelism the input gathered again for the weight gradient. (Without it, half of an all-reduce each.)"""
    return Transfer(group=Group.TP, bytes=bytes_, forward=1.0, backward=1.0 + t.sp)


def scatter(bytes_: Num) -> Transfer:
    """Reduce-scatter after a row-parallel product, or a gathered tensor that is kept: the gradient goes back once."""
    return Transfer(group=Group.TP, bytes=bytes_, forward=1.0, backward=1.0)


def attention_ops(model: Model, t: Tokens) -> list[Op]:
    """From the layer input to the residual after attention."""
    h = model.hidden
    entry = Row(name="layer input", bytes=BF16 * h * t.part, module=Module.KEPT)
    normed = Row(name="norm-1 output", bytes=BF16 * h * t.part, module=Module.LAYERNORM)
    core = _mla(model, model.attention, t) if isinstance(model.attention, MLA) else _gqa(model, t)
    after = Row(name="residual after attention", bytes=BF16 * h * t.part, module=Module.FULL)
    return [
        norm("norm 1", model, t.part, rows=(entry, normed), module=Module.LAYERNORM),
        *core,
        *sandwich("norm after attention", model, t),
        residual("residual 1", model, t.part, rows=(after,)),
    ]


def _core(t: Tokens, heads: Num, qk_dim: int, v_dim: int) -> Op:
    """Fused causal attention: half of the score matrix; keeps its output and the soft-max statistics."""
    rows = (
        Row(name="attention output", bytes=BF16 * t.whole * heads * v_dim, module=Module.FULL),
        Row(name="softmax statistics", bytes=FP32 * t.whole * heads, module=Module.FULL),
    )
    return Op(
        name="attention core", engine=Engine.ATTENTION, rows=rows,
        flop=1.0 * t.whole * t.seq * heads * (qk_dim + v_dim),
    )  # fmt: skip


def _gqa(model: Model, t: Tokens) -> list[Op]:
    attention = model.attention
    assert isinstance(attention, GQA)
    h, d = model.hidden, attention.head_dim
    heads = attention.heads / t.tp
    groups = maximum(attention.kv_heads / t.tp, 1.0)  # replicated where tp exceeds the groups
    width = (heads + 2.0 * groups) * d
    qkv = Row(name="q, k, v", bytes=BF16 * t.whole * width, module=Module.FULL, grad_live=True)
    rotated = BF16 * t.whole * (heads + groups) * d
    out_bias = 1.0 * h if model.linear_bias else 0.0
    ops = [
        matmul(
            "qkv projection", t.whole, width, h, rows=(qkv,), bias=width if attention.qkv_bias else 0.0,
            transfers=(gather(BF16 * h * t.whole, t),),
        ),
    ]  # fmt: skip
    if attention.qk_norm:
        row = Row(name="q, k before their norm", bytes=rotated, module=Module.FULL)
        ops.append(vector("qk norm", 2.0 * rotated, 3.0 * rotated, params=2.0 * d, rows=(row,)))
    if not model.learned_positions:
        ops.append(vector("rope", 2.0 * rotated, 2.0 * rotated))
    ops.append(_core(t, heads, d, d))
    out = matmul("output projection", t.whole, h, heads * d, transfers=(scatter(BF16 * h * t.whole),))
    return [*ops, out, *bias("output bias", t, out_bias)]


def bias(name: str, t: Tokens, params: Num) -> tuple[Op, ...]:
    """The bias of a row-parallel product, on every tp rank and fused into what follows: parameters only."""
    if isinstance(params, float) and params == 0.0:
        return ()
    return (vector(name, 0.0 * t.part, 0.0 * t.part, params=params, kernels=0),)


def _mla(model: Model, a: MLA, t: Tokens) -> list[Op]:
    """Multi-head latent attention, un-absorbed as in training. The down-projections run on each rank's own
    tokens (replicated weights), so tensor parallelism gathers latents, not hidden states."""
    h, heads = model.hidden, a.heads / t.tp
    qk_dim = a.nope_dim + a.rope_dim
    kv_latent = BF16 * t.part * a.kv_rank
    k = Row(name="k", bytes=BF16 * t.whole * heads * qk_dim, module=Module.MLA_UP_PROJ, grad_live=True)
    v = Row(name="v", bytes=BF16 * t.whole * heads * a.v_dim, module=Module.MLA_UP_PROJ, grad_live=True)
    rotated = BF16 * t.whole * heads * a.rope_dim
    return [
        *_mla_queries(h, a, t),
        matmul(
            "kv down", t.part, a.kv_rank + a.rope_dim, h, shard=Shard.REPLICATED,
            rows=(Row(name="kv latent", bytes=kv_latent, module=Module.FULL),),
        ),
        vector(
            "kv latent norm", 2.0 * kv_latent, 3.0 * kv_latent, params=1.0 * a.kv_rank,
            rows=(Row(name="kv latent normed", bytes=BF16 * t.whole * a.kv_rank, module=Module.FULL),),
            transfers=(scatter(BF16 * t.whole * (a.kv_rank + a.rope_dim)),),
        ),
        matmul("kv up", t.whole, heads * (a.nope_dim + a.v_dim), a.kv_rank, module=Module.MLA_UP_PROJ, rows=(k, v)),
        vector("rope", 4.0 * rotated, 4.0 * rotated, module=Module.MLA_UP_PROJ),
        _core(t, heads, qk_dim, a.v_dim),
        matmul("output projection", t.whole, h, heads * a.v_dim, transfers=(scatter(BF16 * h * t.whole),)),
    ]  # fmt: skip


def _mla_queries(h: int, a: MLA, t: Tokens) -> list[Op]:
    """Through their latent, or straight from the hidden state."""
    width = a.heads / t.tp * (a.nope_dim + a.rope_dim)
    q = Row(name="q", bytes=BF16 * t.whole * width, module=Module.MLA_UP_PROJ, grad_live=True)
    if not a.q_rank:
        into = (gather(BF16 * h * t.whole, t),)
        return [matmul("q projection", t.whole, width, h, module=Module.MLA_UP_PROJ, rows=(q,), transfers=into)]
    latent = BF16 * t.part * a.q_rank
    kept = Row(name="q latent", bytes=latent, module=Module.FULL)
    normed = Row(name="q latent normed", bytes=latent, module=Module.FULL)
    into = (gather(BF16 * t.whole * a.q_rank, t),)
    return [
        matmul("q down", t.part, a.q_rank, h, shard=Shard.REPLICATED, rows=(kept,)),
        vector("q latent norm", 2.0 * latent, 3.0 * latent, params=1.0 * a.q_rank, rows=(normed,)),
        matmul("q up", t.whole, width, a.q_rank, module=Module.MLA_UP_PROJ, rows=(q,), transfers=into),
    ]
