"""What is known of one plan: the values that tables, explanations and JSON are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autodeploy.spec.arrangement import Arrangement
from autodeploy.spec.identity import plan_id
from autodeploy.spec.plan import Plan

TIME_TERMS = (
    "matmul", "experts", "attention", "vector", "launch", "recompute", "tensor_parallel", "context_parallel",
    "weight_gather", "expert_exchange", "pipeline_send", "bubble", "grad_sync", "param_sync", "optimizer",
    "shared_weights",
)  # fmt: skip
"""Where the seconds of a step go on its busiest stage; they add up to the step."""
COMPUTE_TERMS = ("matmul", "experts", "attention", "vector")
COMMUNICATION_TERMS = (
    "tensor_parallel", "context_parallel", "weight_gather", "expert_exchange", "pipeline_send", "grad_sync",
    "param_sync", "shared_weights",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    """One pipeline stage."""

    stage: int
    layers: tuple[str, ...]
    """Contents of its chunks in layout letters."""
    recompute: tuple[str, ...]
    busy_s: float
    """Seconds of its ops in a step, without the tail."""
    finish_s: float
    tail_s: float
    peak_memory_bytes: float
    """Allocated at the fullest moment, as the framework's allocator counts it."""
    reserved_bytes: float
    """With what the allocator loses to fragmentation."""
    needed_bytes: float
    """With the communicators: what must not exceed the usable memory."""
    allocated_first_step_bytes: float
    """Still allocated once the first step is over: weights, gradients, optimizer state."""
    first_step_peak_bytes: float
    """Allocated at the fullest moment of the first step, whose passes run before the optimizer has its moments."""
    host_bytes: float
    """Held on the host for it."""
    fits: bool
    fullest_moment: str
    memory_terms: Mapping[str, float]
    """Of that moment; they add up to `needed_bytes`."""
    memory_moments: Mapping[str, Mapping[str, float]]
    """The same of every moment (`balance.moments.MOMENTS`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanResult:
    """A plan, arranged, costed and simulated."""

    plan: Plan
    arrangement: Arrangement
    microbatches: int
    step_time_s: float
    bound_s: float
    screen_s: float
    tokens_per_s_per_device: float
    mfu_frac: float
    mfu_peak_flop_per_s: float
    flop_convention: str
    peak_memory_bytes: float
    """Allocated on the fullest stage."""
    needed_memory_bytes: float
    """With fragmentation and communicators."""
    usable_memory_bytes: float
    fits: bool
    stages: tuple[StageResult, ...]
    time_terms: Mapping[str, float]
    time_split: Mapping[str, float]
    """The step on the average stage: work, and what the pipeline loses (`search.split.SPLIT_TERMS`)."""
    alternating_by: str | None
    """The unit in which the halves of merged passes alternate on the busiest stage; None without merged passes."""
    exchange_hidden_frac: float | None
    """Share of the busiest stage's expert all-to-all that lies beside compute; None where there is none."""
    busiest_stage: int
    ideal_step_time_s: float
    """Head-room: compute spread evenly with nothing exposed. Never a bound of the search's plans."""

    @property
    def plan_id(self) -> str:
        """Identity of plan and arrangement."""
        return plan_id(self.plan, self.arrangement)

    @property
    def bubble_frac(self) -> float:
        """Share of the step in which the busiest stage waits for others."""
        return self.time_terms["bubble"] / self.step_time_s

    @property
    def exposed_communication_s(self) -> float:
        """Communication that nothing hides, on the busiest stage."""
        return sum(self.time_terms[name] for name in COMMUNICATION_TERMS)

    @property
    def limited_by(self) -> str:
        """Memory if it does not fit; else the largest part of the step that is not useful compute."""
        if not self.fits:
            return "memory.device" if self.needed_memory_bytes > self.usable_memory_bytes else "memory.host"
        losses = {name: value for name, value in self.time_terms.items() if name not in COMPUTE_TERMS}
        return max(losses, key=lambda name: losses[name])
