"""What enumeration by rule leaves open, as ordered integers: which shape, which codes, and how the layers are cut.

One static space for a study: every point has the same fields, and a point without meaning (an empty slot, a broken
rule) is refused by the judge, not by the space. Recompute within the memory left is filled in, not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from autodeploy.balance.layouts import ENDS, cut_notation, own_slots, spread, trained_modules
from autodeploy.search.screen import Screened
from autodeploy.spec.job import Job
from autodeploy.spec.model import Model
from autodeploy.spec.plan import DISPATCH_WORDS, Dispatch, Overlap, Plan
from autodeploy.spec.space import Space

Point = tuple[int, ...]
FIELDS = ("shape", "mbs", "overlap", "dispatch", "recompute", "first", "last", "ends", "lean")
"""The variables, in the order of a point."""
CUT_AT = FIELDS.index("first")
SHAPE_FIELDS = ("tp", "pp", "vpp", "cp", "ep", "etp", "sp", "zero", "cp_comm", "replicas", "states")
FIRST = (-2, -1, 0, 1, 2)
"""Layers in the first slot, against the even share."""
LAST = (-3, -2, -1, 0, 1)
"""Layers in the last slot that holds decoder layers, against the even share."""
LEAN = ("early", "late")
"""Where the layers go that do not divide evenly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    """The space of a study: a shortlist of shapes, and the values of the other variables."""

    space: Space
    shapes: tuple[Plan, ...]
    """One plan per shape, most promising first."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each variable has."""
        plan = self.space.plan
        codes = (len(plan.mbs), len(plan.overlap), len(plan.dispatch), len(plan.recompute))
        return (len(self.shapes), *codes, len(FIRST), len(LAST), len(ENDS), len(LEAN))

    def points(self) -> Iterator[Point]:
        """Every point."""
        return product(*(range(size) for size in self.sizes))

    def plan(self, point: Point) -> Plan | None:
        """The plan of a point, None where its layers leave a slot empty."""
        shape, mbs, overlap, dispatch, recompute, *cut = point
        values, base = self.space.plan, self.shapes[shape]
        layout = cut_layers(self.space.model, self.space.job, base.pp * base.vpp, cut)
        if layout is None:
            return None
        return replace(
            base,
            mbs=values.mbs[mbs],
            overlap=Overlap[values.overlap[overlap].upper()],
            dispatch=Dispatch[values.dispatch[dispatch].upper()],
            recompute=values.recompute[recompute],
            layout=layout,
        )


def cut_layers(model: Model, job: Job, slots: int, cut: Sequence[int]) -> str | None:
    """Layout notation for (first, last, ends, lean) indices; None where a slot would be empty."""
    first, last, ends, lean = cut
    modules = trained_modules(model, job)
    own = own_slots(ENDS[ends], modules)
    counts = _counts(model.layers, slots - own, FIRST[first], LAST[last], LEAN[lean])
    return None if counts is None else cut_notation(counts, ENDS[ends], modules)


def _counts(layers: int, slots: int, first: int, last: int, lean: str) -> list[int] | None:
    """Decoder layers per slot: first and last against the share, the rest even."""
    if slots < 3:
        return spread(layers, slots) if slots > 0 and first == last == 0 else None
    share = round(layers / slots)
    head, tail = share + first, share + last
    rest = layers - head - tail
    if head < 0 or tail < 0 or rest < slots - 2:
        return None
    middle = spread(rest, slots - 2)
    return [head, *(middle if lean == "early" else middle[::-1]), tail]


def shortlist(space: Space, screened: Screened, count: int) -> Outer:
    """The shapes with the least screen time among plans that fit."""
    order = np.argsort(np.where(screened.fits, screened.screen_s, np.inf), kind="stable")
    shapes: dict[tuple, Plan] = {}
    for row in order[: int(screened.fits.sum())]:
        plan = screened.plans.row(int(row))
        shapes.setdefault(tuple(getattr(plan, name) for name in SHAPE_FIELDS), plan)
        if len(shapes) == count:
            break
    return Outer(space=space, shapes=tuple(shapes.values()))


def rule_points(outer: Outer) -> list[Point]:
    """Good seeds: each shape with its best codes, cut evenly and with MTP and head apart."""
    values = outer.space.plan
    seeds: list[Point] = []
    for shape, plan in enumerate(outer.shapes):
        codes = (
            values.mbs.index(plan.mbs),
            values.overlap.index("pair" if plan.overlap else "none"),
            values.dispatch.index(DISPATCH_WORDS[plan.dispatch]),
            values.recompute.index(plan.recompute),
        )
        seeds += [(shape, *codes, FIRST.index(0), LAST.index(0), ends, 0) for ends in (0, 1)]
    return seeds


def neighbours(outer: Outer, point: Point) -> list[Point]:
    """Points one step away in one variable."""
    near: list[Point] = []
    for place, size in enumerate(outer.sizes):
        for step in (-1, 1):
            if 0 <= point[place] + step < size:
                near.append((*point[:place], point[place] + step, *point[place + 1 :]))
    return near


def cut_plans(outer: Outer) -> list[Plan]:
    """Every cut of the layers of every shape, with the codes that suit the shape best: distinct plans."""
    cuts = list(product(range(len(FIRST)), range(len(LAST)), range(len(ENDS)), range(len(LEAN))))
    seeds = {point[0]: point for point in rule_points(outer)}
    points = ((*seed[:CUT_AT], *cut) for seed in seeds.values() for cut in cuts)
    return list(dict.fromkeys(plan for plan in map(outer.plan, points) if plan is not None))
