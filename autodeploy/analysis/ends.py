"""Ops at the ends of the model: embedding, head with loss, and what an MTP module adds to its layer.

Rows: model.md 4.3; parameters: model.md 1.
"""

from __future__ import annotations

from dataclasses import replace

from autodeploy.analysis.attention import gather, scatter
from autodeploy.analysis.ops import Group, Module, Op, Row, Shard, Tokens, Transfer, gathering, matmul, vector
from autodeploy.analysis.vectors import BF16, norm
from autodeploy.numeric import Num, ceil, minimum, where
from autodeploy.spec.model import Model
from autodeploy.spec.target import Profile

EAGER_LOSS_BYTES = {"torch": (18.0, 14.0), "megatron": (38.0, 22.0)}
"""Bytes a logit, forward and backward, of cross-entropies that are several kernels. torch: to fp32 (2 + 4),
log-soft-max (8 + 4); gradient (4 + 4), to bf16 (4 + 2). megatron (core/tensor_parallel/cross_entropy.py): to fp32
(2 + 4), maximum 4, minus (4 + 4), exponential (4 + 4), sum 4, quotient (4 + 4); gradient (4 + 4) twice, to bf16
(4 + 2)."""
ID_BYTES = 8.0
"""One token id."""


def padded_vocab(model: Model, tp: Num, multiple: int) -> Num:
    """The vocabulary rounded up to a multiple of `multiple` x tp (Megatron's make-vocab-size-divisible-by)."""
    return ceil(model.vocab / (multiple * tp)) * (multiple * tp)


def embedding_params(model: Model, t: Tokens, profile: Profile) -> Num:
    """Word embedding on one tp rank."""
    return padded_vocab(model, t.tp, profile.vocab_multiple) * model.hidden / t.tp


def embedding_ops(model: Model, t: Tokens, profile: Profile) -> list[Op]:
    """Look-up, scattered over the sequence; learned positions where the model has them."""
    h = model.hidden
    traffic = 2.0 * BF16 * h * t.whole
    ids = Row(name="token ids", bytes=ID_BYTES * t.whole, module=Module.KEPT)
    table = vector("embedding", traffic, 2.0 * traffic, rows=(ids,), transfers=(scatter(BF16 * h * t.whole),))
    ops = [replace(table, module=Module.KEPT, shard=Shard.TP, params=embedding_params(model, t, profile))]
    if model.learned_positions:
        ops.append(vector("positions", traffic, traffic, params=1.0 * model.learned_positions * h))
    return ops


def head_ops(model: Model, t: Tokens, profile: Profile) -> list[Op]:
    """Final norm, logits and loss. Tied weights are counted with the embedding."""
    h = model.hidden
    entry = Row(name="head input", bytes=BF16 * h * t.part, module=Module.KEPT)
    return [
        norm("final norm", model, profile, t.part, rows=(entry,), module=Module.KEPT),
        *logit_ops(model, t, profile),
    ]


def logits_of_token(model: Model, t: Tokens, profile: Profile) -> Num:
    """Logits that a rank holds of one token."""
    vocab = padded_vocab(model, t.tp, profile.vocab_multiple)
    return vocab / t.tp if profile.split_logits else vocab


def logit_ops(model: Model, t: Tokens, profile: Profile, shared: bool = False) -> list[Op]:
    """One pass through the output projection and the loss."""
    h = model.hidden
    width = padded_vocab(model, t.tp, profile.vocab_multiple) / t.tp
    held = logits_of_token(model, t, profile)
    normed = Row(name="normed head input", bytes=BF16 * h * t.part, module=Module.KEPT)
    chunk = profile.loss_chunk_tokens
    kept = 0.0 if chunk else profile.logit_saved_bytes
    logits = Row(name="logits", bytes=kept * t.whole * held, module=Module.KEPT)
    product = matmul(
        "logits", t.whole, width, h, module=Module.KEPT, rows=(normed, logits),
        transfers=(gather(BF16 * h * t.whole, t),),
    )  # fmt: skip
    product = replace(
        gathering(product, t.part), narrow=False, params=0.0 if shared or model.tied_embeddings else product.params
    )
    moved = profile.logit_saved_bytes + profile.logit_transient_bytes
    forward, backward = EAGER_LOSS_BYTES.get(profile.loss, (2.0 * moved, moved))
    logits_held = t.whole * held
    whole = () if profile.split_logits else (Transfer(group=Group.TP, bytes=BF16 * logits_held, forward=1.0),)
    loss = vector("loss", forward * logits_held, backward * logits_held, module=Module.KEPT, kernels=4, transfers=whole)
    each = profile.logit_transient_bytes + profile.logit_saved_bytes - kept
    if profile.logit_gather_bytes:
        each = each + where(t.tp > 1, profile.logit_gather_bytes, 0.0)
    at_once = minimum(1.0 * chunk, t.whole) if chunk else t.whole
    return [product, replace(loss, transient_bytes=each * at_once * held)]


def mtp_ops(model: Model, t: Tokens, profile: Profile, layer: list[Op]) -> list[Op]:
    """One MTP module (arXiv 2412.19437 section 2.2): the norms of the two inputs, their projection, one layer
    like the topmost, and a pass through the shared head. Embedding and head weights belong to the ends."""
    h = model.hidden
    entry = Row(name="mtp inputs", bytes=2.0 * BF16 * h * t.part, module=Module.KEPT)
    joined = Row(name="mtp projection input", bytes=2.0 * BF16 * h * t.part, module=Module.FULL)
    into = gather(2.0 * BF16 * h * t.whole, t)
    project = matmul("mtp projection", t.whole, h / t.tp, 2 * h, rows=(joined,), transfers=(into,))
    return [
        norm("mtp hidden norm", model, profile, t.part, rows=(entry,), module=Module.FULL),
        norm("mtp embedding norm", model, profile, t.part, rows=(), module=Module.FULL),
        gathering(project, t.part),
        *layer,
        norm("mtp final norm", model, profile, t.part, rows=(), module=Module.KEPT),
        *logit_ops(model, t, profile, shared=True),
    ]  # fmt: skip
