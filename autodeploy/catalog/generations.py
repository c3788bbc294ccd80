"""Chip generations and software families: what shares one fitted constant."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autodeploy.spec.files import parse, read_mapping

PATH = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Clusters of one chip."""

    name: str
    clusters: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Targets of one software stack; releases without enough rows inherit its factor."""

    name: str
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Generations:
    """The file."""

    generation: tuple[Generation, ...]
    family: tuple[Family, ...]


@cache
def _read() -> Generations:
    return parse(Generations, read_mapping(PATH), source=str(PATH))


def generations() -> tuple[Generation, ...]:
    """All chip generations."""
    return _read().generation


def generation_of(cluster: str) -> str:
    """The generation of a cluster; empty where it is of none."""
    return next((each.name for each in generations() if cluster in each.clusters), "")


def family_of(target: str) -> str:
    """The family of a target; empty where it is of none."""
    return next((each.name for each in _read().family if target in each.targets), "")
