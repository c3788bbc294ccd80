"""A sweep to its cells: every combination of the matrix, each with a name that holds what makes it differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.spec.files import parse, read_mapping
from autodeploy.spec.model import GQA, MLA, Model, MoE
from autodeploy.spec.sweep import Sweep, Value

WORDS = ("model", "cluster", "target")
COUNTS = ("devices", "seq_len", "gbs")
NEEDED = ("model", "cluster", "devices", "seq_len", "gbs")
ALIASES = {"num_layers": "layers"}
OWN_FIELDS = (
    *(f.name for f in fields(Model) if f.name not in ("name", "title", "attention", "moe", "sources")),
    *(f"moe.{f.name}" for f in fields(MoE)),
    *(f"attention.{f.name}" for f in (*fields(GQA), *fields(MLA)) if f.name != "kind"),
)  # fmt: skip
"""A model's own fields that a cell may set."""
MOST_CELLS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One search of a sweep."""

    name: str
    values: Mapping[str, Value]
    """All values: those of the base and those of the matrix."""


def read_sweep(path: Path) -> Sweep:
    """A sweep file, with every fault of it in one `SpecError`."""
    sweep = parse(Sweep, read_mapping(path), source=str(path))
    faults = [*_key_faults(sweep), *_value_faults(sweep)]
    if faults:
        raise SpecError(*faults, source=str(path))
    return sweep


def _key_faults(sweep: Sweep) -> list[Fault]:
    known = [*WORDS, *COUNTS, *OWN_FIELDS, *ALIASES]
    faults = []
    for table in ("base", "matrix"):
        for key in getattr(sweep, table):
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                allowed = " ".join((*WORDS, *COUNTS)) + ", or a field of the model"
                faults.append(Fault(path=f"{table}.{key}", problem=f"unknown key{hint}", allowed=allowed))
    given = {*sweep.base, *sweep.matrix}
    faults += [Fault(path=f"matrix.{key}", problem="missing, also in base") for key in NEEDED if key not in given]
    twice = sorted(set(sweep.base) & set(sweep.matrix))
    return faults + [Fault(path=f"matrix.{key}", problem="also in base") for key in twice]


def _value_faults(sweep: Sweep) -> list[Fault]:
    faults = []
    listed: dict[str, tuple[Value, ...]] = {f"base.{key}": (value,) for key, value in sweep.base.items()}
    listed |= {f"matrix.{key}": values for key, values in sweep.matrix.items()}
    for path, values in listed.items():
        key = path.partition(".")[2]
        if not values:
            faults.append(Fault(path=path, problem="lists no value"))
        for value in values:
            if key in WORDS and not isinstance(value, str):
                faults.append(Fault(path=path, problem=f"not a name: {value!r}"))
            if key in COUNTS and (isinstance(value, (bool, str)) or value < 1 or value != int(value)):
                faults.append(Fault(path=path, problem=f"not a whole number from 1: {value!r}"))
    return faults


def cells_of(sweep: Sweep) -> list[Cell]:
    """Every combination, the last key of the matrix running fastest."""
    keys = list(sweep.matrix)
    combined = list(product(*(sweep.matrix[key] for key in keys)))
    if len(combined) > MOST_CELLS:
        raise spec_error("matrix", f"{len(combined):,} cells", f"at most {MOST_CELLS:,}", source=sweep.name)
    return [
        Cell(
            name=",".join(f"{key}={value}" for key, value in zip(keys, values, strict=True)),
            values={**sweep.base, **dict(zip(keys, values, strict=True))},
        )
        for values in combined
    ]


def own_fields(cell: Cell) -> dict[str, Value]:
    """The model's own fields that a cell sets, by our names."""
    named = {ALIASES.get(key, key): value for key, value in cell.values.items()}
    return {key: value for key, value in named.items() if key in OWN_FIELDS}


def with_own_fields(model: Model, values: Mapping[str, Value]) -> Model:
    """A model with some of its own fields replaced; raises `SpecError` where it has no such field."""
    changed: Any = model
    for key, value in values.items():
        part, _, inner = key.rpartition(".")
        holder = getattr(changed, part) if part else changed
        if not is_dataclass(holder) or inner not in {f.name for f in fields(holder)}:
            raise spec_error(key, f"{model.name} has no such field")
        made = replace(holder, **{inner: value})  # type: ignore[type-var]
        changed = replace(changed, **{part: made}) if part else made
    return changed
