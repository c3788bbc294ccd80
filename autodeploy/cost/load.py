"""What a pass through some layers puts on a rank: engine time and the traffic that may run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autodeploy.numeric import Num, largest, maximum, where
from autodeploy.spec.plan import Overlap


class Load(NamedTuple):
    """Seconds of one forward or backward pass."""

    busy: Num = 0.0
    """Compute and tensor-parallel communication: the engine is held."""
    experts: Num = 0.0
    """The part of `busy` that lies between a dispatch and its combine."""
    aside: Num = 0.0
    """The part of `busy` that no later op of the pass waits for: weight gradients, shared experts."""
    exchange: Num = 0.0
    """Expert all-to-all as it takes when nothing hides it; dispatch and combine are a half each."""
    inner: Num = 0.0
    """All traffic on the links of the node."""
    outer: Num = 0.0
    """All traffic on the port to the fabric."""

    def plus(self, other: Load) -> Load:
        """Both, one after the other."""
        a, b, c, d, e, f = self
        o, p, q, r, s, t = other
        return Load(a + o, b + p, c + q, d + r, e + s, f + t)

    def times(self, count: Num) -> Load:
        """The same so many times."""
        a, b, c, d, e, f = self
        return Load(count * a, count * b, count * c, count * d, count * e, count * f)

    @property
    def alone(self) -> Num:
        """Seconds when nothing is hidden."""
        return self.busy + self.exchange

    @property
    def chain(self) -> Num:
        """Seconds of compute that a later op of the pass waits for, outside the experts."""
        return self.busy - self.experts - self.aside


IDLE = Load()


def sum_loads(loads: Sequence[Load]) -> Load:
    """All of them, one after the other."""
    if not loads:
        return IDLE
    result = loads[0]
    for load in loads[1:]:
        result = result.plus(load)
    return result


def pass_s(load: Load, overlap: Overlap) -> Num:
    """A forward or backward pass by itself. A stack that pairs passes also moves weight gradients and shared experts
    over the all-to-all of the same pass.

    Formula: busy + exchange; paired: max(busy, busy - aside + exchange)
    Source: MindSpeed megatron-moe-fb-overlap (warm-up and cool-down hidden by shared experts and weight gradients).
    """
    if overlap == Overlap.NONE:
        return load.alone
    return maximum(load.busy, load.alone - load.aside)


def paired_s(forward: Load, backward: Load, sends_s: Num = 0.0) -> Num:
    """Forward of one microbatch beside the backward of another: the best of `units_s`, or the lane that has most to do.

    `sends_s`: messages of the passes before, which leave on the port first.
    """
    lanes = (
        forward.busy + backward.busy,
        forward.inner + backward.inner,
        forward.outer + backward.outer + where(forward.outer + backward.outer > 0.0, sends_s, 0.0),
    )
    units = units_s(forward, backward, sends_s)
    best = units[0]
    for unit in units[1:]:
        best = where(unit < best, unit, best)
    return maximum(best, largest(lanes))


UNITS = ("layer", "attention", "experts")
"""What is set beside what in a merged pass, in order of preference on ties."""


def units_s(forward: Load, backward: Load, sends_s: Num) -> tuple[Num, Num, Num]:
    """Seconds of a merged pass by the unit in which its halves alternate, weight gradients and shared experts apart.

    An all-to-all can only lie beside compute of the other half. `layer`: engine in turn attention F, experts B,
    experts F, attention B, each beside one all-to-all. `attention` (or `experts`) is cut in two, so that each half
    of it lies beside one all-to-all of the other pass, and the other compute stands alone.

    Formulas: with a attention, e experts, d one all-to-all, of the forward f and the backward b:
    layer max(a_f, d_b) + max(e_b, d_f) + max(e_f, d_b) + max(a_b, d_f);
    attention e_f + e_b + max(a_f, 2 d_b) + max(a_b, 2 d_f); experts with a and e exchanged
    Source: arXiv 2412.19437 figure 4 (order of the four); arXiv 2603.07685.
    """
    across = where(forward.outer + backward.outer > 0.0, sends_s, 0.0)
    one_f, one_b = 0.5 * forward.exchange, 0.5 * backward.exchange
    a_f, a_b = forward.chain, backward.chain
    return (
        maximum(a_f, one_b + across)
        + maximum(backward.experts, one_f)
        + maximum(forward.experts, one_b)
        + maximum(a_b, one_f),
        forward.experts + backward.experts + maximum(a_f, backward.exchange + across) + maximum(a_b, forward.exchange),
        maximum(a_f, across)
        + a_b
        + maximum(forward.experts, backward.exchange)
        + maximum(backward.experts, forward.exchange),
    )
