"""The selection of a stage as a problem of numbers: layers of every chunk, their parts, what each saves and costs.

`solve` rebuilds, `solve+swap` also swaps up to what the link hides, `solve+swap:SHARE` up to a share of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autodeploy.analysis.ops import MODULE_WORDS, REBUILDABLE, Module
from autodeploy.balance.selection_values import Counts, LayerClass, Part, Selection, StageNeed
from autodeploy.balance.swap import ATTENTION, part_bytes
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.load import Load, sum_loads
from autodeploy.errors import spec_error
from autodeploy.spec.layout import Role
from autodeploy.spec.model import Kind

SOLVE = "solve"
SOLVE_SWAP = "solve+swap"
REST = "rest"
"""Rows that only the rebuilding of a whole layer drops."""
LAYERS = (Kind.DENSE, Kind.SPARSE, Kind.MTP)
Live = Sequence[Sequence[int]]
"""[moment][chunk] live microbatches; where weight gradients run apart, after them those that wait for theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What one stage rebuilds and swaps."""

    need: StageNeed
    selection: Selection
    kept_bytes: tuple[float, ...]
    """Per chunk: rows of one live microbatch on the device; after them, what one that waits for its weight gradients
    holds."""
    moved_bytes: tuple[float, ...]
    """Per chunk: rows of one live microbatch on the host."""
    transient_bytes: float
    """One layer's backward pass, with what it rebuilds and the buffers of what is swapped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """What the parts of one kind of layer weigh and cost."""

    parts: tuple[Part, ...]
    loads: tuple[Load, ...]
    """What rebuilding each part repeats."""
    full_s: float | None
    full: Load
    kept_bytes: float
    delayed_bytes: float
    """What waits for weight gradients that run apart."""
    working_bytes: float
    link_bytes: float
    """What one layer can swap behind its own passes."""


def is_solved(policy: str) -> bool:
    """Whether a recompute policy asks for the exact selection."""
    return policy.split("+", maxsplit=1)[0] == SOLVE


def swap_share(policy: str) -> float:
    """The share of what the link hides that a solved policy may swap. Raises `SpecError` for no share."""
    if policy in (SOLVE, SOLVE_SWAP):
        return float(policy == SOLVE_SWAP)
    text = policy.removeprefix(f"{SOLVE_SWAP}:")
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not policy.startswith(f"{SOLVE_SWAP}:") or not 0.0 < share <= 1.0:
        allowed = f"{SOLVE}, {SOLVE_SWAP}, {SOLVE_SWAP}:SHARE with a share above 0 and at most 1"
        raise spec_error("recompute", f"unknown {policy!r}", allowed)
    return share


def need_of(
    role: Role, prices: Mapping[Kind, Prices], live: Live, fixed_bytes: float, limits: tuple[float, float, float]
) -> StageNeed:
    """The problem of a stage. `fixed_bytes` is what it holds beside rows and a layer's work; `limits` are capacity,
    host memory and seconds that a swapped byte adds."""
    capacity, host, swap_s_per_byte = limits
    rows = [sum(chunk[kind] * prices[kind].kept_bytes for kind in role.kinds) for chunk in role.chunks]
    rows += delayed_rows(role, prices)
    working = max(prices[kind].working_bytes for kind in role.kinds)
    need = [fixed_bytes + working + held_at(rows, moment) - capacity for moment in live]
    return StageNeed(
        classes=tuple(
            LayerClass(
                label=f"{place}:{kind.name.lower()}", count=chunk[kind],
                live=tuple(float(moment[place]) for moment in live),
                parts=prices[kind].parts, full_s=prices[kind].full_s,
                link_bytes=chunk[kind] * prices[kind].link_bytes,
            )
            for place, kind in places_of(role)
            for chunk in (role.chunks[place],)
        ),
        need_bytes=tuple(need), host_bytes=host, swap_s_per_byte=swap_s_per_byte,
    )  # fmt: skip


def places_of(role: Role) -> list[tuple[int, Kind]]:
    """(chunk, kind) of every class of a stage, in order."""
    return [(place, kind) for place, chunk in enumerate(role.chunks) for kind in LAYERS if chunk[kind]]


def delayed_rows(role: Role, prices: Mapping[Kind, Prices]) -> list[float]:
    """Per chunk: what a microbatch holds that waits for its weight gradients."""
    return [sum(chunk[kind] * prices[kind].delayed_bytes for kind in role.kinds) for chunk in role.chunks]


def held_at(rows: Sequence[float], moment: Sequence[int]) -> float:
    """Bytes of all live microbatches at a moment, from those of one per chunk (after them, of one that waits)."""
    return sum(count * each for count, each in zip(moment, rows, strict=False))


