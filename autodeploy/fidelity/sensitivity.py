"""How the predicted step of a run moves with each constant of its machine: elasticities by central differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autodeploy.catalog.calibration import stated_cluster
from autodeploy.fidelity.predict import predict
from autodeploy.fidelity.runs import Run
from autodeploy.processes import map_in_order
from autodeploy.spec.constants import CONSTANTS, scaled, stated

STEP_LOG = 0.08
"""Wide enough to see past a kink of a maximum, small beside the priors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """One run that can be predicted."""

    run: Run
    predicted_s: float
    slope: Mapping[str, float]
    """By constant: relative change of the step over relative change of the constant."""

    @property
    def off_log(self) -> float:
        """Logarithm of measured over predicted."""
        assert self.run.step_s
        return math.log(self.run.step_s / self.predicted_s)


def sensitivity(run: Run, bare: bool = True) -> Sensitivity | None:
    """One run, on what its cluster's file states and at no pace if `bare`; None where it has no step time or cannot be
    predicted."""
    run = plain(run) if bare else run
    base = _step_s(run, {})
    if base is None or not run.step_s:
        return None
    slope = {}
    for constant in CONSTANTS:
        if stated(run.space.cluster, constant):
            more, less = (_step_s(run, {constant.name: math.exp(way * STEP_LOG)}) for way in (1.0, -1.0))
            if more and less:
                slope[constant.name] = math.log(more / less) / (2.0 * STEP_LOG)
    return Sensitivity(run=run, predicted_s=base, slope=slope)


def plain(run: Run) -> Run:
    """The run with nothing fitted."""
    space = run.space
    target = replace(space.target, profile=replace(space.target.profile, pace=1.0))
    return replace(run, space=replace(space, cluster=stated_cluster(space.cluster), target=target))


def _step_s(run: Run, factors: dict[str, float]) -> float | None:
    space = replace(run.space, cluster=scaled(run.space.cluster, factors))
    result = predict(replace(run, space=space)).result
    return result.step_time_s if result else None


def sensitivities(runs: Sequence[Run], workers: int = 1) -> list[Sensitivity]:
    """All runs that can be used, in order."""
    return [found for found in map_in_order(sensitivity, runs, workers) if found is not None]
