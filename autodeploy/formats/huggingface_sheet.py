"""One level of a config.json while it is read: our fields found by their spellings, with what was assumed and what
is wrong. A fault leaves a stand-in behind, so that every fault of a file is found in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autodeploy.errors import Fault
from autodeploy.formats.huggingface_families import Family, family_of
from autodeploy.formats.huggingface_keys import ALIASES, NESTS, OWN_MEANING, PARTS

STAND_IN = 1
SHOWN = 60
"""So many characters of a value stand in a message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """The level that describes the language model, without nulls and notes."""

    data: Mapping[str, Any]
    path: str
    """The keys that lead to it, each with a dot: `text_config.`."""
    around: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """The levels around it, outermost first, each with its path."""

    def named(self, key: str) -> Any:
        """A value that may also stand on a level around this one."""
        return next((each[key] for each in (self.data, *self.outwards()) if key in each), None)

    def outwards(self) -> tuple[Mapping[str, Any], ...]:
        """The levels around, innermost first."""
        return tuple(data for _, data in reversed(self.around))


def enter(data: Mapping[str, Any]) -> Level:
    """Goes down to the language model."""
    here, path = clean(data), ""
    around: list[tuple[str, Mapping[str, Any]]] = []
    while nest := next((key for key in NESTS if _describes_model(here.get(key))), None):
        around.append((path, {key: value for key, value in here.items() if key != nest}))
        here, path = clean(here[nest]), f"{path}{nest}."
    return Level(data=here, path=path, around=tuple(around))


def clean(data: Mapping[str, Any]) -> dict[str, Any]:
    """Without keys that are null or begin with `_`; sub-tables that only group keys are opened."""
    kept = {str(key): value for key, value in data.items() if value is not None and not str(key).startswith("_")}
    opened: dict[str, Any] = {}
    for part in PARTS:
        if isinstance(kept.get(part), Mapping):
            opened |= clean(kept.pop(part))
    return opened | kept


def _describes_model(data: Any) -> bool:
    """Whether a sub-table holds a language model, here or deeper."""
    if not isinstance(data, Mapping):
        return False
    found = clean(data)
    return any(key in found for key in ALIASES["hidden"]) or any(_describes_model(found.get(key)) for key in NESTS)


def shown(value: Any) -> str:
    """A value as a message quotes it."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """A level with its family, and what gathers while it is read."""

    level: Level
    family: Family
    assumed: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def key(self, name: str) -> str | None:
        """The key that gives a field."""
        return next((key for key in ALIASES[name] if key in self.level.data), None)

    def value(self, name: str) -> Any:
        """What a field has, as written; None where no key gives it."""
        key = self.key(name)
        return None if key is None else self.level.data[key]

    def count(self, name: str, default: int | None = None, because: str = "", *, least: int = 1) -> int:
        """A whole number: from the file, else from the class, else the default, else a fault."""
        key = self.key(name)
        if key is not None:
            self._compare(name, key)
            return self._whole(key, least)
        if name in self.family.values:
            return int(self.of_class(name, default))
        if default is None:
            self.fault(ALIASES[name][0], "missing", "one of " + " ".join(ALIASES[name]))
            return STAND_IN
        if because:
            self.assume(name, default, because)
        return default

    def flag(self, name: str) -> bool:
        """A switch: from the file, else from the class, else off."""
        key = self.key(name)
        if key is None:
            return bool(self.of_class(name, False))
        if not isinstance(self.level.data[key], bool):
            self.fault(key, f"not {shown(self.level.data[key])}", "true or false")
        return self.level.data[key] is True

    def of_class(self, name: str, default: Any) -> Any:
        """What the class implies, noted; else the default."""
        if name not in self.family.values:
            return default
        self.assume(name, self.family.values[name], f"default of class {self.family.name}")
        return self.family.values[name]

    def sound(self, *names: str) -> bool:
        """Whether the file gives these fields without a fault, so that they may be compared."""
        faulty = {fault.path.removeprefix(self.level.path) for fault in self.faults}
        return all(self.key(name) not in (None, *faulty) for name in names)

    def assume(self, name: str, value: Any, because: str) -> None:
        """Notes what the file does not say."""
        self.assumed.append(f"{name}: {str(value).lower() if isinstance(value, bool) else value}, {because}")

    def fault(self, key: str, problem: str, allowed: str = "") -> None:
        """Notes what is wrong with a key of this level."""
        self.faults.append(Fault(path=self.level.path + key, problem=problem, allowed=allowed))

    def _whole(self, key: str, least: int) -> int:
        value = self._same_everywhere(key, self.level.data[key])
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.fault(key, f"not {shown(value)}", f"a whole number of at least {least}")
            return max(STAND_IN, least)
        return value

    def _same_everywhere(self, key: str, value: Any) -> Any:
        """A list with one value a layer, if the layers are alike (MTP layers may follow)."""
        if not isinstance(value, list):
            return value
        layers = self._length("layers")
        deepest = layers + self._length("mtp_depth")
        if layers and not layers <= len(value) <= deepest:
            self.fault(key, f"a list of {len(value)}", f"one value, or a list with one for each of {layers} layers")
        elif any(each != value[0] for each in value):
            self.fault(key, f"differs between layers: {shown(value)}", "one value for all layers")
        return value[0] if value else STAND_IN

    def _length(self, name: str) -> int:
        value = self.value(name)
        return value if isinstance(value, int) else 0

    def _compare(self, name: str, key: str) -> None:
        """Says which of several keys of one field counts, where they disagree."""
        if name in OWN_MEANING or not isinstance(self.level.data[key], int):
            return
        data = self.level.data
        for other in ALIASES[name]:
            if other in data and isinstance(data[other], int) and data[other] != data[key]:
                self.assume(name, shown(data[key]), f"from {key}; {other} says {data[other]}")


def sheet_of(data: Mapping[str, Any]) -> Sheet:
    """A config, ready to be read."""
    level = enter(data)
    names = level.named("architectures")
    architecture = names[0] if isinstance(names, (list, tuple)) and names else ""
    return Sheet(level=level, family=family_of(str(level.named("model_type") or architecture)))
