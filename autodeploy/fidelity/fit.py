"""Robust least squares in logarithms with priors and bounds, and what the rows say of every parameter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROBUST = 0.10
"""Residuals beyond this count less and less (soft-l1): a tenth is a common error of a good row."""
NOISE_LOG = 0.05
"""Repeats of one run differ by so much: no row weighs more than that allows."""
ROUNDS, SAME_LOG = 30, 1e-5
LEAST_GAIN = 0.5
"""Share of a prior's variance that the rows must take away; below, they do not see the parameter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Rows by parameters. Everything is a natural logarithm."""

    names: tuple[str, ...]
    design: np.ndarray
    """(rows, parameters): change of a predicted logarithm by a parameter's."""
    off: np.ndarray
    """(rows,): measured less predicted."""
    weight: np.ndarray
    """(rows,)"""
    sigma: np.ndarray
    """(parameters,): of the priors, which are centred on 0."""
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """The solution."""

    names: tuple[str, ...]
    value: np.ndarray
    spread: np.ndarray
    """Standard deviation of each parameter, data and prior together."""
    gain: np.ndarray
    """Share of the prior's variance that the rows took away."""
    left: np.ndarray
    """(rows,): measured less predicted, fitted."""

    def seen(self, least_gain: float) -> tuple[str, ...]:
        """Parameters that the rows identify."""
        return tuple(name for name, gain in zip(self.names, self.gain, strict=True) if gain >= least_gain)


def fit(problem: Problem) -> Fitted:
    """Iteratively reweighted, bounded least squares.

    Formula: min sum w rho(off - design x) + sum (x / sigma)^2, rho of soft-l1
    Source: scipy.optimize.least_squares describes the loss; priors are rows of their own that no loss bends.
    """
    value = np.zeros(len(problem.names))
    for _ in range(ROUNDS if problem.names else 0):
        found = _step(problem, _row_weights(problem, value))
        moved, value = float(np.abs(found - value).max()), found
        if moved < SAME_LOG:
            break
    return _read(problem, value)


def _step(problem: Problem, weights: np.ndarray) -> np.ndarray:
    """One weighted problem, by its normal equations: as many rows as parameters."""
    from scipy.linalg import cholesky, solve_triangular
    from scipy.optimize import lsq_linear

    known = problem.design.T @ (weights[:, None] * problem.design) + np.diag(problem.sigma**-2.0)
    root = cholesky(known)
    aim = solve_triangular(root, problem.design.T @ (weights * problem.off), trans="T")
    return np.asarray(lsq_linear(root, aim, bounds=(problem.low, problem.high), method="bvls").x)


def _row_weights(problem: Problem, value: np.ndarray) -> np.ndarray:
    left = problem.off - problem.design @ value
    bent = 1.0 / np.sqrt(1.0 + (left / ROBUST) ** 2)
    return np.asarray(problem.weight * bent / NOISE_LOG**2)


def _read(problem: Problem, value: np.ndarray) -> Fitted:
    weights = _row_weights(problem, value)
    noise = max(float(np.median(np.abs(problem.off - problem.design @ value))) / 0.6745, NOISE_LOG)
    weights = weights * (NOISE_LOG / noise) ** 2
    known = problem.design.T @ (weights[:, None] * problem.design)
    covariance = np.linalg.inv(known + np.diag(problem.sigma**-2.0))
    variance = np.diag(covariance)
    return Fitted(
        names=problem.names, value=value, spread=np.sqrt(variance), gain=1.0 - variance / problem.sigma**2,
        left=problem.off - problem.design @ value,
    )  # fmt: skip


def only(problem: Problem, names: tuple[str, ...]) -> Problem:
    """The problem with some of its parameters, the others at their priors' centre."""
    keep = [problem.names.index(name) for name in names]
    return Problem(
        names=names, design=problem.design[:, keep], off=problem.off, weight=problem.weight,
        sigma=problem.sigma[keep], low=problem.low[keep], high=problem.high[keep],
    )  # fmt: skip


def without(problem: Problem, rows: np.ndarray) -> Problem:
    """The problem without some rows (a mask of those to leave out)."""
    return Problem(
        names=problem.names, design=problem.design[~rows], off=problem.off[~rows], weight=problem.weight[~rows],
        sigma=problem.sigma, low=problem.low, high=problem.high,
    )  # fmt: skip


def identified(problem: Problem, least_gain: float = LEAST_GAIN) -> Fitted:
    """Fitted, without the parameters that the rows do not see."""
    found = fit(problem)
    while len(found.seen(least_gain)) < len(found.names):
        problem = only(problem, found.seen(least_gain))
        found = fit(problem)
    return found
