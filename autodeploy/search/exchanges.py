"""Where the all-to-alls lie within the ops of one plan, for reports and traces."""

from __future__ import annotations

from typing import NamedTuple

from autodeploy.cost.load import Load
from autodeploy.cost.pairing import UNITS, before_exchange_s, block_times, parts_of, unit_s


class Exchange(NamedTuple):
    """One all-to-all within an op."""

    is_backward: bool
    name: str
    start_frac: float
    """Of the op."""
    duration_s: float


def unit_of(forward: Load, backward: Load, sends_s: float, taken_frac: float = 0.0) -> str:
    """The name of the unit that `paired_s` takes for one plan."""
    first_s = before_exchange_s(forward, backward, sends_s)
    return min(UNITS, key=lambda name: unit_s(UNITS[name], forward, backward, first_s, taken_frac))


def exchanges_alone(load: Load, whole_s: float, is_backward: bool) -> list[Exchange]:
    """The two all-to-alls of a pass of one plan by itself: experts between them, attention before (backward: after)."""
    first, second = ("combine", "dispatch") if is_backward else ("dispatch", "combine")
    one, begun = 0.5 * float(load.exchange), 0.0 if is_backward else float(load.chain)
    between = begun + one + float(load.experts)
    return [
        Exchange(is_backward, first, begun / whole_s, one),
        Exchange(is_backward, second, min(between / whole_s, 1.0 - one / whole_s), one),
    ]


def exchanges(forward: Load, backward: Load, sends_s: float, taken_frac: float = 0.0) -> list[Exchange]:
    """The four all-to-alls of a merged pass of one plan, where they begin and what they take."""
    first_s = float(before_exchange_s(forward, backward, sends_s))
    blocks = UNITS[unit_of(forward, backward, sends_s, taken_frac)]
    times = [float(each) for each in block_times(blocks, parts_of(forward, backward, first_s, taken_frac))]
    whole, found = sum(times), []
    for place, block in enumerate(blocks):
        if block.beside:
            other = forward if block.is_backward else backward
            begun = sum(times[:place]) + (0.0 if place else first_s)
            found.append(Exchange(not block.is_backward, block.beside, begun / whole, 0.5 * float(other.exchange)))
    return found
