"""`sweep` and `gate`: what they print, write and end with; regressions that are planted are caught, others pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autodeploy.sweep import run
from autodeploy.units import GIB
from tests.cli.asking import ask, contents, edited, refused
from tests.sweep.little import SWEEP, read, without_run, write_lines, write_model, write_sweep

RATE = "tokens_per_s_per_device"
CELL = "devices=4,gbs=16"


def run_here(path: object = "sweep.toml", out: object = "results.jsonl") -> Any:
    """A sweep in this process."""
    return ask("sweep", path, "--out", out, "--workers", 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a sweep that has run: by its command, in a folder that is gone when a test begins."""
    folder = tmp_path_factory.mktemp("finished")
    result = run_here(write_sweep(folder), folder / "results.jsonl")
    assert result.exit_code == 0, result.stderr
    return contents(folder)


@pytest.fixture
def done(folder: Path, finished: dict[str, bytes]) -> Path:
    """A folder with a sweep and its results."""
    for name, content in finished.items():
        (folder / name).write_bytes(content)
    return folder


def changed(
    folder: Path, change: Callable[[dict[str, Any]], Any], name: str = "changed.jsonl", cell: str = CELL
) -> Path:
    """The results with one line changed."""
    lines = read(folder / "results.jsonl")
    for line in lines:
        if line["cell"] == cell:
            change(line)
    return write_lines(folder / name, lines)


def slower(share: float) -> Callable[[dict[str, Any]], Any]:
    """A change to a line: so much slower."""

    def change(line: dict[str, Any]) -> None:
        line[RATE] *= 1.0 - share
        line["step_time_s"] /= 1.0 - share

    return change


def gate(*words: object) -> Any:
    """A gate in this process."""
    return ask("gate", *words)


def test_a_sweep_prints_a_row_a_cell_and_says_where_it_is_kept(folder: Path) -> None:
    write_sweep(folder)
    result = run_here()
    assert result.exit_code == 0
    lines = read(folder / "results.jsonl")
    for line in lines:
        (row,) = [row for row in result.stdout.splitlines() if f" {line['cell']} " in row]
        assert line["plan_short"] in row
        assert f"{line[RATE]:.1f}" in row
    assert result.stderr.splitlines()[-1] == "6 cells, 0 failed, kept in results.jsonl"
    assert contents(folder).keys() == {"model.toml", "sweep.toml", "results.jsonl"}


def test_a_cell_that_fails_is_recorded_and_ends_the_sweep_with_5(folder: Path) -> None:
    write_sweep(
        folder, edited(SWEEP, ('model = "MODEL"\n', ""), ("[matrix]", '[matrix]\nmodel = ["nowhere", "MODEL"]'))
    )
    result = run_here()
    assert result.exit_code == 5
    assert result.stderr.splitlines()[-1] == "12 cells, 6 failed, kept in results.jsonl"
    assert [line["status"] for line in read(folder / "results.jsonl")] == ["failed"] * 6 + ["optimal"] * 6
    assert "unknown 'nowhere'" in result.stdout
    again = run_here()
    assert (again.exit_code, again.stdout) == (5, result.stdout)


def test_a_cell_in_which_nothing_fits_is_an_answer(folder: Path) -> None:
    write_sweep(folder, SWEEP.replace("MODEL", "llama-3.1-405b"))
    result = run_here()
    assert result.exit_code == 0
    assert {(line["status"], line["fits"]) for line in read(folder / "results.jsonl")} == {("infeasible", False)}
    assert "nothing fits" in result.stdout


