"""The attention core: scores, soft-max, weighted values; fused or not, over windows, documents and context ranks."""

from __future__ import annotations

from autodeploy.analysis.ops import Engine, Group, Module, Op, Row, Tokens, Transfer, vector
from autodeploy.analysis.vectors import BF16
from autodeploy.numeric import Num, maximum, minimum, where
from autodeploy.spec.model import Model
from autodeploy.spec.plan import CpComm
from autodeploy.spec.target import Profile

SCORE_BYTES = (4.0, 6.0)
"""Scale, mask and soft-max of one kernel, per score: read and written in bf16; backward reads two and writes one."""
DROPOUT_BYTES = (5.0, 5.0)
"""Dropout of the scores, where they are dropped: read, written and a mask."""
ALIGNMENT = 8
"""Elements of 16 bits that matrix engines take at a time."""
DROPPED_SCORE_BYTES = 5.0
"""What such a stack keeps per score (soft-max 2, mask 1, dropped 2: arXiv 2205.05198)."""


def mean_keys(model: Model, document: Num) -> Num:
    """Keys that a query sees on average: half of its document, or of a window the part that lies in the document.

    Formula: l/2; windowed w - w^2/2l for w < l
    """
    whole = document / 2.0
    if not model.window:
        return whole
    inside = minimum(1.0 * model.window, 1.0 * document)
    windowed = inside - inside * inside / (2.0 * document)
    return model.window_frac * windowed + (1.0 - model.window_frac) * whole


def core_ops(
    model: Model, profile: Profile, t: Tokens, heads: Num, groups: Num, dims: tuple[int, int]
) -> tuple[Op, ...]:
    """From q, k and v to the attention output, of (query and key, value) head sizes `dims`."""
    size = BF16 * t.whole * heads * dims[1]
    kept = size + _output_copy(profile, t, size)
    output = Row(name="attention output", bytes=kept, module=Module.FULL, taken="also")
    transfers = _context_transfers(t, heads, groups, dims)
    flop = 2.0 * t.whole * mean_keys(model, t.document) * heads
    if profile.attention == "unfused":
        return _unfused(profile, t, heads, dims, flop, output, transfers)
    statistics = Row(
        name="softmax statistics", bytes=profile.statistics_bytes * t.whole * heads, module=Module.CORE_ATTN
    )
    return (
        Op(
            name="attention core", engine=Engine.ATTENTION, module=Module.CORE_ATTN, rows=(output, statistics),
            k=(dims[0] + dims[1]) / 2.0,
            flop=flop * (dims[0] + dims[1]), transfers=transfers,
        ),
    )  # fmt: skip


def _output_copy(profile: Profile, t: Tokens, size: Num) -> Num:
    """The copy for the projection of an output of several sequences."""
    return where(t.whole > 1.0 * t.seq / t.cp, size, 0.0) if profile.output_copied else 0.0


def _unfused(
    profile: Profile,
    t: Tokens,
    heads: Num,
    dims: tuple[int, int],
    flop: Num,
    output: Row,
    transfers: tuple[Transfer, ...],
) -> tuple[Op, ...]:
    """Two batched products over all of the score matrix, masked or not, and the soft-max between them."""
    rows, keys = t.whole * heads, t.seq
    scores = rows * keys
    batch = rows / (t.seq / t.cp)
    kept = Row(name="scores", bytes=profile.score_saved_bytes * scores, module=Module.CORE_ATTN, grad_live=True)
    dropped = profile.score_saved_bytes >= DROPPED_SCORE_BYTES
    forward, backward = (a + b * dropped for a, b in zip(SCORE_BYTES, DROPOUT_BYTES, strict=True))
    core, aligned = Module.CORE_ATTN, not (dims[0] % ALIGNMENT or dims[1] % ALIGNMENT)
    return (
        Op(
            name="scores", engine=Engine.ATTENTION, module=core, m=rows, n=keys, k=1.0 * dims[0], experts=batch,
            flop=flop * dims[0], transfers=transfers, aligned=aligned,
        ),
        vector("softmax", forward * scores, backward * scores, module=core, rows=(kept,), kernels=1 + dropped),
        Op(
            name="weighted values", engine=Engine.ATTENTION, module=core, m=rows, n=1.0 * dims[1], k=keys,
            experts=batch, flop=flop * dims[1], rows=(output,), aligned=aligned,
        ),
    )  # fmt: skip


def _context_transfers(t: Tokens, heads: Num, groups: Num, dims: tuple[int, int]) -> tuple[Transfer, ...]:
    """Keys and values of all context ranks come to each; backward also their gradients go home. Ulysses exchanges
    queries, keys, values and outputs instead, keys and values at least one head a rank (arXiv 2309.14509)."""
    if isinstance(t.cp, int) and t.cp == 1:
        return ()
    pair = BF16 * t.whole * groups * (dims[0] + dims[1])
    exchanged = BF16 * t.whole * (heads + maximum(groups, 1.0 * t.cp)) * (dims[0] + dims[1])
    ulysses = t.cp_comm == CpComm.ULYSSES
    moved, back = where(ulysses, exchanged, pair), where(ulysses, 1.0, 2.0)
    return (Transfer(group=Group.CP, bytes=moved, forward=1.0, backward=back),)
