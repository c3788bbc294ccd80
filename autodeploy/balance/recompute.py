"""What to rebuild in the backward pass: the ladder from nothing to everything, cheapest time per byte first.

A ladder is made once per plan (not per stage): rung r rebuilds the first r modules of its order. `fit` climbs it
until a stage fits. Modules are disjoint (analysis.ops.Module), so bytes and seconds add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autodeploy.analysis.ops import MODULE_WORDS, REBUILDABLE, Module
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.load import Load
from autodeploy.errors import spec_error
from autodeploy.numeric import Num, is_column, order_of, pick, total, where
from autodeploy.spec.model import Kind

POLICIES = ("none", "fit", "full")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """What every kind of layer keeps and repeats when so many modules are rebuilt."""

    kept_bytes: dict[Kind, Num]
    rebuilt_bytes: dict[Kind, Num]
    """Rows rebuilt: live again, one layer at a time, while its backward pass runs."""
    extra: dict[Kind, Load]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """Rungs a stage may stand on, lowest first, and the order of modules on them."""

    rungs: tuple[Rung, ...]
    order: tuple[Num, ...]
    """Module at each place of the order."""
    lowest: int
    """Modules rebuilt on the first rung."""


def parse_policy(text: str) -> tuple[Module, ...] | None:
    """Modules of an explicit policy (`layernorm+moe_act`), None for `none`, `fit`, `full`; raises `SpecError`."""
    if text in POLICIES:
        return None
    words = text.split("+")
    known = MODULE_WORDS[: len(REBUILDABLE) - 1]
    unknown = [word for word in words if word not in known]
    if unknown:
        allowed = " ".join(POLICIES) + ", or modules joined by +: " + " ".join(known)
        raise spec_error("recompute", f"unknown {unknown[0]!r}", allowed)
    return tuple(Module[word.upper()] for word in words)


def present_modules(costs: Mapping[Kind, LayerCost]) -> tuple[Module, ...]:
    """Modules that some layer of the model has rows in; FULL last."""
    return tuple(
        module
        for module in REBUILDABLE
        if any(is_column(c.rows_bytes[module]) or c.rows_bytes[module] > 0.0 for c in costs.values())
    )


def ladder(costs: Mapping[Kind, LayerCost], counts: Mapping[Kind, int], policy: str) -> Ladder:
    """The ladder of a policy. Order: seconds per byte over the whole model, FULL always last.

    Source: greedy selection, physics 9.1; rows and work per module, physics 4.4.
    """
    modules = present_modules(costs)
    chosen = parse_policy(policy)
    order = _order(costs, counts, modules, chosen or ())
    rungs = _climb(costs, modules, order)
    first, last = _ends(policy, len(modules), len([m for m in modules if m in (chosen or ())]))
    return Ladder(
        rungs=tuple(rungs[first : last + 1]),
        order=tuple(pick_module(modules, place) for place in order),
        lowest=first,
    )


def _ends(policy: str, modules: int, chosen: int) -> tuple[int, int]:
    return {"none": (0, 0), "fit": (0, modules), "full": (modules, modules)}.get(policy, (chosen, chosen))


def pick_module(modules: Sequence[Module], place: Num) -> Num:
    """Module code at a place, also for a column of places."""
    return pick(place, [float(module) for module in modules])


def _order(
    costs: Mapping[Kind, LayerCost],
    counts: Mapping[Kind, int],
    modules: Sequence[Module],
    chosen: Sequence[Module],
) -> list[Num]:
    """Places of `modules` from the cheapest second per byte to the dearest; chosen ones before all."""
    keys: list[Num] = []
    for module in modules:
        if module in chosen or module is Module.FULL:
            keys.append(-1.0 if module in chosen else float("inf"))
            continue
        seconds = total([counts[kind] * cost.rebuild[module].alone for kind, cost in costs.items()])
        rows = total([counts[kind] * cost.rows_bytes[module] for kind, cost in costs.items()])
        keys.append(seconds / where(rows > 0.0, rows, 1.0))
    return order_of(keys)


def _climb(costs: Mapping[Kind, LayerCost], modules: Sequence[Module], order: Sequence[Num]) -> list[Rung]:
    """Rungs 0 .. len(modules)."""
    rung = Rung(
        kept_bytes={kind: total(list(cost.rows_bytes)) for kind, cost in costs.items()},
        rebuilt_bytes=dict.fromkeys(costs, 0.0),
        extra=dict.fromkeys(costs, Load()),
    )
    rungs = [rung]
    for place in order:
        rung = _next(rung, costs, modules, place)
        rungs.append(rung)
    return rungs


def _next(rung: Rung, costs: Mapping[Kind, LayerCost], modules: Sequence[Module], place: Num) -> Rung:
    kept, rebuilt, extra = {}, {}, {}
    for kind, cost in costs.items():
        rows = pick(place, [cost.rows_bytes[module] for module in modules])
        work = [cost.rebuild[module] for module in modules]
        kept[kind] = rung.kept_bytes[kind] - rows
        rebuilt[kind] = rung.rebuilt_bytes[kind] + rows
        extra[kind] = rung.extra[kind].plus(Load(*(pick(place, list(column)) for column in zip(*work, strict=True))))
    return Rung(kept_bytes=kept, rebuilt_bytes=rebuilt, extra=extra)
