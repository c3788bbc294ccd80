"""A space to its legal plans: the full product of values, every refusal counted under the first rule it breaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import isqrt

import numpy as np

from autodeploy.balance.layouts import candidates
from autodeploy.balance.recompute import parse_policy
from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.legality.rules import LAYOUT_FIELDS, RULES
from autodeploy.search.layouts import layout_faults_of, layouts_of, question_of, rules_of
from autodeploy.spec.conditions import parse_condition
from autodeploy.spec.model import GQA
from autodeploy.spec.placement import chunks_fit, placement_of, slots_in, usual_schedule
from autodeploy.spec.plan import (
    CODES,
    CP_COMM_WORDS,
    DISPATCH_WORDS,
    OVERLAP_WORDS,
    PLAN_FIELDS,
    SCHEDULE_WORDS,
    STATES_WORDS,
    Plan,
    PlanTable,
    Schedule,
    distinct,
    table_of,
)  # fmt: skip
from autodeploy.spec.space import Space

MOST_CANDIDATES = 30_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Enumeration:
    """Legal plans, and how many candidates each rule refused (the first one broken counts)."""

    candidates: int
    legal: PlanTable
    refused: dict[str, int]


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, upwards."""
    small = [i for i in range(1, isqrt(number) + 1) if number % i == 0]
    return tuple(sorted({*small, *(number // i for i in small)}))


def field_values(space: Space) -> dict[str, tuple]:
    """The values of every plan field that a space lists, `divisors` written out."""
    model, plan = space.model, space.plan
    moe = model.moe
    whole = {
        "tp": lambda: divisors(model.attention.heads),
        "pp": lambda: tuple(d for d in divisors(space.devices) if d <= model.layers + 2),
        "cp": lambda: divisors(space.devices),
        "ep": lambda: divisors(moe.experts) if moe else (1,),
        "etp": lambda: tuple(d for d in divisors(moe.expert_width) if d <= space.cluster.inner.size) if moe else (1,),
    }
    values = {
        name: make() if getattr(plan, name) == "divisors" else getattr(plan, name) for name, make in whole.items()
    }
    values |= {name: getattr(plan, name) for name in ("vpp", "mbs", "zero", "replicas", "layout", "recompute")}
    values["overlap"] = tuple(OVERLAP_WORDS.index(word) for word in plan.overlap)
    values["dispatch"] = tuple(DISPATCH_WORDS.index(word) for word in plan.dispatch)
    values["states"] = tuple(STATES_WORDS.index(word) for word in plan.states)
    values["cp_comm"] = tuple(CP_COMM_WORDS.index(word) for word in plan.cp_comm)
    if plan.sp is not None:
        values["sp"] = plan.sp
    if plan.schedule is not None:
        values["schedule"] = tuple(SCHEDULE_WORDS.index(word) for word in plan.schedule)
    return values


def check_space(space: Space) -> None:
    """Faults that hold for every plan of a space: raises one `SpecError` with all of them."""
    listed = field_values(space)
    shapes = _layout_shapes(listed)
    sensible = [(pp, parts) for pp, parts in shapes if pp > 1 or parts == 1]
    faults = [*_word_faults(space), *layout_faults_of(space, sensible or shapes)]
    faults += [*_device_faults(space), *_model_faults(space)]
    faults += [Fault(path=f"plan.{name}", problem="lists no value") for name, values in listed.items() if not values]
    faults += [
        Fault(path=f"plan.{name}", problem=f"lists {values[i]!r} twice")
        for name, values in listed.items()
        for i in range(len(values))
        if values[i] in values[:i]
    ]
    if faults:
        raise SpecError(*faults, source=space.name)


def _layout_shapes(listed: Mapping[str, tuple]) -> list[tuple[int, int]]:
    """(pp, slots a stage) of the pipelines that a space lists."""
    found = []
    for pp, vpp in product(listed["pp"], listed["vpp"]):
        schedules = map(Schedule, listed.get("schedule", (usual_schedule(vpp),)))
        placements = [placement_of(schedule) for schedule in schedules if chunks_fit(schedule, vpp)]
        found += [(pp, slots_in(placement, pp, vpp) // pp) for placement in placements]
    return list(dict.fromkeys(found)) or list(product(listed["pp"], listed["vpp"]))


def _word_faults(space: Space) -> list[Fault]:
    faults: list[Fault] = []
    for condition in (*space.only, *space.ban):
        try:
            parse_condition(condition)
        except SpecError as error:
            faults += error.faults
    for policy in space.plan.recompute:
        try:
            parse_policy(policy)
        except SpecError as error:
            faults += [Fault(path="plan.recompute", problem=f.problem, allowed=f.allowed) for f in error.faults]
    return faults


def _model_faults(space: Space) -> list[Fault]:
    """Shapes that no model can have, and what cannot be costed yet."""
    attention, moe, faults = space.model.attention, space.model.moe, []
    if isinstance(attention, GQA) and attention.heads % attention.kv_heads:
        problem = f"{attention.kv_heads} does not divide {attention.heads} heads"
        faults.append(Fault(path="model.attention.kv_heads", problem=problem))
    if moe is not None and moe.top_k > moe.experts:
        faults.append(Fault(path="model.moe.top_k", problem=f"{moe.top_k} of {moe.experts} experts"))
    return faults


def _device_faults(space: Space) -> list[Fault]:
    size, faults = space.cluster.node.size, []
    if space.devices % size and space.devices > size:
        near = space.devices // size * size
        allowed = f"multiples of {size}: {near}, {near + size}"
        problem = f"{space.devices} is not whole nodes of {size} (rule N01)"
        faults.append(Fault(path="devices", problem=problem, allowed=allowed))
    if space.job.seq_len > space.model.max_seq_len:
        problem = f"{space.job.seq_len} is longer than {space.model.name} takes"
        faults.append(Fault(path="job.seq_len", problem=problem, allowed=f"up to {space.model.max_seq_len}"))
    return faults


def enumerate_plans(space: Space) -> Enumeration:
    """All legal plans of a space. Raises `SpecError` when the space is faulty or too large."""
    check_space(space)
    return legal_plans(space, _product(space))


def legal_plans(space: Space, table: PlanTable) -> Enumeration:
    """The legal ones of some plans."""
    alive = np.ones(len(table), dtype=bool)
    refused: dict[str, int] = {}
    for rule_id, holds in _verdicts(space, table):
        broken = alive & ~holds
        if broken.any():
            refused[rule_id] = int(broken.sum())
        alive &= holds
    return Enumeration(candidates=len(table), legal=table.rows(alive), refused=refused)


def rules_to_blame(space: Space) -> list[str]:
    """For a space with no legal plan: the rules that every candidate breaks; if there is none, all that any breaks."""
    verdicts = list(_verdicts(space, _product(space)))
    always = [rule_id for rule_id, holds in verdicts if not holds.any()]
    return always or [rule_id for rule_id, holds in verdicts if not holds.all()]


def broken_rules(space: Space, plan: Plan) -> list[str]:
    """`id: text` of every rule of the target that a plan breaks, in the target's order."""
    verdicts = _verdicts(space, table_of([plan]))
    return [describe(rule_id) for rule_id, holds in verdicts if not holds.all()]


def describe(rule_id: str) -> str:
    """A rule in words; a user's own condition speaks for itself."""
    return f"{rule_id}: {RULES[rule_id].text}" if rule_id in RULES else f"{rule_id} (your condition)"


def _verdicts(space: Space, table: PlanTable) -> Iterator[tuple[str, np.ndarray]]:
    """(rule, where it holds): the user's own conditions, then every rule of the target, in its order."""
    for text in space.only:
        yield f"only {text}", np.broadcast_to(parse_condition(text).holds(table), (len(table),))
    for text in space.ban:
        yield f"ban {text}", ~np.broadcast_to(parse_condition(text).holds(table), (len(table),))
    question = question_of(space)
    layouts = None
    for rule in rules_of(space):
        holds = np.ones(len(table), dtype=bool) if rule.holds is None else rule.holds(question, table)
        if rule.id == "L01" or rule.layout_holds is not None:
            layouts = _layouts_hold(space, table) if layouts is None else layouts
            holds = holds & layouts[rule.id != "L01"]
        yield rule.id, np.broadcast_to(holds, (len(table),))


def _product(space: Space) -> PlanTable:
    values = field_values(space)
    size = int(np.prod([float(len(column)) for column in values.values()]))
    if size > MOST_CANDIDATES:
        raise spec_error("plan", f"{size:,} candidates", f"at most {MOST_CANDIDATES:,}", source=space.name)
    words = {name: values[name] for name in ("layout", "recompute")}
    numbers = {
        name: np.arange(len(column)) if name in words else np.array(column, dtype=float)
        for name, column in values.items()
    }
    mesh = np.meshgrid(*numbers.values(), indexing="ij")
    columns = {name: grid.ravel() for name, grid in zip(numbers, mesh, strict=True)}
    return PlanTable(_with_derived(space, columns), words)


def _with_derived(space: Space, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """dp from the devices; sp and schedule as tp and vpp imply, where the space leaves them open."""
    share = np.floor(space.devices / (columns["tp"] * columns["pp"] * columns["cp"]))
    columns["dp"] = np.maximum(share, 1.0)
    columns.setdefault("sp", columns["tp"] > 1)
    columns.setdefault("schedule", columns["vpp"] > 1)
    codes = tuple(CODES)
    columns |= {name: columns[name].astype(np.int8) for name in codes}
    columns |= {name: columns[name].astype(np.int16) for name in ("layout", "recompute")}
    return {name: columns[name] for name in PLAN_FIELDS}


def _layouts_hold(space: Space, table: PlanTable) -> tuple[np.ndarray, np.ndarray]:
    """Where some layout exists (L01), and where some layout also keeps the target's rules about layouts."""
    first, inverse = distinct(table, LAYOUT_FIELDS)
    plans = [table.row(int(row)) for row in first]
    model, job = space.model, space.job
    exists = [bool(candidates(model, job, p.pp, p.vpp, p.layout, placement=placement_of(p.schedule))) for p in plans]
    allowed = [bool(layouts_of(space, plan)) for plan in plans]
    return np.array(exists, dtype=bool)[inverse], np.array(allowed, dtype=bool)[inverse]
