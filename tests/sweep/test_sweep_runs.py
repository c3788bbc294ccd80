"""Running a sweep: what a line holds, what is kept of an earlier run, and that nothing depends on how it was run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autodeploy.search.engine import Request, search
from autodeploy.sweep import run
from autodeploy.sweep.cells import Cell, cells_of, read_sweep
from autodeploy.sweep.lines import FIELDS, read_lines, salvage
from autodeploy.sweep.run import Progress, cell_hash, cell_space, run_cell, run_sweep
from tests.house.source import ROOT
from tests.sweep.little import MODEL, SWEEP, read, silent, swept, without_run, write_lines, write_model, write_sweep

PROMISED = [
    "cell", "inputs", "status", "plan_id", "plan_short", "tokens_per_s_per_device", "step_time_s",
    "peak_memory_bytes", "fits", "gap_frac", "error", "run",
]  # fmt: skip
ODD = """\
name = "odd"
only = ["dp=8"]
[base]
cluster = "h100-80g"
seq_len = 2048
[matrix]
model = ["MODEL", "llama-3.1-405b", "no-such-model", "mixtral-8x7b"]
devices = [8]
gbs = [8, 7]
"""
"""Cells that work, that fit nowhere, and that fail: for the model's name, and for the batch."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a little sweep and its results."""
    folder = tmp_path_factory.mktemp("whole")
    swept(write_sweep(folder), folder / "results.jsonl")
    return folder


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep some of whose cells fail, and its results."""
    folder = tmp_path_factory.mktemp("odd")
    swept(write_sweep(folder, ODD), folder / "results.jsonl")
    return folder


def test_a_line_holds_exactly_what_is_promised(whole: Path, odd: Path) -> None:
    assert list(FIELDS) == PROMISED
    for folder in (whole, odd):
        for line in read(folder / "results.jsonl"):
            assert list(line) == PROMISED
            assert list(line["run"]) == ["wall_s"]


def test_lines_stand_in_the_order_of_the_cells(whole: Path) -> None:
    sweep = read_sweep(whole / "sweep.toml")
    lines = read(whole / "results.jsonl")
    assert [line["cell"] for line in lines] == [cell.name for cell in cells_of(sweep)]
    for line, cell in zip(lines, cells_of(sweep), strict=True):
        assert line["inputs"] == {**cell.values, "content_hash": cell_hash(sweep, cell)}


def test_a_line_says_what_a_search_says(whole: Path) -> None:
    sweep = read_sweep(whole / "sweep.toml")
    for line, cell in zip(read(whole / "results.jsonl"), cells_of(sweep), strict=True):
        answer = search(cell_space(sweep, cell), Request(top=1, cut_shapes=0))
        best = answer.results[0]
        assert (line["status"], line["gap_frac"], line["fits"], line["error"]) == ("optimal", 0.0, True, None)
        assert line["plan_id"] == best.plan_id
        for name in ("tokens_per_s_per_device", "step_time_s", "peak_memory_bytes"):
            assert line[name] == getattr(best, name)


def test_cells_that_fail_are_recorded_with_the_reason_and_the_others_are_run(odd: Path) -> None:
    lines = {line["cell"]: line for line in read(odd / "results.jsonl")}
    status = [line["status"] for line in lines.values()]
    assert status == ["optimal", "failed", "infeasible", "failed", "failed", "failed", "infeasible", "failed"]
    assert "unknown 'no-such-model'" in lines["model=no-such-model,devices=8,gbs=8"]["error"]
    no_plan = lines[f"model={odd / 'model.toml'},devices=8,gbs=7"]["error"]
    assert "no legal plan" in no_plan
    assert "V90" in no_plan
    for line in lines.values():
        figures = [line[name] for name in ("plan_id", "plan_short", "tokens_per_s_per_device", "step_time_s")]
        assert (None in figures) == (line["status"] != "optimal")
        assert (line["error"] is None) == (line["status"] != "failed")
        assert line["fits"] == {"optimal": True, "infeasible": False, "failed": None}[line["status"]]


def test_a_finished_sweep_is_not_run_again(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "results.jsonl"
    shutil.copy(whole / "results.jsonl", copy)
    monkeypatch.setattr(run, "_search", lambda *_: pytest.fail("a cell was run"))
    swept(whole / "sweep.toml", copy)
    assert copy.read_bytes() == (whole / "results.jsonl").read_bytes()


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0, 1.0))
@pytest.mark.slow
def test_a_file_cut_off_anywhere_is_completed(whole: Path, tmp_path: Path, share: float) -> None:
    expected = (whole / "results.jsonl").read_bytes()
    copy = tmp_path / "results.jsonl"
    copy.write_bytes(expected[: round(share * len(expected))])
    kept = salvage(copy)
    swept(whole / "sweep.toml", copy)
    assert without_run(copy) == without_run(whole / "results.jsonl")
    assert read(copy)[: len(kept)] == read(whole / "results.jsonl")[: len(kept)]  # `run` too: they were not run


@pytest.mark.parametrize("at", [0, 1, -1, "end of line 1", "before the end of line 1", "inside a character"])
def test_a_file_cut_off_at_an_edge_is_completed(at: Any, tmp_path: Path) -> None:
    path = write_sweep(tmp_path, SWEEP.replace('"little"', '"l\u00efttle"').replace("MODEL", "mod\u00ebl-\u00d7"))
    out = tmp_path / "results.jsonl"
    swept(path, out)  # cells that fail are kept as well
    expected, text = without_run(out), out.read_bytes()
    line = text.index(b"\n")
    cut = {"end of line 1": line + 1, "before the end of line 1": line, "inside a character": text.index(b"\xc3") + 1}
    out.write_bytes(text[: cut.get(at, at)])
    swept(path, out)
    assert without_run(out) == expected


def reran(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the cells that a changed sweep runs anew."""
    names: list[str] = []
    whole = run._search

    def note(sweep: Any, cell: Cell) -> dict[str, Any]:
        names.append(cell.name)
        return whole(sweep, cell)

    monkeypatch.setattr(run, "_search", note)
    swept(write_sweep(folder, text), folder / "results.jsonl")
    return names


