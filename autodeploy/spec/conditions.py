"""Conditions on plan fields, as a user writes them: `etp>1`, `schedule=interleaved`, `recompute!=full`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from autodeploy.errors import SpecError, spec_error
from autodeploy.numeric import Num
from autodeploy.spec.layout_words import check_writing, is_word
from autodeploy.spec.plan import (
    CP_COMM_WORDS,
    DEGREES,
    DISPATCH_WORDS,
    OVERLAP_WORDS,
    PLAN_FIELDS,
    SCHEDULE_WORDS,
    STATES_WORDS,
    TEXTS,
    PlanLike,
    PlanTable,
)  # fmt: skip
from autodeploy.spec.target import ALL_MODULES, SWAP, SWAP_PARTS

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "=": operator.eq, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
CODE_WORDS = {
    "schedule": SCHEDULE_WORDS,
    "overlap": OVERLAP_WORDS,
    "dispatch": DISPATCH_WORDS,
    "cp_comm": CP_COMM_WORDS,
    "states": STATES_WORDS,
    "sp": ("false", "true"),
}
NUMBERS = (*DEGREES, "zero")
MOST_DIGITS = 40
POLICY_WORDS = {*ALL_MODULES, "none", "fit", *(SWAP + part for part in SWAP_PARTS)}
_SOLVED = re.compile(r"solve(\+swap(:\d*\.?\d+)?)?")
_SHARE = re.compile(r"full:(\d*\.?\d+)")
_FORM = re.compile(r"\s*([a-z_]+)\s*(<=|>=|!=|=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A comparison of one plan field."""

    field: str
    sign: str
    value: int | str
    text: str

    def holds(self, plan: PlanLike) -> Num:
        """Whether a plan, or where a table, meets it."""
        have = getattr(plan, self.field)
        if self.field in TEXTS and isinstance(plan, PlanTable):
            same = np.array([word == self.value for word in plan.words[self.field]])[have]
            return same if self.sign == "=" else ~same
        return OPERATORS[self.sign](have, self.value)


def parse_condition(text: str) -> Condition:
    """A condition from text; raises `SpecError` saying what is allowed."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise spec_error(text, "not a condition", "FIELD=VALUE, also != < > <= >=")
    name, sign, value = match.groups()
    if name not in PLAN_FIELDS:
        near = get_close_matches(name, PLAN_FIELDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise spec_error(text, f"unknown field {name!r}{hint}", " ".join(PLAN_FIELDS))
    if name not in NUMBERS and sign not in ("=", "!="):
        raise spec_error(text, f"{name} has no order", f"{name}=VALUE or {name}!=VALUE")
    return Condition(field=name, sign=sign, value=_value(name, value, text), text=f"{name}{sign}{value}")


def _value(name: str, value: str, text: str) -> int | str:
    if name == "recompute" and not (
        is_share(value) or _SOLVED.fullmatch(value) or set(value.split("+")) <= POLICY_WORDS
    ):
        raise spec_error(
            text,
            f"unknown value {value!r}",
            "none fit full full:SHARE solve solve+swap, or modules and swap:PART joined by +",
        )
    if name == "layout":
        _check_layout(value, text)
    if name in TEXTS:
        return value
    if name in CODE_WORDS:
        words = CODE_WORDS[name]
        if value.lower() not in words:
            raise spec_error(text, f"unknown value {value!r}", " ".join(words))
        return words.index(value.lower())
    if not (value.isascii() and value.isdigit()):
        raise spec_error(text, f"{value!r} is not a whole number", "0, 1, 2, ...")
    if len(value) > MOST_DIGITS:
        raise spec_error(text, f"a number of {len(value)} digits", f"at most {MOST_DIGITS}")
    return int(value)


def is_share(policy: str) -> bool:
    """Whether a recompute policy is `full:SHARE`, with a share above 0 and at most 1."""
    found = _SHARE.fullmatch(policy)
    return found is not None and 0.0 < float(found[1]) <= 1.0


def _check_layout(value: str, text: str) -> None:
    try:
        check_writing(value)
    except SpecError as error:
        fault = error.faults[0]
        raise spec_error(text, fault.problem, fault.allowed) from error


def split_list(text: str) -> list[str]:
    """The conditions of a list separated by commas. A layout in words has commas of its own (`layout=list:4,4,pp=2`):
    what follows it without a sign of comparison belongs to it."""
    parts: list[str] = []
    for part in filter(str.strip, text.split(",")):
        open_word = bool(parts) and is_word(parts[-1].partition("=")[2].strip())
        if open_word and not any(sign in part for sign in OPERATORS):
            parts[-1] += "," + part
        else:
            parts.append(part)
    return parts


def parse_list(text: str) -> tuple[Condition, ...]:
    """Conditions separated by commas: `tp=8,pp=16`."""
    return tuple(map(parse_condition, split_list(text)))
