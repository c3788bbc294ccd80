"""One step of a plan, event by event: what its stages do, and the memory that they hold meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autodeploy.balance.recompute import Ladder
from autodeploy.cost.load import IDLE
from autodeploy.cost.memory import activation_bytes
from autodeploy.schedule.program import compile_program
from autodeploy.schedule.timeline import COMPUTE, EXCHANGE, Event, Level, live_levels, step_events
from autodeploy.search.arranged import Arranged, StageCost
from autodeploy.search.evaluate import arranged, evaluate
from autodeploy.search.exchanges import exchanges, exchanges_alone
from autodeploy.search.layers import layers_of
from autodeploy.search.result import PlanResult, StageResult
from autodeploy.search.steps import durations_of
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space

AFTER = ("grad_sync", "shared_weights", "optimizer", "param_sync")
"""What follows the pipeline of a stage, in order: time terms of the step."""
VARYING = ("activations", "transient")
"""Memory terms that come and go within a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimeline:
    """A simulated step of a plan."""

    result: PlanResult
    events: tuple[Event, ...]
    memory: tuple[tuple[Level, ...], ...]
    """Of every stage."""


def timeline_of(space: Space, plan: Plan) -> StepTimeline:
    """The step that `evaluate` gives a plan, taken apart. Raises `SpecError` where it has no layout."""
    found, (_, rungs) = arranged(space, plan), layers_of(space, plan)
    result = evaluate(space, plan)
    costs = [found.stages[role] for role in found.case.layout.role_of_stage]
    events = step_events(
        compile_program(found.case.shape(result.microbatches)),
        durations_of(found),
        [{name: float(getattr(cost.tail, name)) for name in AFTER} for cost in costs],
    )
    inner = [each for event in events if event.lane == COMPUTE for each in _exchanges(found, costs[event.rank], event)]
    memory = [
        _memory(stage, cost, rungs, [e for e in events if e.rank == stage.stage and e.lane == COMPUTE])
        for stage, cost in zip(result.stages, costs, strict=True)
    ]
    return StepTimeline(result=result, events=(*events, *inner), memory=tuple(memory))


def _exchanges(found: Arranged, cost: StageCost, op: Event) -> Iterator[Event]:
    """The all-to-alls within an op, one after the other for each of its layers, at their even share of it."""
    content, sends_s = cost.role.content_of_chunk, float(found.pipe.sends_s)
    forward = cost.forward[content[op.forward.chunk]] if op.forward else IDLE
    backward = cost.backward[content[op.backward.chunk]] if op.backward else IDLE
    if forward.exchange + backward.exchange <= 0.0:
        return
    if op.forward and op.backward:
        each = exchanges(forward, backward, sends_s, found.case.taken_frac)
    else:
        each = exchanges_alone(forward if op.forward else backward, op.duration_s, op.backward is not None)
    halves = [half for half in (op.forward, op.backward) if half]
    layers = max(_sparse(cost, half.chunk) for half in halves)
    for layer in range(layers):
        for one in each:
            side = {"backward": op.backward} if one.is_backward else {"forward": op.forward}
            start = op.start_s + (layer + one.start_frac) / layers * op.duration_s
            yield Event(
                rank=op.rank, lane=EXCHANGE, kind=one.name, start_s=start, duration_s=one.duration_s / layers, **side
            )


def _sparse(cost: StageCost, chunk: int) -> int:
    """Layers with experts in a chunk of a stage."""
    held = cost.role.chunks[chunk]
    return held[Kind.SPARSE] + held[Kind.MTP]


def _memory(stage: StageResult, cost: StageCost, rungs: Ladder, ops: Sequence[Event]) -> tuple[Level, ...]:
    """The terms of a stage's peak over time."""
    terms = stage.memory_moments["backward"]
    rows = list(cost.chosen.kept_bytes) if cost.chosen else _chunk_bytes(cost, rungs)
    static = sum(value for name, value in terms.items() if name not in VARYING)
    chunks = len(cost.role.chunks)
    return tuple(live_levels(ops, rows[:chunks], static, terms["transient"], rows[chunks:]))


def _chunk_bytes(cost: StageCost, rungs: Ladder) -> list[float]:
    """Per chunk: rows of a live microbatch; after them, what one holds that waits for its weight gradients."""
    rung, kept, delayed = int(cost.memory.rung), rungs.kept_bytes, rungs.delayed_bytes
    halves = [(content, live) for live in (1, 0) for content in cost.role.distinct]
    moments = [[(kind, n * live, n * (1 - live)) for kind, n in content] for content, live in halves]
    each = [float(activation_bytes(kept, delayed, [moment], rung)) for moment in moments]
    contents = len(cost.role.distinct)
    return [each[half + content] for half in (0, contents) for content in cost.role.content_of_chunk]