CHANGES = {
    "value_of_the_matrix": ("gbs = [8, 16, 32]", "gbs = [8, 64, 32]", 1),
    "later_key": ("devices = [4, 8]", "devices = [4, 16]", 3),
    "one_more_value": ("devices = [4, 8]", "devices = [4, 8, 16]", 6),
    "base": ("seq_len = 2048", "seq_len = 1024", 0),
    "effort": ('name = "little"', 'name = "little"\neffort = "normal"', 0),
    "condition": ('name = "little"', 'name = "little"\nonly = ["pp=1"]', 0),
    "fix": ('name = "little"', 'name = "little"\nfix = "tp=1"', 0),
    "seed": ('name = "little"', 'name = "little"\nseed = 1', 0),
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.slow
def test_a_changed_input_is_run_anew_from_there(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, same = CHANGES[case]
    first = swept(write_sweep(tmp_path), tmp_path / "results.jsonl")
    names = reran(tmp_path, SWEEP.replace(old, new), monkeypatch)
    sweep = read_sweep(tmp_path / "sweep.toml")
    assert names == [cell.name for cell in cells_of(sweep)][same:]
    now = read(tmp_path / "results.jsonl")
    assert len(now) == len(cells_of(sweep))
    assert [line["run"] for line in now[:same]] == [line["run"] for line in first[:same]]


def test_thresholds_do_not_make_a_sweep_run_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(write_sweep(tmp_path), tmp_path / "results.jsonl")
    assert reran(tmp_path, SWEEP + "[[thresholds]]\nfits = true\n", monkeypatch) == []


def test_fewer_cells_leave_no_lines_of_the_others(tmp_path: Path) -> None:
    swept(write_sweep(tmp_path), tmp_path / "results.jsonl")
    swept(write_sweep(tmp_path, SWEEP.replace("devices = [4, 8]", "devices = [4]")), tmp_path / "results.jsonl")
    assert [line["cell"] for line in read(tmp_path / "results.jsonl")] == [
        f"devices=4,gbs={gbs}" for gbs in (8, 16, 32)
    ]


def test_the_content_of_a_model_file_is_an_input(tmp_path: Path) -> None:
    sweep = read_sweep(write_sweep(tmp_path))
    before = [cell_hash(sweep, cell) for cell in cells_of(sweep)]
    write_model(tmp_path, MODEL.replace("hidden = 1024", "hidden = 2048"))
    after = [cell_hash(sweep, cell) for cell in cells_of(sweep)]
    assert len({*before, *after}) == 12


def test_the_content_of_a_model_folder_is_an_input(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    config = json.loads((ROOT / "tests" / "data" / "hf_configs" / "llama-3.1-8b.json").read_text())
    sweep = read_sweep(write_sweep(tmp_path, SWEEP.replace("MODEL", str(folder))))
    hashes = []
    for layers in (32, 16):
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
        hashes.append(cell_hash(sweep, cells_of(sweep)[0]))
    assert hashes[0] != hashes[1]


def test_every_value_of_a_cell_is_in_its_hash() -> None:
    values = {"model": "a", "cluster": "b", "target": "c", "devices": 8, "gbs": 8, "seq_len": 8, "layers": 8}
    sweep = read_sweep(ROOT / "search_spaces" / "sweeps" / "example.toml")
    hashes = {cell_hash(sweep, Cell(name="x", values=values))}
    for key, value in values.items():
        other = value + 1 if isinstance(value, int) else value + "x"
        hashes.add(cell_hash(sweep, Cell(name="x", values={**values, key: other})))
    assert len(hashes) == 1 + len(values)


@pytest.mark.parametrize("inputs", [["a"], "text", 3])
def test_a_line_with_odd_inputs_is_run_anew(whole: Path, tmp_path: Path, inputs: Any) -> None:
    lines = read(whole / "results.jsonl")
    out = write_lines(tmp_path / "results.jsonl", [{**lines[0], "inputs": inputs}, *lines[1:]])
    swept(whole / "sweep.toml", out)
    assert without_run(out) == without_run(whole / "results.jsonl")


@pytest.mark.slow
def test_workers_change_nothing_but_the_time(whole: Path, odd: Path, tmp_path: Path) -> None:
    for folder in (whole, odd):
        for workers in (2, 3):
            out = tmp_path / f"{folder.name}-{workers}.jsonl"
            swept(folder / "sweep.toml", out, workers=workers)
            assert without_run(out) == without_run(folder / "results.jsonl")


def test_progress_is_told_cell_by_cell(whole: Path, tmp_path: Path) -> None:
    sweep = read_sweep(whole / "sweep.toml")
    out = tmp_path / "results.jsonl"
    out.write_text("".join((whole / "results.jsonl").read_text().splitlines(keepends=True)[:2]))
    told: list[Progress] = []
    run_sweep(sweep, cells_of(sweep), out, 1, told.append)
    assert told == [Progress(done=done, cells=6, failed=0, reused=2) for done in (3, 4, 5, 6)]


def test_lines_are_there_as_soon_as_their_cells_are_done(tmp_path: Path) -> None:
    sweep, out = read_sweep(write_sweep(tmp_path)), tmp_path / "results.jsonl"
    seen: list[int] = []
    run_sweep(sweep, cells_of(sweep), out, 1, lambda progress: seen.append(len(read_lines(out)) - progress.done))
    assert seen == [0] * 6


def test_an_interrupt_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = write_sweep(tmp_path), tmp_path / "results.jsonl"
    whole, done = run.run_cell, []

    def interrupted(task: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(task)
        return whole(task)

    monkeypatch.setattr(run, "run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swept(path, out)
    assert len(read_lines(out)) == 2
    monkeypatch.undo()
    swept(path, out)
    assert len(read_lines(out)) == 6


def test_a_cell_may_be_studied_by_optuna(tmp_path: Path) -> None:
    text = SWEEP.replace('"little"', '"little"\nengine = "optuna"\ntrials = 12').replace("[8, 16, 32]", "[8]")
    one, other = (swept(write_sweep(tmp_path, text), tmp_path / name) for name in ("one.jsonl", "other.jsonl"))
    assert [line["status"] in ("gap", "optimal") for line in one] == [True, True]
    assert [{**line, "run": None} for line in one] == [{**line, "run": None} for line in other]


def test_a_bug_in_a_cell_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(run, "search", broken)
    with pytest.raises(ZeroDivisionError):
        swept(write_sweep(tmp_path), tmp_path / "results.jsonl")


def test_a_cell_alone_gives_the_line_of_the_sweep(whole: Path) -> None:
    sweep = read_sweep(whole / "sweep.toml")
    for cell, line in zip(cells_of(sweep), read(whole / "results.jsonl"), strict=True):
        alone = run_cell((sweep, cell, cell_hash(sweep, cell)))
        assert {**dict.fromkeys(PROMISED), **alone, "run": None} == {**line, "run": None}


@pytest.mark.parametrize("mark", ["\u2028", "\x85"])
def test_a_name_with_a_line_end_of_another_script_is_read_back(tmp_path: Path, mark: str) -> None:
    sweep = read_sweep(write_sweep(tmp_path, SWEEP.replace('"MODEL"', '"no\\u2028model"').replace("\\u2028", mark)))
    out = tmp_path / "results.jsonl"
    lines = run_sweep(sweep, cells_of(sweep), out, 1, silent)
    assert [line["cell"] for line in read_lines(out)] == [line["cell"] for line in lines]
    assert len(salvage(out)) == 6


def test_a_file_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    path = write_sweep(tmp_path)
    for name in ("notes.txt", "sweep.toml"):
        other = tmp_path / name
        before = other.read_text() if other.exists() else "my notes\n"
        other.write_text(before)
        with pytest.raises(ValueError, match="holds something else"):
            swept(path, other)
        assert other.read_text() == before


def test_the_settings_of_a_sweep_reach_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []
    whole = run.search
    monkeypatch.setattr(run, "search", lambda space, request: asked.append(request) or whole(space, request))
    sweep = replace(read_sweep(write_sweep(tmp_path)), engine="exact", effort="normal", seed=7, trials=11)
    run_sweep(sweep, cells_of(sweep)[:1], tmp_path / "results.jsonl", 1, silent)
    (request,) = asked
    assert (request.engine, request.seed, request.trials, request.cut_shapes, request.top) == ("exact", 7, 11, 32, 1)
