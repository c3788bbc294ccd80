"""Every run predicted as a search would: the same arrangement, the same simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autodeploy.errors import ScheduleDeadlock, SpecError
from autodeploy.fidelity.runs import Run
from autodeploy.processes import map_in_order
from autodeploy.search.evaluate import evaluate
from autodeploy.search.result import PlanResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """A run and what we say of it. `result` is None where we cannot, for `reason`."""

    run: Run
    result: PlanResult | None
    reason: str = ""

    @property
    def error_frac(self) -> float | None:
        """Signed error of the step time: above 0 where we are too slow."""
        if self.result is None or not self.run.step_s:
            return None
        return self.result.step_time_s / self.run.step_s - 1.0

    @property
    def memory_bytes(self) -> float | None:
        """Peak memory of the fullest rank, counted as the source counts it."""
        if self.result is None:
            return None
        counted = self.run.stack.memory
        if counted == "allocated":
            return self.result.peak_memory_bytes
        if counted == "first_step":
            return max(stage.first_step_peak_bytes for stage in self.result.stages)
        if counted == "reserved":
            return max(stage.reserved_bytes for stage in self.result.stages)
        context = self.run.space.cluster.device.context_bytes
        return max(stage.reserved_bytes + stage.memory_terms["communicators"] for stage in self.result.stages) + context

    @property
    def memory_error_frac(self) -> float | None:
        """Signed error of the peak memory."""
        if self.memory_bytes is None or not self.run.peak_bytes:
            return None
        return self.memory_bytes / self.run.peak_bytes - 1.0


def predict(run: Run) -> Prediction:
    """One run."""
    try:
        return Prediction(run=run, result=evaluate(run.space, run.plan))
    except SpecError as error:
        return Prediction(run=run, result=None, reason="; ".join(fault.problem for fault in error.faults))
    except ScheduleDeadlock as error:
        return Prediction(run=run, result=None, reason=str(error))


def predict_all(runs: Sequence[Run], workers: int = 1) -> list[Prediction]:
    """All runs, in order."""
    return [predict(run) for run in runs] if workers == 1 else list(map_in_order(predict, runs, workers))
