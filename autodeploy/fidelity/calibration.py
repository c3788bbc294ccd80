"""Constants of chip generations and factors of software families, fitted on runs: the problem, the answer, the checks.

A parameter is `generation:constant` or `pace:family`. Everything is linear in logarithms around what the cluster files
say; `sensitivity` has the slopes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autodeploy.analysis.readings import model_size
from autodeploy.catalog.calibration import PACE, FittedFactor, stated_cluster
from autodeploy.catalog.generations import family_of, generation_of, generations
from autodeploy.catalog.lookup import load
from autodeploy.catalog.measured import Measured, enough
from autodeploy.fidelity.fit import Fitted, Problem, identified, without
from autodeploy.fidelity.reasons import set_aside
from autodeploy.fidelity.sensitivity import Sensitivity
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.constants import CONSTANTS, LEAST_FACTOR, MOST_FACTOR, constant_of, factor_bounds, stated

PACE_SIGMA_LOG = 0.15
SEES = 0.02
"""A row with a smaller slope says nothing of a constant."""
CROWD = 0.25
"""A source of n rows weighs as n to the power of one less this: many rows of one source repeat each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """A fitted number."""

    name: str
    factor: float
    spread_log: float
    gain_frac: float
    """Share of the prior's variance that the rows took away."""
    rows: int
    models: int
    """That see it."""
    error_frac: float
    """Median error of those rows, fitted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The answer."""

    parameters: tuple[Parameter, ...]
    rows: int
    before_frac: tuple[float, float]
    after_frac: tuple[float, float]
    """Median and 90th percentile of the absolute error, all rows, those set aside too."""
    unseen_source_frac: tuple[float, float]
    """The same of rows whose source was left out of the fit."""
    unseen_model_frac: tuple[float, float]
    unseen_log: tuple[float, ...]
    """Of every row, measured over predicted step time under the fit without its source, as a logarithm."""

    def factors(self) -> list[FittedFactor]:
        """As the catalog keeps them."""
        return [_factor(each) for each in self.parameters]


def _factor(each: Parameter) -> FittedFactor:
    first, second = each.name.split(":", 1)
    owner, name = (second, PACE) if first == PACE else (first, second)
    return FittedFactor(
        owner=owner, name=name, factor=each.factor, rows=each.rows, models=each.models, error_frac=each.error_frac
    )


def calibrate(rows: Sequence[Sensitivity]) -> Calibration:
    """Fit all that the rows identify."""
    problem = problem_of(rows)
    aside = np.array([bool(set_aside(each.run)) for each in rows])
    found = identified(without(problem, aside))
    left = problem.off - _predicted(problem, found)
    unseen = _left_out(problem, rows, aside, lambda each: each.run.row.source)
    return Calibration(
        parameters=tuple(_parameters(problem, found, rows, aside)),
        rows=int((~aside).sum()),
        before_frac=spread_of(problem.off),
        after_frac=spread_of(left),
        unseen_source_frac=spread_of(unseen),
        unseen_model_frac=spread_of(_left_out(problem, rows, aside, lambda each: each.run.space.model.name)),
        unseen_log=tuple(map(float, unseen)),
    )


def spread_of(left: np.ndarray) -> tuple[float, float]:
    """Median and 90th percentile of |predicted / measured - 1|."""
    errors = np.abs(np.expm1(-left))
    return float(np.median(errors)), float(np.percentile(errors, 90))


def problem_of(rows: Sequence[Sensitivity]) -> Problem:
    """The rows as a linear problem in logarithms."""
    names = [*_constants(rows), *_paces(rows)]
    design = np.zeros((len(rows), len(names)))
    for place, each in enumerate(rows):
        owner, pace = generation_of(each.run.space.cluster.name), f"{PACE}:{family_of(each.run.stack.target)}"
        for constant, slope in each.slope.items():
            if f"{owner}:{constant}" in names:
                design[place, names.index(f"{owner}:{constant}")] = slope
        if pace in names:
            design[place, names.index(pace)] = 1.0
    crowd = Counter(each.run.row.source for each in rows)
    weight = np.array([float(crowd[each.run.row.source]) ** -CROWD for each in rows])
    bounds = np.array([_bounds(name) for name in names]).reshape(len(names), 2)
    return Problem(
        names=tuple(names), design=design, off=np.array([each.off_log for each in rows]), weight=weight / weight.mean(),
        sigma=np.array([_sigma(name) for name in names]), low=np.log(bounds[:, 0]), high=np.log(bounds[:, 1]),
    )  # fmt: skip


