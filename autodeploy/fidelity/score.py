"""How true it is: signed errors by hardware, kind and source, fits or not, and how plans of one group are ranked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np

from autodeploy.fidelity.predict import Prediction

TIE_FRAC = 0.04
"""Two runs nearer than this are equal: identical ones repeat within 1-4 %."""
LEAST_PLANS = 4
"""Distinct plans that make a group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Signed errors of some runs, in short."""

    runs: int
    median_abs_frac: float
    p90_abs_frac: float
    bias_frac: float
    """Median of the signed errors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Plans of one job on one machine under one release, and how we rank them."""

    source: str
    model: str
    cluster: str
    job: str
    version: str
    plans: int
    regret_frac: float
    """Measured loss of the plan that we put first, against the measured best."""
    kendall_tau: float | None
    """Over the pairs that differ by more than a tie; None where none does."""
    spread: float
    """Slowest over fastest measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fits:
    """Fits-or-not of runs whose outcome is known."""

    right: int
    ran_but_refused: int
    ran_out_but_called_fitting: int

    @property
    def known(self) -> int:
        """How many outcomes are known."""
        return self.right + self.ran_but_refused + self.ran_out_but_called_fitting


def errors_of(values: Iterable[float | None]) -> Errors | None:
    """The errors of some runs; None where there is none."""
    signed = [value for value in values if value is not None]
    if not signed:
        return None
    sizes = np.abs(signed)
    return Errors(
        runs=len(signed),
        median_abs_frac=float(np.median(sizes)),
        p90_abs_frac=float(np.percentile(sizes, 90)),
        bias_frac=float(np.median(signed)),
    )


def errors_by(predictions: Sequence[Prediction], key: Callable[[Prediction], str]) -> dict[str, Errors]:
    """Step-time errors per key, keys in order."""
    found: dict[str, list[float]] = defaultdict(list)
    for each in predictions:
        if each.error_frac is not None:
            found[key(each)].append(each.error_frac)
    out = {name: errors_of(values) for name, values in sorted(found.items())}
    return {name: errors for name, errors in out.items() if errors is not None}


def median_of_sources(predictions: Sequence[Prediction]) -> float | None:
    """The median of the sources' median absolute errors: large sources weigh no more than small ones."""
    by_source = errors_by(predictions, lambda each: each.run.row.source)
    return median(errors.median_abs_frac for errors in by_source.values()) if by_source else None


def fits_of(predictions: Sequence[Prediction]) -> Fits:
    """Fits-or-not where the outcome is known and we have an opinion."""
    pairs = [(p.run.fits, p.result.fits) for p in predictions if p.result is not None and p.run.fits is not None]
    return Fits(
        right=sum(ran == called for ran, called in pairs),
        ran_but_refused=sum(ran and not called for ran, called in pairs),
        ran_out_but_called_fitting=sum(called and not ran for ran, called in pairs),
    )


def version_of(each: Prediction) -> str:
    """The release that a run names: framework version, else the reference without its file."""
    row = each.run.row
    return row.framework_version or row.source_ref.split(" docs/")[-1]


def groups_of(predictions: Sequence[Prediction]) -> list[Group]:
    """All groups of runs that differ in nothing but the plan."""
    found: dict[tuple[str, ...], list[Prediction]] = defaultdict(list)
    for each in predictions:
        if each.error_frac is not None:
            found[_group_key(each)].append(each)
    groups = [_group(key, members) for key, members in sorted(found.items()) if _is_group(members)]
    return groups


def _group_key(each: Prediction) -> tuple[str, ...]:
    row, job = each.run.row, each.run.space.job
    what = f"{job.gbs} x {job.seq_len} {job.precision}, {row.devices} devices"
    profile, shape = f"{each.run.space.target.profile}", f"{each.run.space.model}"
    return (row.source, row.model, each.run.space.cluster.name, what, version_of(each), profile, shape)


def _is_group(members: Sequence[Prediction]) -> bool:
    return len({each.run.plan for each in members}) >= LEAST_PLANS


def _group(key: tuple[str, ...], members: Sequence[Prediction]) -> Group:
    source, model, cluster, job, version = key[:5]
    pairs = [(each.result.step_time_s, each.run.step_s) for each in members if each.result and each.run.step_s]
    best = min(measured for _, measured in pairs)
    picked = min(pairs)[1]
    return Group(
        source=source, model=model, cluster=cluster, job=job, version=version,
        plans=len({each.run.plan for each in members}),
        regret_frac=picked / best - 1.0,
        kendall_tau=kendall_tau(pairs),
        spread=max(measured for _, measured in pairs) / best,
    )  # fmt: skip


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float | None:
    """(concordant - discordant) / pairs, over those whose measurements differ by more than a tie."""
    agree, counted = 0, 0
    for (mine, theirs), (my_other, their_other) in combinations(pairs, 2):
        if abs(theirs - their_other) <= TIE_FRAC * min(theirs, their_other):
            continue
        counted += 1
        agree += int(np.sign(mine - my_other) * np.sign(theirs - their_other))
    return agree / counted if counted else None
