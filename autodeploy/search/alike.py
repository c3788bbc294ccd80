"""Stages of many chunks: chunks that are alike choose alike, so that the exact choice stays within reach.

The lists of the exact choice grow with every class of layers; beyond a few classes they may not end. Classes with the
same layers are solved as one, which saves in all of them, and its choice is given to each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autodeploy.balance.selection import greedy, select
from autodeploy.balance.selection_values import Selection, StageNeed, evaluate, fits

MOST_CLASSES = 4
"""Classes that are solved apart. Measured on tight stages of the 718B space: four take 0.1 s at most, five up to
seconds, and of six and more some do not end in memory."""
Groups = Sequence[Sequence[int]]
"""Places of the classes that choose alike."""


def select_within(need: StageNeed, within_s: float) -> Selection | None:
    """The least selection, or one that is above it by no more than `within_s`; of a stage with many classes the least
    in which those that are alike choose alike, or the greedy one where that is cheaper."""
    groups = groups_of(need, MOST_CLASSES)
    if len(groups) == len(need.classes):
        return select(need, within_s)
    found = select(joined(need, groups), within_s)
    options = [greedy(need), None if found is None else apart(need, groups, found)]
    fitting = [option for option in options if option is not None and fits(need, option)]
    return min(fitting, key=lambda option: option.added_s, default=None)


def groups_of(need: StageNeed, most: int) -> Groups:
    """Classes of the same layers in groups of as few neighbours as bring their number down to `most`; where even whole
    families are too many, the families."""
    families: dict[tuple, list[int]] = {}
    for place, each in enumerate(need.classes):
        families.setdefault((each.count, each.parts, each.full_s, each.link_bytes, each.weight), []).append(place)
    groups: list[list[int]] = []
    for size in range(1, len(need.classes) + 1):
        groups = [family[i : i + size] for family in families.values() for i in range(0, len(family), size)]
        if len(groups) <= most:
            break
    return groups


def joined(need: StageNeed, groups: Groups) -> StageNeed:
    """The stage with one class for each group: what it chooses saves, and takes time, in all of the group."""
    classes = []
    for group in groups:
        members = [need.classes[place] for place in group]
        live = tuple(sum(each) for each in zip(*(member.live for member in members), strict=True))
        classes.append(replace(members[0], live=live, weight=sum(member.weight for member in members)))
    return replace(need, classes=tuple(classes))


def apart(need: StageNeed, groups: Groups, found: Selection) -> Selection:
    """The choice of a joined stage, given to every class."""
    of_place = {place: counts for group, counts in zip(groups, found.counts, strict=True) for place in group}
    counts = [replace(of_place[place], label=each.label) for place, each in enumerate(need.classes)]
    return evaluate(need, counts)
