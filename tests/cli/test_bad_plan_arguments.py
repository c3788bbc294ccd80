"""The PLAN argument: short forms and plan documents that cannot be read are refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import ask, refused, search

FIELDS = ("tpN", "ppN", "mbsN", "pair", "hier", "rc:POLICY")
SHORT = {
    "unknown_field": ("tp2/xx3", "xx3", "not a plan field", *FIELDS),
    "misspelt_word": ("tp2/par", "par", "did you mean 'pair'"),
    "no_number": ("tpx/pp2", "tpx", "did you mean 'tp'", *FIELDS),
    "field_twice": ("tp1/pp2/tp2", "tp2", "tp is given twice"),
    "word_twice": ("tp1/flat/hier", "hier", "dispatch is given twice"),
    "zero": ("tp0/pp2", "tp0", "tp must be at least 1", "not 0"),
    "negative": ("tp-2/pp2", "tp-2", "tp must be at least 1", "not -2"),
    "fraction": ("tp1.5/pp2", "tp1.5", "not a plan field"),
    "nothing": ("", "not a plan field", *FIELDS),
    "zero_stage": ("tp2/zero4", "zero", "4", "0 1 2 3"),
    "policy": ("tp2/rc:ful", "recompute", "ful", "none", "fit", "full", "moe_act"),
    "layout": ("pp2/layout:Ex*3", "layout", "'x'", "even", "light", "apart"),
}


@pytest.mark.parametrize("case", SHORT)
def test_a_short_form_that_cannot_be_read(small: Path, case: str) -> None:
    text, *parts = SHORT[case]
    said = refused(small.parent, "explain", text, "--space", small)
    for part in parts:
        assert part in said


def test_all_parts_of_a_short_form_that_cannot_be_read_are_named_at_once(small: Path) -> None:
    said = refused(small.parent, "explain", "tp0/xx3/mbs1/ppx", "--space", small)
    for part in ("tp0", "xx3", "ppx"):
        assert f"  {part}: " in said
    assert "mbs1" not in said.splitlines()[1:]


def test_a_short_form_needs_a_space(folder: Path) -> None:
    said = refused(folder, "explain", "tp2/pp2")
    assert "--space" in said
    assert "space file" in said


RULES = {
    "heads_by_three": ("tp3/pp2", ("tp=3", "V20", "V01", "tp 1 2 4 8")),
    "experts": ("ep3", ("ep=3", "V100", "ep 1 2 4 8")),
    "interleaving_without_stages": ("pp1/vpp2", ("pp=1", "vpp=2", "P01", "vpp 1")),
    "batch": ("tp1/pp1/mbs3", ("mbs=3", "V90", "mbs 1 2")),
    "sequence_parallelism_alone": ("tp1/sp", ("tp=1", "P05", "tp 2")),
    "nothing_to_overlap": ("ep1/pair", ("ep=1", "P02", "ep 2")),
    "one_node": ("ep8/hier", ("ep=8", "P03")),
    "layers": ("pp2/layout:Et*3|t*2L", ("plan.layout", "5 decoder layers", "the model has 32", "L01")),
}


@pytest.mark.parametrize("case", RULES)
def test_a_plan_that_breaks_rules_names_them_and_the_legal_values(small: Path, case: str) -> None:
    text, parts = RULES[case]
    said = refused(small.parent, "explain", text, "--space", small)
    for part in parts:
        assert part in said


LAYOUTS = {
    "too_many_parts": ("pp2/vpp1/layout:Et*16|t*16|L", ("3 slots", "pp 2 x vpp 1", "L01")),
    "layer_lost": ("pp2/vpp1/layout:Et*16|t*15L", ("31 decoder layers", "32", "L01")),
    "layer_repeated": ("pp2/vpp1/layout:Et*16|t*17L", ("33 decoder layers", "32", "L01")),
    "mtp_before_a_layer": ("pp2/vpp1/layout:Et*16m|t*16L", ("order must be E, decoder layers, MTP, L",)),
    "no_head": ("pp2/vpp1/layout:Et*16|t*16", ("head, L", "list:N")),
    "list_of_other_stages": ("pp4/vpp1/layout:list:16,8,8", ("lists 3 stages, but pp is 4", "V77", "4 stages")),
    "list_of_no_pipeline": ("layout:list:10,10,12", ("3 stages", "pp is 1", "pp is 2", "pp is 4")),
    "list_that_does_not_sum": ("layout:list:16,15", ("sums to 31", "32 layers", "V77", "a sum of 32")),
    "list_below_zero": ("layout:list:33,-1", ("-1 layers", "0 or more")),
    "list_with_chunks": ("pp2/vpp2/layout:list:16,16", ("vpp is 2", "V77", "list:N,N;N,N")),
    "first_of_none": ("pp2/vpp1/layout:first:0", ("first is 0", "V68", "1 or more")),
    "rest_uneven": ("pp4/vpp1/layout:first:7,last:6", ("19 layers", "2 other stages", "V68")),
    "chunks_uneven": ("pp2/vpp2/layout:first:15", ("15 layers", "vpp 2", "V68", "multiples of 2")),
    "last_alone": ("pp1/layout:last:32", ("V69", "pp > 1")),
    "ends_counted": ("pp4/vpp1/layout:account:loss", ("32 layers + loss = 33", "V60")),
    "noop_beyond": ("pp2/vpp1/layout:noop:0,34", ("34", "V78", "0 to 33")),
    "only_noops": ("pp4/vpp2/layout:noop:5,6,7,8,9,10,11,12", ("stage 1 chunk 0 holds only no-ops",)),
    "offsets": ("pp4/vpp1/layout:offset:0,1,0,0", ("sums to 1", "V85", "a sum of 0")),
    "malformed": ("pp2/layout:list:16;", ("'list:16;' cannot be read", "list:N,N,...")),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_layout_cut_by_hand_that_does_not_fit_is_one_message(small: Path, case: str) -> None:
    text, parts = LAYOUTS[case]
    said = refused(small.parent, "explain", text, "--space", small)
    assert len(said.splitlines()) == 1
    for part in ("plan.layout: ", text.partition("layout:")[2], *parts):
        assert part in said


def test_dp_that_contradicts_the_other_degrees_names_the_right_one(small: Path) -> None:
    said = refused(small.parent, "explain", "tp2/pp2/dp5", "--space", small)
    for part in ("dp", "V01", "64 devices", "allowed: 16"):
        assert part in said


def test_a_schedule_that_contradicts_vpp_is_refused(small: Path) -> None:
    assert "P04" in refused(small.parent, "explain", "pp2/vpp1/interleaved", "--space", small)


IGNORED = {"dp_3": "dp3", "dp_without_pp": "tp1/dp3", "dp_5": "tp2/dp5", "schedule": "pp1/interleaved"}


@pytest.mark.parametrize("case", IGNORED)
def test_a_field_that_no_plan_can_have_is_not_ignored(small: Path, case: str) -> None:
    refused(small.parent, "explain", IGNORED[case], "--space", small)


Change = Callable[[dict[str, Any]], object]


def put(*steps: str | int, value: object) -> Change:
    """Sets a value deep inside a document."""

    def change(document: Any) -> None:
        for step in steps[:-1]:
            document = document[step]
        document[steps[-1]] = value

    return change


def without(*steps: str | int) -> Change:
    """Takes a key out of a document."""

    def change(document: Any) -> None:
        for step in steps[:-1]:
            document = document[step]
        del document[steps[-1]]

    return change


PLAN = ("plans", 0, "plan")
BROKEN: dict[str, tuple[Change, tuple[str, ...]]] = {
    "newer_schema": (put("schema_version", value="2.0"), ("schema_version", "'2.0'", "1.x")),
    "older_schema": (put("schema_version", value="0.9"), ("schema_version", "'0.9'", "1.x")),
    "no_schema": (without("schema_version"), ("schema_version", "not a plan document")),
    "no_plans": (without("plans"), ("not a plan document",)),
    "empty_plans": (put("plans", value=[]), ("no rank 1", "no plan")),
    "no_inputs": (without("inputs"), ("inputs",)),
    "no_model": (without("inputs", "model"), ("inputs", "model")),
    "faulty_model": (without("inputs", "model", "hidden"), ("hidden: missing",)),
    "faulty_job": (put("inputs", "job", "gbs", value=-1), ("gbs", "-1")),
    "no_tp": (without(*PLAN, "tp"), ("plans[0].plan", "tp")),
    "no_overlap": (without(*PLAN, "overlap"), ("plans[0].plan", "overlap")),
    "unknown_word": (put(*PLAN, "overlap", value="most"), ("plans[0].plan",)),
    "null": (put("plans", 0, value=None), ("plans[0].plan",)),
    "breaks_a_rule": (put(*PLAN, "tp", value=3), ("V20",)),
    "other_devices": (put("inputs", "devices", value=63), ("N01",)),
}


@pytest.fixture
def document(small: Path) -> dict[str, Any]:
    """A plan document with two plans, in the working folder as plans.json."""
    assert search(small, "--top", "2", "--out", "plans.json").exit_code == 0
    return json.loads(Path("plans.json").read_text())


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_document_says_what_is_broken(folder: Path, document: dict[str, Any], case: str) -> None:
    change, parts = BROKEN[case]
    change(document)
    Path("broken.json").write_text(json.dumps(document))
    said = refused(folder, "explain", "broken.json")
    for part in parts:
        assert part in said


def test_a_layout_of_a_document_that_does_not_fit_says_why(folder: Path, document: dict[str, Any]) -> None:
    document["plans"][0]["plan"]["layout"] = "list:20,11"
    Path("broken.json").write_text(json.dumps(document))
    said = refused(folder, "explain", "broken.json")
    assert "plan.layout: 'list:20,11': sums to 31" in said
    assert len(said.splitlines()) == 1


UNCHECKED: dict[str, Change] = {
    "dp_of_half_the_devices": put(*PLAN, "dp", value=1),
    "zero_that_is_no_stage": put(*PLAN, "zero", value=4),
    "degree_as_text": put(*PLAN, "tp", value="1"),
    "degree_as_float": put(*PLAN, "dp", value=16.0),
    "switch_as_text": put(*PLAN, "sp", value="on"),
    "devices_as_text": put("inputs", "devices", value="64"),
    "no_devices": put("inputs", "devices", value=0),
    "no_search": put("search", value=None),
}


@pytest.mark.parametrize("case", UNCHECKED)
def test_a_document_is_checked_like_a_file(folder: Path, document: dict[str, Any], case: str) -> None:
    UNCHECKED[case](document)
    Path("broken.json").write_text(json.dumps(document))
    refused(folder, "explain", "broken.json")


RANKS = {"zero": ("0", "#1 to #2"), "beyond": ("99", "#1 to #2"), "word": ("abc", "FILE#1"), "sign": ("-1", "FILE#1")}


@pytest.mark.parametrize("case", RANKS)
@pytest.mark.usefixtures("document")
def test_a_rank_that_is_not_there(folder: Path, case: str) -> None:
    rank, allowed = RANKS[case]
    said = refused(folder, "explain", f"plans.json#{rank}")
    assert rank in said
    assert allowed in said


@pytest.mark.usefixtures("document")
def test_a_rank_in_raised_digits(folder: Path) -> None:
    refused(folder, "explain", "plans.json#\u00b2")


@pytest.mark.usefixtures("document")
def test_a_cut_off_document(folder: Path) -> None:
    text = Path("plans.json").read_text()
    Path("cut.json").write_text(text[: len(text) // 2])
    said = refused(folder, "explain", "cut.json")
    assert "cut.json" in said
    assert "JSON" in said


@pytest.mark.usefixtures("document")
@pytest.mark.parametrize("option", ["--space", "--gbs"])
def test_a_document_holds_its_own_space(small: Path, option: str) -> None:
    value = {"--space": small, "--gbs": 64}[option]
    assert option in refused(small.parent, "explain", "plans.json", option, value)


def test_a_space_file_is_no_plan_document(small: Path) -> None:
    said = refused(small.parent, "explain", small)
    assert str(small) in said
    assert "not a plan document" in said


def test_a_document_that_is_not_there(folder: Path) -> None:
    assert "absent.json" in refused(folder, "explain", "absent.json#1")


def test_a_newer_document_of_the_same_major_version_is_read(document: dict[str, Any]) -> None:
    newer = document | {"schema_version": "1.7", "new_field": [1]}
    newer["plans"][0]["new_figure"] = 1.0
    Path("newer.json").write_text(json.dumps(newer))
    assert ask("explain", "newer.json").exit_code == 0
