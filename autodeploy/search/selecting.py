"""Exact selection for one plan: what each stage and chunk rebuilds or swaps, solved and put back into the plan.

A stage's need comes from its own live microbatches; the chosen loads make new slots, which are simulated like any
others, so that time on a stage that waits is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from autodeploy.balance.fit import StageMemory, resident_bytes, working_buffers
from autodeploy.balance.recompute import folded, known_modules
from autodeploy.balance.selection import greedy
from autodeploy.balance.selection_values import Selection, StageNeed, evaluate, fits
from autodeploy.balance.solving import (
    Chosen,
    Live,
    Prices,
    chosen_of,
    held_at,
    is_solved,
    need_of,
    places_of,
    price_layer,
    rebuilt_load,
    swap_share,
)  # fmt: skip
from autodeploy.cost.compute import hbm_s
from autodeploy.cost.load import Load, sum_loads
from autodeploy.cost.slots import chunk_loads
from autodeploy.numeric import Num
from autodeploy.schedule.live import corners, live_chunks
from autodeploy.schedule.orders import warm_up
from autodeploy.search.alike import select_within
from autodeploy.search.arrange import StageNeeds, cost_stage, put_together
from autodeploy.search.arranged import Arranged, Case, Common, StageCost
from autodeploy.search.steps import step_s_of
from autodeploy.spec.layout import Role, apart
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Overlap

WITHIN_FRAC = 1e-3
"""A selection may add so much more than the least, as a share of a stage's passes."""
FREE_FRAC = 0.95
"""Of the busiest stage's passes: below that a stage waits anyway, but while the pipeline fills and drains."""
WORTH_SWAPPING = ("attention", "mla_up_proj", "mlp", "moe")
"""Parts that are dear to rebuild; the others are cheaper rebuilt than moved."""
COPIES = 2.0
"""Times that a swapped byte passes the device's memory: read on its way out, written on its way back."""


def improved(common: Common, ruled: Arranged) -> Arranged:
    """A plan arranged by the ladder, or with the exact selection of every stage where that fits and is faster."""
    found = solved(common, ruled)
    if found is None or (ruled.fits and step_s_of(ruled) < step_s_of(found)):
        return ruled
    return found


def solved(common: Common, ruled: Arranged) -> Arranged | None:
    """A plan with solved selections; None where some stage fits with none."""
    case = replace(ruled.case, layout=apart(ruled.case.layout))
    prices, roles = prices_of(common, case), case.layout.roles
    likes = [ruled.stages[ruled.case.layout.role_of_stage[role.stages[0]]] for role in roles]
    needs = [_need(common, case, role, like, prices) for role, like in zip(roles, likes, strict=True)]
    selections = _selections(case, common, needs, likes)
    if selections is None:
        return None
    parts = zip(roles, likes, needs, selections, strict=True)
    return put_together(common, case, tuple(_stage(common, case, *part, prices) for part in parts))


def _selections(
    case: Case, common: Common, needs: Sequence[StageNeed], likes: Sequence[StageCost]
) -> list[Selection] | None:
    """What every stage rebuilds and swaps. The fullest stage of each role is solved exactly, the busiest first; one
    that stays well below the busiest with the greedy choice keeps that, for time on it is free. The other stages of a
    role, where less is live, take its choice or the greedy one for their own need, whichever adds less."""
    firsts: dict[int, int] = {}
    for place, like in enumerate(likes):
        firsts.setdefault(id(like), place)
    rough = {place: greedy(needs[place]) for place in firsts.values()}
    passes = {place: _plain_s(case, common, likes[place]) for place in firsts.values()}
    found: dict[int, Selection] = {}
    busiest_s = 0.0
    for place in sorted(rough, key=lambda place: -_with_s(passes[place], rough[place])):
        choice = rough[place]
        if choice is None or passes[place] + choice.added_s > FREE_FRAC * busiest_s:
            choice = _selected(needs[place], WITHIN_FRAC * passes[place])
        if choice is None:
            return None
        found[place], busiest_s = choice, max(busiest_s, passes[place] + choice.added_s)
    each = [_cheaper(need, found[firsts[id(like)]]) for need, like in zip(needs, likes, strict=True)]
    return None if None in each else [choice for choice in each if choice is not None]


def _with_s(pass_s: float, choice: Selection | None) -> float:
    return float("inf") if choice is None else pass_s + choice.added_s


def _plain_s(case: Case, common: Common, like: StageCost) -> float:
    """One microbatch through all chunks of a stage with nothing rebuilt."""
    plain = chunk_loads(like.role, {kind: common.costs[kind].backward for kind in like.role.kinds}, common.sharding, 1)
    loads = zip(like.role.content_counts, like.forward, plain, strict=True)
    return float(sum(count * (case.pass_s(f) + case.pass_s(b)) for count, f, b in loads))


