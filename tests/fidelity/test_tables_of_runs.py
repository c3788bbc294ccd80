"""A table of runs is read line by line: what is wrong with a line is said of that line, and the others count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autodeploy.errors import SpecError
from autodeploy.fidelity.rows import read_rows
from tests.fidelity.little import GPT, SPARSE, csv_text, numbered, read, read_text, reason_in, run_in, table

REQUIRED = ("id", "source", "model", "devices", "metric", "value")
CELLS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unit_in_the_value": ({"value": "12 s"}, ("value", "'12 s'")),
    "thousands": ({"value": "1,234"}, ("value", "'1,234'")),
    "underscore": ({"value": "1_234"}, ("value", "'1_234'")),
    "nan": ({"value": "NaN"}, ("value", "'NaN'")),
    "infinite": ({"value": "inf"}, ("value", "'inf'")),
    "negative": ({"value": "-2"}, ("value", "'-2'")),
    "zero": ({"value": "0"}, ("value", "'0'")),
    "zero_with_a_point": ({"value": "0.0"}, ("value", "'0.0'")),
    "zero_rate": ({"metric": "tokens_per_s_per_gpu", "value": "0"}, ("value", "'0'")),
    "unknown_metric": ({"metric": "tokens_per_day"}, ("metric", "'tokens_per_day'", "step_time_s")),
    "value_without_metric": ({"metric": ""}, ("metric", "missing")),
    "half_a_device": ({"gpus": "8.5"}, ("devices", "'8.5'", "whole")),
    "no_device": ({"gpus": "0"}, ("devices", "'0'")),
    "words_for_a_count": ({"tp": "two"}, ("tp", "'two'")),
    "words_for_a_switch": ({"oom": "yes"}, ("oom", "'yes'", "0 nor 1")),
}
ROWS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "above_the_peak": (
        {"metric": "tflops_per_gpu", "value": 400, "flops_convention": "model FLOPs, causal (halved)"},
        ("value", "400 TFLOP/s", "peak"),
    ),
    "step_above_the_peak": ({"value": 0.001}, ("value", "peak")),
    "step_against_notes": ({"notes": "published step time 2.5s"}, ("value", "contradicts", "step time", "2.5")),
    "tokens_against_notes": (  # 64 x 2048 tokens in 2 s are 65,536 a second
        {"notes": "published tokens/s (all GPUs) 32768"},
        ("value", "contradicts", "tokens/s", "4 s"),
    ),
    "degrees_beyond_the_devices": ({"tp": 4, "pp": 4}, ("tp x pp x cp", "4 x 4 x 1", "8 devices")),
    "degrees_that_do_not_divide": ({"tp": 1, "pp": 3}, ("tp x pp x cp", "1 x 3 x 1", "8 devices")),
    "context_counts": ({"tp": 2, "pp": 2, "cp": 4}, ("tp x pp x cp", "2 x 2 x 4", "8 devices")),
    "dp_that_disagrees": ({"tp": 2, "dp": 8}, ("dp", "8 x tp 2")),
    "batch_missing": ({"gbs": None}, ("gbs", "not stated", "not guessed")),
    "batch_not_even": ({"gbs": 12}, ("gbs", "multiple")),
    "tp_missing": ({"tp": None}, ("tp", "not stated")),
    "devices_missing": ({"gpus": None}, ("devices", "not stated")),
    "sizes_missing": ({"hidden": None, "vocab": None}, ("sizes are missing", "hidden", "vocab")),
    "unknown_hardware": ({"hardware": "tpu-v9"}, ("hardware", "'tpu-v9'")),
    "hardware_missing": ({"hardware": ""}, ("hardware", "not named")),
    "kv_heads": ({"kv_heads": 3}, ("kv_heads", "3", "16 heads")),
    "topk_above_experts": (SPARSE | {"topk": 9, "id": "run-1"}, ("topk", "9", "8 experts")),
    "heads_not_dividing": ({"tp": 3, "gpus": 24}, ("heads",)),
    "recompute_without_its_kind": ({"recompute": "on (kind not stated)"}, ("recompute",)),
    "recompute_that_is_not_known": ({"recompute": "selectve"}, ("recompute",)),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_a_bad_cell_is_said_of_its_line(name: str, tmp_path: Path) -> None:
    changed, words = CELLS[name]
    reason = reason_in(tmp_path, **changed)
    assert [word for word in words if word not in reason] == [], reason


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_cannot_be_is_said_of_its_line(name: str, tmp_path: Path) -> None:
    changed, words = ROWS[name]
    reason = reason_in(tmp_path, **changed)
    assert [word for word in words if word not in reason] == [], reason


def test_every_fault_of_a_line_is_said_at_once(tmp_path: Path) -> None:
    reason = reason_in(tmp_path, value="12 s", gpus="x", metric="furlongs")
    assert all(word in reason for word in ("'12 s'", "'x'", "'furlongs'")), reason


@pytest.mark.parametrize("column", REQUIRED)
def test_a_missing_column_is_named(column: str, tmp_path: Path) -> None:
    name = {"devices": "gpus"}.get(column, column)
    text = csv_text({key: cell for key, cell in GPT.items() if key != name})
    with pytest.raises(SpecError, match=rf"no column {column}\b") as caught:
        read_text(tmp_path, text)
    assert len(caught.value.faults) == 1


def test_all_missing_columns_are_named_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_text(tmp_path, "id,source,model\na,b,c\n")
    assert str(caught.value).count("\n") == 0
    assert all(word in str(caught.value) for word in ("devices", "metric", "value"))


@pytest.mark.parametrize("bad", ["", "\n", "\x00\x01", "id;source;model\n1;2;3\n"])
def test_a_file_that_is_no_table_is_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no column"):
        read_text(tmp_path, bad)


@pytest.mark.parametrize("bad", [b"\x89PNG\r\n\x1a\n\xff\xfe\x00", csv_text(GPT).encode("utf-16")])
def test_a_binary_file_is_refused(bad: bytes, tmp_path: Path) -> None:
    path = tmp_path / "binary.csv"
    path.write_bytes(bad)
    with pytest.raises(SpecError, match="UTF-8"):
        read_rows(path)


def test_a_cell_longer_than_the_reader_takes_is_no_crash(tmp_path: Path) -> None:
    """A quote that is never closed makes a cell of the rest of the file."""
    text = csv_text(*numbered(*[GPT] * 2000)).replace("our own", '"our own', 1)
    try:
        rows, unread = read_text(tmp_path, text)
    except SpecError:
        return
    assert len(rows) < 2000
    assert unread != []


def test_the_rest_of_a_table_after_an_open_quote_is_not_lost_in_silence(tmp_path: Path) -> None:
    rows, unread = read_text(tmp_path, csv_text(*numbered(GPT, GPT, GPT)).replace("run-2,", 'run-2,"', 1))
    assert [each.id for each in rows] == ["run-1"]
    assert [each.id for each in unread] == ["run-2"]


def test_a_line_with_more_cells_than_columns_is_flagged(tmp_path: Path) -> None:
    first, second, third = numbered(GPT, GPT, GPT)
    lines = csv_text(first, second, third).splitlines()
    lines[2] += ",more"
    rows, unread = read_text(tmp_path, "\n".join(lines))
    assert [each.id for each in rows] == ["run-1", "run-3"]
    assert [(each.id, "cells" in each.reason) for each in unread] == [("run-2", True)]


def test_a_line_with_fewer_cells_than_columns_is_flagged(tmp_path: Path) -> None:
    """A line that was cut, or from which a cell fell out: what follows may stand in the wrong column."""
    lines = csv_text(*numbered(GPT, GPT, GPT)).splitlines()
    lines[2] = lines[2].rsplit(",", 1)[0]
    rows, unread = read_text(tmp_path, "\n".join(lines))
    assert [each.id for each in rows] == ["run-1", "run-3"]
    assert [(each.id, "cells" in each.reason) for each in unread] == [("run-2", True)]


def test_an_id_used_twice_is_flagged_where_it_comes_again(tmp_path: Path) -> None:
    rows, unread = read_text(tmp_path, csv_text(GPT, GPT | {"value": 3.0}, GPT | {"id": "other"}))
    assert [(each.id, each.value) for each in rows] == [("run-1", 2.0), ("other", 2.0)]
    assert [(each.id, "twice" in each.reason) for each in unread] == [("run-1", True)]


def test_a_line_without_an_id_is_named_by_its_number(tmp_path: Path) -> None:
    _, unread = read_text(tmp_path, csv_text(GPT, GPT | {"id": "", "value": "12 s"}))
    assert [each.id for each in unread] == ["line 3"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_ends_of_lines_and_byte_order_marks_change_nothing(end: str, mark: str, tmp_path: Path) -> None:
    text = csv_text(*numbered(GPT, GPT))
    (tmp_path / "runs.csv").write_bytes((mark + text.replace("\n", end)).encode())
    assert read_rows(tmp_path / "runs.csv") == read_text(tmp_path, text)


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    text = csv_text(*numbered(GPT, GPT)).replace("\nrun-2", "\n\n\nrun-2") + "\n\n"
    rows, unread = read_text(tmp_path, text)
    assert [each.id for each in rows] == ["run-1", "run-2"]
    assert unread == []


@pytest.mark.parametrize("name", ["gpus", "npus", "devices"])
def test_the_devices_have_three_names(name: str, tmp_path: Path) -> None:
    rows, _ = read_text(tmp_path, csv_text(GPT).replace("gpus,", f"{name},", 1))
    assert [each.devices for each in rows] == [8]


@pytest.mark.parametrize("columns", [("gpus", "npus"), ("npus", "gpus")])
def test_a_table_with_both_names_takes_the_one_that_is_filled(columns: tuple[str, str], tmp_path: Path) -> None:
    """Two tables put under each other hold both columns, one of them empty on every line."""
    plain = {name: cell for name, cell in GPT.items() if name != "gpus"}
    lines = [plain | dict.fromkeys(columns) | {"id": name, name: 8} for name in columns]
    rows, unread = read_text(tmp_path, csv_text(*lines))
    assert unread == []
    assert [each.devices for each in rows] == [8, 8]


def test_the_mark_of_use_may_be_absent(tmp_path: Path) -> None:
    runs, unread = read(tmp_path, {name: cell for name, cell in GPT.items() if name != "use"})
    assert unread == []
    assert [run.row.use for run in runs] == [""]


def test_an_unknown_source_is_read_under_the_stack_of_last_resort(tmp_path: Path) -> None:
    assert run_in(tmp_path, source="nobody has heard of it").stack.name == "other"


def test_a_stated_dp_that_agrees_changes_nothing(tmp_path: Path) -> None:
    assert run_in(tmp_path, tp=2, pp=2, dp=2).plan == run_in(tmp_path, tp=2, pp=2).plan


def test_twins_that_agree_to_rounding_are_no_contradiction(tmp_path: Path) -> None:
    assert run_in(tmp_path, notes="published step time 2.02 s").step_s == pytest.approx(2.0)
    assert run_in(tmp_path, notes="published tokens/s (all GPUs) 65000.").step_s == pytest.approx(2.0)


@pytest.mark.parametrize("notes", ["published tokens/s (all GPUs) 65536.5.", "peak_mem_gib=52.3."])
def test_a_figure_at_the_end_of_a_sentence_is_no_crash(notes: str, tmp_path: Path) -> None:
    run = run_in(tmp_path, notes=notes)
    assert run.step_s == pytest.approx(2.0)


def test_a_run_that_ran_out_of_memory_has_no_step_but_an_outcome(tmp_path: Path) -> None:
    run = run_in(tmp_path, value=None, oom=1)
    assert run.step_s is None
    assert run.fits is False
    assert run_in(tmp_path, oom=None).fits is True
    assert run_in(tmp_path, value=None, oom=None).fits is None


def test_reading_does_not_touch_the_file(tmp_path: Path) -> None:
    path = table(tmp_path, GPT)
    before = path.read_bytes(), sorted(tmp_path.iterdir())
    read_rows(path)
    assert (path.read_bytes(), sorted(tmp_path.iterdir())) == before
