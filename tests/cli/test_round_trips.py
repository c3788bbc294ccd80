"""Whatever names a plan names the same plan everywhere: document and rank, printed short form, JSON of `explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import SMALL, answer, ask, edited, ranked, search

SPACES = {
    "sparse": edited(
        SMALL,
        ("ep = [1, 8]", "ep = [1, 2, 4, 8]\netp = [1, 2]"),
        ("mbs = [1]", 'mbs = [1, 2]\noverlap = ["none", "pair"]\nlayout = ["even", "light"]'),
    ),
    "dense": edited(
        SMALL,
        ("mixtral-8x7b", "llama-3.1-70b"),
        ("ep = [1, 8]", "zero = [0, 1]"),
        ("tp = [1, 2]", "tp = [2, 4, 8]\nsp = [true, false]"),
        ("pp = [1, 2, 4]", "pp = [4, 8]"),
        ("mbs = [1]", 'recompute = ["none", "fit", "full", "mlp+layernorm"]'),
    ),
}
SAME = ("plan_id", "plan_short", "plan", "arrangement", "step_time_s", "peak_memory_bytes", "stages", "time_terms")


def only(document: dict[str, Any]) -> dict[str, Any]:
    """The one plan of an explanation."""
    (plan,) = document["plans"]
    return plan


def same(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Two accounts of one plan."""
    for key in SAME:
        assert one[key] == two[key], key


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.slow
def test_a_printed_form_names_the_same_plan(folder: Path, name: str) -> None:
    path = folder / f"{name}.toml"
    path.write_text(SPACES[name])
    plans = ranked(path, "--top", "10")["plans"]
    assert len(plans) == 10
    for plan in plans:
        explained = answer("explain", plan["plan_short"], "--space", path)
        same(only(explained), plan)
        assert explained["chosen"] == {}


def test_a_rank_of_a_document_names_the_same_plan(small: Path) -> None:
    assert search(small, "--top", "5", "--out", "plans.json").exit_code == 0
    for plan in ranked(small, "--top", "5")["plans"]:
        explained = only(answer("explain", f"plans.json#{plan['rank']}"))
        same(explained, plan)
        assert explained["rank"] == plan["rank"]


def test_a_document_without_a_rank_means_the_first(small: Path) -> None:
    assert search(small, "--top", "3", "--out", "plans.json").exit_code == 0
    assert answer("explain", "plans.json")["plans"] == answer("explain", "plans.json#1")["plans"]


def test_a_document_needs_no_other_file(small: Path) -> None:
    model = small.with_name("model.toml")
    model.write_text(LITTLE)
    small.write_text(edited(SMALL, ("mixtral-8x7b", str(model)), ("ep = [1, 8]", "ep = [1]")))
    assert search(small, "--out", "plans.json").exit_code == 0
    before = answer("explain", "plans.json#2")["plans"]
    model.unlink()
    small.unlink()
    assert answer("explain", "plans.json#2")["plans"] == before


LITTLE = """\
name = "little"
title = "A little model"
hidden = 1024
layers = 8
vocab = 32000
ffn_width = 4096
max_seq_len = 8192

[attention]
kind = "gqa"
heads = 16
kv_heads = 16
head_dim = 64
"""


def test_an_explanation_is_a_document_that_can_be_explained(small: Path) -> None:
    result = ask("explain", "tp2/pp2", "--space", small, "--json")
    assert result.exit_code == 0
    Path("one.json").write_text(result.stdout)
    again = answer("explain", "one.json")
    same(only(again), only(answer("explain", "tp2/pp2", "--space", small)))


def test_an_explanation_that_is_explained_keeps_its_rank(small: Path) -> None:
    result = ask("explain", "tp2/pp1/ep8", "--space", small, "--json")
    Path("one.json").write_text(result.stdout)
    rank = only(json.loads(result.stdout))["rank"]
    assert rank > 1
    assert only(answer("explain", "one.json"))["rank"] == rank


def test_fields_that_are_not_given_are_chosen_and_said(small: Path) -> None:
    explained = answer("explain", "tp2/pp2", "--space", small)
    assert explained["chosen"].keys() == {"vpp", "ep"}  # mbs has one value
    plan = only(explained)["plan"]
    assert {name: plan[name] for name in explained["chosen"]} == explained["chosen"]
    assert "chosen for you: " in ask("explain", "tp2/pp2", "--space", small).stdout


def test_the_chosen_plan_is_the_fastest_that_keeps_to_what_was_given(small: Path) -> None:
    plans = ranked(small, "--top", "1000")["plans"]
    first = next(plan for plan in plans if plan["plan"]["tp"] == 2 and plan["plan"]["pp"] == 2)
    explained = only(answer("explain", "tp2/pp2", "--space", small))
    assert explained["plan_id"] == first["plan_id"]
    assert explained["rank"] == first["rank"]


