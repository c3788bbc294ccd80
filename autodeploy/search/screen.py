"""The screen: every legal plan arranged and costed in closed form, column by column.

Layer costs depend on few fields, so they are computed once per distinct combination; plans that share a pipeline
shape are costed together. The answers are those of the scalar path, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autodeploy.balance.recompute import Ladder
from autodeploy.cost.layers import LayerCost
from autodeploy.schedule.live import enough_microbatches
from autodeploy.search.arrange import arrange, case_of, common_of, lay_out, microbatches_of
from autodeploy.search.arranged import Arranged, Case
from autodeploy.search.layers import LayerTable, layer_table, layers_of
from autodeploy.search.layouts import layouts_of
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import FIRST_SPLIT, Plan, PlanLike, PlanTable, distinct
from autodeploy.spec.space import Space

CASE_FIELDS = ("pp", "vpp", "schedule", "overlap", "layout", "recompute")
CHUNK_ROWS = 16384
FEW_ROWS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """Every legal plan with the arrangement chosen for it."""

    plans: PlanTable
    cases: tuple[Case, ...]
    case: np.ndarray
    """[N] index into `cases`."""
    screen_s: np.ndarray
    bound_s: np.ndarray
    least_bound_s: np.ndarray
    """The smallest bound over all layouts of a plan."""
    needed_bytes: np.ndarray
    fits: np.ndarray
    layers: LayerTable


def screen(space: Space, plans: PlanTable) -> Screened:
    """Arrange and cost all plans."""
    layers = layer_table(space, plans)
    out = _Columns(len(plans))
    cases: dict[Case, int] = {}
    for rows, options in _groups(space, plans, layers.index):
        numbers = [cases.setdefault(option, len(cases)) for option in options]
        for part, view, costs, rungs in _parts(space, plans, rows, options[0], layers):
            common = common_of(space, options[0].layout.pp, view, costs, rungs)
            for number, option in zip(numbers, options, strict=True):
                out.keep_better(part, number, lay_out(common, option))
    return Screened(
        plans=plans, cases=tuple(cases), case=out.case, screen_s=out.screen_s, bound_s=out.bound_s,
        least_bound_s=out.least_bound_s, needed_bytes=out.needed_bytes, fits=out.fits, layers=layers,
    )  # fmt: skip


def _parts(
    space: Space, plans: PlanTable, rows: np.ndarray, case: Case, layers: LayerTable
) -> Iterator[tuple[np.ndarray, PlanLike, Mapping[Kind, LayerCost], Ladder]]:
    """Rows that share a case, in columns; a few of them one by one, where columns would only cost."""
    if len(rows) <= FEW_ROWS:
        for row in rows:
            plan = plans.row(int(row))
            yield np.array([row]), plan, *layers_of(space, plan)
        return
    for part in np.array_split(rows, -(-len(rows) // CHUNK_ROWS)):
        yield part, plans.rows(part), *layers.at(case.policy, case.overlap, part)


def arrange_rows(space: Space, case: Case, plans: PlanTable, rows: np.ndarray, layers: LayerTable) -> Arranged:
    """`arrange` for some rows of a table that share a case."""
    return arrange(space, case, plans.rows(rows), *layers.at(case.policy, case.overlap, rows))


class _Columns:
    """The best arrangement found so far for every plan."""

    def __init__(self, size: int) -> None:
        self.case = np.full(size, -1, dtype=np.int32)
        self.fits = np.zeros(size, dtype=bool)
        self.screen_s, self.bound_s, self.least_bound_s = (np.full(size, np.inf) for _ in range(3))
        self.needed_bytes = np.full(size, np.inf)

    def keep_better(self, rows: np.ndarray, number: int, found: Arranged) -> None:
        """A later layout replaces an earlier one if it fits where that did not, or is faster; where neither fits,
        if it needs less."""
        old_fits, fits = self.fits[rows], np.atleast_1d(found.fits)
        faster = np.where(old_fits, found.screen_s < self.screen_s[rows], found.needed_bytes < self.needed_bytes[rows])
        better = np.where(old_fits == fits, faster, fits)
        here = rows[better]
        self.case[here] = number
        self.least_bound_s[rows] = np.minimum(self.least_bound_s[rows], found.bound_s)
        for name in ("fits", "screen_s", "bound_s", "needed_bytes"):
            getattr(self, name)[here] = np.atleast_1d(getattr(found, name))[better]


def _groups(space: Space, plans: PlanTable, layer: np.ndarray) -> Iterator[tuple[np.ndarray, list[Case]]]:
    """Rows that share a pipeline shape, with the cases that their layout rule allows. Rows with the same layer
    stand together, so that picking their costs walks through memory in order."""
    most = enough_microbatches(plans.schedule, plans.pp, 2 * np.ones_like(plans.pp))
    alike = (plans.schedule < FIRST_SPLIT) & (plans.vpp == 1)
    live = np.where(alike, 0, np.minimum(microbatches_of(space, plans), most))
    keyed = PlanTable(plans.columns | {"mbs": live}, plans.words)
    first, group = distinct(keyed, (*CASE_FIELDS, "mbs"))
    order = np.lexsort((layer, group))
    edges = np.searchsorted(group[order], np.arange(len(first) + 1))
    for number, row in enumerate(first):
        plan = plans.row(int(row))
        yield order[edges[number] : edges[number + 1]], cases_of(space, plan)


def cases_of(space: Space, plan: Plan) -> list[Case]:
    """The cases of one plan, in order of preference on ties."""
    return [case_of(space, plan, rule, layout) for rule, layout in layouts_of(space, plan)]
