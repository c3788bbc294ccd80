"""Names to values: a catalog entry by its name, or any file of the same form by its path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from autodeploy.catalog.calibration import calibrated_cluster, calibrated_target
from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.files import parse, read_mapping
from autodeploy.spec.model import Model
from autodeploy.spec.space import Space, SpaceFile
from autodeploy.spec.target import Target

T = TypeVar("T", Model, Cluster, Target)

ROOT = Path(__file__).parent
FOLDERS: dict[type, str] = {Model: "models", Cluster: "clusters", Target: "targets"}
SUFFIXES = (".toml", ".yaml", ".yml", ".json")


def names(cls: type) -> list[str]:
    """Names in the catalog, sorted."""
    return sorted(path.stem for path in (ROOT / FOLDERS[cls]).glob("*.toml"))


@cache
def load(cls: type[T], name: str) -> T:
    """The entry of that name, or the file at that path. Raises `SpecError` with the nearest names."""
    if Path(name).suffix.lower() in SUFFIXES or "/" in name:
        return parse(cls, read_mapping(Path(name)), source=name)
    path = ROOT / FOLDERS[cls] / f"{name}.toml"
    if not path.is_file():
        raise unknown(cls, name)
    return CALIBRATED.get(cls, _as_it_is)(parse(cls, read_mapping(path), source=str(path)))


def _as_it_is(entry: Any) -> Any:
    return entry


CALIBRATED: dict[type, Callable[[Any], Any]] = {Cluster: calibrated_cluster, Target: calibrated_target}
"""What is fitted on published runs joins an entry of the catalog; a file of the user's is taken as it is."""


def unknown(cls: type, name: str) -> SpecError:
    """The error for a name that the catalog does not hold."""
    known = names(cls)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return spec_error(FOLDERS[cls][:-1], f"unknown {name!r}{hint}", " ".join(known) + ", or a file")


def load_space(path: Path, gbs: int | None = None, read_model: Callable[[str], Model] | None = None) -> Space:
    """A space file with its model, cluster and target resolved; `gbs` overrides the file's, `read_model` the way to
    read a model that is not in the catalog's form."""
    asked = parse(SpaceFile, read_mapping(path), source=str(path))
    faults: list[Fault] = []
    found: dict[str, Any] = {}
    readers: dict[str, Callable[[str], Any]] = {
        "model": read_model or (lambda name: load(Model, name)),
        "cluster": lambda name: load(Cluster, name),
        "target": lambda name: load(Target, name),
    }
    for key, read in readers.items():
        try:
            found[key] = read(getattr(asked, key))
        except SpecError as error:
            inside = f"{error.source}: " if error.source else ""
            faults.extend(replace(fault, path=inside + fault.path) for fault in error.faults)
    if faults:
        raise SpecError(*faults, source=str(path))
    return Space(
        name=asked.name or path.stem,
        devices=asked.devices,
        job=replace(asked.job, gbs=gbs) if gbs is not None else asked.job,
        plan=asked.plan,
        only=asked.only,
        ban=asked.ban,
        inputs={key: getattr(asked, key) for key in readers},
        **found,
    )
