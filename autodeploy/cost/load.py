"""What a pass through some layers puts on a rank: engine time and the traffic that may run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autodeploy.numeric import Num, maximum


class Load(NamedTuple):
    """Seconds of one forward or backward pass."""

    busy: Num = 0.0
    """Compute and tensor-parallel communication: never overlapped."""
    exchange: Num = 0.0
    """Expert all-to-all as it takes when nothing hides it."""
    inner: Num = 0.0
    """All traffic on the links of the node."""
    outer: Num = 0.0
    """All traffic on the port to the fabric."""

    def plus(self, other: Load) -> Load:
        """Both, one after the other."""
        a, b, c, d = self
        e, f, g, h = other
        return Load(a + e, b + f, c + g, d + h)

    def times(self, count: Num) -> Load:
        """The same so many times."""
        a, b, c, d = self
        return Load(count * a, count * b, count * c, count * d)

    @property
    def alone(self) -> Num:
        """Seconds when nothing is hidden."""
        return self.busy + self.exchange


IDLE = Load()


def sum_loads(loads: Sequence[Load]) -> Load:
    """All of them, one after the other."""
    if not loads:
        return IDLE
    result = loads[0]
    for load in loads[1:]:
        result = result.plus(load)
    return result


def paired_s(forward: Load, backward: Load) -> Num:
    """Forward of one microbatch merged with backward of another: the longest of what both need.

    Formula: max(busy_F + busy_B, inner_F + inner_B, outer_F + outer_B)
    Source: model.md 6.5 (arXiv 2603.07685; MindSpeed moe-fb-overlap), without slow-down of compute.
    """
    busy = forward.busy + backward.busy
    lanes = maximum(forward.inner + backward.inner, forward.outer + backward.outer)
    return maximum(busy, lanes)
