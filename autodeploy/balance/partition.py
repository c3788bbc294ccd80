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
    best: list[_Value | None] = [(0.0, 0.0), *([None] * items)]
    choices = []
    for own, few in zip(fixed, least, strict=True):
        row = [_best_run(best, sums, end, own, few) for end in range(items + 1)]
        best = [value for value, _ in row]
        choices.append([begin for _, begin in row])
    return _counts(choices, items) if best[items] is not None else None


_Value = tuple[float, float]
"""The heaviest run so far, and the sum of squares."""


def _best_run(
    best: Sequence[_Value | None], sums: Sequence[float], end: int, own: float, few: int
) -> tuple[_Value | None, int]:
    """The best value of runs up to item `end`, and where the last of them begins."""
    found: tuple[_Value | None, int] = (None, 0)
    for begin in range(end - few + 1):
        before, weight = best[begin], own + sums[end] - sums[begin]
        if before is None:
            continue
        value = (max(before[0], weight), before[1] + weight * weight)
        if found[0] is None or value < found[0]:
            found = value, begin
    return found


def _counts(choices: Sequence[Sequence[int]], items: int) -> list[int]:
    """The cut, read from its end."""
    counts, end = [], items
    for choice in reversed(choices):
        counts.append(end - choice[end])
        end = choice[end]
    return counts[::-1]
