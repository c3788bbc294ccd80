"""Recompute until it fits, per role: the lowest rung of the ladder on which a stage's peak is within the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autodeploy.balance.recompute import Ladder
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.load import Load
from autodeploy.cost.memory import activation_bytes, communicator_bytes, resident_terms, transient_bytes
from autodeploy.numeric import Num, pick, total
from autodeploy.schedule.orders import Shape, live_chunks, pareto_maxima
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Role
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import KINDS, Kind
from autodeploy.spec.plan import PlanLike

MEMORY_TERMS = (
    "weights", "gradients", "optimizer", "activations", "transient", "communicators", "fragmentation",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """Peak of one stage and the rung that gives it."""

    terms: Mapping[str, Num]
    peak_bytes: Num
    rung: Num
    """Index into the ladder's rungs."""


@lru_cache(maxsize=8192)
def live_layers(shape: Shape, role: Role) -> tuple[dict[Kind, int], ...]:
    """Layers of each kind live at the moments that can be the peak, on the role's fullest stage (its first)."""
    vectors = set()
    for live in live_chunks(shape, role.stages[0]):
        vectors.add(
            tuple(sum(n * chunk[kind] for n, chunk in zip(live, role.chunks, strict=True)) for kind in KINDS)
        )
    return tuple(dict(zip(KINDS, vector, strict=True)) for vector in pareto_maxima(vectors))


def fit_stage(
    machine: Machine,
    job: Job,
    plan: PlanLike,
    shape: Shape,
    role: Role,
    costs: Mapping[Kind, LayerCost],
    ladder: Ladder,
    params: tuple[Num, Num],
    boundary: Num,
) -> StageMemory:
    """Climb the ladder while the stage is over the device; the highest rung stands if none fits."""
    resident = resident_terms(job, plan, *params)
    resident["communicators"] = communicator_bytes(machine, plan)
    fixed = total(list(resident.values()))
    live = live_layers(shape, role)
    activations = [activation_bytes(rung.kept_bytes, live) for rung in ladder.rungs]
    transients = [
        transient_bytes(costs, rung.rebuilt_bytes, role, plan, boundary) for rung in ladder.rungs
    ]
    left = 1.0 - machine.cluster.fragmentation_frac
    peaks = [(fixed + kept + working) / left for kept, working in zip(activations, transients, strict=True)]
    rung = _lowest_that_fits(peaks, machine.cluster.device.usable_bytes)
    peak = pick(rung, peaks)
    terms = resident | {"activations": pick(rung, activations), "transient": pick(rung, transients)}
    terms["fragmentation"] = peak * machine.cluster.fragmentation_frac
    return StageMemory(terms={name: terms[name] for name in MEMORY_TERMS}, peak_bytes=peak, rung=rung)


def _lowest_that_fits(peaks: Sequence[Num], usable: float) -> Num:
    """How many rungs from the bottom are over, one after the other; at most the last index."""
    rung: Num = 0.0
    over: Num = True
    for peak in peaks[:-1]:
        over = over & (peak > usable)
        rung = rung + 1.0 * over
    return rung


def extra_loads(ladder: Ladder, rung: Num, role: Role) -> dict[Kind, Load]:
    """What the recompute of a stage adds to the backward pass of each kind of layer in it."""
    kinds = [kind for kind in ladder.rungs[0].extra if role.count(kind)]
    return {kind: Load(*(pick(rung, [getattr(r.extra[kind], f) for r in ladder.rungs]) for f in Load._fields)) for kind in kinds}
