"""What a pass through some layers puts on a rank: engine time and the traffic that may run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autodeploy.numeric import Num, maximum


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

    def without(self, weights_s: Num) -> Load:
        """The backward pass with its weight gradients left for later."""
        return self._replace(busy=self.busy - weights_s, aside=maximum(self.aside - weights_s, 0.0))

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
