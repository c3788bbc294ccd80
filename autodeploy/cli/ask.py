"""The space that a command line asks about: from a file, or from a model, a cluster and a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autodeploy.catalog.lookup import load, load_space
from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.formats.huggingface import load_model
from autodeploy.search.choose import hold
from autodeploy.search.defaults import EFFORTS, default_values
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.conditions import parse_condition, parse_list
from autodeploy.spec.job import Job
from autodeploy.spec.space import Space
from autodeploy.spec.target import Target

NEEDED = ("model", "cluster", "devices", "seq_len", "gbs")
"""What a search without a file has to be told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command line says about the space."""

    space_file: Path | None = None
    model: str | None = None
    cluster: str | None = None
    target: str | None = None
    devices: int | None = None
    seq_len: int | None = None
    gbs: int | None = None
    fix: str = ""
    only: tuple[str, ...] = ()
    ban: tuple[str, ...] = ()
    effort: str = "normal"


def asked_space(asked: Asked) -> Space:
    """The space, with every fault of the command line in one `SpecError`."""
    if asked.effort not in EFFORTS:
        raise spec_error("--effort", f"unknown {asked.effort!r}", " ".join(EFFORTS))
    space = _from_file(asked, asked.space_file) if asked.space_file else _from_words(asked)
    only = (*space.only, *(parse_condition(text).text for text in asked.only))
    ban = (*space.ban, *(parse_condition(text).text for text in asked.ban))
    return hold(replace(space, only=only, ban=ban), parse_list(asked.fix))


def _from_file(asked: Asked, path: Path) -> Space:
    """A space file, with what the command line overrides."""
    clash = [name for name in ("model", "cluster", "target", "devices", "seq_len") if getattr(asked, name) is not None]
    if clash:
        faults = (Fault(path=_flag(name), problem="not with a space file, which says it") for name in clash)
        raise SpecError(*faults)
    return space_from_file(path, asked.gbs)


def space_from_file(path: Path, gbs: int | None = None) -> Space:
    """A space file, whose model may also be a config.json."""
    return load_space(path, gbs, lambda name: load_model(name).model)


def _from_words(asked: Asked) -> Space:
    """A space with default values, from model, cluster and job."""
    missing = [name for name in NEEDED if getattr(asked, name) is None]
    if missing:
        allowed = "a space file, or " + " ".join(map(_flag, NEEDED))
        raise SpecError(*(Fault(path=_flag(name), problem="missing", allowed=allowed) for name in missing))
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    readers: Mapping[str, Any] = {
        "model": lambda name: load_model(name).model,
        "cluster": lambda name: load(Cluster, name),
        "target": lambda name: load(Target, name),
    }
    names = {"model": asked.model, "cluster": asked.cluster, "target": asked.target or "generic"}
    for key, read in readers.items():
        try:
            found[key] = read(names[key])
        except SpecError as error:
            place = f"{_flag(key)} {error.source}".strip()
            named = [f.path if f.path == key else "" for f in error.faults]
            faults += [
                Fault(path=place if name else f"{place}: {f.path}".rstrip(": "), problem=f.problem, allowed=f.allowed)
                for name, f in zip(named, error.faults, strict=True)
            ]
    if faults:
        raise SpecError(*faults)
    return _space(asked, found, names)


def _space(asked: Asked, found: Mapping[str, Any], names: Mapping[str, Any]) -> Space:
    assert asked.devices is not None
    assert asked.gbs is not None
    assert asked.seq_len is not None
    values = default_values(found["model"], found["cluster"], asked.devices, asked.effort)  # type: ignore[arg-type]
    return Space(
        name=f"{found['model'].name}_{found['cluster'].name}_{asked.devices}",
        model=found["model"],
        cluster=found["cluster"],
        target=found["target"],
        devices=asked.devices,
        job=Job(gbs=asked.gbs, seq_len=asked.seq_len),
        plan=values,
        inputs=dict(names),
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
