"""`autodeploy dispatch` and `autodeploy claims` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.asking import ask, refused


def test_every_size_of_the_group_is_shown_with_a_reason() -> None:
    result = ask("dispatch", "--model", "qwen3-30b-a3b", "--cluster", "h100-80g")
    assert result.exit_code == 0
    for word in ("flat", "hier", "dedup", "gather", "fused", "quickest", "copies across nodes"):
        assert word in " ".join(result.stdout.split())


def test_the_document_holds_seconds_of_every_way() -> None:
    result = ask("dispatch", "--model", "mixtral-8x7b", "--cluster", "atlas-800t-a2", "--imbalance", 1.2, "--json")
    document = json.loads(result.stdout)
    (found,) = document["clusters"]
    assert [row["ep"] for row in found["rows"]] == [2, 4, 8]
    assert set(found["rows"][0]["seconds"]) == {"flat", "hier", "dedup", "gather", "fused"}
    assert document["inputs"]["expert_imbalance"] == 1.2


def test_pages_are_written_whole(tmp_path: Path) -> None:
    page = tmp_path / "dispatch.md"
    assert ask("dispatch", "--markdown", "--out", page).exit_code == 0
    assert page.read_text().startswith("# Dispatch by the size of the expert group")
    assert "## atlas-800t-a2" in page.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "llama-3.1-8b"), "has no experts"),
        (("--cluster", "h100"), "h100-80g"),
        (("--imbalance", "0.5"), "1 or more"),
        (("--imbalance", "nan"), "1 or more"),
        (("--json", "--markdown"), "one of them"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused(tmp_path, "dispatch", *words)


@pytest.mark.slow
def test_claims_are_the_same_twice_but_for_what_is_measured() -> None:
    first, second = (json.loads(ask("claims", "--json").stdout)["rows"] for _ in range(2))
    assert [row for row in first if not row["id"].startswith("scenarios")] == [
        row for row in second if not row["id"].startswith("scenarios")
    ]
