"""Rows that wait on the host between forward and backward pass: which, and what that costs.

A part of a layer's rows leaves while the next layer runs forward and is back before its own runs backward (model.md
9.2; MindSpeed swap-attention, Megatron-LM fine-grained activation offloading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autodeploy.analysis.ops import Module
from autodeploy.cost.layers import LayerCost
from autodeploy.errors import spec_error
from autodeploy.numeric import Num, maximum, total
from autodeploy.spec.model import Kind
from autodeploy.spec.target import SWAP, SWAP_PARTS

ATTENTION = "attention"
BUFFERS = 2.0
"""Layers whose swapped rows are on the device: one on its way out or in, one at work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Swapped:
    """A layer without the rows that wait on the host."""

    cost: LayerCost
    bytes: Num
    """Per layer and live microbatch, on the host."""
    exposed_s: Num
    """What neither pass hides."""


def swapped_parts(policy: str) -> tuple[str, ...]:
    """Parts that a policy swaps: `swap:attention` among modules joined by `+`. Raises `SpecError` for none that is."""
    if policy.startswith("solve"):  # which says how much, not what
        return ()
    parts = tuple(word.removeprefix(SWAP) for word in policy.split("+") if word.startswith(SWAP))
    unknown = [part for part in parts if part not in SWAP_PARTS]
    if unknown:
        raise spec_error("recompute", f"{SWAP}{unknown[0]} names no rows", " ".join(SWAP + part for part in SWAP_PARTS))
    return parts


def part_bytes(cost: LayerCost, part: str) -> Num:
    """Bytes of a part of one layer, per live microbatch."""
    if part == ATTENTION:
        return cost.attention_bytes
    return cost.rows_bytes[Module[part.upper()]]


def swap_out(cost: LayerCost, parts: Sequence[str], host_bytes_per_s: float) -> Swapped:
    """A layer with some parts on the host.

    Formula: exposed max(bytes / B - forward, 0) + max(bytes / B - backward, 0)
    """
    if not parts:
        return Swapped(cost=cost, bytes=0.0, exposed_s=0.0)
    if not host_bytes_per_s:
        raise spec_error("recompute", "swaps rows, but the cluster states no device.host_gb_per_s")
    rows = list(cost.rows_bytes)
    for part in parts:
        place = Module.FULL if part == ATTENTION else Module[part.upper()]
        rows[place] = rows[place] - part_bytes(cost, part)
    moved = total([part_bytes(cost, part) for part in parts])
    seconds = moved / host_bytes_per_s
    exposed = maximum(seconds - cost.forward.busy, 0.0) + maximum(seconds - cost.backward.busy, 0.0)
    left = replace(cost, rows_bytes=tuple(rows), working_bytes=cost.working_bytes + BUFFERS * moved)
    return Swapped(cost=left, bytes=moved, exposed_s=exposed)


def swapped_layers(
    costs: Mapping[Kind, LayerCost], parts: Sequence[str], host_bytes_per_s: float
) -> dict[Kind, Swapped]:
    """`swap_out` of every kind of layer."""
    return {kind: swap_out(cost, parts, host_bytes_per_s) for kind, cost in costs.items()}