def _constants(rows: Sequence[Sensitivity]) -> list[str]:
    """Constants that enough rows and models see; the others are inherited."""
    found: dict[str, list[str]] = {}
    for each in rows:
        owner = generation_of(each.run.space.cluster.name)
        if owner and not set_aside(each.run):
            for constant in (name for name, slope in each.slope.items() if abs(slope) > SEES):
                found.setdefault(f"{owner}:{constant}", []).append(each.run.space.model.name)
    named = [f"{each.name}:{constant.name}" for each in generations() for constant in CONSTANTS]
    return [name for name in named if enough(found.get(name, []))]


def _paces(rows: Sequence[Sensitivity]) -> list[str]:
    """Families with enough rows and models."""
    found: dict[str, list[str]] = {}
    for each in rows:
        family = family_of(each.run.stack.target)
        if family and not set_aside(each.run):
            found.setdefault(family, []).append(each.run.space.model.name)
    return [f"{PACE}:{name}" for name, models in sorted(found.items()) if enough(models)]


def _sigma(name: str) -> float:
    owner, constant = name.split(":", 1)
    return PACE_SIGMA_LOG if owner == PACE else constant_of(constant).sigma_log


def _bounds(name: str) -> tuple[float, float]:
    owner, constant = name.split(":", 1)
    if owner == PACE:
        return 0.5, 2.0
    members = next(each.clusters for each in generations() if each.name == owner)
    clusters = [stated_cluster(load(Cluster, member)) for member in members]
    known = [factor_bounds(each, constant_of(constant)) for each in clusters if stated(each, constant_of(constant))]
    most = min((high for _, high in known), default=MOST_FACTOR)
    return LEAST_FACTOR, max(most, 1.0 + 1e-6)


def _predicted(problem: Problem, found: Fitted) -> np.ndarray:
    columns = [problem.names.index(name) for name in found.names]
    return np.asarray(problem.design[:, columns] @ found.value)


def _parameters(problem: Problem, found: Fitted, rows: Sequence[Sensitivity], aside: np.ndarray) -> list[Parameter]:
    left = np.abs(np.expm1(-(problem.off - _predicted(problem, found))))
    out = []
    for name, value, spread, gain in zip(found.names, found.value, found.spread, found.gain, strict=True):
        seen = (np.abs(problem.design[:, problem.names.index(name)]) > SEES) & ~aside
        models = {each.run.space.model.name for each, sees in zip(rows, seen, strict=True) if sees}
        out.append(
            Parameter(
                name=name, factor=float(np.exp(value)), spread_log=float(spread), gain_frac=float(gain),
                rows=int(seen.sum()), models=len(models), error_frac=float(np.median(left[seen])),
            )
        )  # fmt: skip
    return out


def _left_out(
    problem: Problem, rows: Sequence[Sensitivity], aside: np.ndarray, key: Callable[[Sensitivity], str]
) -> np.ndarray:
    """Errors of every row under a fit that did not see its source or model."""
    keys = np.array([key(each) for each in rows])
    left = np.array(problem.off)
    for one in sorted(set(keys)):
        out = keys == one
        if not (~(out | aside)).any():
            continue
        found = identified(without(problem, out | aside))
        left[out] = (problem.off - _predicted(problem, found))[out]
    return left


def measured_rows(rows: Sequence[Sensitivity], found: Calibration) -> list[Measured]:
    """The rows with what the fit without their source leaves of them."""
    return [_measured(each, left) for each, left in zip(rows, found.unseen_log, strict=True)]


def _measured(each: Sensitivity, left_log: float) -> Measured:
    run, space = each.run, each.run.space
    return Measured(
        id=run.row.id, source=run.row.source, model=space.model.name, device=space.cluster.device.name,
        generation=generation_of(space.cluster.name), family=family_of(run.stack.target), kind=run.kind,
        devices=space.devices, seq_len=space.job.seq_len, params=int(model_size(space.model).total),
        ep=run.plan.ep, ratio_frac=float(np.exp(-left_log)),
    )  # fmt: skip
