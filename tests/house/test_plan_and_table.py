"""A plan and a table of plans have the same fields, and nothing is lost between them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.spec.plan import CODES, DEGREES, PLAN_FIELDS, TEXTS, CpComm, Dispatch, Overlap, Plan, Schedule, table_of

CHOICES: dict[str, st.SearchStrategy[Any]] = dict.fromkeys(DEGREES, st.integers(1, 2**20))
CHOICES |= {"sp": st.booleans(), "zero": st.integers(0, 3)}
CHOICES |= {"schedule": st.sampled_from(Schedule), "overlap": st.sampled_from(Overlap)}
CHOICES |= {"dispatch": st.sampled_from(Dispatch), "cp_comm": st.sampled_from(CpComm)}
CHOICES |= {"layout": st.sampled_from(("auto", "even", "Et*3|mL")), "recompute": st.sampled_from(("fit", "mlp+moe"))}
PLANS = st.builds(Plan, **CHOICES)


def test_every_plan_field_is_a_column() -> None:
    names = [f.name for f in fields(Plan)]
    plan = Plan(**dict.fromkeys(names, 1) | {"layout": "auto", "recompute": "fit"})
    table = table_of([plan])
    assert sorted((*DEGREES, *CODES, *TEXTS)) == sorted(names)
    assert list(table.columns) == list(PLAN_FIELDS) == names
    assert all(isinstance(getattr(table, name), np.ndarray) for name in names)


@settings(max_examples=100, deadline=None)
@given(st.lists(PLANS, min_size=1, max_size=5))
def test_a_row_is_the_plan_it_was_made_from(plans: list[Plan]) -> None:
    table = table_of(plans)
    for i, plan in enumerate(plans):
        row = table.row(i)
        assert row == plan
        assert hash(row) == hash(plan)
        assert [type(getattr(row, name)) for name in PLAN_FIELDS] == [type(getattr(plan, name)) for name in PLAN_FIELDS]
        assert table.edp[i] == plan.edp
    assert table.rows(slice(0, 1)).row(0) == plans[0]
