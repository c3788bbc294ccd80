"""Schedules with weight gradients apart, as a user asks about them: table, plans pasted back, exports, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.asking import ask, ranked

JOB = ("--model", "llama-3.1-8b", "--cluster", "h100-80g", "--devices", "16", "--seq-len", "4096", "--gbs", "64")
WORDS = ("--pp", "4", "--microbatches", "24", "--forward", "10ms", "--backward", "20ms")
LISTED = ["zbh1", "zbh2", "zbv", "dualpipev", "dualpipev", "dualpipe", "dualpipe"]


def table(*more: str) -> list[dict]:
    """The JSON rows of `schedules` beyond 1F1B."""
    result = ask("schedules", *WORDS, *more, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)[2:]


def test_weights_add_the_schedules_that_run_them_apart() -> None:
    assert table() == []
    rows = table("--weights", "10ms")
    assert [row["schedule"] for row in rows] == LISTED
    bubbles = [row["bubble_s"] for row in rows]
    # arXiv 2401.10241; deepseek-ai/DualPipe: (PP/2 - 1)(F&B + B - 3W), merged passes that hide nothing
    assert bubbles[:3] == pytest.approx([0.03, 0.0, 0.0], abs=1e-9)
    assert [bubbles[4], bubbles[6]] == pytest.approx([3 * 0.01, 1 * 0.02], abs=1e-9)
    assert [row["closed_form_bubble_s"] for row in rows[:2]] == pytest.approx([0.03, 0.0])


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (("--weights", "30ms"), "--weights: longer than the backward pass"),
        (("--weights", "1ms,2ms"), "--weights: 2 times"),
        (("--weights", "1ms", "--microbatches", "200000"), "too much to simulate"),
    ],
)
def test_weights_that_cannot_be_are_refused(more: tuple[str, ...], part: str) -> None:
    result = ask("schedules", *WORDS, *more)
    assert result.exit_code == 2
    assert part in result.stderr


def test_closed_forms_stand_only_where_they_hold() -> None:
    late = table("--weights", "20ms")
    assert [row["closed_form_bubble_s"] for row in late[:2]] == [None, None]
    assert all(row["bubble_s"] >= 0.0 for row in late)
    few = ask("schedules", "--pp", "3", "--microbatches", "2", *WORDS[4:], "--weights", "10ms")
    assert "dualpipev and dualpipe need 6 microbatches" in few.stdout
    assert "need two stages" in ask("schedules", "--pp", "1", *WORDS[2:], "--weights", "10ms").stdout


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A space with all schedules."""
    path = tmp_path_factory.mktemp("spaces") / "all.toml"
    every = '["1f1b", "interleaved", "zbh1", "zbh2", "zbv", "dualpipev", "dualpipe"]'
    path.write_text(f"""
        model = "llama-3.1-8b"
        cluster = "h100-80g"
        devices = 16
        job = {{ gbs = 64, seq_len = 4096 }}
        plan = {{ tp = [1, 2], pp = [2, 4], vpp = [1, 2], mbs = [1, 2], schedule = {every} }}
    """)
    return path


def explained(*words: str) -> dict:
    """The only plan of an `explain` document."""
    result = ask("explain", *words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["plans"][0]


@pytest.mark.parametrize("schedule", dict.fromkeys(LISTED))
def test_a_printed_plan_pasted_back_is_the_same(space: Path, schedule: str, tmp_path: Path) -> None:
    out = tmp_path / "plans.json"
    asked = ("--only", f"schedule={schedule}", "--top", "1", "--out", str(out))
    assert ask("search", str(space), *asked, "--engine", "exact").exit_code == 0
    found = explained(f"{out}#1")
    assert schedule in found["plan_short"]
    again = explained(found["plan_short"], "--space", str(space))
    assert (again["plan_id"], again["step_time_s"]) == (found["plan_id"], found["step_time_s"])


def test_dualpipe_takes_a_layout_of_as_many_slots_as_stages(space: Path) -> None:
    words = "tp1/pp4/vpp2/dualpipe/mbs1/layout:"
    assert explained(f"{words}Et*8|t*8|t*9|t*7L", "--space", str(space))["arrangement"]["layout"] == "Et*8|t*8|t*9|t*7L"
    refused = ask("explain", f"{words}Et*4|(t*4|)*6t*4L", "--space", str(space))
    assert refused.exit_code == 2
    assert "8 slots" in refused.stderr


def test_errors_name_schedules_as_they_are_written(space: Path) -> None:
    result = ask("explain", "tp1/pp4/vpp1/zbh1/mbs3", "--space", str(space))
    assert result.exit_code == 2
    assert "schedule=zbh1" in result.stderr


def test_dualpipe_v_is_exported_to_mindspeed_with_idle_layers(space: Path) -> None:
    asked = ("tp1/pp4/vpp2/dualpipev/mbs1/layout:Et*4|(t*4|)*6t*4L/rc:none", "--space", str(space))
    exported = ask("export", *asked, "--target", "mindspeed-llm", "--allow-loss")
    assert "--schedules-method dualpipev" in exported.stdout
    assert "--num-layers 32" in exported.stdout
    assert "--noop-layers" not in exported.stdout
    assert "--pipeline-model-parallel-layout" not in exported.stdout
    assert (
        "schedule dualpipev: not written" in ask("export", *asked, "--target", "megatron-core", "--allow-loss").stdout
    )


def test_dualpipe_counts_the_microbatches_of_both_ends_in_exports(space: Path) -> None:
    asked = ("tp1/pp2/vpp2/dualpipe/mbs1", "--space", str(space), "--target", "mindformers-2026", "--allow-loss")
    text = ask("export", *asked).stdout
    assert "micro_batch_num: 8" in text
    assert "8 micro-batches a step" in text


def test_targets_with_dualpipe_v_rank_it_without_a_file() -> None:
    asked = ("--target", "mindspeed-llm", "--fix", "schedule=dualpipev", "--effort", "fast", "--top", "1")
    [plan] = ranked(*JOB, *asked)["plans"]
    assert (plan["plan"]["schedule"], plan["plan"]["vpp"]) == ("dualpipev", 2)
    assert len(plan["stages"][0]["layers"]) == 2
