"""Options with a value that cannot be: refused before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autodeploy.search import exact
from tests.cli.asking import ask, contents, refused, search


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if a search starts."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("the search started")

    monkeypatch.setattr(exact, "enumerate_plans", start)


@pytest.mark.usefixtures("no_search")
def test_out_in_a_folder_that_is_not_there(small: Path) -> None:
    said = refused(small.parent, "search", small, "--out", "absent/plans.json")
    assert "--out" in said
    assert "absent does not exist" in said


@pytest.mark.usefixtures("no_search")
def test_out_on_a_folder(small: Path) -> None:
    (small.parent / "results").mkdir()
    said = refused(small.parent, "search", small, "--out", "results")
    assert "results is a folder" in said


@pytest.mark.usefixtures("no_search")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: the check cannot be seen to work")
def test_out_on_a_file_or_in_a_folder_that_may_not_be_written(small: Path) -> None:
    closed = small.parent / "closed"
    closed.mkdir()
    kept = small.parent / "kept.json"
    kept.write_text("old")
    kept.chmod(0o444)
    closed.chmod(0o555)
    try:
        for path in (kept, closed / "plans.json"):
            assert "cannot be written" in refused(small.parent, "search", small, "--out", path)
    finally:
        closed.chmod(0o755)


@pytest.mark.usefixtures("no_search")
def test_out_is_refused_where_the_system_says_that_it_cannot_be_written(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert "cannot be written" in refused(small.parent, "search", small, "--out", "plans.json")


@pytest.mark.usefixtures("no_search")
def test_an_unknown_engine_is_refused_with_the_known_ones(small: Path) -> None:
    said = refused(small.parent, "search", small, "--engine", "annealing")
    for part in ("--engine", "'annealing'", "exact"):
        assert part in said


def test_out_on_the_space_file_itself(small: Path) -> None:
    refused(small.parent, "search", small, "--out", small)


def test_out_does_not_replace_what_is_no_plain_file(small: Path) -> None:
    pipe = small.parent / "pipe"
    os.mkfifo(pipe)
    search(small, "--out", pipe)
    assert pipe.is_fifo()


USAGE = {
    "unknown_command": (["serch"], "serch"),
    "no_space": (["search"], "space file"),
    "no_plan": (["explain"], "PLAN"),
    "two_spaces": (["search", "a.toml", "b.toml"], "b.toml"),
    "unknown_option": (["search", "a.toml", "--tops", "3"], "--tops"),
    "top_0": (["search", "a.toml", "--top", "0"], "--top"),
    "top_word": (["search", "a.toml", "--top", "all"], "--top"),
    "gbs_0": (["search", "a.toml", "--gbs", "0"], "--gbs"),
    "gbs_of_explain": (["explain", "tp2", "--gbs", "-1"], "--gbs"),
    "seed": (["search", "a.toml", "--seed", "-1"], "--seed"),
    "timeout_negative": (["search", "a.toml", "--timeout", "-1"], "--timeout"),
    "timeout_nan": (["search", "a.toml", "--timeout", "nan"], "--timeout"),
}


OUT_OF_RANGE = ("top_0", "gbs_0", "gbs_of_explain", "seed", "timeout_negative", "timeout_nan")


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_says_what_is_wrong_on_stderr(folder: Path, case: str) -> None:
    words, part = USAGE[case]
    before = contents(folder)
    result = ask(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert part in result.stderr
    assert "Traceback" not in result.stderr
    assert contents(folder) == before


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_an_option_out_of_range_is_refused_like_any_other_input(folder: Path, case: str) -> None:
    words, part = USAGE[case]
    said = refused(folder, *words)
    assert part in said
    assert words[-1] in said


WORDS = {"model": "mixtral-8x7b", "cluster": "h100-80g", "devices": "64", "seq-len": "4096", "gbs": "128"}
"""A question without a space file."""


def question(**changed: str | None) -> list[str]:
    """The words of that question, some changed or (None) left out, some added."""
    words = {**WORDS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    return ["search", *(word for name, value in words.items() if value is not None for word in (f"--{name}", value))]


ASKED = {
    "nothing_but_a_cluster": (question(model=None, devices=None, gbs=None), ("--model: missing", "--devices", "--gbs")),
    "unknown_names": (question(model="mixtra", cluster="h10"), ("'mixtra'", "'mixtral-8x7b'", "'h10'", "h100-80g")),
    "unknown_effort": (question(effort="slow"), ("--effort", "'slow'", "fast normal deep")),
    "fix_of_no_value": (question(fix="tp>3"), ("--fix", "'tp>3'", "--only")),
    "fix_of_no_field": (question(fix="xp=3"), ("'xp'", "tp pp vpp")),
    "fix_that_is_no_condition": (question(fix="tp"), ("tp", "FIELD=VALUE")),
    "fix_of_no_zero_stage": (question(fix="zero=4"), ("zero", "4", "0 1 2 3")),
    "fix_of_a_layout": (question(fix="layout=Ex|L"), ("layout", "'x'", "even", "light", "apart")),
    "only": (question(only="tp~2"), ("tp~2", "not a condition")),
    "ban": (question(ban="overlap=most"), ("overlap", "'most'", "none pair")),
    "baseline_that_breaks_a_rule": (question(baseline="tp3"), ("tp=3", "V20", "tp 1 2 4 8")),
    "baseline_that_is_no_plan": (question(baseline="best"), ("best", "not a plan field")),
    "baseline_that_is_not_there": (question(baseline="absent.json#1"), ("absent.json",)),
    "devices": (question(devices="60"), ("60", "nodes of 8", "56, 64")),
    "sequence": (question(seq_len="65536"), ("65536", "32768")),
    "space_on_a_folder": (question(write_space="."), ("--write-space", "folder")),
    "space_in_no_folder": (question(write_space="absent/space.toml"), ("--write-space", "absent does not exist")),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_question_in_words_is_refused_like_a_file(folder: Path, case: str) -> None:
    words, parts = ASKED[case]
    said = refused(folder, *words, "--effort", "fast") if case != "unknown_effort" else refused(folder, *words)
    for part in parts:
        assert part in said


@pytest.mark.parametrize("name", ["model", "cluster", "devices", "seq-len"])
def test_a_space_file_says_it_already(small: Path, name: str) -> None:
    said = refused(small.parent, "search", small, f"--{name}", WORDS[name])
    assert f"--{name}" in said
    assert "space file" in said


UNHELD = {
    "degree_of_nothing": question(fix="tp=0"),
    "two_values_of_one_field": question(fix="tp=8,tp=4"),
    "one_file_for_two": question(write_space="one.toml", out="one.toml"),
    "no_name_of_the_file": question(model="absent.toml"),
}


@pytest.mark.parametrize("case", UNHELD)
def test_a_question_that_contradicts_itself_is_refused(folder: Path, case: str) -> None:
    said = refused(folder, *UNHELD[case], "--effort", "fast")
    if case == "no_name_of_the_file":
        assert "absent.toml" in said


@pytest.mark.parametrize("kind", ["models", "clusters"])
@pytest.mark.parametrize("name", ["zzz", "absent.toml", ".", "nul\u00e9"])
def test_an_unknown_catalog_entry(folder: Path, kind: str, name: str) -> None:
    said = refused(folder, kind, name)
    assert name in said


@pytest.mark.parametrize(
    ("kind", "near", "meant"), [("models", "mixtral", "mixtral-8x7b"), ("clusters", "h100-80", "h100-80g")]
)
def test_an_unknown_catalog_entry_gets_the_nearest_name(folder: Path, kind: str, near: str, meant: str) -> None:
    assert f"did you mean {meant!r}" in refused(folder, kind, near)


def test_an_unknown_schema_kind(folder: Path) -> None:
    said = refused(folder, "schema", "modle")
    for part in ("'modle'", "model", "job", "cluster", "target", "plan", "space"):
        assert part in said
