"""The runs that published claims are about: models, machines, stacks before and after a technique, in one place.

Nothing here is fitted: what a report leaves out is a range (`OPEN`, both parts of the machine).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from autodeploy.catalog.lookup import load
from autodeploy.search.evaluate import evaluate
from autodeploy.search.result import PlanResult
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.model import Model
from autodeploy.spec.plan import Dispatch, Overlap, Plan, Schedule
from autodeploy.spec.space import PlanValues, Space
from autodeploy.spec.target import FUSIBLE, Target

PARTS = {"atlas-800t-a2": "313 TF", "atlas-800t-a2-910b2": "376 TF"}
"""Both parts that Atlas 800T A2 was sold with; the reports do not say which."""
PLAIN: dict[str, Any] = {
    "fused": ("accumulate", "grouped"), "moe_stalls": 2, "moe_backward_stalls": 2, "pinned_host": False,
    "overlap_vector": False, "padded_values": True,
}  # fmt: skip
"""A stack before the work: vector chains line by line, four waits a sparse layer, values padded to the keys' width."""
REUSED: dict[str, Any] = {"moe_stalls": 1, "moe_backward_stalls": 0}
"""Counts of the forward dispatch used again."""
TUNED: dict[str, Any] = REUSED | {"fused": FUSIBLE, "pinned_host": True, "overlap_vector": True, "padded_values": False}
"""The same stack after all of it."""


class Open(NamedTuple):
    """What the reports on Pangu Ultra MoE leave open, at its nominal."""

    microbatches: int = 48
    """Of a pipeline: 32 to 64 are plausible."""
    imbalance: float = 1.2
    """Busiest expert rank over the mean under a balancing loss."""
    layout: str = "auto"
    """Where the layers lie: the best by rule, or MTP and head in chunks of their own."""


OPEN = (
    Open(), Open(microbatches=32), Open(microbatches=64), Open(imbalance=1.0), Open(imbalance=1.4),
    Open(layout="apart"),
)  # fmt: skip
"""The nominal, and each of them at its other values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Ours over what the source leaves open."""

    low: float
    nominal: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One scenario of a claim."""

    scenario: str
    ours: Range


def spread(nominal: float, others: Iterable[float] = ()) -> Range:
    """A nominal value and its range."""
    every = [nominal, *others]
    return Range(low=min(every), nominal=nominal, high=max(every))


def over(make: Callable[..., float], *options: Sequence[Any]) -> Range:
    """A quantity over every combination of what is open; the first of each is nominal."""
    values = [make(*each) for each in product(*options)]
    return spread(values[0], values[1:])


def per_part(make: Callable[[str, Open], float], note: str = "") -> list[Figure]:
    """A figure of the 718B run for either part, over what is open."""
    return [Figure(scenario=name + note, ours=over(make, (part,), OPEN)) for part, name in PARTS.items()]


def plan_of(**given: Any) -> Plan:
    """A plan; what is not given is one, off or a rule."""
    values: dict[str, Any] = dict.fromkeys(("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs"), 1)
    values |= {"overlap": Overlap.NONE, "dispatch": Dispatch.FLAT, "zero": 1, "layout": "auto", "recompute": "fit"}
    values |= given
    values.setdefault("sp", values["tp"] > 1)
    values["schedule"] = Schedule.INTERLEAVED if values["vpp"] > 1 else Schedule.ONE_F_ONE_B
    return Plan(**values)


def space_of(
    model: str | Model,
    cluster: str,
    plan: Plan,
    microbatches: int,
    seq_len: int,
    imbalance: float = 1.2,
    **profile: Any,
) -> Space:
    """The space of one run: as many devices and sequences as the plan and its microbatches say."""
    target = load(Target, "generic")
    shape = model if isinstance(model, Model) else load(Model, model)
    job = Job(gbs=plan.dp * plan.mbs * microbatches, seq_len=seq_len, expert_imbalance=imbalance)
    return Space(
        name="claim", model=shape, cluster=load(Cluster, cluster), devices=plan.tp * plan.pp * plan.cp * plan.dp,
        target=replace(target, profile=replace(target.profile, **profile)), job=job,
        plan=PlanValues(tp=(plan.tp,), pp=(plan.pp,)),
    )  # fmt: skip


PANGU = "pangu-ultra-moe-718b"
BRIEF: dict[str, Any] = {"tp": 8, "pp": 16, "vpp": 2, "ep": 32, "mbs": 2}
"""The plan that was published for Pangu Ultra MoE 718B; EP32 is EP4 extended over TP8. Its layout was not."""


def pangu(part: str, left: Open, plan: dict[str, Any] | None = None, devices: int = 6144, **profile: Any) -> PlanResult:
    """A run of Pangu Ultra MoE 718B at 8K."""
    wanted = plan_of(**({"layout": left.layout} | BRIEF | {"dp": devices // 128} | (plan or {})))
    return evaluate(space_of(PANGU, part, wanted, left.microbatches, 8192, left.imbalance, **profile), wanted)


def gain(before: PlanResult, after: PlanResult) -> float:
    """How much more tokens a second, as a share."""
    return after.tokens_per_s_per_device / before.tokens_per_s_per_device - 1.0


def share(found: PlanResult, *terms: str) -> float:
    """Part of the step that some terms take."""
    return sum(found.time_terms[name] for name in terms) / found.step_time_s
