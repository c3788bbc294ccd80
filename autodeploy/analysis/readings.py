"""Readings of the inventory: parameters, FLOP, activation rows. One list of ops, so they cannot disagree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autodeploy.analysis.inventory import inventory_of, kind_counts, one_token
from autodeploy.analysis.ops import Engine, Module, Op, Shard
from autodeploy.analysis.vectors import BF16
from autodeploy.numeric import Num, is_column, largest, total
from autodeploy.spec.model import Kind, Model
from autodeploy.spec.target import Profile

PLAIN = Profile(
    vocab_multiple=1,
    logit_saved_bytes=2.0,
    logit_transient_bytes=4.0,
    combine_saved=True,
    grad_buckets=1,
    overlap_grad_reduce=False,
)
"""No padding and nothing fused: the model as its authors describe it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Parameter counts of a model. `total` and `active` leave the MTP modules out, `active` also the input
    embedding (conventions of the DeepSeek-V3 and Pangu reports)."""

    total: float
    active: float
    mtp: float
    embedding: float


def params(ops: Iterable[Op], shard: Shard | None = None) -> Num:
    """Trainable parameters on a rank, of one shard class or of all."""
    return total([op.params for op in ops if shard is None or op.shard is shard])


def model_size(model: Model) -> ModelSize:
    """Total, active and MTP parameters (model.md 1)."""
    ops = inventory_of(model, PLAIN, one_token(1), mtp=True)
    counts = kind_counts(model, mtp=True)
    per_kind = {kind: params(ops[kind]) for kind in ops}
    whole = total([counts[kind] * per_kind[kind] for kind in ops if kind is not Kind.MTP])
    idle = 0.0
    if model.moe is not None:
        routed = params(ops[Kind.SPARSE], Shard.EXPERT)
        idle = counts[Kind.SPARSE] * routed * (1.0 - model.moe.top_k / model.moe.experts)
    embedding = per_kind[Kind.EMBEDDING]
    kept = embedding if model.tied_embeddings else 0.0
    return ModelSize(
        total=whole,
        active=whole - idle - embedding + kept,
        mtp=counts.get(Kind.MTP, 0) * per_kind.get(Kind.MTP, 0.0),
        embedding=embedding,
    )


def flop_per_token(model: Model, seq_len: int, mtp: bool, *, router: bool = False, document_len: int = 0) -> float:
    """Model FLOP to train one token: three forward passes, causal attention halved (Megatron's convention,
    router left out unless asked for), over documents of `document_len` where the sequence holds several. MTP and its
    head pass included where trained."""
    ops = inventory_of(model, PLAIN, one_token(document_len or seq_len), mtp)
    forward = total([
        count * total([op.flop for op in ops[kind] if op.counted or router])
        for kind, count in kind_counts(model, mtp).items()
    ])  # fmt: skip
    return 3.0 * forward


def largest_params(ops: Iterable[Op], *shards: Shard) -> Num:
    """Elements of the largest parameter tensor of some shard classes; grouped products hold those of all local experts
    in one."""
    mine = [op.params for op in ops if op.shard in shards]
    return largest([params for params in mine if is_column(params) or params])


def weights_of(ops: Iterable[Op]) -> dict[str, Num]:
    """Elements of one weight of every linear layer, by its name: of grouped products those of one expert."""
    return {op.name: 1.0 * op.n * op.k for op in ops if op.engine in (Engine.MATMUL, Engine.EXPERTS)}


def saved_bytes(ops: Iterable[Op], module: Module | None = None) -> Num:
    """Bytes kept from forward to backward by one layer and microbatch, of one module or of all."""
    return total([row.bytes for op in ops for row in op.rows if module is None or row.module is module])


ATTENTION_ROWS = ("q, k before their norm", "q, k, v", "attention output")
"""Rows of FULL that belong to the attention core's inputs and output."""


def attention_bytes(ops: Iterable[Op]) -> Num:
    """Bytes of `ATTENTION_ROWS`."""
    return total([row.bytes for op in ops for row in op.rows if row.name in ATTENTION_ROWS])


def saved_by_module(ops: Iterable[Op]) -> tuple[Num, ...]:
    """`saved_bytes` of every module, in their order."""
    rows: list[list[Num]] = [[] for _ in Module]
    for op in ops:
        for row in op.rows:
            rows[row.module].append(row.bytes)
    return tuple(total(column) for column in rows)


def delayed_bytes(ops: Iterable[Op]) -> Num:
    """What weight gradients need that run apart: input and output gradient of every linear layer, 16 bits each.

    Source: arXiv 2401.10241 table 1 (32 s b h for a layer of GPT).
    """
    products = [op for op in ops if op.engine in (Engine.MATMUL, Engine.EXPERTS) and op.trained]
    return total([BF16 * (op.input_tokens * op.k + op.m * op.n) for op in products])


def grad_live_bytes(ops: Iterable[Op]) -> Num:
    """Gradients of the largest tensors that live together in a layer's backward pass (model.md 4.6)."""
    return total([row.bytes for op in ops for row in op.rows if row.grad_live])


def transient_bytes(ops: Iterable[Op]) -> Num:
    """The largest tensor set that lives only while one op runs (the loss, on the head)."""
    return largest([op.transient_bytes for op in ops if is_column(op.transient_bytes) or op.transient_bytes])
