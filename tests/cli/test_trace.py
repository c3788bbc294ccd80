"""`autodeploy trace`: a file or a drawing of one step, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.asking import ask, contents, refused, search

PLAN = "tp2/pp4/vpp2/ep8"


def test_a_plan_of_a_file_is_traced(small: Path) -> None:
    out, plans = small.parent / "step.json", small.parent / "plans.json"
    search(small, "--out", plans)
    result = ask("trace", f"{plans}#2", "--out", out)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "step.json" in result.stderr
    ranked = json.loads(plans.read_text())["plans"][1]
    facts = json.loads(out.read_text())["otherData"]
    assert {name: facts[name] for name in ("plan_id", "step_time_s")} == {
        name: ranked[name] for name in ("plan_id", "step_time_s")
    }


def test_the_same_plan_gives_the_same_bytes(small: Path) -> None:
    for name in ("a.json", "b.json"):
        assert ask("trace", PLAN, "--space", small, "--gbs", 256, "--out", small.parent / name).exit_code == 0
    assert (small.parent / "a.json").read_bytes() == (small.parent / "b.json").read_bytes()
    assert sorted(contents(small.parent)) == ["a.json", "b.json", "small.toml"]


@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_drawing_has_a_line_a_stage_and_no_colour_in_a_file(
    small: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    result = ask("trace", PLAN, "--space", small, "--ascii")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("stage ")] == ["0", "1", "2", "3"]
    assert "\x1b" not in result.stdout
    assert "idle" in result.stdout
    assert contents(small.parent).keys() == {"small.toml"}


def test_a_plan_that_does_not_fit_is_traced_with_exit_code_3(too_big: Path) -> None:
    out = too_big.parent / "step.json"
    result = ask("trace", "tp1/pp2/vpp1/ep1", "--space", too_big, "--out", out, "--ascii")
    assert result.exit_code == 3
    assert "does not fit" in result.stderr
    assert json.loads(out.read_text())["traceEvents"]
    assert "stage 1" in result.stdout


REFUSED = {
    "nowhere": ([PLAN, "--space", "small.toml"], "--ascii"),
    "no_space": ([PLAN, "--ascii"], "--space"),
    "no_plan": (["absent.json", "--ascii"], "absent.json"),
    "no_field": (["xp3", "--space", "small.toml", "--ascii"], "xp3"),
    "a_rule": (["tp3", "--space", "small.toml", "--ascii"], "tp"),
    "no_folder": ([PLAN, "--space", "small.toml", "--out", "absent/step.json"], "absent does not exist"),
    "over_the_space": ([PLAN, "--space", "small.toml", "--out", "small.toml"], "the file that is read"),
    "over_the_plans": (["plans.json#1", "--out", "plans.json"], "the file that is read"),
    "space_of_a_file": (["plans.json", "--space", "small.toml", "--ascii"], "--space"),
    "gbs_of_a_file": (["plans.json", "--gbs", "64", "--ascii"], "--gbs"),
    "gbs": ([PLAN, "--space", "small.toml", "--gbs", "100", "--ascii"], "gbs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_trace_that_cannot_be_is_refused(small: Path, case: str) -> None:
    words, part = REFUSED[case]
    if "plans.json" in words[0]:
        (small.parent / "plans.json").write_text("{}")
    assert part in refused(small.parent, "trace", *words)


def test_a_step_that_no_viewer_opens_is_refused(small: Path) -> None:
    out = small.parent / "big.json"
    message = refused(small.parent, "trace", PLAN, "--space", small, "--gbs", 400000, "--out", out)
    assert "too many to trace" in message
    assert not out.exists()
