"""The short form of a plan: what it prints it reads, and it prints exactly what can differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.errors import SpecError
from autodeploy.formats.short import NUMBERS, ORDER, read_short, short_form, varying_fields
from autodeploy.spec.plan import PLAN_FIELDS, CpComm, Dispatch, Overlap, Plan, Schedule
from tests.builders import plan_of

DEGREE = st.integers(1, 4096)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan, legal or not: a short form is words, not arithmetic."""
    degrees = {name: draw(DEGREE) for name in NUMBERS if name != "zero"}
    return plan_of(
        **degrees,
        zero=draw(st.integers(0, 3)),
        sp=draw(st.booleans()),
        schedule=draw(st.sampled_from(Schedule)),
        overlap=draw(st.sampled_from(Overlap)),
        dispatch=draw(st.sampled_from(Dispatch)),
        cp_comm=draw(st.sampled_from(CpComm)),
        layout=draw(st.sampled_from(["auto", "even", "Et*3|(tt|)*29m|L", "first:3,last:2", "offset:0,1;0,-1"])),
        recompute=draw(st.sampled_from(["none", "fit", "full", "full:0.25", "layernorm+moe_act"])),
    )


@given(plan=plans(), varying=st.sets(st.sampled_from(PLAN_FIELDS)))
def test_what_is_printed_is_read_back(plan: Plan, varying: set[str]) -> None:
    text = short_form(plan, tuple(varying))
    if varying:
        assert read_short(text) == {name: getattr(plan, name) for name in varying}
    else:
        assert text == ""


@given(plan=plans())
def test_no_two_plans_print_alike(plan: Plan) -> None:
    other = plan_of(**{name: getattr(plan, name) for name in PLAN_FIELDS} | {"mbs": plan.mbs + 1})
    assert short_form(plan, PLAN_FIELDS) != short_form(other, PLAN_FIELDS)


def test_the_order_is_fixed_and_whole() -> None:
    assert set(ORDER) == set(PLAN_FIELDS)
    plan = plan_of(tp=8, pp=16, vpp=2, ep=32, dp=48, overlap=Overlap.PAIR, dispatch=Dispatch.HIER, layout="apart")
    varying = ("recompute", "layout", "dispatch", "overlap", "mbs", "dp", "ep", "vpp", "pp", "tp")
    assert short_form(plan, varying) == "tp8/pp16/vpp2/ep32/dp48/mbs1/pair/hier/apart/rc:none"


def test_every_switch_has_two_words() -> None:
    for on, off, field in (("sp", "nosp", "sp"), ("pair", "nopair", "overlap"), ("hier", "flat", "dispatch"),
                           ("interleaved", "1f1b", "schedule")):  # fmt: skip
        one, two = read_short(on), read_short(off)
        assert one.keys() == two.keys() == {field}
        assert one != two


def test_every_way_of_sending_has_a_word_of_its_own() -> None:
    for field, choices in (("dispatch", Dispatch), ("cp_comm", CpComm)):
        words = [short_form(plan_of(**{field: choice}), (field,)) for choice in choices]
        assert len(set(words)) == len(choices)
        assert [read_short(word) for word in words] == [{field: choice} for choice in choices]
    assert [read_short(word) for word in ("ring", "kvgather", "ulysses")] == [{"cp_comm": each} for each in CpComm]
    assert read_short("cp4/ulysses/zero3/replicas2/dedup") == {
        "cp": 4, "cp_comm": CpComm.ULYSSES, "zero": 3, "replicas": 2, "dispatch": Dispatch.DEDUP,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["tp2/pp4", " tp2 / pp4 ", "tp2/pp4/", "/tp2/pp4"])
def test_blanks_and_outer_slashes_do_not_matter(text: str) -> None:
    assert read_short(text) == {"tp": 2, "pp": 4}


@pytest.mark.parametrize(
    "text", ["tp", "tp0", "tp-1", "2tp", "tp2pp4", "tp=2", "TP2", "tp2//pp4", "zero-1", "pair1", "", "/"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_short(text)
    assert caught.value.source == text
    assert len(caught.value.faults) == 1


def test_only_plain_digits_are_numbers() -> None:
    with pytest.raises(SpecError):
        read_short("tp\u0664")


def test_a_field_with_one_value_is_not_printed() -> None:
    values = {"tp": (1, 2), "pp": (4,), "mbs": (1, 2, 4), "layout": ("auto",)}
    assert varying_fields(values, ()) == ("tp", "mbs")
    assert varying_fields(values, ("dp",)) == ("tp", "dp", "mbs")
