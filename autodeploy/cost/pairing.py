"""What lies beside the expert all-to-all: a forward and a backward pass merged, or a pass alone (model.md 6.5)."""

from __future__ import annotations

from collections.abc import Mapping
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
    first_s = before_exchange_s(forward, backward, sends_s)
    parts = parts_of(forward, backward, first_s, taken_frac)
    units = [total(block_times(blocks, parts)) for blocks in UNITS.values()]
    best = minimum(minimum(units[0], units[1]), units[2])
    engine = forward.busy + backward.busy + taken_frac * (forward.exchange + backward.exchange)
    return largest([best, engine, forward.inner + backward.inner, forward.outer + backward.outer + first_s])


def before_exchange_s(forward: Load, backward: Load, sends_s: Num) -> Num:
    """Messages that hold up the first all-to-all: none where it stays inside the node."""
    return where(forward.outer + backward.outer > 0.0, sends_s, 0.0)


def unit_s(
    blocks: tuple[Block, ...], forward: Load, backward: Load, first_s: Num = 0.0, taken_frac: float = 0.0
) -> Num:
    """Seconds of the blocks one after the other, each with what lies beside it; `first_s` of messages go first.

    Formula: sum over blocks of max(all-to-all beside it, block + taken all-to-all): cores that are gone while it runs
    Source: 20 of 132 SMs slow compute by a fifth (arXiv 2603.07685).
    """
    return total(block_times(blocks, parts_of(forward, backward, first_s, taken_frac)))


class Parts(NamedTuple):
    """What the blocks of a merged pass are made of."""

    whole_s: Mapping[tuple[bool, str], Num]
    """Seconds by (is_backward, part)."""
    lane_s: tuple[Num, Num]
    """One all-to-all beside a forward block (of the backward pass), and beside a backward block."""
    taken_s: tuple[Num, Num]
    """What it adds to the block."""
    first_s: Num


def parts_of(forward: Load, backward: Load, first_s: Num, taken_frac: float) -> Parts:
    """The parts of two passes."""
    whole = {
        (False, "chain"): forward.chain, (False, "experts"): forward.experts,
        (True, "chain"): backward.chain, (True, "experts"): backward.experts,
    }  # fmt: skip
    lane = (0.5 * backward.exchange, 0.5 * forward.exchange)
    taken = (taken_frac * lane[0], taken_frac * lane[1]) if taken_frac else (0.0, 0.0)
    return Parts(whole, lane, taken, first_s)


def block_times(blocks: tuple[Block, ...], parts: Parts) -> list[Num]:
    """Seconds of every block with what lies beside it."""
    times: list[Num] = []
    for place, block in enumerate(blocks):
        whole, side = parts.whole_s[block.is_backward, block.part], int(block.is_backward)
        engine = whole if block.share_frac == 1.0 else block.share_frac * whole
        if block.beside:
            lane = parts.lane_s[side] if place else parts.first_s + parts.lane_s[side]
            engine = maximum(engine + parts.taken_s[side], lane)
        times.append(engine)
    return times
