"""Fitted factors of the catalog: applied to an entry as it is loaded, each with what it rests on.

The files of clusters and targets keep what a data sheet or a microbenchmark says; `make fidelity` writes the factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from autodeploy.catalog.generations import family_of, generation_of
from autodeploy.spec.checks import Count, NotNegative, Positive
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.constants import constant_of, scaled, stated
from autodeploy.spec.files import parse, read_mapping
from autodeploy.spec.target import Target

PATH = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedFactor:
    """One fitted number."""

    owner: str
    """A chip generation, or a family of targets."""
    name: str
    """A constant (`autodeploy.spec.constants`), or `pace`."""
    factor: Positive
    rows: Count
    models: Count
    error_frac: NotNegative
    """Median error of those rows, fitted."""

    @property
    def source(self) -> str:
        """What it rests on, as a source."""
        return f"calibrated ({self.rows} rows, {self.models} models, median error {self.error_frac:.1%})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """The file."""

    factor: tuple[FittedFactor, ...] = ()


PACE = "pace"


@cache
def factors() -> tuple[FittedFactor, ...]:
    """All of them; none where nothing was fitted yet."""
    return parse(Factors, read_mapping(PATH), source=str(PATH)).factor if PATH.is_file() else ()


def _of(owner: str) -> Mapping[str, FittedFactor]:
    return {each.name: each for each in factors() if owner and each.owner == owner}


def calibrated_cluster(cluster: Cluster) -> Cluster:
    """The cluster with the constants of its generation."""
    mine = _of(generation_of(cluster.name))
    sources = dict(cluster.sources)
    for name, each in mine.items():
        for field in stated(cluster, constant_of(name)):
            key = source_key(sources, field)
            sources[key] = f"{each.source}, x{each.factor:.3f}; before: {sources.get(key, 'not stated')}"
    return replace(scaled(cluster, {name: each.factor for name, each in mine.items()}), sources=sources)


def source_key(sources: Mapping[str, str], field: str) -> str:
    """The key under which sources name a field: a file's own units stand in it."""
    stem = field.removesuffix("_s")
    return next((key for key in (field, f"{stem}_us", f"{stem}_ms") if key in sources), field)


def calibrated_target(target: Target) -> Target:
    """The target with the pace of its family."""
    pace = _of(family_of(target.name)).get(PACE)
    if pace is None:
        return target
    sources = target.sources | {"profile.pace": pace.source}
    return replace(target, profile=replace(target.profile, pace=pace.factor), sources=sources)


def stated_cluster(cluster: Cluster) -> Cluster:
    """What the file of a calibrated cluster states."""
    mine = _of(generation_of(cluster.name))
    return scaled(cluster, {name: 1.0 / each.factor for name, each in mine.items()})
