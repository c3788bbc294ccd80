"""A sweep to its cells: every combination of the matrix, each with a name that holds what makes it differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from itertools import product
from pathlib import Path

from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.search.choose import held_faults
from autodeploy.spec.conditions import parse_condition, parse_list, split_list
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
    faults = [*_key_faults(sweep), *_value_faults(sweep), *_condition_faults(sweep)]
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
    given = [*sweep.base, *sweep.matrix]
    faults += [Fault(path=f"matrix.{key}", problem="missing, also in base") for key in NEEDED if key not in given]
    if not sweep.matrix:
        faults.append(Fault(path="matrix", problem="lists nothing", allowed="one key or more"))
    twice = sorted(set(sweep.base) & set(sweep.matrix))
    faults += [Fault(path=f"matrix.{key}", problem="also in base") for key in twice]
    both = [key for key, name in ALIASES.items() if key in given and name in given]
    return faults + [Fault(path=f"matrix.{key}", problem=f"is {ALIASES[key]}, given as well") for key in both]


def _condition_faults(sweep: Sweep) -> list[Fault]:
    """What is wrong with the conditions; a fixed field needs one value."""
    faults: list[Fault] = []
    for text in (*sweep.only, *sweep.ban, *split_list(sweep.fix)):
        try:
            parse_condition(text)
        except SpecError as error:
            faults += error.faults
    return faults or held_faults(parse_list(sweep.fix), "fix")


def _value_faults(sweep: Sweep) -> list[Fault]:
    faults = []
    listed: dict[str, tuple[Value, ...]] = {f"base.{key}": (value,) for key, value in sweep.base.items()}
    listed |= {f"matrix.{key}": values for key, values in sweep.matrix.items()}
    for path, values in listed.items():
        key = path.partition(".")[2]
        if not values:
            faults.append(Fault(path=path, problem="lists no value"))
        if len(set(values)) < len(values):
            faults.append(Fault(path=path, problem="lists a value twice"))
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
    """A model with some of its own fields replaced. Raises `SpecError` where it has no such field, or the field
    takes no such value."""
    if not values:
        return model
    written = {name: part for name, part in asdict(model).items() if part is not None}
    for key, value in values.items():
        part, _, inner = key.rpartition(".")
        holder = written.get(part) if part else written
        if not isinstance(holder, dict) or inner not in holder:
            raise spec_error(key, f"{model.name} has no such field")
        holder[inner] = value
    return parse(Model, written, source=model.name)
