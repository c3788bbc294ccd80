"""`autodeploy memory`: per stage, term and moment; headroom; what breaks first; exit 3 where it does not fit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autodeploy.balance.moments import MEMORY_TERMS, MOMENTS
from tests.cli.asking import ask, contents, refused

PLAN = "tp2/pp4/vpp2/ep8"
STAGE = {
    "stage", "layers", "recompute", "swap", "terms", "moments", "fullest_moment", "peak_memory_bytes",
    "allocated_first_step_bytes", "first_step_peak_bytes", "reserved_bytes", "needed_bytes", "headroom_bytes",
    "host_bytes", "fits", "items",
}  # fmt: skip


def told(space: Path, plan: str = PLAN, code: int = 0) -> dict[str, Any]:
    result = ask("memory", plan, "--space", space, "--json")
    assert result.exit_code == code
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_every_stage_is_told_and_adds_up(small: Path) -> None:
    document = told(small)
    assert len(document["stages"]) == 4
    for stage in document["stages"]:
        assert set(stage) == STAGE
        assert set(stage["terms"]) == set(MEMORY_TERMS)
        assert list(stage["moments"]) == list(MOMENTS)
        assert math.isclose(sum(stage["terms"].values()), stage["needed_bytes"], rel_tol=1e-9)
        assert stage["peak_memory_bytes"] <= stage["reserved_bytes"] <= stage["needed_bytes"]
        assert stage["first_step_peak_bytes"] <= stage["peak_memory_bytes"] * (1 + 1e-12)
        assert stage["allocated_first_step_bytes"] <= stage["peak_memory_bytes"]
        assert stage["fits"] is True
        needed = document["usable_memory_bytes"] - stage["headroom_bytes"]
        assert math.isclose(needed, stage["needed_bytes"], rel_tol=1e-12)
    assert document["fits"] is True
    assert document["breaks_first"]


def test_the_moments_of_a_first_step_have_no_moments_of_the_optimizer(small: Path) -> None:
    for stage in told(small)["stages"]:
        first, later = stage["moments"]["first_backward"], stage["moments"]["backward"]
        assert first["optimizer"] == pytest.approx(later["optimizer"] / 3)  # master weights: 4 of 12 bytes
        assert {k: v for k, v in first.items() if k not in ("optimizer", "fragmentation")} == {
            k: v for k, v in later.items() if k not in ("optimizer", "fragmentation")
        }
        assert stage["moments"]["update"]["activations"] == 0.0
        assert stage["moments"]["initialisation"]["gradients"] == 0.0


def test_the_answer_is_that_of_explain(small: Path) -> None:
    memory = told(small)
    result = ask("explain", PLAN, "--space", small, "--json")
    plan = json.loads(result.stdout)["plans"][0]
    for name in ("plan_id", "plan_short", "fits", "peak_memory_bytes", "needed_memory_bytes"):
        assert memory[name] == plan[name]
    assert [stage["terms"] for stage in memory["stages"]] == [stage["memory_terms"] for stage in plan["stages"]]


def test_tables_name_terms_moments_and_what_breaks(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    result = ask("memory", f"{PLAN}/rc:layernorm", "--space", small)
    assert result.exit_code == 0
    for words in ("headroom", "What breaks first", "first backward", "layernorm", "Memory against time", "imbalance"):
        assert words in result.stdout
    assert "\x1b" not in result.stdout


def test_a_plan_that_does_not_fit_is_told_in_full_with_exit_code_3(too_big: Path) -> None:
    document = told(too_big, "tp1/pp2/vpp1/ep1", 3)
    assert document["fits"] is False
    assert document["breaks_first"] == []
    assert any(not stage["fits"] for stage in document["stages"])
    assert document["headroom_bytes"] < 0.0
    result = ask("memory", "tp1/pp2/vpp1/ep1", "--space", too_big)
    assert result.exit_code == 3
    assert "does not fit" in result.stderr
    assert "DOES NOT FIT" in result.stdout


def test_a_plan_of_a_file(small: Path) -> None:
    assert ask("search", small, "--top", "2", "--effort", "fast", "--out", "plans.json").exit_code == 0
    result = ask("memory", "plans.json#2", "--json")
    assert result.exit_code == 0
    ranked = json.loads(Path("plans.json").read_text())["plans"][1]
    assert json.loads(result.stdout)["plan_id"] == ranked["plan_id"]
    assert contents(small.parent).keys() == {"small.toml", "plans.json"}


REFUSED = {
    "no_space": ([PLAN], "--space"),
    "no_plan": (["absent.json"], "absent.json"),
    "no_field": (["xp3", "--space", "small.toml"], "xp3"),
    "a_rule": (["tp3", "--space", "small.toml"], "tp"),
    "no_share": ([f"{PLAN}/rc:solve+swap:2", "--space", "small.toml"], "recompute"),
    "no_rows": ([f"{PLAN}/rc:swap:nothing", "--space", "small.toml"], "recompute"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(small: Path, case: str) -> None:
    words, part = REFUSED[case]
    assert part in refused(small.parent, "memory", *words)
