"""What breaks first: how far expert imbalance, sequence, microbatch or fragmentation may grow until a plan, rebuilding
and swapping what it does now, no longer fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from autodeploy.analysis.ops import MODULE_WORDS, Module
from autodeploy.balance.fit import beside, resident_bytes, working_buffers
from autodeploy.balance.recompute import Ladder, folded, known_modules
from autodeploy.balance.solving import LAYERS, Prices, delayed_rows, held_at, price_layer
from autodeploy.cost.memory import stage_params
from autodeploy.numeric import minimum
from autodeploy.search.arrange import common_of
from autodeploy.search.arranged import Arranged, Common, StageCost
from autodeploy.search.layers import layers_of
from autodeploy.search.selecting import live_of, passes_of
from autodeploy.spec.layout import Role, apart
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Overlap, Plan
from autodeploy.spec.space import Space
from autodeploy.spec.target import SWAP_PARTS

MOST_FACTOR = 16.0
"""Growth beyond which nobody asks."""
STEPS = 24
FULL = MODULE_WORDS[Module.FULL]
Shares = Mapping[str, float]
"""Part (or `full`) -> share of the layers that rebuild or swap it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pressure:
    """One thing that may grow."""

    name: str
    now: float
    breaks_at: float | None
    """The first value found that does not fit; None where none up to 16 times as much breaks."""
    stage: int | None
    """The stage that breaks."""

    @property
    def growth(self) -> float:
        """How many times as much breaks; infinite where nothing does."""
        return self.breaks_at / self.now if self.breaks_at else float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """A plan whose choices are held: per stage and (chunk, kind) the shares that are rebuilt or swapped."""

    found: Arranged
    shares: tuple[dict[tuple[int, Kind], Shares], ...]


def pressures(space: Space, plan: Plan, found: Arranged, rungs: Ladder) -> list[Pressure]:
    """All that applies to a plan that fits, what breaks soonest first."""
    held = _Held(found=found, shares=tuple(_shares(found, rungs, stage) for stage in range(plan.pp)))
    return sorted(_each(space, plan, held), key=lambda each: each.growth)


def _each(space: Space, plan: Plan, held: _Held) -> Iterator[Pressure]:
    job = space.job
    if plan.ep > 1:
        yield _grown(
            "imbalance", job.expert_imbalance, held,
            lambda value: (replace(space, job=replace(job, expert_imbalance=value)), plan),
        )  # fmt: skip
    yield _grown(
        "sequence", 1.0 * job.seq_len, held,
        lambda value: (replace(space, job=replace(job, seq_len=round(value))), plan),
    )  # fmt: skip
    yield _counted("microbatch", plan.mbs, held, lambda value: (space, replace(plan, mbs=value)))
    cluster = space.cluster
    yield _grown(
        "fragmentation", cluster.fragmentation_frac, held,
        lambda value: (replace(space, cluster=replace(cluster, fragmentation_frac=min(value, 0.99))), plan),
    )  # fmt: skip


Asked = Callable[[float], tuple[Space, Plan]]


def _grown(name: str, now: float, held: _Held, ask: Asked) -> Pressure:
    """Bisection between what is now and 16 times as much."""
    low, high = now, now * MOST_FACTOR
    stage = _breaking(held, *ask(high)) if now else None
    if stage is None:
        return Pressure(name=name, now=now, breaks_at=None, stage=None)
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        broken = _breaking(held, *ask(middle))
        if broken is None:
            low = middle
        else:
            high, stage = middle, broken
    return Pressure(name=name, now=now, breaks_at=high, stage=stage)


def _counted(name: str, now: int, held: _Held, ask: Callable[[int], tuple[Space, Plan]]) -> Pressure:
    for value in range(now + 1, int(now * MOST_FACTOR) + 1):
        stage = _breaking(held, *ask(value))
        if stage is not None:
            return Pressure(name=name, now=now, breaks_at=value, stage=stage)
    return Pressure(name=name, now=now, breaks_at=None, stage=None)


def _breaking(held: _Held, space: Space, plan: Plan) -> int | None:
    """The stage that is furthest beyond the device, if one is."""
    costs, rungs = layers_of(space, plan)
    common = common_of(space, plan.pp, plan, costs, rungs)
    case = held.found.case
    roles = apart(case.layout).roles
    prices = _prices(common, held)
    over = [
        _allocated(common, held, role, prices, shares) - float(common.limits.capacity_bytes)
        for role, shares in zip(roles, held.shares, strict=True)
    ]
    worst = max(range(len(over)), key=over.__getitem__)
    return worst if over[worst] > 0.0 else None


