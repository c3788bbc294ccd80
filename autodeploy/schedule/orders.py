"""Op orders of every rank, as data (model.md 5.1), and how often each kind of op is in them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from autodeploy.schedule.shapes import NONE, OpCounts, RankOrder, Shape
from autodeploy.schedule.split_orders import split_order
from autodeploy.spec.plan import Overlap, Schedule


def warm_up(shape: Shape, rank: int) -> int:
    """Forwards before the first backward. Merging needs one more, so that its two halves are independent; and, as
    interleaving, two per later stage: a microbatch goes down and comes back while merged ops follow each other.

    Source: Megatron-LM core/pipeline_parallel/schedules.py get_pp_rank_microbatches; model.md 4.5, 5.1.
    """
    ahead = shape.pp - rank - 1
    if shape.schedule == Schedule.INTERLEAVED or shape.overlap == Overlap.PAIR:
        ahead = 2 * ahead + (shape.vpp - 1) * shape.pp
    return min(ahead + int(shape.overlap), shape.chunk_passes)


def forward_table(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """(microbatch, chunk) of the k-th forward: groups of pp microbatches, chunk by chunk within a group."""
    group = shape.pp if shape.vpp > 1 else shape.microbatches
    microbatch = np.arange(shape.microbatches).reshape(-1, group)
    table = np.repeat(microbatch[:, None, :], shape.vpp, axis=1)
    chunk = np.broadcast_to(np.arange(shape.vpp)[None, :, None], table.shape)
    return table.ravel(), chunk.ravel()


def rank_order(shape: Shape, rank: int) -> RankOrder:
    """The ops of a rank in their order."""
    return split_order(shape, rank) if shape.split else _whole_order(shape, rank)


def _whole_order(shape: Shape, rank: int) -> RankOrder:
    """1F1B or interleaved 1F1B: warm-up forwards, then a forward and a backward in turn, then the rest."""
    microbatch, chunk = forward_table(shape)
    back = shape.vpp - 1 - chunk
    warm, passes = warm_up(shape, rank), shape.chunk_passes
    nothing = np.full(passes, NONE)
    if shape.overlap == Overlap.PAIR:
        tail = nothing[:warm]
        whole = np.concatenate([tail, microbatch]), np.concatenate([tail, back])
        return RankOrder(np.concatenate([microbatch, tail]), np.concatenate([chunk, tail]), *whole, *whole)
    forward = np.concatenate([np.arange(warm), warm + 2 * np.arange(passes - warm)])
    backward = np.concatenate([warm + 1 + 2 * np.arange(passes - warm), 2 * passes - warm + np.arange(warm)])
    columns = [np.full(2 * passes, NONE) for _ in range(4)]
    columns[0][forward], columns[1][forward] = microbatch, chunk
    columns[2][backward], columns[3][backward] = microbatch, back
    return RankOrder(*columns, *columns[2:])


def _by_content(order: RankOrder, content: np.ndarray) -> RankOrder:
    """The order with the content of each chunk in the place of the chunk."""
    named = ("f_chunk", "b_chunk", "w_chunk")
    chunks = {name: getattr(order, name) for name in named}
    return order._replace(**{name: np.where(held == NONE, NONE, content[held]) for name, held in chunks.items()})


@lru_cache(maxsize=8192)
def op_counts(shape: Shape, rank: int, content: tuple[int, ...]) -> OpCounts:
    """How often a rank runs each kind of op in a step, chunks of equal content taken together.

    `content` says of every chunk which content it has (0 .. v - 1 for all different).
    """
    order, v = _by_content(rank_order(shape, rank), np.array(content)), max(content) + 1
    has_f, has_b, has_w = order.f_chunk != NONE, order.b_chunk != NONE, order.w_chunk != NONE
    merged = np.zeros((v, v))
    np.add.at(merged, (order.f_chunk[has_f & has_b], order.b_chunk[has_f & has_b]), 1.0)

    def count(chunks: np.ndarray, where: np.ndarray) -> np.ndarray:
        return np.bincount(chunks[where], minlength=v).astype(float)

    return OpCounts(
        forward=count(order.f_chunk, has_f & ~has_b),
        backward=count(order.b_chunk, has_b & has_w & ~has_f),
        merged=merged,
        inputs=count(order.b_chunk, has_b & ~has_w),
        weights=count(order.w_chunk, has_w & ~has_b),
    )