def test_the_order_of_a_short_form_does_not_matter(small: Path) -> None:
    one, two = (answer("explain", text, "--space", small) for text in ("tp2/pp2/ep8", "ep8/tp2/pp2"))
    assert one["plans"] == two["plans"]


def test_a_derived_dp_may_be_given(small: Path) -> None:
    explained = only(answer("explain", "tp2/pp2/dp16", "--space", small))
    assert explained["plan"]["dp"] == 16


def pasted_back(text: str, space: Path) -> bool:
    """Whether what is printed of a plan names that plan."""
    given = only(answer("explain", text, "--space", space))
    again = only(answer("explain", given["plan_short"], "--space", space))
    return again["plan_id"] == given["plan_id"]


OWN_LAYOUTS = (
    "pp2/layout:Et*17|t*15L", "pp4/layout:first:6,last:6", "pp2/layout:list:17,15", "pp2/layout:list:9,8;8,7",
    "pp4/layout:noop:0,33,34,35", "pp2/layout:offset:1,0;0,-1", "pp2/layout:noop:0,33",
)  # fmt: skip
"""Cut by hand, of 32 layers."""


@pytest.mark.slow
@pytest.mark.parametrize("text", ["tp1/pp4/ep8/light", *OWN_LAYOUTS])
def test_a_layout_outside_the_space_is_printed(small: Path, text: str) -> None:
    assert pasted_back(text, small)


def test_a_layout_in_words_is_the_layout_string_it_means(small: Path) -> None:
    """In the plan as the user has it, in the arrangement and in what is exported as Megatron writes it."""
    words, string = (only(answer("explain", f"tp1/ep8/pp4/vpp1/layout:{text}", "--space", small)) for text in
                     ("first:6,last:6", "Et*6|(t*10|)*2t*6L"))  # fmt: skip
    assert words["plan"]["layout"] == "first:6,last:6"
    assert words["arrangement"]["layout"] == string["arrangement"]["layout"] == "Et*6|(t*10|)*2t*6L"
    assert words["step_time_s"] == string["step_time_s"]
    text = ask("export", words["plan_short"], "--space", small, "--target", "megatron-core", "--allow-loss").stdout
    assert "--pipeline-model-parallel-layout 'Et*6|(t*10|)*2t*6L'" in text


def test_a_layout_in_words_may_be_listed_fixed_and_asked_for(small: Path, folder: Path) -> None:
    listed = folder / "listed.toml"
    listed.write_text(small.read_text() + 'layout = ["even", "list:17,15"]\n')
    fixed = ranked(small, "--fix", "pp=2,layout=list:17,15,vpp=1")["plans"]
    asked = ranked(listed, "--only", "layout=list:17,15")["plans"]
    assert {plan["arrangement"]["layout"] for plan in (*fixed, *asked)} == {"Et*17|t*15L"}
    assert [plan["step_time_s"] for plan in fixed] == [plan["step_time_s"] for plan in asked]


@pytest.mark.parametrize("text", ["tp1/pp2/ep8/pair", "tp1/pp2/ep8/zero0", "tp2/pp4/nosp", "tp2/pp4/rc:full"])
def test_any_field_outside_the_space_is_printed(small: Path, text: str) -> None:
    assert pasted_back(text, small)


@pytest.mark.slow
def test_plans_of_the_default_engine_are_named_by_what_is_printed(small: Path) -> None:
    document = answer("search", small, "--top", "8")
    layouts = [plan["plan"]["layout"] for plan in document["plans"]]
    assert any("|" in layout for layout in layouts)  # cuts of the layers beyond the rules
    for plan in document["plans"]:
        same(only(answer("explain", plan["plan_short"], "--space", small)), plan)


def test_a_plan_arranged_by_rule_keeps_its_rank(small: Path) -> None:
    for plan in answer("search", small, "--top", "4", "--engine", "exact")["plans"]:
        assert only(answer("explain", plan["plan_short"], "--space", small))["rank"] == plan["rank"]


def test_a_plan_whose_cut_is_written_out_is_ranked_among_those_cut_by_rule(small: Path) -> None:
    for plan in ranked(small, "--top", "3")["plans"]:
        written = f"{plan['plan_short']}/layout:{plan['arrangement']['layout']}"
        assert only(answer("explain", written, "--space", small))["rank"] == plan["rank"]


@pytest.mark.slow
def test_the_table_prints_plans_that_can_be_pasted_back(small: Path) -> None:
    table = ask("search", small, "--top", "4", "--out", "plans.json").stdout
    for plan in json.loads(Path("plans.json").read_text())["plans"]:
        assert plan["plan_short"] in table


def test_no_plan_ranks_below_the_last(small: Path) -> None:
    fits = ranked(small)["search"]["fits"]
    slowest = answer("explain", "tp8/pp4/mbs1/ep1/rc:full", "--space", small)
    rank = only(slowest)["rank"]
    assert rank is None or rank <= fits
