"""The command line over context parallelism, sharding levels and number formats: asked, ranked, explained, refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from autodeploy.search.result import COMMUNICATION_TERMS
from tests.cli.asking import SMALL, answer, ask, edited, ranked, refused

WIDE = edited(
    SMALL,
    ("mixtral-8x7b", "llama-3.1-8b"),
    ("ep = [1, 8]", 'cp = [1, 2]\ncp_comm = ["ring", "ulysses"]\nzero = [1, 3]\nreplicas = [1, 2]'),
)


@pytest.fixture
def wide(folder: Path) -> Path:
    """A space over what ranks may share."""
    path = folder / "wide.toml"
    path.write_text(WIDE)
    return path


def test_a_search_ranks_and_an_explanation_says_the_same(wide: Path) -> None:
    document = ranked(wide, "--top", "1000")
    assert document["status"] == "optimal"
    plans = document["plans"]
    assert {plan["plan"]["cp"] for plan in plans} == {1, 2}
    assert {plan["plan"]["zero"] for plan in plans} == {1, 3}
    for plan in plans[:: len(plans) // 5]:
        told = answer("explain", plan["plan_short"], "--space", wide)["plans"][0]
        assert told["plan"] == plan["plan"]
        assert told["step_time_s"] == plan["step_time_s"]
        assert told["peak_memory_bytes"] == plan["peak_memory_bytes"]
        assert math.isclose(sum(told["time_terms"].values()), told["step_time_s"], rel_tol=1e-9)
        assert told["time_terms"].keys() >= set(COMMUNICATION_TERMS)


@pytest.mark.parametrize("words", ["cp=2,cp_comm=ulysses", "zero=3,replicas=2", "cp=2,zero=3", "recompute=full:0.5"])
def test_these_fields_can_be_held(wide: Path, words: str) -> None:
    held = dict(word.split("=") for word in words.split(","))
    document = ranked(wide, "--fix", words)
    assert document["plans"]
    for plan in document["plans"]:
        assert {name: str(plan["plan"][name]) for name in held} == held


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("tp1/pp1/cp1/ulysses", "P07"),
        ("tp1/pp1/cp1/kvgather", "P07"),
        ("tp2/pp1/cp1/zero0/replicas2", "P09"),
        ("tp1/pp1/cp2/replicas3", "P09"),
        ("tp1/pp1/dedup", "P06"),
    ],
)
def test_a_plan_that_cannot_be_names_its_rule(wide: Path, text: str, rule: str) -> None:
    assert rule in refused(wide.parent, "explain", text, "--space", wide)


@pytest.mark.parametrize(("cluster", "word"), [("atlas-800t-a2", "fp8"), ("a100-80g", "fp8"), ("h100-80g", "nvfp4")])
def test_a_format_that_the_device_lacks_is_refused(folder: Path, cluster: str, word: str) -> None:
    path = folder / "narrow.toml"
    path.write_text(edited(SMALL, ("h100-80g", cluster), ("gbs = 128", f'gbs = 128\nprecision = "{word}"')))
    said = refused(folder, "search", path)
    for part in ("job.precision", word, "bf16"):
        assert part in said


def test_eight_bits_adapters_and_documents_are_ranked(folder: Path) -> None:
    path = folder / "other.toml"
    path.write_text(edited(SMALL, ("gbs = 128", 'gbs = 128\nprecision = "fp8"\nlora_rank = 16\ndocument_len = 1024')))
    plain = folder / "plain.toml"
    plain.write_text(SMALL)
    narrow, wide = ranked(path, "--top", "1"), ranked(plain, "--top", "1")
    assert narrow["inputs"]["job"]["lora_rank"] == 16
    assert narrow["plans"][0]["step_time_s"] < wide["plans"][0]["step_time_s"]


@pytest.mark.parametrize("command", ["search", "explain"])
def test_a_share_of_no_layer_is_refused(wide: Path, command: str) -> None:
    path = wide.with_name("share.toml")
    path.write_text(WIDE + 'recompute = ["full:2"]\n')
    words = ("search", path) if command == "search" else ("explain", "tp1/pp1/rc:full:2", "--space", wide)
    said = refused(wide.parent, *words)
    for part in ("recompute", "full:2", "full:SHARE"):
        assert part in said


def test_a_share_of_the_layers_is_explained_by_its_name(wide: Path) -> None:
    result = ask("explain", "tp2/pp2/vpp1/cp1/zero1/replicas1/ring/rc:full:0.5", "--space", wide)
    assert result.exit_code == 0, result.stderr
    assert "full:0.5" in result.stdout


def test_the_default_engine_is_as_good_as_the_exact_one(wide: Path) -> None:
    best, found = ranked(wide, "--top", "1")["plans"][0], answer("search", wide, "--top", "1")["plans"][0]
    assert found["step_time_s"] <= best["step_time_s"]
    assert found["fits"] is True
