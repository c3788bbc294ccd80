"""A user's cluster fitted on the user's own runs: few constants, priors, bounds, and what the rows cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autodeploy.errors import spec_error
from autodeploy.fidelity.calibration import PACE_SIGMA_LOG, Parameter, spread_of
from autodeploy.fidelity.fit import NOISE_LOG, Fitted, Problem, fit, identified, without
from autodeploy.fidelity.runs import Run
from autodeploy.fidelity.sensitivity import Sensitivity, sensitivity
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.constants import CONSTANTS, constant_of, factor_bounds, scaled, stated
from autodeploy.spec.machine import paced
from autodeploy.spec.target import Target

LEAST_ROWS = 5
"""Fewer runs cannot tell constants apart, whatever the priors; one run may set the pace alone."""
LEAST_GAIN = 0.75
"""Half of a prior's width at most is left of what is written into a file."""
REPEATS_LOG = 0.02
"""Repeats of a run on one's own machine differ by so much; published rows by more (`fit.NOISE_LOG`)."""
ROUNDS = 3
"""The slopes are taken again where the first fit ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """A run before and after."""

    id: str
    model: str
    before_frac: float
    """Predicted over measured, less one."""
    after_frac: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnFit:
    """The answer."""

    cluster: Cluster
    parameters: tuple[Parameter, ...]
    kept: tuple[str, ...]
    """Constants that the rows do not see: they stay as stated."""
    before_frac: tuple[float, float]
    after_frac: tuple[float, float]
    """Median and 90th percentile of the absolute error."""
    unseen_model_frac: tuple[float, float] | None
    """The same with each row's model left out of the fit; None with a single model."""
    residuals: tuple[Residual, ...]


def on_machine(run: Run, cluster: Cluster, target: Target | None) -> Run:
    """The run as if its row had named this cluster, and this target."""
    space = replace(run.space, cluster=cluster)
    return replace(run, space=replace(space, target=target) if target else space)


def fit_pace(runs: Sequence[Run], cluster: Cluster) -> OwnFit:
    """One factor on everything, shrunk towards 1: what a single run may set."""
    rows = _usable(runs)
    off = np.array([each.off_log for each in rows])
    found = pace_log(off)
    pace = float(np.exp(found.value[0]))
    left = off - found.value[0]
    named = (_parameter(found, "pace", rows),)
    return _answer(rows, paced(cluster, pace), named, (), (off, left), None)


def fit_machine(runs: Sequence[Run], cluster: Cluster) -> OwnFit:
    """Every constant that the rows identify. Raises `SpecError` with fewer rows than that takes."""
    rows = _usable(runs)
    if len(rows) < LEAST_ROWS:
        listed = ", ".join(each.name for each in CONSTANTS if stated(cluster, each))
        told = f"{len(rows)} runs cannot tell {listed} apart"
        raise spec_error("RUNS.csv", told, f"at least {LEAST_ROWS} runs, or --pace for one factor on everything")
    first, names = rows, _names(cluster)
    total = np.zeros(len(names))
    for _ in range(ROUNDS):
        found = identified(_problem(rows, names, cluster, total), LEAST_GAIN)
        total = np.array([_value(found, name) for name in names])
        fitted = scaled(cluster, {name: float(np.exp(_value(found, name))) for name in found.names})
        rows = _usable([on_machine(each.run, fitted, None) for each in first])
    if not found.names:
        raise spec_error(
            "RUNS.csv", "the runs identify no constant", "runs that differ in plan, model or length, or --pace"
        )
    named = tuple(_parameter(found, name, first) for name in found.names)
    kept = tuple(name for name in names if name not in found.names)
    errors = (np.array([each.off_log for each in first]), np.array([each.off_log for each in rows]))
    unseen = _unseen_model(first, _problem(first, names, cluster, np.zeros(len(names))))
    return _answer(first, fitted, named, kept, errors, unseen)


