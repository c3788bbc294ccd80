"""What to rebuild in the backward pass: the ladder from nothing to everything, cheapest time per byte first.

A ladder is made once per plan (not per stage): rung r rebuilds the first r modules of its order. `fit` climbs it
until a stage fits. Modules are disjoint (analysis.ops.Module), so bytes and seconds add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autodeploy.analysis.ops import MODULE_WORDS, REBUILDABLE, Module
from autodeploy.balance.solving import is_solved, swap_share
from autodeploy.balance.swap import swapped_layers, swapped_parts
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.load import Load, sum_loads
from autodeploy.errors import spec_error
from autodeploy.numeric import Num, gather, is_column, maximum, order_of, pick, total, where
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Overlap
from autodeploy.spec.target import SWAP, Profile

POLICIES = ("none", "fit", "full")
PARTIAL = "full:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """What every kind of layer keeps and repeats on each rung, lowest rung first, and the order of modules.

    Per kind, one entry a rung. `index` is None for one plan; for columns `extra` stays a table of distinct layers
    ([rungs, layers]) and `index` says which layer each plan has.
    """

    kept_bytes: Mapping[Kind, tuple[Num, ...]]
    transient_bytes: Mapping[Kind, tuple[Num, ...]]
    """One layer's backward pass: what it works on and what it rebuilds at a time, one module or the whole layer."""
    forward_bytes: Mapping[Kind, Num]
    """One layer's forward pass: what it works on."""
    delayed_bytes: Mapping[Kind, Num]
    """Per layer: what waits for weight gradients that run apart."""
    extra: Mapping[Kind, Load]
    """Work repeated; every field a sequence over the rungs."""
    order: tuple[Num, ...]
    """Module code at each place of the order."""
    lowest: int
    """Modules rebuilt on the first rung."""
    rungs: int
    share_frac: float = 1.0
    """Of the layers, those on which FULL stands (`full:SHARE`)."""
    swapped_bytes: Mapping[Kind, Num] = field(default_factory=dict)
    """Per layer and live microbatch, on the host."""
    index: np.ndarray | None = None

    def at(self, index: np.ndarray) -> Ladder:
        """The ladders of some rows, from a ladder of distinct layers."""
        return replace(
            self,
            kept_bytes=gather(self.kept_bytes, index),
            transient_bytes=gather(self.transient_bytes, index),
            forward_bytes=gather(self.forward_bytes, index),
            delayed_bytes=gather(self.delayed_bytes, index),
            swapped_bytes=gather(self.swapped_bytes, index),
            index=index,
        )

    def extra_load(self, kind: Kind, rung: Num) -> Load:
        """What standing on a rung adds to the backward pass of a layer."""
        if self.index is None:
            return Load(*(column[int(rung)] for column in self.extra[kind]))
        return Load(*(self._pick(column, rung) for column in self.extra[kind]))

    def _pick(self, column: Any, rung: np.ndarray) -> Num:
        """Entries (rung, layer) of a table; of numbers, which are the same on every rung, the first."""
        return column.take(rung * column.shape[1] + self.index) if is_column(column) else column[0]


def parse_policy(text: str) -> tuple[Module, ...] | None:
    """Modules of an explicit policy (`layernorm+moe_act`), None for `none`, `fit`, `full`; raises `SpecError`."""
    if text in POLICIES or full_share(text) is not None:
        return None
    if is_solved(text):
        swap_share(text)
        return None
    swapped_parts(text)
    words = [word for word in text.split("+") if not word.startswith(SWAP)]
    known = MODULE_WORDS[: len(REBUILDABLE) - 1]
    unknown = [word for word in words if word not in known]
    if unknown:
        parts = " ".join((*known, f"{SWAP}PART"))
        allowed = f"{' '.join(POLICIES)} solve solve+swap full:SHARE, or modules joined by +: {parts}"
        raise spec_error("recompute", f"unknown {unknown[0]!r}", allowed)
    return tuple(Module[word.upper()] for word in words)


def full_share(text: str) -> float | None:
    """0.25 of `full:0.25`, a quarter of every stage's layers rebuilt in full (Megatron's block method); None for
    another policy. Raises `SpecError` for a share that is none."""
    if not text.startswith(PARTIAL):
        return None
    try:
        share = float(text.removeprefix(PARTIAL))
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise spec_error("recompute", f"{text!r} names no share of the layers", "full:SHARE, above 0 and at most 1")
    return share


def present_modules(costs: Mapping[Kind, LayerCost]) -> tuple[Module, ...]:
    """Modules that some layer of the model has rows in; FULL last."""
    return tuple(
        module
        for module in REBUILDABLE
        if any(is_column(c.rows_bytes[module]) or c.rows_bytes[module] > 0.0 for c in costs.values())
    )


def known_modules(costs: Mapping[Kind, LayerCost], overlap: Overlap, profile: Profile) -> tuple[Module, ...]:
    """Of these, the ones that a stack can rebuild."""
    known = profile.pair_modules if overlap == Overlap.PAIR else profile.modules
    return tuple(module for module in present_modules(costs) if MODULE_WORDS[module] in known)


