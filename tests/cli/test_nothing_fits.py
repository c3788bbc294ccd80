"""All legal, nothing fits: exit 3, how far it misses and where, and what would fit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autodeploy.units import GIB
from tests.cli.asking import SMALL, TOO_BIG, ask, contents, edited, search


def miss_of(text: str) -> tuple[float, float, int]:
    """(GiB needed, GiB usable, stage) as said."""
    found = re.search(r"needs ([\d.]+) GiB of ([\d.]+) GiB on stage (\d+)", text)
    assert found, text
    return float(found[1]), float(found[2]), int(found[3])


def test_search_says_how_far_the_nearest_plan_misses(too_big: Path) -> None:
    result = search(too_big)
    assert result.exit_code == 3
    said = result.stderr.splitlines()[-1]
    assert said.startswith("nothing fits: ")
    need, have, stage = miss_of(said)
    assert need > have
    assert have == pytest.approx(79.1 - 1.5, abs=0.01)  # GiB of the device less its context
    assert stage >= 0


def test_the_nearest_plan_is_the_one_that_needs_least(too_big: Path) -> None:
    need, _, _ = miss_of(search(too_big).stderr)
    for plan in ("tp1/pp1/ep8", "tp2/pp1/ep8", "tp1/pp4/ep1", "tp2/pp4/ep1"):
        result = ask("explain", plan, "--space", too_big, "--json")
        assert result.exit_code == 3
        assert json.loads(result.stdout)["plans"][0]["needed_memory_bytes"] / GIB >= need - 0.005


def test_the_counts_stand_in_the_answer(too_big: Path) -> None:
    result = search(too_big, "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    facts = document["search"]
    assert document["status"] == "infeasible"
    assert document["plans"] == []
    assert facts["fits"] == 0
    assert facts["legal"] > 0
    assert facts["candidates"] == facts["legal"] + sum(facts["refused"].values())
    table = search(too_big).stdout
    assert f"{facts['candidates']:,} candidates, {facts['legal']:,} legal, 0 fit" in table
    assert "memory.device" in table


def test_what_would_fit_does_fit(folder: Path) -> None:
    path = folder / "space.toml"
    path.write_text(
        edited(
            SMALL, ("tp = [1, 2]", "tp = [1]"), ("[1, 2, 4]", "[1]"), ("vpp = [1, 2]", "vpp = [1]"), ("[1, 8]", "[1]")
        )
    )
    result = search(path)
    assert result.exit_code == 3
    cures = re.findall(r"fits with (\w+) (\d+)", result.stderr)
    assert cures
    for name, value in cures:
        wider = folder / f"{name}.toml"
        wider.write_text(edited(path.read_text(), (f"\n{name} = [1]", f"\n{name} = [{value}]")))
        assert search(wider).exit_code == 0, f"{name} {value}"


def test_recompute_that_would_fit_is_named_and_does_fit(folder: Path) -> None:
    path = folder / "space.toml"
    text = edited(
        SMALL, ("[1, 2]\npp", "[1]\npp"), ("[1, 2, 4]", "[2]"), ("vpp = [1, 2]", "vpp = [1]"), ("= 4096", "= 16384")
    )
    path.write_text(text + 'recompute = ["none"]\n')
    result = search(path)
    assert result.exit_code == 3
    found = re.search(r"fits with recompute of ([\w +]+)", result.stderr)
    assert found, result.stderr
    path.write_text(text + f'recompute = ["{found[1].strip().replace(" ", "")}"]\n')
    assert search(path).exit_code == 0


def test_an_answer_that_is_kept_is_whole(too_big: Path) -> None:
    result = search(too_big, "--out", "plans.json")
    assert result.exit_code == 3
    assert json.loads(Path("plans.json").read_text())["status"] == "infeasible"
    assert set(contents(too_big.parent)) == {"too_big.toml", "plans.json"}


def test_without_out_nothing_is_written(too_big: Path) -> None:
    assert search(too_big).exit_code == 3
    assert set(contents(too_big.parent)) == {"too_big.toml"}


def test_explain_of_a_plan_that_does_not_fit_prints_everything(too_big: Path) -> None:
    result = ask("explain", "tp1/pp1/ep8", "--space", too_big)
    assert result.exit_code == 3
    for part in ("DOES NOT FIT", "matmul", "optimizer", "Memory of the fullest stage", "Stages", "Assumed inputs"):
        assert part in result.stdout
    assert result.stderr.startswith("does not fit: ")
    need, have, stage = miss_of(result.stderr)
    assert need > have
    assert stage == 0


def test_explain_and_its_document_say_the_same(too_big: Path) -> None:
    result = ask("explain", "tp2/pp4/ep1", "--space", too_big, "--json")
    assert result.exit_code == 3
    plan: dict[str, Any] = json.loads(result.stdout)["plans"][0]
    assert plan["fits"] is False
    assert plan["rank"] is None
    assert plan["limited_by"] == "memory.device"
    need, have, stage = miss_of(result.stderr)
    assert need == pytest.approx(plan["needed_memory_bytes"] / GIB, abs=0.006)
    assert have == pytest.approx(plan["usable_memory_bytes"] / GIB, abs=0.006)
    assert plan["stages"][stage]["needed_bytes"] == plan["needed_memory_bytes"]


def test_too_big_is_too_big_by_arithmetic() -> None:
    parameters, least_bytes = 46.7e9, 2 + 4 + 12  # bf16 weight, fp32 gradient, fp32 weight and Adam moments
    assert "devices = 8" in TOO_BIG
    assert parameters * least_bytes / 8 > 79.1 * GIB


def test_a_document_without_plans_cannot_be_explained(too_big: Path) -> None:
    assert search(too_big, "--out", "plans.json").exit_code == 3
    result = ask("explain", "plans.json")
    assert result.exit_code == 2
    assert "holds no plan" in result.stderr
