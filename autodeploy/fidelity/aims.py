"""What the accuracy should be, kind of run by kind of run, on rows that were never fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from autodeploy.catalog.generations import family_of, generation_of
from autodeploy.catalog.measured import measured
from autodeploy.fidelity.document import is_ci
from autodeploy.fidelity.own_machine import pace_log
from autodeploy.fidelity.predict import Prediction
from autodeploy.fidelity.score import Errors, errors_of, groups_of, median_of_sources
from autodeploy.search.surety import surety

LEAST_OF_SOURCE = 3
WIDE_SPREAD = 1.3
"""Groups whose slowest plan is so much slower than the fastest tell whether an order is right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """Limits of one kind of run."""

    name: str
    mine: Callable[[Prediction], bool]
    median_frac: float
    p90_frac: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """A line of the table."""

    name: str
    aim: str
    reached: str
    met: bool


def _of(generations: Sequence[str], kind: str) -> Callable[[Prediction], bool]:
    def mine(each: Prediction) -> bool:
        here = generation_of(each.run.space.cluster.name) in generations
        return here and each.run.kind == kind and bool(family_of(each.run.stack.target))

    return mine


def _ascend(kind: str) -> Callable[[Prediction], bool]:
    def mine(each: Prediction) -> bool:
        here = generation_of(each.run.space.cluster.name) == "Ascend 910B"
        return here and each.run.kind == kind and not is_ci(each)

    return mine


AIMS = (
    Aim(name="dense, A100/H100, known stack", mine=_of(("A100", "H100"), "dense"), median_frac=0.06, p90_frac=0.20),
    Aim(name="MoE, H100, known stack", mine=_of(("H100",), "moe"), median_frac=0.05, p90_frac=0.18),
    Aim(name="MoE, Blackwell, known stack", mine=_of(("Blackwell",), "moe"), median_frac=0.08, p90_frac=0.22),
    Aim(name="Ascend 910B, non-CI, dense", mine=_ascend("dense"), median_frac=0.07, p90_frac=0.20),
    Aim(name="Ascend 910B, non-CI, MoE", mine=_ascend("moe"), median_frac=0.14, p90_frac=0.30),
)
UNSEEN_MEDIAN_FRAC = 0.13
REGRET_MEAN_FRAC, REGRET_MAX_FRAC, LEAST_TAU = 0.02, 0.08, 0.8


def reached(predictions: Sequence[Prediction]) -> list[Reached]:
    """Every line of the table, on the `validate` rows among the predictions."""
    rows = [each for each in predictions if each.run.row.use == "validate"]
    known = [each for each in rows if each.error_frac is not None]
    return [*(_line(aim, known) for aim in AIMS), _unseen(), *_planner(known)]


def _line(aim: Aim, known: Sequence[Prediction]) -> Reached:
    mine = [each for each in known if aim.mine(each)]
    errors = errors_of(each.error_frac for each in mine)
    limits = f"median <= {aim.median_frac:.0%}, 90 % within {aim.p90_frac:.0%}"
    if errors is None:
        return Reached(name=aim.name, aim=limits, reached="no rows", met=False)
    middle = median_of_sources(mine)
    assert middle is not None
    found = (
        f"{errors.median_abs_frac:.1%}, {errors.p90_abs_frac:.1%} of {errors.runs} rows; sources' medians {middle:.1%}"
    )
    return Reached(name=aim.name, aim=limits, reached=found, met=_within(aim, errors, middle))


def _within(aim: Aim, errors: Errors, middle: float) -> bool:
    return max(errors.median_abs_frac, middle) <= aim.median_frac and errors.p90_abs_frac <= aim.p90_frac


def _unseen() -> Reached:
    name, aim = "a stack never seen (source left out of the fit, calibrate rows)", f"median <= {UNSEEN_MEDIAN_FRAC:.0%}"
    errors = errors_of(row.ratio_frac - 1.0 for row in measured())
    if errors is None:
        return Reached(name=name, aim=aim, reached="not fitted yet", met=False)
    text = f"{errors.median_abs_frac:.1%} of {errors.runs} rows"
    return Reached(name=name, aim=aim, reached=text, met=errors.median_abs_frac <= UNSEEN_MEDIAN_FRAC)


def _planner(known: Sequence[Prediction]) -> list[Reached]:
    groups = groups_of(known)
    regrets = [group.regret_frac for group in groups]
    taus = [g.kendall_tau for g in groups if g.kendall_tau is not None and g.spread > WIDE_SPREAD]
    if not regrets or not taus:
        return []
    mean, worst, tau = sum(regrets) / len(regrets), max(regrets), sum(taus) / len(taus)
    return [
        Reached(
            name="planner's score within one release: regret",
            aim=f"mean <= {REGRET_MEAN_FRAC:.0%}, max <= {REGRET_MAX_FRAC:.0%}",
            reached=f"mean {mean:.1%}, max {worst:.1%} of {len(regrets)} groups",
            met=mean <= REGRET_MEAN_FRAC and worst <= REGRET_MAX_FRAC,
        ),
        Reached(
            name="Kendall's tau where plans spread > 1.3x",
            aim=f">= {LEAST_TAU:g}",
            reached=f"mean {tau:.2f} of {len(taus)} groups",
            met=tau >= LEAST_TAU,
        ),
    ]


@cache
def one_run_buys(same: tuple[str, ...]) -> tuple[float, float, int] | None:
    """Of runs that share some fields (`source`, `model`, ...), in groups of three and more, predicted without their
    source: median error of all but the first as they are, and with the pace that the first sets; and how many these
    are. None where there are none."""
    sources: dict[tuple[str, ...], list[float]] = {}
    for row in measured():
        sources.setdefault(tuple(getattr(row, name) for name in same), []).append(-math.log(row.ratio_frac))
    many = [off for off in sources.values() if len(off) >= LEAST_OF_SOURCE]
    if not many:
        return None
    before = [value for off in many for value in off[1:]]
    after = [value - float(pace_log(off[:1]).value[0]) for off in many for value in off[1:]]
    errors = [float(np.median(np.abs(np.expm1(np.negative(each))))) for each in (before, after)]
    return errors[0], errors[1], len(before)


def within_interval(each: Prediction) -> bool | None:
    """Whether the measured rate lies inside the interval of its plan; None where that has none."""
    if each.result is None or each.run.step_s is None:
        return None
    interval = surety(each.run.space, each.result).interval
    if interval is None:
        return None
    measured_rate = each.result.tokens_per_s_per_device * each.result.step_time_s / each.run.step_s
    return interval.low_tokens_per_s_per_device <= measured_rate <= interval.high_tokens_per_s_per_device