def prices_of(common: Common, case: Case) -> Mapping[Kind, Prices]:
    """What the parts of every kind of layer weigh and cost under a plan."""
    space, profile = common.space, common.space.target.profile
    modules = known_modules(common.costs, case.overlap, profile)
    share = swap_share(case.policy) if is_solved(case.policy) else 0.0
    swappable = WORTH_SWAPPING if share else ()
    link = share * space.machine.cluster.device.host_bytes_per_s
    buffers = 2.0 if case.overlap == Overlap.PAIR else 0.0
    return {
        kind: price_layer(folded(cost, modules), modules, buffers, swappable, link)
        for kind, cost in common.costs.items()
    }


def _need(common: Common, case: Case, role: Role, like: StageCost, prices: Mapping[Kind, Prices]) -> StageNeed:
    """What a single stage has to save; `like` is its role as the ladder arranged it."""
    limits, live = common.limits, live_of(common.microbatches, case, role)
    fixed = (
        resident_bytes(limits, like.params) + like.held.always + working_buffers(limits, role, passes_of(live, role))
    )
    bounds = (limits.capacity_bytes, limits.host_bytes, _copy_s(common))
    return need_of(role, prices, live, fixed, bounds)


def _copy_s(common: Common) -> float:
    """Seconds that a swapped byte takes of the memory's rate."""
    return float(hbm_s(common.space.machine.cluster.device, COPIES))


def _stage(
    common: Common,
    case: Case,
    role: Role,
    like: StageCost,
    need: StageNeed,
    selection: Selection,
    prices: Mapping[Kind, Prices],
) -> StageCost:
    """A single stage with its selection."""
    limits, live = common.limits, live_of(common.microbatches, case, role)
    state = resident_bytes(limits, like.params) + like.held.always
    chosen = chosen_of(role, prices, need, selection)
    passes = max(held_at(chosen.kept_bytes, moment) for moment in live) + chosen.transient_bytes
    passes += working_buffers(limits, role, passes_of(live, role))
    memory = StageMemory(
        rung=0,
        allocated_bytes=max(state + max(passes, like.held.update), like.held.start),
        host_bytes=like.held.host + max(held_at(chosen.moved_bytes, moment) for moment in live),
    )
    rebuilt = _rebuilt(common, role, prices, chosen, _copy_s(common))
    stage = cost_stage(common, case, role, StageNeeds(like.params, like.held, memory), rebuilt)
    return replace(stage, chosen=chosen)


@lru_cache(maxsize=8192)
def _selected(need: StageNeed, within_s: float) -> Selection | None:
    """Plans that differ in the layers of other stages, or in what they have to spare there, ask the same."""
    return select_within(need, within_s)


def _cheaper(need: StageNeed, first: Selection) -> Selection | None:
    """The selection of the role's fullest stage, or a cheaper one of the greedy kind."""
    if max(need.need_bytes) <= 0.0:
        return greedy(need)
    options = [evaluate(need, first.counts), greedy(need)]
    fitting = [option for option in options if option is not None and fits(need, option)]
    return min(fitting, key=lambda option: option.added_s, default=None)


def live_of(microbatches: Num, case: Case, role: Role) -> Live:
    """Live microbatches per chunk of a single stage, at every moment that can be its peak."""
    shape, stage = case.shape(case.live_microbatches), role.stages[0]
    if shape.vpp > 1 or shape.split:
        return corners(live_chunks(shape, stage))
    first = 0 if shape.overlap == Overlap.PAIR else 1
    many = replace(shape, microbatches=int(microbatches))
    return ((min(warm_up(many, stage) + first, int(microbatches)),),)


def passes_of(live: Live, role: Role) -> int:
    """Most passes of one chunk that are live at once."""
    return max(sum(moment[: len(role.chunks)]) for moment in live)


def _rebuilt(
    common: Common, role: Role, prices: Mapping[Kind, Prices], chosen: Chosen, copy_s: float
) -> tuple[dict[Kind, Load], tuple[Load, ...]]:
    """(mean load that a layer of each kind repeats, backward load of every chunk)."""
    extra: list[list[Load]] = [[] for _ in role.chunks]
    of_kind: dict[Kind, list[Load]] = {kind: [] for kind in role.kinds}
    for (place, kind), counts in zip(places_of(role), chosen.selection.counts, strict=True):
        load = rebuilt_load(prices[kind], counts, copy_s)
        extra[place].append(load)
        of_kind[kind].append(load)
    plain = chunk_loads(role, {kind: common.costs[kind].backward for kind in role.kinds}, common.sharding, 1)
    backward = tuple(load.plus(sum_loads(more)) for load, more in zip(plain, extra, strict=True))
    return {kind: sum_loads(loads).times(1.0 / role.count(kind)) for kind, loads in of_kind.items()}, backward
