"""Plan documents: written whole or not at all, read back as what they were made from."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from autodeploy.catalog.lookup import load_space
from autodeploy.errors import SpecError
from autodeploy.formats.document import (
    check_writable,
    document_plan,
    document_space,
    inputs_document,
    plan_fields,
    read_document,
    search_document,
    to_json,
    varying,
    write_text,
)
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import search_exact
from autodeploy.spec.plan import PLAN_FIELDS
from autodeploy.spec.space import Space

TEXT = """\
name = "documents"
model = "mixtral-8x7b"
cluster = "h100-80g"
devices = 64
[job]
gbs = 128
seq_len = 4096
expert_imbalance = 1.1
[plan]
tp = [1, 2]
pp = [2, 4]
vpp = [1, 2]
ep = [8]
mbs = [1]
overlap = ["none", "pair"]
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """A space with words among its values."""
    path = tmp_path_factory.mktemp("documents") / "space.toml"
    path.write_text(TEXT)
    return load_space(path)


@pytest.fixture(scope="module")
def document(space: Space) -> dict[str, Any]:
    """The document of its search, as it is read back from a file."""
    outcome = search_exact(space, top=10)
    results = [evaluate(space, outcome.screened.plans.row(int(row))) for row in outcome.rows]
    return json.loads(to_json(search_document(space, results, outcome.status, outcome.facts(), {})))


def test_a_file_is_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    write_text(path, "new")
    write_text(path, "newer \u00d7")
    assert path.read_text(encoding="utf-8") == "newer \u00d7"
    assert [each.name for each in tmp_path.iterdir()] == ["plans.json"]


class FullDisk:
    """Stands for a file whose second write fails."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, text: str) -> None:
        self.file.write(text[: len(text) // 2])
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("old", ["old", None])
def test_a_write_that_fails_half_way_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str | None
) -> None:
    path = tmp_path / "plans.json"
    if old is not None:
        path.write_text(old)
    whole = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda *words, **more: FullDisk(whole(*words, **more)))
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new and longer")
    left = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert left == ({} if old is None else {"plans.json": old})


def test_an_interrupt_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plans.json"
    path.write_text("old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    monkeypatch.undo()
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"plans.json": "old"}


def test_a_document_is_as_readable_as_any_other_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    write_text(tmp_path / "plans.json", "")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_a_link_is_written_through(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_place_that_cannot_be_written_is_refused_before_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "plans.json")
    assert not list(tmp_path.iterdir())
    for path in (tmp_path, tmp_path / "absent" / "plans.json"):
        with pytest.raises(SpecError, match="--out"):
            check_writable(path)


def test_the_inputs_of_a_document_are_the_space(space: Space, document: dict[str, Any]) -> None:
    again = document_space(document, "file")
    assert again == space
    assert inputs_document(again) == inputs_document(space)


def test_every_plan_of_a_document_is_read_back(document: dict[str, Any]) -> None:
    assert document["plans"]
    for entry in document["plans"]:
        plan = document_plan(document, entry["rank"], "file")
        assert plan_fields(plan) == entry["plan"]
        assert tuple(entry["plan"]) == PLAN_FIELDS


def test_a_plan_of_a_document_is_evaluated_to_its_figures(space: Space, document: dict[str, Any]) -> None:
    for entry in document["plans"]:
        result = evaluate(space, document_plan(document, entry["rank"], "file"))
        assert result.plan_id == entry["plan_id"]
        assert result.step_time_s == entry["step_time_s"]
        assert result.peak_memory_bytes == entry["peak_memory_bytes"]


def test_dp_varies_with_the_degrees_that_it_follows_from(space: Space) -> None:
    assert varying(space) == ("tp", "pp", "vpp", "dp", "overlap")


@pytest.mark.parametrize("rank", [0, -1, 11, 10**9])
def test_a_rank_that_is_not_there_is_refused(document: dict[str, Any], rank: int) -> None:
    with pytest.raises(SpecError, match="#1 to #"):
        document_plan(document, rank, "file")


@pytest.mark.parametrize(
    ("version", "reads"), [("1.0", True), ("1.9", True), ("2.0", False), ("0.1", False), (1, False)]
)
def test_only_the_same_major_version_is_read(
    tmp_path: Path, document: dict[str, Any], version: Any, reads: bool
) -> None:
    path = tmp_path / "plans.json"
    path.write_text(json.dumps(document | {"schema_version": version}))
    if reads:
        assert read_document(path)["plans"] == document["plans"]
    else:
        with pytest.raises(SpecError, match="schema_version"):
            read_document(path)
