"""What enumeration by rule leaves open, as ordered integers: which shape, which codes, how the bytes that a stage
misses are found, and how the layers are cut.

One static space for a study: every point has the same fields, and a point without meaning (an empty slot, a broken
rule) is refused by the judge, not by the space. What each stage rebuilds and swaps is filled in, not searched: by the
ladder, or solved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from autodeploy.balance.layouts import ENDS, cut_notation, own_slots, spread, trained_modules
from autodeploy.balance.solving import SOLVE, SOLVE_SWAP
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.screen import Screened
from autodeploy.spec.job import Job
from autodeploy.spec.model import Model
from autodeploy.spec.placement import slots_of_plan
from autodeploy.spec.plan import DISPATCH_WORDS, STATES_WORDS, Dispatch, Overlap, Plan, States
from autodeploy.spec.space import Space

Point = tuple[int, ...]
FIELDS = (
    "shape", "mbs", "overlap", "dispatch", "recompute", "budget", "states", "first", "last", "ends", "lean",
)  # fmt: skip
"""The variables, in the order of a point."""
CUT_AT = FIELDS.index("first")
SHAPE_FIELDS = ("tp", "pp", "vpp", "cp", "ep", "etp", "sp", "zero", "cp_comm", "replicas")
FIT = "fit"
BUDGETS = (FIT, SOLVE, f"{SOLVE_SWAP}:0.25", f"{SOLVE_SWAP}:0.5", SOLVE_SWAP)
"""How the bytes that a stage misses are found where the recompute value leaves that open: by the ladder, by an exact
choice of what to rebuild, by one that may also swap up to a share of what the host link hides."""
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
    budgets: tuple[str, ...] = (FIT,)
    """Of `BUDGETS`, those that the target and the cluster can do."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each variable has."""
        plan = self.space.plan
        codes = (plan.mbs, plan.overlap, plan.dispatch, plan.recompute, self.budgets, plan.states)
        return (len(self.shapes), *map(len, codes), len(FIRST), len(LAST), len(ENDS), len(LEAN))

    def points(self) -> Iterator[Point]:
        """Every point."""
        return product(*(range(size) for size in self.sizes))

    def plan(self, point: Point) -> Plan | None:
        """The plan of a point, None where its layers leave a slot empty."""
        shape, mbs, overlap, dispatch, recompute, budget, states, *cut = point
        values, base = self.space.plan, self.shapes[shape]
        layout = cut_layers(self.space.model, self.space.job, slots_of_plan(base), cut)
        if layout is None:
            return None
        policy = values.recompute[recompute]
        return replace(
            base,
            mbs=values.mbs[mbs],
            overlap=Overlap[values.overlap[overlap].upper()],
            dispatch=Dispatch[values.dispatch[dispatch].upper()],
            recompute=self.budgets[budget] if policy == FIT else policy,
            states=States[values.states[states].upper()],
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
    return Outer(space=space, shapes=tuple(shapes.values()), budgets=budgets_of(space, shapes.values()))


def budgets_of(space: Space, shapes: Iterable[Plan]) -> tuple[str, ...]:
    """The budgets that some shape may have: none but the ladder where the space leaves nothing to fill in; no swaps
    where the cluster states no link to a host with memory; nothing that breaks a rule with every shape."""
    device = space.cluster.device
    linked = device.host_bytes_per_s > 0.0 and device.host_bytes > 0.0
    words = BUDGETS[1:] if linked else (SOLVE,)
    able = [*shapes] if FIT in space.plan.recompute else []
    return (FIT, *(w for w in words if any(not broken_rules(space, replace(each, recompute=w)) for each in able)))


def rule_points(outer: Outer) -> list[Point]:
    """Good seeds: each shape with its best codes, filled in by the ladder, cut evenly and with MTP and head apart."""
    values = outer.space.plan
    seeds: list[Point] = []
    for shape, plan in enumerate(outer.shapes):
        codes = (
            values.mbs.index(plan.mbs),
            values.overlap.index("pair" if plan.overlap else "none"),
            values.dispatch.index(DISPATCH_WORDS[plan.dispatch]),
            values.recompute.index(plan.recompute),
            0,
            values.states.index(STATES_WORDS[plan.states]),
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
