"""What a pipeline loses: the parts add up to the step, and equal stages have the bubble of the closed form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autodeploy.search.enumerate import enumerate_plans
from autodeploy.search.evaluate import evaluate
from autodeploy.search.split import SPLIT_TERMS
from autodeploy.spec.plan import Overlap
from tests.builders import SPACE_IDS, SPACES, some_rows, space_of

EVERY_SPACE = pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)


@EVERY_SPACE
def test_the_parts_add_up_to_the_step(path: Path) -> None:
    space = space_of(path)
    legal = enumerate_plans(space).legal
    for row in some_rows(len(legal), 12, 7):
        result = evaluate(space, legal.row(int(row)))
        split = result.time_split
        assert tuple(split) == SPLIT_TERMS
        assert sum(split.values()) == pytest.approx(result.step_time_s, rel=1e-12)
        assert all(value >= -1e-9 for name, value in split.items() if name != "imbalance")
        if result.plan.pp == 1:
            assert split["ideal_bubble"] == pytest.approx(0.0, abs=1e-9)
            assert split["imbalance"] == pytest.approx(0.0, abs=1e-9)


@EVERY_SPACE
def test_equal_stages_lose_the_bubble_of_the_closed_form(path: Path) -> None:
    # (P - 1) / v of a stage's forward and backward pass: arXiv 2104.04473 section 2.2
    space = space_of(path)
    legal = enumerate_plans(space).legal
    plain = legal.rows((legal.overlap == Overlap.NONE) & (legal.pp > 1))
    for row in some_rows(len(plain), 12, 8):
        result = evaluate(space, plain.row(int(row)))
        plan, busy = result.plan, sum(stage.busy_s for stage in result.stages) / result.plan.pp
        bubble = (plan.pp - 1) / plan.vpp * busy / result.microbatches
        assert result.time_split["ideal_bubble"] == pytest.approx(bubble, rel=1e-9)


def test_what_is_hidden_is_what_merging_saves() -> None:
    # the same plan with and without merged passes: without, nothing is hidden
    space = space_of(SPACES[[p.stem.startswith("pangu") for p in SPACES].index(True)])
    legal = enumerate_plans(space).legal
    wanted = (legal.overlap == Overlap.PAIR) & (legal.pp > 1)
    for row in some_rows(int(wanted.sum()), 6, 9):
        plan = legal.rows(wanted).row(int(row))
        hidden = evaluate(space, plan).exchange_hidden_frac
        assert hidden is not None
        assert 0.0 < hidden <= 1.0
        apart = evaluate(space, replace(plan, overlap=Overlap.NONE))
        assert apart.exchange_hidden_frac == pytest.approx(0.0, abs=1e-9)