def _prices(common: Common, held: _Held) -> dict[Kind, Prices]:
    overlap = held.found.case.overlap
    modules = known_modules(common.costs, overlap, common.space.target.profile)
    buffers = 2.0 if overlap == Overlap.PAIR else 0.0
    return {
        kind: price_layer(folded(cost, modules), modules, buffers, SWAP_PARTS, 0.0)
        for kind, cost in common.costs.items()
    }


def _allocated(
    common: Common, held: _Held, role: Role, prices: Mapping[Kind, Prices], shares: dict[tuple[int, Kind], Shares]
) -> float:
    """The fullest moment of one stage, its choices held."""
    space, plan, found = common.space, common.plan, held.found
    params = stage_params(space.model, found.case.layout.pp, role, common.costs)
    beside_rows = beside(space.machine, space.job, plan, role, params, common.costs)
    live = live_of(minimum(found.microbatches, common.microbatches), found.case, role)
    rows = [
        sum(chunk[kind] * _kept(prices[kind], shares.get((place, kind), {})) for kind in role.kinds)
        for place, chunk in enumerate(role.chunks)
    ]
    rows += delayed_rows(role, prices)
    solved = found.stages[found.case.layout.role_of_stage[role.stages[0]]].chosen is not None
    passes = max(held_at(rows, moment) for moment in live) + working_buffers(common.limits, role, passes_of(live, role))
    passes += _working(role, prices, shares, solved)
    state = resident_bytes(common.limits, params) + beside_rows.always
    return float(max(state + max(passes, beside_rows.update), beside_rows.start))


def _working(role: Role, prices: Mapping[Kind, Prices], shares: dict[tuple[int, Kind], Shares], solved: bool) -> float:
    """One layer's backward pass, by the rule under which the plan was arranged: the ladder takes the largest layer, a
    solved selection the largest work and the largest rebuilding."""
    rebuilt = dict.fromkeys(role.kinds, 0.0)
    for (_, kind), each in shares.items():
        rebuilt[kind] = max(rebuilt[kind], _at_work(prices[kind], each))
    if solved:
        return max(prices[kind].working_bytes for kind in role.kinds) + max(rebuilt.values())
    return max(prices[kind].working_bytes + rebuilt[kind] for kind in role.kinds)


def _kept(prices: Prices, shares: Shares) -> float:
    """Bytes that one layer keeps on average."""
    whole = shares.get(FULL, 0.0)
    dropped = [part.kept_bytes * min(shares.get(part.name, 0.0) + whole, 1.0) for part in prices.parts]
    return prices.kept_bytes - sum(dropped)


def _at_work(prices: Prices, shares: Shares) -> float:
    """What one layer rebuilds at a time."""
    if shares.get(FULL):
        return sum(part.kept_bytes for part in prices.parts)
    return max((part.kept_bytes for part in prices.parts if shares.get(part.name)), default=0.0)


def _shares(found: Arranged, rungs: Ladder, stage: int) -> dict[tuple[int, Kind], Shares]:
    """Of every chunk and kind of one stage: the share of layers that rebuild or swap each part."""
    cost = found.stages[found.case.layout.role_of_stage[stage]]
    if cost.chosen:
        return _solved_shares(cost)
    names = [MODULE_WORDS[int(place)] for place in rungs.order[: rungs.lowest + int(cost.memory.rung)]]
    shares = {FULL: rungs.share_frac} if FULL in names else dict.fromkeys(names, 1.0)
    return {(place, kind): shares for place, chunk in enumerate(cost.role.chunks) for kind in LAYERS if chunk[kind]}


def _solved_shares(cost: StageCost) -> dict[tuple[int, Kind], Shares]:
    assert cost.chosen is not None
    out: dict[tuple[int, Kind], Shares] = {}
    for layers, counts in zip(cost.chosen.need.classes, cost.chosen.selection.counts, strict=True):
        place, _, kind = layers.label.partition(":")
        moved = zip(layers.parts, counts.rebuilt, counts.swapped, strict=True)
        each = {part.name: (x + y) / layers.count for part, x, y in moved if x + y}
        out[int(place), Kind[kind.upper()]] = each | ({FULL: counts.full / layers.count} if counts.full else {})
    return out
