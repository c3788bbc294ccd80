"""Conditions on plan fields: they hold for one plan and for a column alike; what cannot be said is refused."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.catalog.lookup import load_space
from autodeploy.errors import SpecError
from autodeploy.search.choose import hold
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.spec.conditions import parse_condition, parse_list, split_list
from autodeploy.spec.plan import (
    CP_COMM_WORDS,
    DISPATCH_WORDS,
    OVERLAP_WORDS,
    SCHEDULE_WORDS,
    CpComm,
    Dispatch,
    Overlap,
    Plan,
    PlanTable,
    Schedule,
    table_of,
)  # fmt: skip
from autodeploy.spec.space import Space, with_values
from tests.builders import plan_of

HOLDS = {
    "tp=2": True, "tp!=2": False, "tp<2": False, "tp<=2": True, "tp>1": True, "tp>=3": False, "pp = 4": True,
    "sp=true": True, "sp=false": False, "schedule=interleaved": True, "schedule!=interleaved": False,
    "overlap=pair": True, "dispatch=hier": False, "zero=1": True, "layout=auto": True, "recompute!=full": True,
    "cp_comm=ring": True, "cp_comm!=ulysses": True, "cp_comm=kvgather": False, "dispatch!=dedup": True,
    "replicas=1": True, "replicas>1": False, "recompute!=full:0.5": True, "recompute=core_attn": False,
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


NUMBERS = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs", "zero", "replicas")
WORDS = {
    "schedule": SCHEDULE_WORDS,
    "overlap": OVERLAP_WORDS,
    "dispatch": DISPATCH_WORDS,
    "cp_comm": CP_COMM_WORDS,
    "sp": ("false", "true"),
    "layout": ("auto", "even", "light", "apart", "late", "Et*3|(tt|)*29m|L"),
    "recompute": ("none", "fit", "full", "full:0.5", "layernorm", "layernorm+moe_act"),
}
SIGNS: dict[str, Callable] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
DEGREE = st.integers(1, 6)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan, legal or not."""
    return plan_of(
        **{name: draw(DEGREE) for name in NUMBERS if name != "zero"},
        zero=draw(st.integers(0, 3)),
        cp_comm=draw(st.sampled_from(CpComm)),
        sp=draw(st.booleans()),
        schedule=draw(st.sampled_from(Schedule)),
        overlap=draw(st.sampled_from(Overlap)),
        dispatch=draw(st.sampled_from(Dispatch)),
        layout=draw(st.sampled_from(WORDS["layout"])),
        recompute=draw(st.sampled_from(WORDS["recompute"])),
    )


def stated(plan: Plan, name: str) -> int | str:
    """A field as a condition spells it."""
    value = getattr(plan, name)
    return value if name in (*NUMBERS, "layout", "recompute") else WORDS[name][int(value)]


@given(
    asked=st.lists(plans(), min_size=1, max_size=5),
    name=st.sampled_from(NUMBERS),
    sign=st.sampled_from(list(SIGNS)),
    value=st.integers(0, 7),
)
def test_numbers_compare_as_numbers(asked: list[Plan], name: str, sign: str, value: int) -> None:
    condition = parse_condition(f"{name}{sign}{value}")
    meant = [SIGNS[sign](stated(plan, name), value) for plan in asked]
    assert [bool(condition.holds(plan)) for plan in asked] == meant
    assert condition.holds(table_of(asked)).tolist() == meant


@given(asked=st.lists(plans(), min_size=1, max_size=5), name=st.sampled_from(list(WORDS)), equal=st.booleans(),
       data=st.data())  # fmt: skip
def test_words_are_equal_or_not(asked: list[Plan], name: str, equal: bool, data: st.DataObject) -> None:
    value = data.draw(st.sampled_from(WORDS[name]))
    condition = parse_condition(f"{name}{'=' if equal else '!='}{value}")
    meant = [(stated(plan, name) == value) is equal for plan in asked]
    assert [bool(condition.holds(plan)) for plan in asked] == meant
    assert condition.holds(table_of(asked)).tolist() == meant


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("name", WORDS)
def test_words_have_no_order(name: str, sign: str) -> None:
    with pytest.raises(SpecError, match=f"{name} has no order"):
        parse_condition(f"{name}{sign}{WORDS[name][0]}")


