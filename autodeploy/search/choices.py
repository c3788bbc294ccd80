"""What a stage rebuilds and swaps, item by item, and what less memory would cost it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autodeploy.analysis.ops import MODULE_WORDS, Module
from autodeploy.balance.fit import live_layers, resident_bytes, working_buffers
from autodeploy.balance.recompute import Ladder
from autodeploy.balance.selection import frontier
from autodeploy.balance.selection_values import StageNeed
from autodeploy.balance.solving import LAYERS, need_of
from autodeploy.search.arrange import common_of
from autodeploy.search.arranged import Arranged, StageCost
from autodeploy.search.layers import layers_of
from autodeploy.search.selecting import live_of, passes_of, prices_of
from autodeploy.spec.layout import apart
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space

POINTS = 9
"""Of a frontier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """Rows that a stage does not keep on the device."""

    part: str
    action: str
    """`rebuild` or `swap`."""
    layers: int
    of_layers: int
    """Layers of the stage that have such rows."""
    saved_bytes: float
    """Over all live microbatches, at the fullest moment."""
    added_s: float
    """In a step, where nothing hides it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tradeoff:
    """The least time for so much memory."""

    allocated_bytes: float
    """At most, while passes run."""
    added_s: float
    """In a step."""


def items_of(space: Space, plan: Plan, found: Arranged, rungs: Ladder, stage: int) -> list[Item]:
    """What one stage rebuilds and swaps."""
    cost = found.stages[found.case.layout.role_of_stage[stage]]
    if cost.chosen:
        return list(_solved_items(found, cost))
    return list(_ruled_items(space, plan, found, rungs, cost))


def _ruled_items(space: Space, plan: Plan, found: Arranged, rungs: Ladder, cost: StageCost) -> Iterator[Item]:
    costs, _ = layers_of(space, plan)
    moments = live_layers(found.case.shape(found.case.live_microbatches), cost.role, found.microbatches)
    names = [Module(int(place)) for place in rungs.order[: rungs.lowest + int(cost.memory.rung)]]
    share = rungs.share_frac
    for module in names:
        have = [kind for kind in cost.role.kinds if kind in LAYERS and costs[kind].rows_bytes[module] > 0.0]
        saved = max(sum(n * share * costs[k].rows_bytes[module] for k, n, _ in live if k in have) for live in moments)
        seconds = sum(cost.role.count(kind) * share * costs[kind].rebuild[module].alone for kind in have)
        count = sum(cost.role.count(kind) for kind in have)
        if count:
            yield Item(
                part=MODULE_WORDS[module], action="rebuild", layers=round(share * count), of_layers=count,
                saved_bytes=float(saved), added_s=float(found.microbatches * seconds),
            )  # fmt: skip


def _solved_items(found: Arranged, cost: StageCost) -> Iterator[Item]:
    chosen = cost.chosen
    assert chosen is not None
    need, rows = chosen.need, list(zip(chosen.need.classes, chosen.selection.counts, strict=True))
    names = dict.fromkeys(part.name for layers, _ in rows for part in layers.parts)
    for name in (MODULE_WORDS[Module.FULL], *names):
        for action in ("rebuild", "swap"):
            item = _summed(need, rows, name, action, float(found.microbatches))
            if item.layers:
                yield item


def _summed(need: StageNeed, rows: list, name: str, action: str, microbatches: float) -> Item:
    """One part over all classes of a stage."""
    saved = [0.0 for _ in need.need_bytes]
    count, have, seconds = 0, 0, 0.0
    for layers, counts in rows:
        options = [(name, sum(p.kept_bytes for p in layers.parts if p.in_full), layers.full_s, counts.full, 0)]
        if name != MODULE_WORDS[Module.FULL]:
            moved = zip(layers.parts, counts.rebuilt, counts.swapped, strict=True)
            options = [(p.name, p.kept_bytes, p.rebuild_s, x, y) for p, x, y in moved if p.name == name]
        for _, size, rebuild_s, rebuilt, swapped in options:
            n = rebuilt if action == "rebuild" else swapped
            each_s = (rebuild_s or 0.0) if action == "rebuild" else size * need.swap_s_per_byte
            count, have, seconds = count + n, have + layers.count, seconds + n * each_s
            saved = [total + live * n * size for total, live in zip(saved, layers.live, strict=True)]
    return Item(
        part=name, action=action, layers=count, of_layers=have, saved_bytes=max(saved), added_s=microbatches * seconds
    )


def tradeoffs(space: Space, plan: Plan, found: Arranged, stage: int, points: int = POINTS) -> list[Tradeoff]:
    """Memory of one stage against the least time that its recompute adds, from everything kept to as little as can be.
    Of a plan that swaps nothing, what rebuilding alone can do."""
    costs, rungs = layers_of(space, plan)
    common = common_of(space, plan.pp, plan, costs, rungs)
    case, limits = found.case, common.limits
    cost = found.stages[case.layout.role_of_stage[stage]]
    role = apart(case.layout).roles[stage]
    live = live_of(found.microbatches, case, role)
    fixed = (
        resident_bytes(limits, cost.params) + cost.held.always + working_buffers(limits, role, passes_of(live, role))
    )
    need = need_of(role, prices_of(common, case), live, fixed, (0.0, limits.host_bytes, 0.0))
    whole = max(need.need_bytes)
    return [
        Tradeoff(allocated_bytes=whole - point.saved_bytes, added_s=float(found.microbatches) * point.added_s)
        for point in frontier(need, points)
    ]
