"""Layouts for a pipeline of pp x vpp slots: by rule (even, light, apart, late), or as a user cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from autodeploy.analysis.inventory import inventory_of, one_token
from autodeploy.analysis.readings import PLAIN
from autodeploy.errors import SpecError
from autodeploy.numeric import total
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Layout, compress, make_layout, with_ends
from autodeploy.spec.layout_words import notation_of
from autodeploy.spec.model import Kind, Model, decoder_kinds
from autodeploy.spec.placement import Placement, slots_in
from autodeploy.spec.plan import LAYOUT_RULES


def spread(items: int, slots: int) -> list[int]:
    """So many items over so many slots: counts differ by at most one, extra ones first."""
    base, extra = divmod(items, slots)
    return [base + (i < extra) for i in range(slots)]


@lru_cache(maxsize=64)
def layer_units(model: Model, job: Job) -> dict[Kind, float]:
    """FLOP of each kind in units of the model's commonest decoder layer: the weights of the `light` rule.

    FLOP and not time, so that a layout does not depend on the machine (docs/decisions).
    """
    kinds = decoder_kinds(model)
    common = max(set(kinds), key=kinds.count)
    ops = inventory_of(model, PLAIN, one_token(job.seq_len), job.mtp)
    flop = {kind: total([op.flop for op in ops[kind]]) for kind in ops}
    return {kind: flop[kind] / flop[common] for kind in flop}


def _even(model: Model, job: Job, slots: int) -> list[int]:
    del job
    return spread(model.layers, slots)


def _late(model: Model, job: Job, slots: int) -> list[int]:
    """Extra layers in the latest slots: chunks that come early are live longest, so they should be the small ones."""
    del job
    return spread(model.layers, slots)[::-1]


def light_counts(model: Model, job: Job, slots: int) -> list[int]:
    """The end slots take fewer layers, by what embedding, MTP and head weigh."""
    units = layer_units(model, job)
    first = units[Kind.EMBEDDING]
    last = units[Kind.HEAD] + units.get(Kind.MTP, 0.0) * model.mtp_depth
    share = (model.layers + first + last) / slots
    head, tail = max(round(share - first), 0), max(round(share - last), 0)
    return [head, *spread(model.layers - head - tail, slots - 2), tail]


def _apart(model: Model, job: Job, slots: int) -> list[int]:
    """MTP in its own last-but-one slot, head in the last; the rest even."""
    own = 2 if trained_modules(model, job) else 1
    return [*spread(model.layers, slots - own), *([0] * own)]


_COUNTS = {"even": _even, "light": light_counts, "apart": _apart, "late": _late}
_LEAST_SLOTS = {"even": 1, "light": 3, "apart": 3, "late": 1}


def trained_modules(model: Model, job: Job) -> int:
    """MTP modules in the step."""
    return model.mtp_depth if job.mtp else 0


ENDS = ("together", "apart", "after", "head")
"""MTP and head: with the last layers; each in its own slot; both in one slot of their own; the head alone."""


def own_slots(ends: str, modules: int) -> int:
    """Slots at the end that hold no decoder layer."""
    return {"together": 0, "apart": 2 if modules else 1, "after": 1, "head": 1}[ends]


def cut_notation(counts: Sequence[int], ends: str, modules: int) -> str | None:
    """Layout of so many decoder layers per slot with MTP and head as `ends` says; None where a slot would be empty."""
    mtp_slot = {"together": -1, "apart": -2, "after": -1, "head": -2}[ends]
    held = with_ends([*counts, *([0] * own_slots(ends, modules))], modules, mtp_slot)
    return compress(held) if all(held) else None


def _strings(model: Model, job: Job, rule: str, slots: int) -> list[str] | None:
    """Slot strings of a rule; None where it does not apply to so few slots."""
    if slots < _LEAST_SLOTS[rule]:
        return None
    counts = _COUNTS[rule](model, job, slots)
    if min(counts) < 0:
        return None
    return with_ends(counts, trained_modules(model, job), mtp_slot=-2 if rule == "apart" else -1)


@lru_cache(maxsize=8192)
def resolve(
    model: Model, job: Job, pp: int, vpp: int, rule: str, *, placement: Placement = Placement.ROUND
) -> Layout | None:
    """The layout that a rule (a framework's word, a given string) makes; None where it has none for this shape."""
    slots = slots_in(placement, pp, vpp)
    if rule in LAYOUT_RULES:
        strings = _strings(model, job, rule, slots)
        if not strings or not all(strings):
            return None
        return make_layout(model, job.mtp, pp, vpp, compress(strings), placement=placement)
    try:
        notation = notation_of(model, job.mtp, pp, slots // pp, rule)
        return make_layout(model, job.mtp, pp, vpp, notation, placement=placement)
    except SpecError:
        return None


def candidates(
    model: Model, job: Job, pp: int, vpp: int, layout: str, *, placement: Placement = Placement.ROUND
) -> list[tuple[str, Layout]]:
    """(rule, layout) that a plan's layout field allows, in order of preference on ties, equal layouts once."""
    rules = LAYOUT_RULES if layout == "auto" else (layout,)
    found = [(rule, resolve(model, job, pp, vpp, rule, placement=placement)) for rule in rules]
    seen: set[str] = set()
    return [
        (rule, layout)
        for rule, layout in found
        if layout is not None and not (layout.notation in seen or seen.add(layout.notation))  # type: ignore[func-returns-value]
    ]
