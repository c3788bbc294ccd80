"""What one stage of one plan holds at every moment of a run, term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autodeploy.balance.fit import Beside, Budget, working_buffers
from autodeploy.cost.memory import Params, moments_bytes, resident_terms
from autodeploy.numeric import Num
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Role
from autodeploy.spec.plan import Plan
from autodeploy.spec.target import Profile

MEMORY_TERMS = (
    "weights", "gradients", "optimizer", "activations", "transient", "copies", "communicators", "fragmentation",
)  # fmt: skip
OUTSIDE = ("communicators", "fragmentation")
"""Terms beyond what the framework's allocator counts as allocated."""
MOMENTS = ("initialisation", "first_forward", "first_backward", "forward", "backward", "update")
"""The model made; passes of the first step, before the optimizer has its moments; passes of all later steps; update."""
PASSES = ("first_forward", "first_backward", "forward", "backward")
"""Those with layers at work."""
FIRST_STEP = ("initialisation", "first_forward", "first_backward", "update")
"""Those of the first step."""

Terms = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """What the passes of a stage hold: rows of live microbatches, and what one layer works on."""

    rows: Num
    forward: Num
    backward: Num
    live: Num
    """Passes of one chunk that are live at once."""
    host: Num
    """All that waits on the host."""
    idle: Num = 0.0
    """Rows and what waits for weight gradients between passes, when no layer works."""


def moments_of(
    job: Job,
    profile: Profile,
    plan: Plan,
    role: Role,
    limits: Budget,
    params: Params,
    held: Beside,
    passes: Passes,
    lost_frac: float,
) -> dict[str, Terms]:
    """Bytes per moment and term; `lost_frac` is the share lost to the allocator."""
    state = {name: float(value) for name, value in resident_terms(job, profile, plan, params).items()}
    young = state | {"optimizer": state["optimizer"] - float(moments_bytes(job, plan, params))}
    buffers = working_buffers(limits, role, passes.live)
    rows, update, always = float(passes.rows + held.always), float(held.update), float(held.always)
    forward, backward = float(passes.forward + buffers), float(passes.backward + buffers)
    weights, back = state["weights"], {"activations": rows, "transient": backward}
    if float(passes.idle + held.always + buffers) > rows + backward:  # more waits after it than it works on
        back = {"activations": float(passes.idle + held.always), "transient": float(buffers)}
    each = {
        "initialisation": {"weights": weights, "copies": max(float(held.start) - weights, 0.0)},
        "first_forward": young | {"activations": rows, "transient": forward},
        "first_backward": young | back,
        "forward": state | {"activations": rows, "transient": forward},
        "backward": state | back,
        "update": state | {"activations": always, "copies": update},
    }
    return {moment: _complete(each[moment], float(limits.communicators), lost_frac) for moment in MOMENTS}


def _complete(terms: Terms, communicators: float, lost_frac: float) -> Terms:
    held = {name: terms.get(name, 0.0) for name in MEMORY_TERMS if name not in OUTSIDE}
    lost = sum(held.values()) * lost_frac / (1.0 - lost_frac)
    return held | {"communicators": communicators, "fragmentation": lost}


def allocated_of(terms: Terms) -> float:
    """What the framework's allocator counts at a moment."""
    return sum(value for name, value in terms.items() if name not in OUTSIDE)


def reserved_of(moments: Mapping[str, Terms], profile: Profile) -> float:
    """What the allocator has reserved once all moments were there, before fragmentation.

    Flat copies of the update find no cached block large enough, and lie beside what the passes left.
    """
    peak = max(allocated_of(terms) for terms in moments.values())
    if not profile.flat_copies:
        return peak
    return max(peak, *(allocated_of(moments[name]) + moments["update"]["copies"] for name in PASSES))


def fullest(moments: Mapping[str, Terms]) -> str:
    """The moment at which most is allocated."""
    return max(moments, key=lambda moment: allocated_of(moments[moment]))