MISSPELT = {
    "tpp": "tp",
    "vp": "vpp",
    "msb": "mbs",
    "shedule": "schedule",
    "overlaps": "overlap",
    "recomput": "recompute",
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_field_gets_the_nearest(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_condition(f"{name}=1")
    assert f"did you mean {MISSPELT[name]!r}" in str(caught.value)
    for known in (*NUMBERS, *WORDS):
        assert known in caught.value.faults[0].allowed


@pytest.mark.parametrize("value", ["", "x", "two", "1.0", "-2", "+2", "1e3", "0x8", "1_0", "2 3", "true", "nan"])
@pytest.mark.parametrize("name", ["tp", "dp", "zero"])
def test_what_is_no_whole_number_is_refused(name: str, value: str) -> None:
    with pytest.raises(SpecError):
        parse_condition(f"{name}={value}")


def test_a_condition_says_itself_without_blanks() -> None:
    assert parse_condition("  tp   <=  8 ").text == "tp<=8"
    assert parse_condition("  tp   <=  8 ") == parse_condition("tp<=8")


def test_a_list_of_conditions() -> None:
    assert [condition.text for condition in parse_list("tp=8, pp=16,,schedule = 1f1b,")] == [
        "tp=8", "pp=16", "schedule=1f1b",
    ]  # fmt: skip
    assert parse_list("") == parse_list(" , ") == ()


@pytest.mark.parametrize("digits", [20, 39])
def test_large_numbers_compare(digits: int) -> None:
    condition = parse_condition("tp<" + "9" * digits)
    plan = plan_of(tp=2, zero=1)
    assert condition.holds(plan)
    assert condition.holds(table_of([plan])).tolist() == [True]
    assert parse_condition("zero<" + "9" * digits).holds(table_of([plan])).tolist() == [True]


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_that_no_column_can_hold_is_refused(digits: int) -> None:
    plan = plan_of()
    try:
        holds = parse_condition("tp<" + "9" * digits).holds(table_of([plan]))
    except SpecError:
        return
    assert holds.tolist() == [True]


@pytest.mark.parametrize("text", ["layout=LLL|x", "layout!=E(t|L", "layout=even|"])
def test_a_layout_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_condition(text)


def chosen(table: PlanTable) -> set[Plan]:
    """Plans of a table."""
    return {table.row(row) for row in range(len(table))}


CONDITIONS = ("tp=2", "pp>1", "vpp!=1", "ep<8", "dp>=16", "dp=32", "schedule=interleaved", "sp=false", "layout=auto")


@pytest.mark.parametrize("text", CONDITIONS)
def test_only_keeps_and_ban_refuses_exactly_the_plans_that_meet_it(tmp_path: Path, text: str) -> None:
    free = enumerate_plans(space(tmp_path))
    meets = {plan for plan in chosen(free.legal) if parse_condition(text).holds(plan)}
    only = enumerate_plans(space(tmp_path, f'only = ["{text}"]'))
    ban = enumerate_plans(space(tmp_path, f'ban = ["{text}"]'))
    assert chosen(only.legal) == meets
    assert chosen(ban.legal) == chosen(free.legal) - meets
    for found in (only, ban):
        assert found.candidates == free.candidates == len(found.legal) + sum(found.refused.values())


def test_conditions_are_counted_before_the_rules_and_in_their_order(tmp_path: Path) -> None:
    found = enumerate_plans(space(tmp_path, 'only = ["tp=2", "pp>1"]\nban = ["tp=2", "vpp=2"]'))
    assert list(found.refused) == ["only tp=2", "only pp>1", "ban tp=2"]  # nothing is left for any other
    assert found.refused["only tp=2"] == found.candidates / 2
    assert found.refused["only pp>1"] == found.candidates / 2 / 3
    assert len(found.legal) == 0
    assert found.candidates == sum(found.refused.values())


def test_a_condition_that_nothing_breaks_is_not_counted(tmp_path: Path) -> None:
    assert "only tp>=1" not in enumerate_plans(space(tmp_path, 'only = ["tp>=1"]')).refused


HELD = {
    "dp=16": lambda plan: plan.dp == 16,
    "dp=32": lambda plan: plan.dp == 32,
    "schedule=interleaved": lambda plan: plan.schedule is Schedule.INTERLEAVED,
    "schedule=1f1b": lambda plan: plan.vpp == 1,
    "schedule=1f1b,dp=16": lambda plan: plan.vpp == 1 and plan.dp == 16,
}


@pytest.mark.parametrize("text", HELD)
def test_fixed_fields_that_follow_from_others_hold_by_a_condition(tmp_path: Path, text: str) -> None:
    free = space(tmp_path)
    held = hold(free, parse_list(text))
    named = re.search(r"schedule=(\w+)", text)
    assert held.plan == replace(free.plan, schedule=(named[1],) if named else None)
    assert chosen(enumerate_plans(held).legal) == set(filter(HELD[text], chosen(enumerate_plans(free).legal)))


def test_fixed_fields_replace_the_values_of_the_space(tmp_path: Path) -> None:
    text = "tp=4,pp=2,sp=true,overlap=none,dispatch=flat,zero=0,layout=light,recompute=full"
    held = hold(space(tmp_path), parse_list(text))
    plan = held.plan
    assert (plan.tp, plan.pp, plan.sp, plan.zero) == ((4,), (2,), (True,), (0,))
    assert (plan.overlap, plan.dispatch, plan.layout, plan.recompute) == (("none",), ("flat",), ("light",), ("full",))
    assert {each.tp for each in chosen(enumerate_plans(held).legal)} == {4}
    assert plan.vpp == space(tmp_path).plan.vpp


LISTS = {
    "pp=2,layout=list:20,12,tp=2": ["pp=2", "layout=list:20,12", "tp=2"],
    "layout=first:3,last:2": ["layout=first:3,last:2"],
    "layout=list:3,2;2,2,vpp=2": ["layout=list:3,2;2,2", "vpp=2"],
    "layout=offset:0,1,0,-1,pp=4": ["layout=offset:0,1,0,-1", "pp=4"],
    "layout=account:embedding,loss,tp>1": ["layout=account:embedding,loss", "tp>1"],
    "layout=even,pp": ["layout=even", "pp"],
    "tp=8, ,pp": ["tp=8", "pp"],
}


@pytest.mark.parametrize("text", LISTS)
def test_commas_of_a_layout_belong_to_it(text: str) -> None:
    assert split_list(text) == LISTS[text]


@pytest.mark.parametrize("text", ["layout=list:20,12", "layout!=first:3,last:2", "layout=offset:0,1;-1,0"])
def test_a_layout_in_the_words_of_a_framework_is_a_condition(text: str) -> None:
    (condition,) = parse_list(text)
    assert condition.text == text
    plan = plan_of(layout=str(condition.value))
    assert bool(condition.holds(plan)) is (condition.sign == "=")


def test_fixed_ways_of_sending_and_sharing_replace_the_values_of_the_space(tmp_path: Path) -> None:
    plan = hold(space(tmp_path), parse_list("cp=2,cp_comm=ulysses,replicas=2,zero=3,dispatch=dedup")).plan
    assert (plan.cp, plan.cp_comm, plan.replicas) == ((2,), ("ulysses",), (2,))
    assert (plan.zero, plan.dispatch) == ((3,), ("dedup",))


def test_nothing_fixed_changes_nothing(tmp_path: Path) -> None:
    assert hold(space(tmp_path), ()) == space(tmp_path)


def test_a_derived_field_that_contradicts_leaves_no_plan(tmp_path: Path) -> None:
    found = enumerate_plans(hold(space(tmp_path), parse_list("tp=2,pp=2,dp=3")))
    assert len(found.legal) == 0
    assert found.refused == {"only dp=3": found.candidates}


@pytest.mark.parametrize("text", ["tp>1", "pp!=2", "dp<8", "schedule!=1f1b"])
def test_only_equality_can_be_fixed(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match="holds no single value"):
        hold(space(tmp_path), parse_list(f"tp=2,{text}" if not text.startswith("tp") else text))


def test_conditions_hold_beside_values_that_the_space_does_not_list(tmp_path: Path) -> None:
    wide = with_values(space(tmp_path, 'only = ["tp>=4"]'), tp=(1, 2, 4, 8))
    assert {plan.tp for plan in chosen(enumerate_plans(wide).legal)} == {4, 8}
