"""Files to values: TOML, YAML or JSON in, a spec out, or one `SpecError` with every fault of the file.

Human units stand in the key (`hbm_gib`) and become SI (`hbm_bytes`) before the checks; faults name the key as
it was written. pydantic reads the dataclasses strictly (as JSON, where lists are tuples): no unknown key, no
silent conversion.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.spec.cluster import Cluster, Device, Level, Rate
from autodeploy.spec.job import Job
from autodeploy.spec.model import GQA, MLA, Model, MoE
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import PlanValues, SpaceFile
from autodeploy.spec.sweep import Sweep, Threshold
from autodeploy.spec.target import Profile, Target
from autodeploy.units import HUMAN_SUFFIXES, human_suffix, to_si

T = TypeVar("T")

ATTENTION = {"gqa": GQA, "mla": MLA}
STAND_IN = {"kind": "gqa", "heads": 1, "kv_heads": 1, "head_dim": 1}
"""Takes the place of a faulty attention, whose own faults are already listed."""
PLAIN_TYPES = ("str", "int", "float", "bool")
"""What pydantic calls the branches of a union of them."""
SPECS: tuple[type, ...] = (
    GQA, MLA, MoE, Model, Job, Rate, Device, Level, Cluster, Profile, Target, Plan, PlanValues, SpaceFile, Threshold,
    Sweep,
)  # fmt: skip
SCHEMAS: dict[str, type] = {"model": Model, "job": Job, "cluster": Cluster, "target": Target, "plan": Plan}
SCHEMAS |= {"space": SpaceFile, "sweep": Sweep}


def read_mapping(path: Path) -> dict[str, Any]:
    """The content of a TOML, YAML or JSON file. Raises `SpecError` when it cannot be had."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
        raise spec_error("", f"cannot read: {reason}", source=str(path)) from error
    data = _parse_text(text, path)
    if not isinstance(data, Mapping):
        raise spec_error("", f"holds {type(data).__name__}, not named fields", source=str(path))
    return dict(data)


def _parse_text(text: str, path: Path) -> Any:
    suffix = path.suffix.lower()
    try:
        if suffix == ".toml":
            return tomllib.loads(text)
        if suffix == ".json":
            return json.loads(text)
        if suffix in (".yaml", ".yml"):
            from ruamel.yaml import YAML

            found = YAML(typ="safe", pure=True).load(text)
            return json.loads(json.dumps(found, default=str))  # no anchor that holds itself, no key that is no text
    except Exception as error:  # three parsers, three families of errors; all mean the same to the user
        raise spec_error("", f"not valid {suffix[1:].upper()}: {_reason(error)}", source=str(path)) from error
    raise spec_error("", f"unknown file type {suffix!r}", ".toml .yaml .yml .json", source=str(path))