def chosen_of(role: Role, prices: Mapping[Kind, Prices], need: StageNeed, selection: Selection) -> Chosen:
    """A selection put back: what every chunk keeps and moves."""
    kept = [sum(chunk[kind] * prices[kind].kept_bytes for kind in role.kinds) for chunk in role.chunks]
    moved = [0.0 for _ in role.chunks]
    for (place, kind), counts in zip(places_of(role), selection.counts, strict=True):
        parts = prices[kind].parts
        whole = sum(part.kept_bytes for part in parts if part.in_full)
        swapped = sum(n * part.kept_bytes for n, part in zip(counts.swapped, parts, strict=True))
        rebuilt = sum(n * part.kept_bytes for n, part in zip(counts.rebuilt, parts, strict=True))
        kept[place] -= counts.full * whole + rebuilt + swapped
        moved[place] += swapped
    working = max(prices[kind].working_bytes for kind in role.kinds)
    return Chosen(
        need=need, selection=selection, kept_bytes=(*kept, *delayed_rows(role, prices)), moved_bytes=tuple(moved),
        transient_bytes=working + selection.transient_bytes,
    )  # fmt: skip


def rebuilt_load(prices: Prices, counts: Counts, swap_s_per_byte: float) -> Load:
    """What the layers of one class repeat in a backward pass, and what their copies take of the memory's rate."""
    parts = [load.times(n) for n, load in zip(counts.rebuilt, prices.loads, strict=True) if n]
    whole = [prices.full.times(counts.full)] if counts.full else []
    swapped = sum(n * part.kept_bytes for n, part in zip(counts.swapped, prices.parts, strict=True))
    return sum_loads([*parts, *whole, *([Load(busy=swapped * swap_s_per_byte)] if swapped else [])])


def price_layer(
    cost: LayerCost, modules: Sequence[Module], buffers: float, swappable: Sequence[str], link_bytes_per_s: float
) -> Prices:
    """The parts of a kind of layer, by the modules that a stack rebuilds and the parts that it swaps."""
    rows: list[tuple[Part, Load]] = []
    for module in modules:
        word = MODULE_WORDS[module]
        if module is not Module.FULL and cost.rows_bytes[module] > 0.0:
            load = cost.rebuild[module]
            part = Part(
                name=word,
                kept_bytes=cost.rows_bytes[module],
                rebuild_s=load.alone,
                swap=word in swappable,
                in_full=True,
            )
            rows.append((part, load))
    full = Module.FULL in modules
    for name, size in _unrebuilt(cost):
        if size > 0.0 and (full or name in swappable):
            part = Part(name=name, kept_bytes=size, rebuild_s=None, swap=name in swappable, in_full=True)
            rows.append((part, Load()))
    whole = sum_loads([cost.rebuild[module] for module in REBUILDABLE]) if full else Load()
    hidden_s = min(cost.forward.busy, cost.backward.busy)
    return Prices(
        parts=tuple(part for part, _ in rows), loads=tuple(load for _, load in rows),
        full_s=whole.alone if full else None, full=whole, kept_bytes=sum(cost.rows_bytes),
        delayed_bytes=cost.delayed_bytes,
        working_bytes=cost.working_bytes + buffers * cost.exchange_bytes, link_bytes=link_bytes_per_s * hidden_s,
    )  # fmt: skip


def _unrebuilt(cost: LayerCost) -> list[tuple[str, float]]:
    attention = part_bytes(cost, ATTENTION)
    return [(ATTENTION, attention), (REST, cost.rows_bytes[Module.FULL] - attention)]


def words_of(chosen: Chosen) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a stage rebuilds and what it swaps, in words: `moe_act`, or `moe_act:5/8` of the layers that have it."""
    have: dict[str, int] = {}
    rebuilt: dict[str, int] = {}
    swapped: dict[str, int] = {}
    whole = MODULE_WORDS[Module.FULL]
    for layers, counts in zip(chosen.need.classes, chosen.selection.counts, strict=True):
        _add(have, whole, layers.count)
        _add(rebuilt, whole, counts.full)
        for part, x, y in zip(layers.parts, counts.rebuilt, counts.swapped, strict=True):
            _add(have, part.name, layers.count)
            _add(rebuilt, part.name, x)
            _add(swapped, part.name, y)
    return _shares(rebuilt, have), _shares(swapped, have)


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


def _shares(counts: Mapping[str, int], have: Mapping[str, int]) -> tuple[str, ...]:
    shown = {name: count for name, count in counts.items() if count}
    return tuple(name if count == have[name] else f"{name}:{count}/{have[name]}" for name, count in shown.items())