def _value(found: Fitted, name: str) -> float:
    return float(found.value[found.names.index(name)]) if name in found.names else 0.0


def _usable(runs: Sequence[Run]) -> list[Sensitivity]:
    found = [each for each in map(_as_it_is, runs) if each is not None]
    if not found:
        raise spec_error("RUNS.csv", "no run has a step time that can be predicted", "docs/validate.md")
    return found


def _as_it_is(run: Run) -> Sensitivity | None:
    return sensitivity(run, bare=False)


def _names(cluster: Cluster) -> tuple[str, ...]:
    return tuple(each.name for each in CONSTANTS if stated(cluster, each))


def _models(rows: Sequence[Sensitivity]) -> set[str]:
    return {each.run.space.model.name for each in rows}


def _problem(rows: Sequence[Sensitivity], names: Sequence[str], cluster: Cluster, at: np.ndarray) -> Problem:
    """Constants by name, linear around the logarithms `at`, where the slopes were taken; priors and bounds are those of
    the cluster as it is stated."""
    design = np.array([[each.slope.get(name, 0.0) for name in names] for each in rows])
    bounds = np.array([factor_bounds(cluster, constant_of(name)) for name in names])
    return Problem(
        names=tuple(names), design=design, off=np.array([each.off_log for each in rows]) + design @ at,
        weight=np.full(len(rows), (NOISE_LOG / REPEATS_LOG) ** 2),
        sigma=np.array([constant_of(name).sigma_log for name in names]),
        low=np.log(bounds[:, 0]), high=np.log(np.maximum(bounds[:, 1], 1.0 + 1e-9)),
    )  # fmt: skip


def pace_log(off_log: Sequence[float] | np.ndarray) -> Fitted:
    """The pace that measured over predicted step times (logarithms) say, shrunk towards 1."""
    return fit(_pace_problem(np.array(off_log)))


def _pace_problem(off: np.ndarray) -> Problem:
    return Problem(
        names=("pace",), design=np.ones((len(off), 1)), off=off,
        weight=np.ones(len(off)), sigma=np.array([PACE_SIGMA_LOG]), low=np.array([-1.0]), high=np.array([1.0]),
    )  # fmt: skip


def _parameter(found: Fitted, name: str, rows: Sequence[Sensitivity]) -> Parameter:
    place = found.names.index(name)
    return Parameter(
        name=name, factor=float(np.exp(found.value[place])), spread_log=float(found.spread[place]),
        gain_frac=float(found.gain[place]), rows=len(rows), models=len(_models(rows)),
        error_frac=float(np.median(np.abs(np.expm1(-found.left)))),
    )  # fmt: skip


def _answer(
    rows: Sequence[Sensitivity], cluster: Cluster, named: tuple[Parameter, ...], kept: tuple[str, ...],
    errors: tuple[np.ndarray, np.ndarray], unseen: tuple[float, float] | None,
) -> OwnFit:  # fmt: skip
    before, after = errors
    pairs = zip(rows, np.expm1(-before), np.expm1(-after), strict=True)
    return OwnFit(
        cluster=cluster, parameters=named, kept=kept, before_frac=spread_of(before), after_frac=spread_of(after),
        unseen_model_frac=unseen,
        residuals=tuple(
            Residual(id=r.run.row.id, model=r.run.space.model.name, before_frac=float(b), after_frac=float(a))
            for r, b, a in pairs
        ),
    )  # fmt: skip


def _unseen_model(rows: Sequence[Sensitivity], problem: Problem) -> tuple[float, float] | None:
    names = np.array([each.run.space.model.name for each in rows])
    if len(set(names)) < 2:
        return None
    left = np.array(problem.off)
    for one in sorted(set(names)):
        out = names == one
        found = identified(without(problem, out), LEAST_GAIN)
        columns = [problem.names.index(name) for name in found.names]
        left[out] = (problem.off - problem.design[:, columns] @ found.value)[out]
    return spread_of(left)