def _reason(error: Exception) -> str:
    """One line; YAML's own message has several, the last of them about the parser."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error)
    return f"{getattr(error, 'problem', error)} (at line {mark.line + 1}, column {mark.column + 1})"


def parse(cls: type[T], data: Mapping[str, Any], source: str = "") -> T:
    """A spec from named fields; raises one `SpecError` with all faults, each with the path as written."""
    written: dict[tuple[str | int, ...], str] = {}
    twice: list[Fault] = []
    value, faults = _validate(cls, _si(data, (), written, twice), written)
    faults = twice + faults
    if faults:
        raise SpecError(*faults, source=source)
    assert value is not None
    return value


def schema(name: str) -> dict[str, Any]:
    """JSON Schema of a kind of file. Files may also use human units: `hbm_gib` for `hbm_bytes`."""
    if name not in SCHEMAS:
        raise spec_error("schema", f"unknown kind {name!r}", " ".join(SCHEMAS))
    return _adapter(SCHEMAS[name]).json_schema()


def _adapter(cls: type) -> Any:
    from pydantic import TypeAdapter

    for spec in (*SPECS, *_inside(cls)):
        spec.__pydantic_config__ = {"extra": "forbid", "strict": True, "allow_inf_nan": False}  # type: ignore[attr-defined]
    return TypeAdapter(cls)


def _inside(cls: Any) -> Iterator[type]:
    """A dataclass and those that it holds."""
    if is_dataclass(cls) and isinstance(cls, type):
        yield cls
        for hint in get_type_hints(cls).values():
            yield from _inside(hint)
    for option in get_args(cls):
        yield from _inside(option)


def _si(data: Any, path: tuple[str | int, ...], written: dict[tuple[str | int, ...], str], twice: list[Fault]) -> Any:
    """The same data with SI keys and tuples; `written` remembers how each SI key was spelled, `twice` which keys
    were given in two units."""
    if isinstance(data, Mapping):
        out = {}
        for key, value in data.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            si_key, si_value = to_si(key, value) if number else (to_si(key, 0.0)[0], value)
            here = (*path, si_key)
            if si_key in out:
                twice.append(
                    Fault(path=_spell(here, written), problem=f"given again as {key!r}", allowed="one of them")
                )
            written[here] = key
            out[si_key] = _si(si_value, here, written, twice)
        return out
    if isinstance(data, (list, tuple)):
        return tuple(_si(item, (*path, i), written, twice) for i, item in enumerate(data))
    return data


def _validate(cls: type[T], data: Any, written: Mapping[Any, str]) -> tuple[T | None, list[Fault]]:
    from pydantic import ValidationError

    data, faults = _choose_attention(cls, data, written)
    try:
        value = _adapter(cls).validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        return None, faults + [_fault(cls, item, written) for item in _meant(error.errors(include_url=False))]
    return value, faults


def _choose_attention(cls: type, data: Any, written: Mapping[Any, str]) -> tuple[Any, list[Fault]]:
    """The attention of a model is one of two forms; reading the right one keeps the faults readable."""
    if cls is not Model or not isinstance(data, dict) or not isinstance(data.get("attention"), dict):
        return data, []
    attention = data["attention"]
    form = ATTENTION.get(str(attention.get("kind", "")))
    if form is None:
        problem = f"unknown {attention.get('kind')!r}" if "kind" in attention else "missing"
        fault = Fault(path="attention.kind", problem=problem, allowed=" ".join(ATTENTION))
        return data | {"attention": STAND_IN}, [fault]
    deeper = {key[1:]: name for key, name in written.items() if key[0] == "attention" and len(key) > 1}
    _, faults = _validate(form, attention, deeper)
    return data | {"attention": STAND_IN if faults else attention}, [
        Fault(path=f"attention.{fault.path}".rstrip("."), problem=fault.problem, allowed=fault.allowed)
        for fault in faults
    ]


def _meant(errors: list[Any]) -> list[Any]:
    """Of what a value that is a list or a word breaks, only what it breaks as the one that it is."""
    errors = _once(errors)
    places = [_real_path(item["loc"]) for item in errors]
    words = {place for place, item in zip(places, errors, strict=True) if item["type"] == "literal_error"}
    out = []
    for place, item in zip(places, errors, strict=True):
        both = any(other[: len(place)] == place for i, other in enumerate(places) if errors[i] is not item)
        is_word = isinstance(item.get("input"), str)
        as_word = item["type"] == "literal_error" and both and not is_word
        as_list = item["type"] == "tuple_type" and place in words and is_word
        if not (as_word or as_list):
            out.append(item)
    return out


def _once(errors: list[Any]) -> list[Any]:
    """One error where a value is none of several plain types."""
    plain: dict[tuple[str | int, ...], Any] = {}
    out = []
    for item in errors:
        if item["loc"][-1:] and item["loc"][-1] in PLAIN_TYPES:
            place = _real_path(item["loc"])
            none_of_them = {**item, "msg": "Input should be text, a number, true or false"}
            plain[place] = item if item["type"] == "finite_number" else plain.get(place, none_of_them)
        else:
            out.append(item)
    return [*plain.values(), *out]


def _fault(cls: type, item: Any, written: Mapping[Any, str]) -> Fault:
    location = _real_path(item["loc"])
    path = _spell(location, written)
    kind, value = item["type"], item.get("input")
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return Fault(path=path, problem="missing")
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        names = _field_names(cls, location[:-1])
        spelled = [spelling for name in names for spelling in with_human_units(name)]
        near = get_close_matches(str(location[-1]), spelled, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return Fault(path=path, problem=f"unknown key{hint}", allowed=" ".join(names))
    if kind == "value_error":
        return Fault(path=path, problem=item["msg"].removeprefix("Value error, "))
    shown = _as_written(value, written.get(location, ""))
    return Fault(path=path, problem=f"{item['msg']}, not {shown!r}")


def _as_written(value: Any, key: str) -> Any:
    """A number in the unit of its key again."""
    suffix = human_suffix(key)
    if suffix is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return float(f"{value / HUMAN_SUFFIXES[suffix][1]:.12g}")


def _real_path(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Without the steps that pydantic adds for the branches of a union."""
    return tuple(step for step in location if isinstance(step, int) or _is_key(step))


def _is_key(step: str) -> bool:
    branches = {*PLAIN_TYPES, *(spec.__name__ for spec in SPECS)}
    return not any(mark in step for mark in "[](),") and step not in branches


def _spell(location: tuple[str | int, ...], written: Mapping[Any, str]) -> str:
    out = ""
    for depth, step in enumerate(location):
        name = written.get(location[: depth + 1], step)
        out += f"[{step}]" if isinstance(step, int) else (f".{name}" if out else str(name))
    return out


def _field_names(cls: Any, location: tuple[str | int, ...]) -> list[str]:
    """Names allowed at a place inside a spec."""
    for step in location:
        if not isinstance(step, str):
            continue
        hint = get_type_hints(cls).get(step)
        options = [hint, *get_args(hint)]
        cls = next((option for option in options if is_dataclass(option)), None)
        if cls is None:
            return []
    return [f.name for f in fields(cls)]


def with_human_units(name: str) -> list[str]:
    """Every spelling of an SI field that a file may use: `hbm_bytes` also as `hbm_gib`, `hbm_mib`, ..."""
    human = [name.removesuffix(si) + suffix for suffix, (si, _) in HUMAN_SUFFIXES.items() if name.endswith(si)]
    return [name, *human]
