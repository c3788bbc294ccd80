"""What lies beside the expert all-to-all: a forward and a backward pass merged, or a pass alone (model.md 6.5)."""

from __future__ import annotations

from typing import NamedTuple

from autodeploy.cost.load import Load
from autodeploy.numeric import Num, largest, maximum, minimum, total, where
from autodeploy.spec.plan import Overlap


class Block(NamedTuple):
    """A share of one part of a pass on the engine, and the all-to-all of the other pass that lies beside it."""

    is_backward: bool
    part: str
    """`chain` (attention, router, norms) or `experts`."""
    share_frac: float
    beside: str = ""
    """`dispatch` or `combine` of the other pass, in the direction of that pass; empty where there is none."""


UNITS: dict[str, tuple[Block, ...]] = {
    "layer": (
        Block(False, "chain", 1.0, "dispatch"),
        Block(True, "experts", 1.0, "dispatch"),
        Block(False, "experts", 1.0, "combine"),
        Block(True, "chain", 1.0, "combine"),
    ),
    "attention": (
        Block(False, "chain", 0.5, "dispatch"),
        Block(True, "experts", 1.0),
        Block(False, "chain", 0.5, "combine"),
        Block(True, "chain", 0.5, "dispatch"),
        Block(False, "experts", 1.0),
        Block(True, "chain", 0.5, "combine"),
    ),
    "experts": (
        Block(True, "experts", 0.5, "combine"),
        Block(False, "chain", 1.0),
        Block(True, "experts", 0.5, "dispatch"),
        Block(False, "experts", 0.5, "combine"),
        Block(True, "chain", 1.0),
        Block(False, "experts", 0.5, "dispatch"),
    ),
}
"""The unit in which the two passes alternate on the engine, in order: whole blocks of a layer; or, finer than a layer,
attention or the experts cut in two so that each half lies beside one all-to-all of the other pass.
Source: arXiv 2412.19437 figure 4 (the order of whole blocks); arXiv 2603.07685."""


def pass_s(load: Load, overlap: Overlap, taken_frac: float) -> Num:
    """A forward or backward pass by itself. A stack that merges passes also moves weight gradients and shared experts
    over the all-to-all of the same pass.

    Formula: busy + exchange; paired: busy - aside + max(exchange, aside + taken exchange)
    Source: MindSpeed megatron-moe-fb-overlap (warm-up and cool-down hidden by shared experts and weight gradients).
    """
    if overlap == Overlap.NONE:
        return load.alone
    return load.busy - load.aside + maximum(load.exchange, load.aside + taken_frac * load.exchange)


def paired_s(forward: Load, backward: Load, sends_s: Num = 0.0, taken_frac: float = 0.0) -> Num:
    """Forward of one microbatch beside the backward of another: the best unit, weight gradients and shared experts in
    its gaps, or the lane that has most to do.

    `sends_s`: messages of the passes before, which leave on the port first; `taken_frac`: cores that an all-to-all
    takes from compute beside it.
    """
    outer = forward.outer + backward.outer
    first_s = where(outer > 0.0, sends_s, 0.0)
    units = [unit_s(blocks, forward, backward, first_s, taken_frac) for blocks in UNITS.values()]
    best = minimum(minimum(units[0], units[1]), units[2])
    engine = forward.busy + backward.busy + taken_frac * (forward.exchange + backward.exchange)
    return largest([best, engine, forward.inner + backward.inner, outer + first_s])


def unit_s(
    blocks: tuple[Block, ...], forward: Load, backward: Load, first_s: Num = 0.0, taken_frac: float = 0.0
) -> Num:
    """Seconds of the blocks one after the other, each with what lies beside it; `first_s` of messages go first.

    Formula: sum over blocks of max(all-to-all beside it, block + taken all-to-all): cores that are gone while it runs
    Source: 20 of 132 SMs slow compute by a fifth (arXiv 2603.07685).
    """
    return total(block_times(blocks, forward, backward, first_s, taken_frac))


def block_times(blocks: tuple[Block, ...], forward: Load, backward: Load, first_s: Num, taken_frac: float) -> list[Num]:
    """Seconds of every block with what lies beside it."""
    times: list[Num] = []
    for place, block in enumerate(blocks):
        own, other = (backward, forward) if block.is_backward else (forward, backward)
        engine = block.share_frac * getattr(own, block.part)
        waiting = 0.0 if place else first_s
        beside = 0.5 * other.exchange if block.beside else 0.0
        times.append(maximum(engine + taken_frac * beside, waiting + beside))
    return times
