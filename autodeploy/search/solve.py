"""The layout solver: where the layers of one plan go, by dynamic programming and then by simulation, within memory.

The program cuts layers at their real cost so that the heaviest slot is lightest; the cuts of the rules are looked at
too. From the best of these one layer at a time moves from a busy stage to one that waits, as long as the simulated
step gets shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autodeploy.balance.layouts import ENDS, cut_notation, light_counts, own_slots, spread, trained_modules
from autodeploy.balance.partition import partition
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.pairing import paired_s
from autodeploy.search.arrange import case_of, common_of, lay_out, stage_work_s_of
from autodeploy.search.arranged import Arranged
from autodeploy.search.layers import layers_of
from autodeploy.search.layouts import layouts_of
from autodeploy.search.steps import simulate_layouts
from autodeploy.spec.model import Kind, Model, decoder_kinds
from autodeploy.spec.placement import slots_of_plan
from autodeploy.spec.plan import Overlap, Plan
from autodeploy.spec.space import Space

ROUNDS = 24
"""Moves at most."""
GIVERS = 3
"""Stages that layers move away from, and as many that they move to."""
GAIN_FRAC = 1e-9
"""A smaller gain is none."""

Counts = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Solved:
    """The best layout found for one way to place MTP and head."""

    ends: str
    plan: Plan
    """With its layout."""
    step_s: float
    fits: bool
    tried: int
    """Layouts simulated."""


def ruled_layouts(space: Space, plan: Plan) -> dict[str, Plan]:
    """The plan on the layout of every rule that makes one, `even` first; equal layouts once."""
    options = layouts_of(space, replace(plan, layout="auto"))
    return {rule: replace(plan, layout=layout.notation) for rule, layout in options}


def solve_layouts(space: Space, plan: Plan) -> list[Solved]:
    """The best layout for every way to place MTP and head, best first. Empty where the plan has no layout."""
    started = [solver for ends in ENDS if (solver := _started(space, plan, ends)) is not None]
    distinct = {found.plan: found for found in (solver.solve() for solver in started)}
    return sorted(distinct.values(), key=lambda found: (not found.fits, found.step_s))


def _started(space: Space, plan: Plan, ends: str) -> _Solver | None:
    """A solver at the best of its starts; None where none of them is a layout of the plan."""
    costs, _ = layers_of(space, plan)
    solver = _Solver(space, plan, ends, ())
    found = solver.look(starts(space, plan, ends, costs))
    if not found:
        return None
    solver.at = min(found, key=lambda counts: solver.known[counts].order())
    return solver


def starts(space: Space, plan: Plan, ends: str, costs: Mapping[Kind, LayerCost]) -> list[Counts]:
    """The cut by cost, and those of the rules: even, with the extra layers early or late, and lighter ends."""
    model, job, every = space.model, space.job, slots_of_plan(plan)
    slots = every - own_slots(ends, trained_modules(model, job))
    if slots < 1:
        return []
    even = spread(model.layers, slots)
    options = [start(space, plan, ends, costs), even, even[::-1]]
    if every > 2 and ends in ("together", "after"):  # where lighter ends leave no layer beside MTP and head
        options.append(light_counts(model, job, every)[:slots])
    return list(dict.fromkeys(tuple(counts) for counts in options if counts is not None and _is_cut(counts, model)))


def _is_cut(counts: Sequence[int], model: Model) -> bool:
    """Every layer in a slot; only the first slot may hold none, beside the embedding."""
    return sum(counts) == model.layers and counts[0] >= 0 and min(counts[1:], default=1) > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tried:
    """A layout, arranged and simulated."""

    found: Arranged
    step_s: float

    def order(self) -> tuple[bool, float]:
        """What fits first, then the shortest step; without any that fits, what needs least memory."""
        fits = bool(self.found.fits)
        return not fits, self.step_s if fits else float(self.found.needed_bytes)


@dataclass(slots=True)
class _Solver:
    """One plan with one way to place MTP and head, and the layouts tried so far."""

    space: Space
    plan: Plan
    ends: str
    at: Counts
    known: dict[Counts, _Tried] = field(default_factory=dict)

    @property
    def modules(self) -> int:
        return trained_modules(self.space.model, self.space.job)

    def solve(self) -> Solved:
        """The best layout within reach of the start."""
        for _ in range(ROUNDS):
            near = self.look([each for each in _moves(self.at, self.known[self.at].found) if each not in self.known])
            best = min([self.at, *near], key=lambda counts: self.known[counts].order())
            if not _gains(self.known[best], self.known[self.at]):
                break
            self.at = best
        last = self.known[self.at]
        return Solved(
            ends=self.ends, plan=self.with_counts(self.at), step_s=last.step_s, fits=bool(last.found.fits),
            tried=len(self.known),
        )  # fmt: skip

    def with_counts(self, counts: Counts) -> Plan:
        """The plan with so many decoder layers in each slot."""
        notation = cut_notation(counts, self.ends, self.modules)
        return replace(self.plan, layout=notation or "")

    def look(self, options: Sequence[Counts]) -> list[Counts]:
        """Arrange and simulate layouts; returns the legal ones."""
        costs, rungs = layers_of(self.space, self.plan)
        common = common_of(self.space, self.plan.pp, self.plan, costs, rungs)
        found: dict[Counts, Arranged] = {}
        for counts in options:
            plan = self.with_counts(counts)
            for rule, layout in layouts_of(self.space, plan) if plan.layout else ():
                found[counts] = lay_out(common, case_of(self.space, plan, rule, layout))
        if found:
            steps = simulate_layouts(list(found.values()), int(common.microbatches))
            for (counts, each), step in zip(found.items(), steps.tolist(), strict=True):
                self.known[counts] = _Tried(found=each, step_s=step)
        return list(found)


def _gains(better: _Tried, worse: _Tried) -> bool:
    (unfit, value), (old_unfit, old_value) = better.order(), worse.order()
    return (unfit, value) < (old_unfit, (1.0 - GAIN_FRAC) * old_value)


def start(space: Space, plan: Plan, ends: str, costs: Mapping[Kind, LayerCost]) -> Counts | None:
    """Decoder layers per slot, cut at their cost; None where there are too few."""
    modules = trained_modules(space.model, space.job)
    own = own_slots(ends, modules)
    slots = slots_of_plan(plan) - own
    if slots < 1:
        return None
    each = {kind: _seconds(cost, plan.overlap, space.cluster.device.exchange_frac) for kind, cost in costs.items()}
    fixed = [0.0] * slots
    fixed[0] += each[Kind.EMBEDDING]
    if own == 0:
        fixed[-1] += each[Kind.HEAD]
    if modules and ends in ("together", "head"):
        fixed[-1] += modules * each[Kind.MTP]
    least = [1] * slots
    least[0] = 0 if slots > 1 else 1
    found = partition([each[kind] for kind in decoder_kinds(space.model)], fixed, least)
    return None if found is None else tuple(found)


def _seconds(cost: LayerCost, overlap: Overlap, taken_frac: float) -> float:
    """Engine seconds of a layer, nothing rebuilt."""
    if overlap == Overlap.PAIR:
        return float(paired_s(cost.forward, cost.backward, taken_frac=taken_frac))
    return float(cost.forward.alone + cost.backward.alone)


def _moves(counts: Counts, found: Arranged) -> list[Counts]:
    """One layer from a slot of a busy stage to a slot of one that waits."""
    layout = found.case.layout
    busy = [
        float(stage_work_s_of(found, found.stages[layout.role_of_stage[stage]], stage))
        + float(found.stages[layout.role_of_stage[stage]].tail.seconds)
        for stage in range(layout.pp)
    ]
    by_work = [int(stage) for stage in np.argsort(busy, kind="stable")]
    givers = [slot for slot in range(len(counts)) if layout.stage_of(slot) in by_work[-GIVERS:]]
    takers = [slot for slot in range(len(counts)) if layout.stage_of(slot) in by_work[:GIVERS]]
    return [_moved(counts, a, b) for a in givers for b in takers if a != b and counts[a] > (0 if a == 0 else 1)]


def _moved(counts: Counts, giver: int, taker: int) -> Counts:
    out = list(counts)
    out[giver] -= 1
    out[taker] += 1
    return tuple(out)
