"""The screen: every legal plan arranged and costed in closed form, column by column.

Layer costs depend on few fields, so they are computed once per distinct combination; plans that share a pipeline
shape are costed together. The answers are those of the scalar path, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autodeploy.analysis.inventory import kind_counts
from autodeploy.balance.layouts import candidates
from autodeploy.balance.recompute import Ladder, ladder
from autodeploy.cost.layers import LayerCost, layer_costs
from autodeploy.numeric import gather
from autodeploy.search.arrange import Arranged, Case, arrange, case_of, live_cap, microbatches_of
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Overlap, Plan, PlanTable, Schedule
from autodeploy.spec.space import Space

LAYER_FIELDS = ("tp", "cp", "ep", "etp", "mbs", "sp", "dispatch")
"""All that the cost of a layer depends on."""
CASE_FIELDS = ("pp", "vpp", "schedule", "overlap", "layout", "recompute")
CHUNK_ROWS = 16384


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTable:
    """Layer costs and recompute ladders of every distinct combination of `LAYER_FIELDS`."""

    costs: dict[Kind, LayerCost]
    ladders: dict[str, Ladder]
    index: np.ndarray
    """Row of the table for every plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """Every legal plan with the arrangement chosen for it."""

    plans: PlanTable
    cases: tuple[Case, ...]
    case: np.ndarray
    """[N] index into `cases`."""
    screen_s: np.ndarray
    bound_s: np.ndarray
    peak_bytes: np.ndarray
    fits: np.ndarray
    layers: LayerTable


def distinct(table: PlanTable, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(first row of every distinct combination, combination of every row)."""
    key = np.zeros(len(table))
    for name in names:
        values, code = np.unique(table.columns[name], return_inverse=True)
        key = key * len(values) + code
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse


def layer_table(space: Space, plans: PlanTable) -> LayerTable:
    """Cost every distinct layer once."""
    first, index = distinct(plans, LAYER_FIELDS)
    costs = layer_costs(space.model, space.job, space.machine, plans.rows(first))
    lean = {kind: replace(cost, forward_terms={}, backward_terms={}) for kind, cost in costs.items()}
    counts = kind_counts(space.model, space.job.mtp)
    ladders = {policy: ladder(lean, counts, policy) for policy in plans.words["recompute"]}
    return LayerTable(costs=lean, ladders=ladders, index=index)


def screen(space: Space, plans: PlanTable) -> Screened:
    """Arrange and cost all plans."""
    layers = layer_table(space, plans)
    size = len(plans)
    cases: dict[Case, int] = {}
    case, fits = np.zeros(size, dtype=np.int32), np.zeros(size, dtype=bool)
    screen_s, bound_s, peak = np.full(size, np.inf), np.full(size, np.inf), np.full(size, np.inf)
    for rows, options in _groups(space, plans):
        for option in options:
            number = cases.setdefault(option, len(cases))
            for part in np.array_split(rows, -(-len(rows) // CHUNK_ROWS)):
                found = arrange_rows(space, option, plans, part, layers)
                fit = found.peak_bytes <= space.cluster.device.usable_bytes
                better = _better(fits[part], screen_s[part], peak[part], fit, found.screen_s, found.peak_bytes)
                here = part[better]
                case[here], fits[here] = number, fit[better]
                screen_s[here], bound_s[here] = found.screen_s[better], found.bound_s[better]
                peak[here] = found.peak_bytes[better]
    return Screened(
        plans=plans, cases=tuple(cases), case=case, screen_s=screen_s, bound_s=bound_s, peak_bytes=peak,
        fits=fits, layers=layers,
    )  # fmt: skip


def arrange_rows(space: Space, case: Case, plans: PlanTable, rows: np.ndarray, layers: LayerTable) -> Arranged:
    """`arrange` for some rows of a table that share a case."""
    where = layers.index[rows]
    costs, rungs = gather(layers.costs, where), gather(layers.ladders[case.policy], where)
    return arrange(space, case, plans.rows(rows), costs, rungs)


def _better(fits, time, peak, new_fits, new_time, new_peak):  # type: ignore[no-untyped-def]
    """A later layout replaces an earlier one if it fits where that did not, or is faster; unfit: if it needs less."""
    both_fit, neither = fits & new_fits, ~fits & ~new_fits
    return (~fits & new_fits) | (both_fit & (new_time < time)) | (neither & (new_peak < peak))


def _groups(space: Space, plans: PlanTable) -> Iterator[tuple[np.ndarray, list[Case]]]:
    """Rows that share a pipeline shape, with the cases that their layout rule allows."""
    microbatches = microbatches_of(space, plans)
    cap = np.where(plans.vpp > 1, 4 * plans.pp, plans.pp + 2)
    keyed = PlanTable(plans.columns | {"mbs": np.minimum(microbatches, cap)}, plans.words)
    first, group = distinct(keyed, (*CASE_FIELDS, "mbs"))
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(first) + 1))
    for number, row in enumerate(first):
        plan = plans.row(int(row))
        yield order[edges[number] : edges[number + 1]], cases_of(space, plan)


def cases_of(space: Space, plan: Plan) -> list[Case]:
    """The cases of one plan, in order of preference on ties."""
    found = candidates(space.model, space.job, plan.pp, plan.vpp, plan.layout)
    return [case_of(space, plan, rule, layout) for rule, layout in found]