def ladder(
    costs: Mapping[Kind, LayerCost],
    counts: Mapping[Kind, int],
    policy: str,
    overlap: Overlap,
    profile: Profile,
    host_bytes_per_s: float = 0.0,
) -> Ladder:
    """The ladder of a policy, of the modules that the stack can rebuild. Order: seconds per byte over the whole
    model, FULL always last.

    Merged passes hold the all-to-all buffers of two microbatches.
    Source: greedy selection, model.md 9.1; rows and work per module, model.md 4.4; transients, model.md 4.6.
    """
    swapped = swapped_layers(costs, swapped_parts(policy), host_bytes_per_s)
    costs = {kind: each.cost for kind, each in swapped.items()}
    modules = known_modules(costs, overlap, profile)
    chosen = parse_policy(policy)
    order = _order(costs, counts, modules, chosen or ())
    first, last = _ends(policy, len(modules), len([m for m in modules if m in (chosen or ())]))
    buffers = 2.0 if overlap == Overlap.PAIR else 0.0
    climbs = {kind: _climb(folded(cost, modules), modules, order, buffers) for kind, cost in costs.items()}
    share = full_share(policy)
    if share is not None:
        first = last = len(modules)
        climbs = {kind: _partly(climb, share) for kind, climb in climbs.items()}
    kept = {kind: climb[0][first : last + 1] for kind, climb in climbs.items()}
    working = {kind: climb[1][first : last + 1] for kind, climb in climbs.items()}
    extra = {
        kind: _columns([load.plus(Load(busy=swapped[kind].exposed_s)) for load in climb[2][first : last + 1]])
        for kind, climb in climbs.items()
    }
    return Ladder(
        kept_bytes=kept, transient_bytes=working, extra=extra, lowest=first, rungs=last + 1 - first,
        forward_bytes={kind: cost.forward_bytes + buffers * cost.exchange_bytes for kind, cost in costs.items()},
        delayed_bytes={kind: cost.delayed_bytes for kind, cost in costs.items()},
        swapped_bytes={kind: each.bytes for kind, each in swapped.items()},
        share_frac=share or 1.0,
        order=tuple(pick(place, [float(module) for module in modules]) for place in order),
    )  # fmt: skip


def _ends(policy: str, modules: int, chosen: int) -> tuple[int, int]:
    if is_solved(policy):  # by the ladder first
        return 0, modules
    return {"none": (0, 0), "fit": (0, modules), "full": (modules, modules)}.get(policy, (chosen, chosen))


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


Climb = tuple[tuple[Num, ...], tuple[Num, ...], list[Load]]
"""Kept bytes, transient bytes and extra load, one entry a rung."""


def folded(cost: LayerCost, modules: Sequence[Module]) -> LayerCost:
    """The cost with what a stack cannot rebuild by itself put to the whole layer, which it can."""
    apart = [module for module in REBUILDABLE if module not in modules]
    if Module.FULL not in modules or not apart:
        return cost
    rows, work = list(cost.rows_bytes), list(cost.rebuild)
    rows[Module.FULL] = total([rows[Module.FULL], *(rows[module] for module in apart)])
    work[Module.FULL] = sum_loads([work[Module.FULL], *(work[module] for module in apart)])
    for module in apart:
        rows[module], work[module] = 0.0, Load()
    return replace(cost, rows_bytes=tuple(rows), rebuild=tuple(work))


def _climb(cost: LayerCost, modules: Sequence[Module], order: Sequence[Num], buffers: float) -> Climb:
    """Kept bytes, transient bytes and extra load of a kind, on rungs 0 .. len(modules).

    A module is rebuilt when its consumer's backward pass comes and dropped after it, so of several the largest counts;
    a layer that is rebuilt as a whole holds all its rows (Megatron-LM CheckpointWithoutOutput, CheckpointFunction).
    """
    kept, rebuilt, extra = total(list(cost.rows_bytes)), 0.0, Load()
    whole = kept - cost.rows_bytes[Module.KEPT]
    working = cost.working_bytes + buffers * cost.exchange_bytes
    rungs = [(kept, working, extra)]
    row_choices = [cost.rows_bytes[module] for module in modules]
    work_choices = [_work(column) for column in zip(*(cost.rebuild[module] for module in modules), strict=True)]
    has_rows = any(is_column(rows) or rows > 0.0 for rows in row_choices)
    for place in order:
        if has_rows:
            rows = pick(place, row_choices)
            kept, rebuilt = kept - rows, where(_is_full(place, modules), whole, maximum(rebuilt, rows))
            extra = extra.plus(Load(*(pick(place, column) if column else 0.0 for column in work_choices)))
        rungs.append((kept, working + rebuilt, extra))
    columns = list(zip(*rungs, strict=True))
    return columns[0], columns[1], list(columns[2])


def _is_full(place: Num, modules: Sequence[Module]) -> Num:
    """Whether a place of the order is that of the whole layer, which comes last."""
    return place == modules.index(Module.FULL) if Module.FULL in modules else False


def _partly(climb: Climb, share: float) -> Climb:
    """The last rung with a share of the layers on it and the others on the first."""
    kept, working, extra = climb
    mixed = share * kept[-1] + (1.0 - share) * kept[0]
    return (*kept[:-1], mixed), working, [*extra[:-1], extra[-1].times(share)]


def _work(column: Sequence[Num]) -> Sequence[Num]:
    """Work per module; nothing where no module has any, so that zero stays a number."""
    return column if any(is_column(work) or work != 0.0 for work in column) else ()


def _columns(loads: Sequence[Load]) -> Load:
    """Every field of the loads as one sequence over the rungs: an array [rungs, layers], or numbers."""
    return Load(
        *(
            np.stack(np.broadcast_arrays(*field)) if any(is_column(x) for x in field) else tuple(field)
            for field in zip(*loads, strict=True)
        )
    )
