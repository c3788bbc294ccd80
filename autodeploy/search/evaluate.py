"""One plan in full: arranged as the screen arranges it, simulated, and taken apart into terms and stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autodeploy.analysis.ends import logits_of_token
from autodeploy.analysis.inventory import tokens_of
from autodeploy.analysis.ops import MODULE_WORDS, Module
from autodeploy.analysis.readings import flop_per_token
from autodeploy.balance.fit import idle_layers, live_layers, live_passes, swapped_bytes
from autodeploy.balance.moments import FIRST_STEP, Passes, Terms, allocated_of, fullest, moments_of, reserved_of
from autodeploy.balance.recompute import PARTIAL, Ladder
from autodeploy.balance.solving import held_at, is_solved, words_of
from autodeploy.balance.swap import swapped_parts
from autodeploy.cost.layers import ENGINE_WORDS, LayerCost
from autodeploy.cost.memory import activation_bytes, gradient_copies, transient_bytes
from autodeploy.errors import spec_error
from autodeploy.search.arrange import common_of, lay_out, stage_work_s_of
from autodeploy.search.arranged import Arranged, StageCost
from autodeploy.search.layers import layers_of
from autodeploy.search.result import TIME_TERMS, PlanResult, StageResult
from autodeploy.search.screen import cases_of
from autodeploy.search.selecting import improved, live_of, passes_of
from autodeploy.search.split import alternating_by, exchange_s, recompute_s, step_split
from autodeploy.search.steps import Apart, Steps, simulate_steps
from autodeploy.spec.arrangement import Arrangement
from autodeploy.spec.layout import expand, role_at
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space

SNAP_FRAC = 1e-12
"""Less of a step is what rounding leaves."""
FLOP_CONVENTION = "3 x forward, causal attention halved, router left out, MTP with its head pass if trained"


def evaluate(space: Space, plan: Plan, found: Arranged | None = None) -> PlanResult:
    """Everything about one legal plan, as `found` arranges it if that is known. Raises `SpecError` where it has no
    layout."""
    costs, rungs = layers_of(space, plan)
    found = found or arranged(space, plan)
    steps = simulate_steps(found, int(found.microbatches), take_apart=True)
    return _result(space, plan, found, costs, rungs, steps)


def arranged(space: Space, plan: Plan) -> Arranged:
    """One plan on the best of its layouts, costed in closed form. Raises `SpecError` where it has none."""
    cases = cases_of(space, plan)
    if not cases:
        raise spec_error("plan", f"no layout for pp {plan.pp} x vpp {plan.vpp} by rule {plan.layout!r} (rule L01)")
    costs, rungs = layers_of(space, plan)
    common = common_of(space, plan.pp, plan, costs, rungs)
    ruled = best_arrangement([lay_out(common, case) for case in cases])
    return improved(common, ruled) if is_solved(plan.recompute) else ruled


def best_arrangement(options: list[Arranged]) -> Arranged:
    """The first that fits with the least screen time; where none fits, the one that needs least memory."""
    fitting = [option for option in options if option.fits]
    if fitting:
        return min(fitting, key=lambda option: option.screen_s)
    return min(options, key=lambda option: option.needed_bytes)


def _result(
    space: Space, plan: Plan, found: Arranged, costs: Mapping[Kind, LayerCost], rungs: Ladder, steps: Steps
) -> PlanResult:
    step, apart = float(steps.step_s[0]), steps.apart
    assert apart is not None
    tokens = space.job.gbs * space.job.seq_len / step / space.devices
    flop = flop_per_token(space.model, space.job.seq_len, space.job.mtp, document_len=space.job.mean_document)
    peak = space.cluster.device.peak_flop_per_s
    stages = _stages(space, plan, found, rungs, steps)
    busiest = max(range(len(stages)), key=lambda i: stages[i].busy_s + stages[i].tail_s)
    role = found.stages[found.case.layout.role_of_stage[busiest]]
    terms = _time_terms(found, role, stages[busiest], costs, step, apart)
    exchange = exchange_s(found, role)
    return PlanResult(
        plan=plan,
        arrangement=_arrangement(found, rungs),
        microbatches=int(found.microbatches),
        step_time_s=step,
        bound_s=float(found.bound_s),
        screen_s=float(found.screen_s),
        tokens_per_s_per_device=tokens,
        mfu_frac=tokens * flop / peak,
        mfu_peak_flop_per_s=peak,
        flop_convention=FLOP_CONVENTION,
        peak_memory_bytes=float(found.peak_bytes),
        needed_memory_bytes=float(found.needed_bytes),
        usable_memory_bytes=space.cluster.device.usable_bytes,
        fits=bool(found.fits),
        stages=stages,
        time_terms=terms,
        time_split=step_split(found, stages, costs, step, apart),
        alternating_by=alternating_by(found, role),
        exchange_hidden_frac=1.0 - terms["expert_exchange"] / exchange if exchange else None,
        busiest_stage=busiest,
        ideal_step_time_s=_ideal_s(found, costs),
    )


def _ideal_s(found: Arranged, costs: Mapping[Kind, LayerCost]) -> float:
    """Compute of the whole model spread evenly over the stages, nothing repeated, nothing waited for."""
    each = {
        kind: sum(cost.forward_terms[name] + cost.backward_terms[name] for name in ENGINE_WORDS)
        for kind, cost in costs.items()
    }
    whole = sum(
        len(stage.role.stages) * sum(stage.role.count(kind) * each[kind] for kind in stage.role.kinds)
        for stage in found.stages
    )
    return float(found.microbatches * whole / found.case.layout.pp)


def modules_on(rungs: Ladder, rung: int) -> tuple[str, ...]:
    """Names of the modules that a stage on a rung rebuilds; all of them together are `full`."""
    count = rungs.lowest + rung
    modules = [Module(int(place)) for place in rungs.order[:count]]
    if Module.FULL in modules:
        return (MODULE_WORDS[Module.FULL] if rungs.share_frac == 1.0 else f"{PARTIAL}{rungs.share_frac:g}",)
    return tuple(MODULE_WORDS[module] for module in sorted(modules))


def _arrangement(found: Arranged, rungs: Ladder) -> Arrangement:
    layout, swapped = found.case.layout, swapped_parts(found.case.policy)
    chosen = [words_of(stage.chosen) for stage in found.stages if stage.chosen]
    if chosen:
        moved = tuple(words for _, words in chosen)
        return Arrangement(
            layout=layout.notation,
            layout_rule=found.case.rule,
            recompute=tuple(words for words, _ in chosen),
            swap=moved if any(moved) else (),
        )
    per_role = [
        tuple(name for name in modules_on(rungs, int(stage.memory.rung)) if _has_rows(name, stage))
        for stage in found.stages
    ]
    return Arrangement(
        layout=layout.notation,
        layout_rule=found.case.rule,
        recompute=tuple(per_role[role] for role in layout.role_of_stage),
        swap=tuple(swapped for _ in range(layout.pp)) if swapped else (),
    )


_DENSE_ONLY = {Module.MLP, Module.MLP_ACT}
_SPARSE_ONLY = {Module.MOE, Module.MOE_ACT, Module.SHARED_EXPERTS}


def _has_rows(name: str, stage: StageCost) -> bool:
    """Whether a stage holds layers in which there is something of a module to rebuild."""
    module = Module[name.split(":", maxsplit=1)[0].upper()]
    dense = stage.role.count(Kind.DENSE) > 0
    sparse = stage.role.count(Kind.SPARSE) + stage.role.count(Kind.MTP) > 0
    if module in _DENSE_ONLY:
        return dense
    return sparse if module in _SPARSE_ONLY else dense or sparse


def _stages(space: Space, plan: Plan, found: Arranged, rungs: Ladder, steps: Steps) -> tuple[StageResult, ...]:
    layout, recompute = found.case.layout, _arrangement(found, rungs).recompute
    slots = expand(layout.notation)
    out = []
    for stage in range(layout.pp):
        cost = found.stages[layout.role_of_stage[stage]]
        out.append(
            StageResult(
                stage=stage,
                layers=tuple(slots[slot] for slot in layout.slots_of(stage)),
                recompute=recompute[stage],
                busy_s=float(stage_work_s_of(found, cost, stage)),
                finish_s=float(steps.finish_s[stage, 0]),
                tail_s=float(cost.tail.seconds),
                **_memory(space, plan, found, rungs, cost, stage),
            )
        )
    return tuple(out)


def _memory(space: Space, plan: Plan, found: Arranged, rungs: Ladder, cost: StageCost, stage: int) -> dict[str, Any]:
    """The memory fields of a stage, by its own live microbatches."""
    lost, profile = space.cluster.fragmentation_frac, space.target.profile
    passes = _passes(found, rungs, cost, stage)
    moments = moments_of(space.job, profile, plan, cost.role, found.limits, cost.params, cost.held, passes, lost)
    worst, last = fullest(moments), moments["update"]
    peak = allocated_of(moments[worst])
    first = max(allocated_of(moments[name]) for name in FIRST_STEP)
    return {
        "peak_memory_bytes": peak,
        "reserved_bytes": (reserved_of(moments, profile) + _left_block(space, plan, cost)) / (1.0 - lost),
        "needed_bytes": peak / (1.0 - lost) + float(found.limits.communicators),
        "allocated_first_step_bytes": _after_first_step(space, plan, found, cost, last),
        "first_step_peak_bytes": first,
        "host_bytes": float(passes.host),
        "fits": bool(peak <= found.limits.capacity_bytes and passes.host <= found.limits.host_bytes),
        "fullest_moment": worst,
        "memory_terms": moments[worst],
        "memory_moments": moments,
    }


def _left_block(space: Space, plan: Plan, cost: StageCost) -> float:
    """What the forward pass of the loss leaves to the allocator for nothing."""
    profile = space.target.profile
    if not profile.logit_block_bytes or not cost.role.count(Kind.HEAD):
        return 0.0
    tokens = tokens_of(space.job, plan)
    return float(profile.logit_block_bytes * tokens.whole * logits_of_token(space.model, tokens, profile))


def _after_first_step(space: Space, plan: Plan, found: Arranged, cost: StageCost, update: Terms) -> float:
    """State, copies of gradients, and the buffers of messages that came."""
    profile = space.target.profile
    copies = 0.0 if profile.gradient_copy_freed else gradient_copies(profile, space.job, plan, cost.params)
    received = found.limits.boundary if cost.role.stages[0] else 0.0
    return float(allocated_of(update) - update["copies"] + copies + received)


def _passes(found: Arranged, rungs: Ladder, cost: StageCost, stage: int) -> Passes:
    if cost.chosen:
        return _solved_passes(found, rungs, cost)
    alone = role_at(cost.role, stage)
    shape = found.case.shape(found.case.live_microbatches)
    live, idle = live_layers(shape, alone, found.microbatches), idle_layers(shape, alone)
    rung = int(cost.memory.rung)
    return Passes(
        rows=activation_bytes(rungs.kept_bytes, rungs.delayed_bytes, live, rung),
        idle=activation_bytes(rungs.kept_bytes, rungs.delayed_bytes, idle, rung),
        forward=max(rungs.forward_bytes[kind] for kind in cost.role.kinds),
        backward=transient_bytes(rungs.transient_bytes, cost.role, rung),
        live=live_passes(alone, live),
        host=cost.held.host + swapped_bytes(rungs, live),
    )


def _solved_passes(found: Arranged, rungs: Ladder, cost: StageCost) -> Passes:
    """The same of a stage with a solved selection."""
    chosen, live = cost.chosen, live_of(found.microbatches, found.case, cost.role)
    assert chosen is not None
    return Passes(
        rows=max(held_at(chosen.kept_bytes, moment) for moment in live),
        forward=max(rungs.forward_bytes[kind] for kind in cost.role.kinds),
        backward=chosen.transient_bytes,
        live=passes_of(live, cost.role),
        host=cost.held.host + max(held_at(chosen.moved_bytes, moment) for moment in live),
    )


def _time_terms(
    found: Arranged, cost: StageCost, stage: StageResult, costs: Mapping[Kind, LayerCost], step: float, apart: Apart
) -> dict[str, float]:
    """The step on its busiest stage. What merged passes hide is not in it; what they do not hide is counted as
    expert exchange."""
    each = found.microbatches
    names = (*ENGINE_WORDS, "launch", "tensor_parallel", "context_parallel")
    terms = {
        name: each
        * sum(
            cost.role.count(kind) * (costs[kind].forward_terms[name] + costs[kind].backward_terms[name])
            for kind in cost.role.kinds
        )
        for name in names
    }
    terms["recompute"] = recompute_s(found, cost)
    terms["weight_gather"] = each * cost.sharding_s
    terms["expert_exchange"] = max(stage.busy_s - sum(terms.values()), 0.0)
    tail = cost.tail
    terms |= {name: getattr(tail, name) for name in ("grad_sync", "param_sync", "optimizer", "shared_weights")}
    terms["pipeline_send"] = step - float(apart.without_sends_s[0])
    rest = step - sum(terms.values())
    terms["bubble"] = 0.0 if abs(rest) <= SNAP_FRAC * step else rest
    return {name: float(terms[name]) for name in TIME_TERMS}
