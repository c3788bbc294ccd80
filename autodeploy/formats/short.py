"""The short form of a plan: `tp8/pp16/vpp2/ep32/mbs1/pair/hier`, complete for its space.

Fixed order; every field that can differ within the space is printed, so that a printed form pasted back names
the same plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from autodeploy.errors import Fault, SpecError
from autodeploy.spec.plan import (
    CP_COMM_WORDS,
    DISPATCH_WORDS,
    LAYOUT_RULES,
    OVERLAP_WORDS,
    SCHEDULE_WORDS,
    STATES_WORDS,
    CpComm,
    Dispatch,
    Overlap,
    Plan,
    Schedule,
    States,
)  # fmt: skip

ORDER = (
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "sp", "schedule", "overlap", "dispatch", "zero", "cp_comm",
    "replicas", "states", "layout", "recompute",
)  # fmt: skip
NUMBERS = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "zero", "replicas")
WORDS: dict[str, tuple[str, Any]] = {
    "sp": ("sp", True),
    "nosp": ("sp", False),
    **{word: ("schedule", Schedule(code)) for code, word in enumerate(SCHEDULE_WORDS)},
    "nopair": ("overlap", Overlap.NONE),
    OVERLAP_WORDS[1]: ("overlap", Overlap.PAIR),
    DISPATCH_WORDS[0]: ("dispatch", Dispatch.FLAT),
    DISPATCH_WORDS[1]: ("dispatch", Dispatch.HIER),
    DISPATCH_WORDS[2]: ("dispatch", Dispatch.DEDUP),
    DISPATCH_WORDS[3]: ("dispatch", Dispatch.GATHER),
    DISPATCH_WORDS[4]: ("dispatch", Dispatch.FUSED),
    CP_COMM_WORDS[0]: ("cp_comm", CpComm.RING),
    CP_COMM_WORDS[1]: ("cp_comm", CpComm.GATHER),
    CP_COMM_WORDS[2]: ("cp_comm", CpComm.ULYSSES),
    STATES_WORDS[0]: ("states", States.DEVICE),
    STATES_WORDS[1]: ("states", States.REUSE),
    STATES_WORDS[2]: ("states", States.HOST),
} | {rule: ("layout", rule) for rule in ("auto", *LAYOUT_RULES)}  # fmt: skip
PREFIXES = {"rc:": "recompute", "layout:": "layout"}
_NUMBER = re.compile(r"([a-z]+)(-?[0-9]+)")


def short_form(plan: Plan, varying: Sequence[str]) -> str:
    """The plan as text; `varying` are the fields with more than one value in its space."""
    return "/".join(_write(name, getattr(plan, name)) for name in ORDER if name in varying)


def _write(name: str, value: Any) -> str:
    if name in NUMBERS:
        return f"{name}{int(value)}"
    if name == "recompute":
        return f"rc:{value}"
    if name == "layout" and value not in WORDS:
        return f"layout:{value}"
    return next(word for word, (field, meant) in WORDS.items() if field == name and meant == value)


def read_short(text: str) -> dict[str, Any]:
    """The fields that a short form names. Raises `SpecError` with every part that is not understood."""
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    for part in (part.strip() for part in text.strip().strip("/").split("/")):
        try:
            name, value = _read(part)
        except ValueError as error:
            faults.append(Fault(path=part or "plan", problem=str(error), allowed=_allowed()))
            continue
        if name in found:
            faults.append(Fault(path=part, problem=f"{name} is given twice"))
        found[name] = value
    if faults:
        raise SpecError(*faults, source=text)
    return found


def _read(part: str) -> tuple[str, Any]:
    if part in WORDS:
        return WORDS[part]
    for prefix, name in PREFIXES.items():
        if part.startswith(prefix):
            return name, part.removeprefix(prefix)
    match = _NUMBER.fullmatch(part)
    if match and match[1] in NUMBERS:
        value, least = int(match[2]), 0 if match[1] == "zero" else 1
        if value < least:
            raise ValueError(f"{match[1]} must be at least {least}, not {value}")
        return match[1], value
    near = get_close_matches(match[1] if match else part, [*NUMBERS, *WORDS], n=1, cutoff=0.6)
    raise ValueError("not a plan field" + (f"; did you mean {near[0]!r}?" if near else ""))


def _allowed() -> str:
    return " ".join(f"{name}N" for name in NUMBERS) + " " + " ".join(WORDS) + " rc:POLICY layout:STRING layout:WORDS"


def varying_fields(values: Mapping[str, Sequence[Any]], spread: Sequence[str]) -> tuple[str, ...]:
    """Fields that a short form must print: those listed with more than one value, and derived ones in `spread`."""
    return tuple(name for name in ORDER if len(values.get(name, ())) > 1 or name in spread)
