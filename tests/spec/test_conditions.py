"""Conditions on plan fields: they hold for one plan and for a column alike; what cannot be said is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from autodeploy.catalog.lookup import load_space
from autodeploy.errors import SpecError
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.spec.conditions import parse_condition
from autodeploy.spec.plan import Overlap, table_of
from autodeploy.spec.space import Space
from tests.builders import plan_of

HOLDS = {
    "tp=2": True, "tp!=2": False, "tp<2": False, "tp<=2": True, "tp>1": True, "tp>=3": False, "pp = 4": True,
    "sp=true": True, "sp=false": False, "schedule=interleaved": True, "schedule!=interleaved": False,
    "overlap=pair": True, "dispatch=hier": False, "zero=1": True, "layout=auto": True, "recompute!=full": True,
}  # fmt: skip


@pytest.mark.parametrize("text", HOLDS)
def test_a_condition_holds_for_a_plan_and_in_a_table(text: str) -> None:
    plan = plan_of(tp=2, pp=4, vpp=2, overlap=Overlap.PAIR, ep=8)
    other = plan_of(layout="even", recompute="full")
    condition = parse_condition(text)
    assert bool(condition.holds(plan)) is HOLDS[text]
    column = condition.holds(table_of([plan, other]))
    assert list(column) == [bool(condition.holds(each)) for each in (plan, other)]


WRONG = {
    "tp": "not a condition",
    "tp==2": "",
    "tp=x": "whole number",
    "tp=-1": "whole number",
    "tp=1.5": "whole number",
    "ttp=2": "did you mean 'tp'",
    "overlap=pairs": "none pair",
    "overlap>none": "no order",
    "layout<even": "no order",
    "": "not a condition",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_condition(text)
    assert WRONG[text] in str(caught.value)


def test_raised_digits_are_no_number() -> None:
    with pytest.raises(SpecError):
        parse_condition("tp=\u00b2")


@pytest.mark.parametrize("text", ["layout=evn", "recompute!=ful"])
def test_an_unknown_word_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_condition(text)


def space(folder: Path, extra: str = "") -> Space:
    """A small space with some conditions."""
    path = folder / "space.toml"
    path.write_text(
        f'model = "mixtral-8x7b"\ncluster = "h100-80g"\ndevices = 64\n{extra}\n[job]\ngbs = 128\nseq_len = 4096\n'
        "[plan]\ntp = [1, 2]\npp = [1, 2, 4]\nvpp = [1, 2]\nep = [1, 8]\n"
    )
    return load_space(path)


def test_only_and_ban_part_the_legal_plans(tmp_path: Path) -> None:
    free = enumerate_plans(space(tmp_path))
    kept = enumerate_plans(space(tmp_path, 'only = ["tp=2"]'))
    banned = enumerate_plans(space(tmp_path, 'ban = ["tp=2"]'))
    assert len(free.legal) == len(kept.legal) + len(banned.legal)
    assert set(kept.legal.tp) == {2}
    assert set(banned.legal.tp) == {1}
    assert free.candidates == kept.candidates == banned.candidates


def test_what_a_condition_refuses_is_counted_under_it(tmp_path: Path) -> None:
    found = enumerate_plans(space(tmp_path, 'only = ["vpp=2"]\nban = ["ep=8"]'))
    assert found.refused["only vpp=2"] == found.candidates // 2
    assert found.refused["ban ep=8"] == found.candidates // 4
    assert found.candidates == len(found.legal) + sum(found.refused.values())


def test_all_faulty_conditions_are_named_at_once(tmp_path: Path) -> None:
    faulty = space(tmp_path, 'only = ["ttp=2"]\nban = ["overlap=pairs"]')
    with pytest.raises(SpecError) as caught:
        enumerate_plans(faulty)
    assert len(caught.value.faults) == 2