def test_a_finished_sweep_ends_at_once_with_the_same_bytes(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(done)
    monkeypatch.setattr(run, "_search", lambda *_: pytest.fail("a cell was run"))
    assert run_here().exit_code == 0
    assert contents(done) == before


@pytest.mark.slow
def test_the_number_of_processes_does_not_matter(done: Path) -> None:
    for words in ((), ("--workers", 2), ("--workers", 5)):
        result = ask("sweep", "sweep.toml", "--out", "other.jsonl", *words)
        assert result.exit_code == 0, result.stderr
        assert without_run(done / "other.jsonl") == without_run(done / "results.jsonl")
        (done / "other.jsonl").unlink()


def test_an_interrupt_ends_with_130_and_keeps_the_cells_that_are_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(folder)
    interrupt(monkeypatch)
    assert run_here().exit_code == 130
    assert len(read(folder / "results.jsonl")) == 2


def test_an_interrupt_says_what_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(folder)
    interrupt(monkeypatch)
    said = run_here().stderr
    assert "2 of 6 cells" in said
    assert "results.jsonl" in said


def interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the third cell."""
    whole, begun = run.run_cell, []

    def interrupted(task: Any) -> Any:
        begun.append(task)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return whole(task)

    monkeypatch.setattr(run, "run_cell", interrupted)


def test_a_clean_rerun_passes(done: Path) -> None:
    assert run_here(out=done / "new.jsonl").exit_code == 0
    result = gate("new.jsonl", "--baseline", "results.jsonl", "--max-regress", "0%")
    assert result.exit_code == 0, result.stdout
    assert result.stdout == "gate passed: 6 cells\n"
    assert result.stderr == ""


def test_a_planted_regression_is_caught_and_shown(done: Path) -> None:
    changed(done, slower(0.03))
    result = gate("changed.jsonl", "--baseline", "results.jsonl", "--max-regress", "2%")
    assert result.exit_code == 4
    assert result.stderr.splitlines()[-1] == "gate failed: 1 violations in 6 cells"
    (before,) = [line for line in read(done / "results.jsonl") if line["cell"] == CELL]
    (row,) = [row for row in result.stdout.splitlines() if CELL in row]
    assert f"at least {0.98 * before[RATE]:.1f}" in row
    assert f"{0.97 * before[RATE]:.1f} (-3.0%)" in row


@pytest.mark.parametrize("most", ["2%", "0.02", "2.0%", "3%", "50%"])
def test_a_small_slow_down_passes(done: Path, most: str) -> None:
    changed(done, slower(0.01))
    assert gate("changed.jsonl", "--baseline", "results.jsonl", "--max-regress", most).exit_code == 0


def test_two_percent_are_allowed_where_nothing_is_said(done: Path) -> None:
    changed(done, slower(0.019), "a.jsonl")
    changed(done, slower(0.021), "b.jsonl")
    codes = [gate(name, "--baseline", "results.jsonl").exit_code for name in ("a.jsonl", "b.jsonl")]
    assert codes == [0, 4]


def test_faster_is_no_violation(done: Path) -> None:
    changed(done, slower(-0.5))
    assert gate("changed.jsonl", "--baseline", "results.jsonl", "--max-regress", "0").exit_code == 0


def fail(line: dict[str, Any]) -> None:
    """A line of a cell whose input was bad."""
    figures = ("plan_id", "plan_short", RATE, "step_time_s", "peak_memory_bytes", "gap_frac")
    line |= dict.fromkeys(figures) | {"status": "failed", "fits": None, "error": "unknown model"}


def outgrow(line: dict[str, Any]) -> None:
    """A line of a cell in which nothing fits."""
    figures = ("plan_id", "plan_short", RATE, "step_time_s", "peak_memory_bytes")
    line |= dict.fromkeys(figures) | {"status": "infeasible", "fits": False}


def test_a_cell_that_failed_in_both_runs_passes(done: Path) -> None:
    changed(done, fail, "old.jsonl")
    changed(done, fail, "new.jsonl")
    assert gate("new.jsonl", "--baseline", "old.jsonl").exit_code == 0


@pytest.mark.parametrize(
    ("change", "rule", "part"), [(fail, "works", "unknown model"), (outgrow, "fits", "does not fit")]
)
def test_a_cell_that_has_become_worse_is_caught(done: Path, change: Any, rule: str, part: str) -> None:
    changed(done, change)
    result = gate("changed.jsonl", "--baseline", "results.jsonl")
    assert result.exit_code == 4
    (row,) = [row for row in result.stdout.splitlines() if CELL in row]
    assert rule in row
    assert part in row
    assert gate("results.jsonl", "--baseline", "changed.jsonl").exit_code == 0


def test_a_missing_cell_is_caught(done: Path) -> None:
    write_lines(done / "few.jsonl", [line for line in read(done / "results.jsonl") if line["cell"] != CELL])
    result = gate("few.jsonl", "--baseline", "results.jsonl")
    assert result.exit_code == 4
    assert [CELL in row for row in result.stdout.splitlines()].count(True) == 1
    assert "missing" in result.stdout
    assert gate("results.jsonl", "--baseline", "few.jsonl").exit_code == 0


def test_results_of_other_cells_are_all_missing(done: Path) -> None:
    write_sweep(done, SWEEP.replace("[4, 8]", "[2]"), "other.toml")
    assert run_here("other.toml", "other.jsonl").exit_code == 0
    result = gate("other.jsonl", "--baseline", "results.jsonl")
    assert result.exit_code == 4
    assert "6 violations in 3 cells" in result.stderr


def thresholds(folder: Path, *each: str) -> Path:
    """The sweep with thresholds."""
    return write_sweep(folder, SWEEP + "".join(f"\n[[thresholds]]\n{text}\n" for text in each), "held.toml")


def test_thresholds_that_are_kept_pass(done: Path) -> None:
    lines = {line["cell"]: line for line in read(done / "results.jsonl")}
    least = min(line[RATE] for line in lines.values())
    most = max(line["peak_memory_bytes"] for line in lines.values()) / GIB
    held = thresholds(
        done, "fits = true", f"min_tokens_per_s_per_device = {least}", f"max_memory_gib = {most + 0.01}",
        f'cell = "{CELL}"\nplan_id = "{lines[CELL]["plan_id"]}"',
    )  # fmt: skip
    result = gate("results.jsonl", "--sweep", held)
    assert result.exit_code == 0, result.stdout
    assert result.stdout == "gate passed: 6 cells\n"


BROKEN_THRESHOLDS = {
    "fits": ("fits = false", 6, "False"),
    "speed": ("min_tokens_per_s_per_device = 1e12", 6, "at least 1e+12"),
    "memory": ("max_memory_gib = 0.5", 6, "at most 0.50 GiB"),
    "memory_in_other_units": ("max_memory_mib = 512", 6, "at most 0.50 GiB"),
    "plan": (f'cell = "{CELL}"\nplan_id = "000000000000"', 1, "000000000000"),
    "some_cells": ('cell = "devices=4"\nmax_memory_gib = 0.5', 3, "at most 0.50 GiB"),
    "no_cell": ('cell = "devices=5"\nfits = true', 1, "a cell of this name"),
}


@pytest.mark.parametrize("case", BROKEN_THRESHOLDS)
def test_a_threshold_that_is_not_kept_is_caught(done: Path, case: str) -> None:
    text, count, part = BROKEN_THRESHOLDS[case]
    result = gate("results.jsonl", "--sweep", thresholds(done, "fits = true", text))
    assert result.exit_code == 4
    assert f"gate failed: {count} violations in 6 cells" in result.stderr
    assert result.stdout.count(part) == count


def test_baseline_and_thresholds_are_held_together(done: Path) -> None:
    changed(done, slower(0.03))
    result = gate("changed.jsonl", "--baseline", "results.jsonl", "--sweep", thresholds(done, "max_memory_gib = 0.5"))
    assert result.exit_code == 4
    assert "7 violations" in result.stderr


def test_a_gate_touches_no_file(done: Path) -> None:
    changed(done, slower(0.03))
    before = contents(done)
    gate("changed.jsonl", "--baseline", "results.jsonl", "--sweep", "sweep.toml")
    assert contents(done) == before


def test_a_new_model_is_a_regression_where_it_is_slower(done: Path) -> None:
    """The whole way: a change to the model, a sweep, a gate."""
    write_model(done, (done / "model.toml").read_text().replace("ffn_width = 4096", "ffn_width = 8192"))
    (done / "model.toml").rename(done / "wider.toml")
    write_sweep(done, SWEEP.replace("MODEL", str(done / "wider.toml")), "wider_sweep.toml")
    assert run_here("wider_sweep.toml", "wider.jsonl").exit_code == 0
    result = gate("wider.jsonl", "--baseline", "results.jsonl", "--max-regress", "2%")
    assert result.exit_code == 4
    assert "6 violations in 6 cells" in result.stderr
    assert gate("results.jsonl", "--baseline", "wider.jsonl").exit_code == 0


SHARES = ["", "%", "two", "2 percent", "-1%", "-0.01", "100%", "1", "1.5", "nan", "nan%", "inf", "2%%", "%2"]


@pytest.mark.parametrize("text", SHARES)
def test_a_share_that_is_none_is_refused(done: Path, text: str) -> None:
    said = refused(done, "gate", "results.jsonl", "--baseline", "results.jsonl", f"--max-regress={text}")
    assert "--max-regress" in said
    assert repr(text) in said


GATES: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "nothing_to_hold_against": (("results.jsonl",), ("--baseline", "--sweep")),
    "no_results": (("absent.jsonl", "--baseline", "results.jsonl"), ("absent.jsonl", "cannot read")),
    "no_baseline": (("results.jsonl", "--baseline", "absent.jsonl"), ("absent.jsonl", "cannot read")),
    "no_sweep": (("results.jsonl", "--sweep", "absent.toml"), ("absent.toml", "cannot read")),
    "folder": ((".", "--baseline", "results.jsonl"), ("cannot read",)),
    "sweep_for_results": (("sweep.toml", "--baseline", "results.jsonl"), ("sweep.toml", "line 1")),
    "results_for_a_sweep": (("results.jsonl", "--sweep", "results.jsonl"), ("results.jsonl", "file type")),
    "space_for_a_sweep": (("results.jsonl", "--sweep", "model.toml"), ("model.toml", "matrix: missing")),
    "torn": (("torn.jsonl", "--baseline", "results.jsonl"), ("torn.jsonl", "line 3")),
    "torn_baseline": (("results.jsonl", "--baseline", "torn.jsonl"), ("torn.jsonl", "line 3")),
    "no_text": (("bytes.jsonl", "--baseline", "results.jsonl"), ("bytes.jsonl", "cannot read")),
    "document": (("plans.json", "--baseline", "results.jsonl"), ("plans.json", "line 1")),
    "unknown_option": (("results.jsonl", "--base", "results.jsonl"), ("--base",)),
    "no_argument": ((), ("RESULTS",)),
}


@pytest.mark.parametrize("case", GATES)
def test_a_gate_that_cannot_be_held_is_refused(done: Path, case: str) -> None:
    lines = (done / "results.jsonl").read_text().splitlines(keepends=True)
    (done / "torn.jsonl").write_text("".join(lines[:2]) + lines[2][:50])
    (done / "bytes.jsonl").write_bytes(b"\xff\xfe")
    (done / "plans.json").write_text(json.dumps({"schema_version": "1.0", "plans": []}, indent=1))
    words, parts = GATES[case]
    said = refused(done, "gate", *words)
    for part in parts:
        assert part in said


SWEEPS: dict[str, tuple[str | None, tuple[object, ...], tuple[str, ...]]] = {
    "no_file": (None, ("absent.toml", "--out", "r.jsonl"), ("absent.toml", "cannot read")),
    "folder": (None, (".", "--out", "r.jsonl"), ("cannot read",)),
    "no_out": (SWEEP, ("bad.toml",), ("--out",)),
    "out_is_a_folder": (SWEEP, ("bad.toml", "--out", "."), ("--out", "folder")),
    "out_in_no_folder": (SWEEP, ("bad.toml", "--out", "absent/r.jsonl"), ("--out", "absent does not exist")),
    "workers": (SWEEP, ("bad.toml", "--out", "r.jsonl", "--workers", "0"), ("--workers",)),
    "workers_as_word": (SWEEP, ("bad.toml", "--out", "r.jsonl", "--workers", "all"), ("--workers",)),
    "no_toml": ("name: s\n", ("bad.toml", "--out", "r.jsonl"), ("not valid TOML",)),
    "empty": ("", ("bad.toml", "--out", "r.jsonl"), ("name: missing", "matrix: missing")),
    "space": ('model = "a"\n[plan]\ntp = [1]\n', ("bad.toml", "--out", "r.jsonl"), ("plan: unknown", "model: unknown")),
    "many_faults": (
        'name = "s"\n[base]\ngbs = 0\nmodle = "a"\n[matrix]\ndevices = []\nlayer = [1]\n',
        ("bad.toml", "--out", "r.jsonl"),
        ("base.gbs", "base.modle", "'model'", "matrix.devices", "no value", "'layers'", "matrix.cluster: missing"),
    ),
    "too_many_cells": (
        edited(SWEEP, ("[4, 8]", str(list(range(1, 102)))), ("[8, 16, 32]", str(list(range(1, 102))))),
        ("bad.toml", "--out", "r.jsonl"), ("10,201 cells", "10,000"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SWEEPS)
def test_a_sweep_that_cannot_be_run_is_refused(folder: Path, case: str) -> None:
    text, words, parts = SWEEPS[case]
    if text is not None:
        write_sweep(folder, text, "bad.toml")
    said = refused(folder, "sweep", *words)
    for part in parts:
        assert part in said


ODD_LINES = {
    "cell_as_number": ('{"cell": 1, "status": "optimal"}\n', ("--sweep", "sweep.toml")),
    "no_rate": (f'{{"cell": "{CELL}", "status": "optimal", "fits": true}}\n', ("--baseline", "results.jsonl")),
    "rate_as_text": (
        f'{{"cell": "{CELL}", "status": "optimal", "fits": true, "{RATE}": "1"}}\n', ("--baseline", "results.jsonl"),
    ),
    "unknown_status": (f'{{"cell": "{CELL}", "status": "done"}}\n', ("--baseline", "results.jsonl")),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD_LINES)
def test_a_line_that_is_no_result_is_refused(done: Path, case: str) -> None:
    text, words = ODD_LINES[case]
    (done / "odd.jsonl").write_text(text)
    assert "odd.jsonl: line 1" in refused(done, "gate", "odd.jsonl", *words)


def test_a_baseline_without_a_cell_is_refused(done: Path) -> None:
    (done / "empty.jsonl").write_text("")
    refused(done, "gate", "results.jsonl", "--baseline", "empty.jsonl")


@pytest.mark.parametrize("name", ["notes.txt", "sweep.toml", "model.toml"])
def test_results_are_not_written_over_something_else(done: Path, name: str) -> None:
    (done / "notes.txt").write_text("my notes\n")
    said = refused(done, "sweep", "sweep.toml", "--out", name, "--workers", 1)
    assert "--out" in said
    assert name in said


@pytest.mark.parametrize("name", ["results.jsonl", "torn.jsonl", "empty.jsonl"])
def test_results_are_written_over_results(done: Path, name: str) -> None:
    (done / "torn.jsonl").write_text('{"cell')
    (done / "empty.jsonl").write_text("")
    assert ask("sweep", "sweep.toml", "--out", name, "--workers", 1).exit_code == 0
    assert len(read(done / name)) == 6


FIELDS = {
    "layers_as_word": ('layers = ["many"]', "layers"),
    "no_layers": ("layers = [0]", "layers"),
    "unknown_norm": ('norm = ["batchnorm"]', "norm"),
    "switch_for_layers": ("layers = [true]", "layers"),
    "heads": ('"attention.heads" = [7]', "kv_heads"),
    "experts_of_a_dense_model": ('"moe.top_k" = [2]', "moe.top_k"),
}


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_of_the_model_that_cannot_be_is_a_failed_cell(folder: Path, case: str) -> None:
    line, part = FIELDS[case]
    write_sweep(folder, SWEEP + line + "\n")
    assert run_here().exit_code == 5
    lines = read(folder / "results.jsonl")
    assert [each["status"] for each in lines] == ["failed"] * 6
    assert all(part in each["error"] for each in lines)


def test_results_of_a_sweep_that_did_not_finish_do_not_pass(done: Path) -> None:
    lines = (done / "results.jsonl").read_text().splitlines(keepends=True)
    (done / "half.jsonl").write_text("".join(lines[:3]))
    assert gate("half.jsonl", "--sweep", thresholds(done, "fits = true")).exit_code == 4
