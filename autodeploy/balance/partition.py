"""Items cut into runs so that the heaviest run is lightest, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def partition(weights: Sequence[float], fixed: Sequence[float], least: Sequence[int]) -> list[int] | None:
    """How many consecutive items each run takes; None where the runs need more than there are.

    `fixed` is what a run weighs without items, `least` how many it must take. Of all cuts with the lightest heaviest
    run, one with the least sum of squares of what the runs weigh.
    """
    items, sums = len(weights), [0.0, *accumulate(weights)]
    best: list[tuple[float, float] | None] = [None] * (items + 1)
    best[0] = (0.0, 0.0)
    choices: list[list[int]] = []
    for own, few in zip(fixed, least, strict=True):
        row: list[tuple[float, float] | None] = [None] * (items + 1)
        choice = [0] * (items + 1)
        for end in range(few, items + 1):
            for begin in range(end - few + 1):
                before = best[begin]
                if before is None:
                    continue
                weight = own + sums[end] - sums[begin]
                value = (max(before[0], weight), before[1] + weight * weight)
                known = row[end]
                if known is None or value < known:
                    row[end], choice[end] = value, begin
        best = row
        choices.append(choice)
    return _counts(choices, items) if best[items] is not None else None


def _counts(choices: Sequence[Sequence[int]], items: int) -> list[int]:
    """The cut, read from its end."""
    counts, end = [], items
    for choice in reversed(choices):
        counts.append(end - choice[end])
        end = choice[end]
    return counts[::-1]
