"""A plan from what a user says of it: fields not given are chosen among the values of the space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.legality.rules import RULES
from autodeploy.search.enumerate import broken_rules, describe, enumerate_plans, field_values, rules_to_blame
from autodeploy.search.exact import search_exact
from autodeploy.search.layouts import shape_fault
from autodeploy.spec.conditions import Condition
from autodeploy.spec.placement import chunks_fit, slots_of_plan
from autodeploy.spec.plan import (
    CODES,
    CP_COMM_WORDS,
    DEGREES,
    DISPATCH_WORDS,
    LAYOUT_RULES,
    OVERLAP_WORDS,
    PLAN_FIELDS,
    SCHEDULE_WORDS,
    STATES_WORDS,
    Plan,
)  # fmt: skip
from autodeploy.spec.space import Space, with_values

LISTED = (
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "mbs",
    "sp",
    "schedule",
    "overlap",
    "dispatch",
    "zero",
    "cp_comm",
    "replicas",
    "states",
    "layout",
    "recompute",
)
"""Fields that a space lists; dp follows from them."""
ZERO_STAGES = (0, 1, 2, 3)
WORDS_OF = {
    "schedule": SCHEDULE_WORDS,
    "overlap": OVERLAP_WORDS,
    "dispatch": DISPATCH_WORDS,
    "cp_comm": CP_COMM_WORDS,
    "states": STATES_WORDS,
}
"""Those that a space lists as words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A whole plan, and what was chosen for the user."""

    plan: Plan
    chosen: dict[str, Any]

    def named(self) -> dict[str, Any]:
        """What was chosen, codes by their names."""
        return {name: getattr(value, "name", value) for name, value in self.chosen.items()}


def restricted(space: Space, given: Mapping[str, Any]) -> Space:
    """The space with the given fields held at their values (also values that the space does not list)."""
    held: dict[str, Any] = {name: (value,) for name, value in given.items() if name in LISTED}
    held |= {name: (words[int(given[name])],) for name, words in WORDS_OF.items() if name in held}
    if held.get("zero", (1,))[0] not in ZERO_STAGES:
        raise spec_error("zero", f"no stage {given['zero']}", "0 1 2 3")
    derived = [f"dp={given['dp']}"] if "dp" in given else []
    return replace(with_values(space, **held), only=(*space.only, *derived))


def held_faults(held: Sequence[Condition], path: str) -> list[Fault]:
    """What is wrong with conditions that hold a field each, whatever the space."""
    free = [condition.text for condition in held if condition.sign != "="]
    names = [condition.field for condition in held]
    twice = dict.fromkeys(name for name in names if names.count(name) > 1)
    few = [c.text for c in held if c.field in DEGREES and c.value == 0]
    shards = [c.text for c in held if c.field == "zero" and c.value not in ZERO_STAGES]
    return [
        *(
            Fault(path=path, problem=f"{text!r} holds no single value", allowed="FIELD=VALUE,...; or --only, --ban")
            for text in free
        ),
        *(Fault(path=path, problem=f"holds {name} twice", allowed="one value of a field") for name in twice),
        *(Fault(path=path, problem=f"{text!r} is no degree", allowed="1 or more") for text in few),
        *(Fault(path=path, problem=f"{text!r} is no stage", allowed="0 1 2 3") for text in shards),
    ]


def hold(space: Space, held: Sequence[Condition]) -> Space:
    """The space with the fields of `FIELD=VALUE` conditions held; derived fields by a condition."""
    faults = held_faults(held, "--fix")
    if faults:
        raise SpecError(*faults)
    derived = tuple(condition.text for condition in held if condition.field not in LISTED)
    values = {condition.field: condition.value for condition in held if condition.field in LISTED}
    coded = {name: CODES[name](value) if name in CODES else value for name, value in values.items()}
    return restricted(replace(space, only=(*space.only, *derived)), coded)


def choose(space: Space, given: Mapping[str, Any]) -> Choice:
    """The best plan that fits with the given fields, else the one least over memory.

    Raises `SpecError` naming the rules that the given fields break.
    """
    narrowed = restricted(space, given)
    _check_derived(narrowed, given)
    outcome = search_exact(narrowed, top=1)
    plans = outcome.screened.plans
    if not len(plans):
        raise _no_legal_plan(narrowed, given)
    row = int(outcome.rows[0]) if len(outcome.rows) else int(np.argmin(outcome.screened.needed_bytes))
    plan = plans.row(row)
    values = field_values(space)
    open_fields = [name for name in PLAN_FIELDS if name not in given and len(values.get(name, ())) > 1]
    return Choice(plan=plan, chosen={name: getattr(plan, name) for name in open_fields})


def _check_derived(space: Space, given: Mapping[str, Any]) -> None:
    """dp and schedule are not free: they must agree with the devices and vpp."""
    faults = []
    if {"tp", "pp", "cp", "dp"} <= given.keys() | {n for n in ("cp",) if len(space.plan.cp) == 1}:
        cp = given.get("cp", space.plan.cp[0])
        product = given["tp"] * given["pp"] * cp * given["dp"]
        if product != space.devices:
            problem = f"tp x pp x cp x dp = {product}, but there are {space.devices} devices (rule V01)"
            share = space.devices / (given["tp"] * given["pp"] * cp)
            faults.append(Fault(path="dp", problem=problem, allowed=f"{share:g}" if share.is_integer() else ""))
    if "schedule" in given and "vpp" in given and not chunks_fit(given["schedule"], given["vpp"]):
        faults.append(Fault(path="schedule", problem=RULES["P04"].text + " (rule P04)"))
    if faults:
        raise SpecError(*faults)


def _no_legal_plan(space: Space, given: Mapping[str, Any]) -> SpecError:
    """Why nothing is legal: the rules that no candidate keeps (else all that refuse), and values that would do."""
    asked = " ".join(f"{name}={_plain(name, value)}" for name, value in given.items())
    allowed = _nearby(space, given)
    faults = [
        Fault(path=asked or "plan", problem=f"breaks {describe(rule)}", allowed=allowed)
        for rule in rules_to_blame(space)
    ]
    return SpecError(*faults, source=space.name)


def _plain(name: str, value: Any) -> str:
    if name in WORDS_OF:
        return WORDS_OF[name][int(value)]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nearby(space: Space, given: Mapping[str, Any]) -> str:
    """Values of one given degree for which the others would be legal."""
    out = []
    for name in ("mbs", "ep", "vpp", "tp", "pp"):
        if name not in given:
            continue
        options = tuple(range(1, 9)) if name == "vpp" else tuple(2**i for i in range(9))
        try:
            legal = enumerate_plans(with_values(space, **{name: options})).legal
        except SpecError:  # a layout cut by hand that lies on none of the options
            continue
        values = sorted({int(value) for value in legal.columns[name]})
        if values:
            out.append(f"{name} {' '.join(map(str, values))}")
    return "; or ".join(out)


def check_plan(space: Space, plan: Plan) -> None:
    """Raises `SpecError` naming every rule that a plan breaks in a space."""
    faults = [_layout_fault(space, plan, rule) for rule in broken_rules(space, plan)]
    used = plan.tp * plan.pp * plan.cp * plan.dp
    if used != space.devices:
        problem = f"tp x pp x cp x dp = {used}, but there are {space.devices} devices (rule V01)"
        faults.append(Fault(path="plan.dp", problem=problem))
    if faults:
        raise SpecError(*faults, source=space.name)


def _layout_fault(space: Space, plan: Plan, rule: str) -> Fault:
    """A broken rule; where there is no layout because of how the user cuts it, why."""
    by_hand = plan.layout not in ("auto", *LAYOUT_RULES) and rule.startswith("L01:")
    found = shape_fault(space, plan.layout, [(plan.pp, slots_of_plan(plan) // plan.pp)]) if by_hand else None
    return found or Fault(path="plan", problem=f"breaks {rule}")
