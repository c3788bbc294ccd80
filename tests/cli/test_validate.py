"""`autodeploy validate`: tables of runs in, what is known of their errors out; bad tables are refused whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import answer, ask, contents, refused
from tests.fidelity.little import BY_CLASS, GPT, csv_text, numbered, table

PLANS = ({"tp": 1}, {"tp": 2}, {"tp": 4}, {"tp": 8})
FORMS = ("--json", "--html", "--markdown")


def file_of(folder: Path, text: str, name: str = "runs.csv") -> Path:
    """A file of some text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def points(page: str) -> int:
    """Points of the traces with markers of a page."""
    data = page[page.rindex("Plotly.newPlot(") :]
    traces = json.JSONDecoder().raw_decode(data, data.index("["))[0]
    marked = [trace for trace in traces if trace.get("mode") == "markers"]
    assert all(len(trace["y"]) == len(trace["x"]) == len(trace["text"]) for trace in marked)
    return sum(len(trace["x"]) for trace in marked)


def test_good_rows_count_beside_bad_ones(folder: Path) -> None:
    bad = {"value": "12 s"}, {"gpus": "9"}, {"gbs": None}, {"hardware": "tpu-v9"}
    rows = numbered(GPT, *(GPT | each for each in bad), GPT)
    result = ask("validate", table(folder, *rows), "--json")
    assert result.exit_code == 0
    assert "2 rows read, 4 not" in result.stderr
    found = json.loads(result.stdout)
    assert sorted(row["id"] for row in found["rows"]) == [row["id"] for row in rows]
    reasons = {row["id"]: row["unread_reason"] for row in found["rows"]}
    assert reasons["run-1"] is reasons["run-6"] is None
    words = {"run-2": "'12 s'", "run-3": "9", "run-4": "gbs", "run-5": "tpu-v9"}
    assert [name for name, word in words.items() if word not in reasons[name]] == []
    assert found["summary"]["pooled"]["runs"] == 2


def test_an_error_is_predicted_over_measured_less_one(folder: Path) -> None:
    (row,) = answer("validate", table(folder, GPT))["rows"]
    assert row["measured_step_time_s"] == 2.0
    assert row["error_frac"] == pytest.approx(row["predicted_step_time_s"] / 2.0 - 1.0)
    assert row["measured_fits"] is True
    assert row["predicted_fits"] is True
    assert 0.0 < row["predicted_peak_memory_bytes"] < 80e9


def test_fp8_on_a_device_without_it_is_flagged_and_counted(folder: Path) -> None:
    found = answer("validate", table(folder, *numbered(GPT, GPT | {"precision": "fp8"})))
    rows = {row["id"]: row for row in found["rows"]}
    assert rows["run-1"]["unread_reason"] is None
    assert rows["run-2"]["predicted_step_time_s"] is None
    assert "fp8" in rows["run-2"]["unread_reason"]
    assert found["summary"]["read"] == 1
    assert sum(found["summary"]["unread"].values()) == 1


def test_twice_as_long_as_predicted_is_a_bias_of_minus_a_half_in_every_class(folder: Path) -> None:
    silent = [each | {"value": None} for each in numbered(*BY_CLASS.values())]
    predicted = {row["id"]: row["predicted_step_time_s"] for row in answer("validate", table(folder, *silent))["rows"]}
    doubled = [each | {"value": 2.0 * predicted[each["id"]]} for each in silent]
    summary = answer("validate", table(folder, *doubled))["summary"]
    assert set(summary["classes"]) == set(BY_CLASS)
    for part in ("classes", "hardware", "sources", "use"):
        for name, errors in summary[part].items():
            assert errors["bias_frac"] == pytest.approx(-0.5), (part, name)
            assert errors["median_abs_frac"] == pytest.approx(0.5), (part, name)
    assert summary["median_of_source_medians"] == pytest.approx(0.5)


def test_plans_of_one_job_are_ranked(folder: Path) -> None:
    rows = numbered(*(GPT | plan | {"value": 2.0 + i} for i, plan in enumerate(PLANS)))
    (group,) = answer("validate", table(folder, *rows))["groups"]
    assert group["plans"] == 4
    assert group["regret_frac"] == 0.0  # on one node of small matrices, less tensor parallelism is faster
    assert group["kendall_tau"] == 1.0
    assert answer("validate", table(folder, *rows[:3]))["groups"] == []


@pytest.mark.parametrize("form", ["", *FORMS])
def test_a_group_whose_measurements_are_all_ties_is_shown(form: str, folder: Path) -> None:
    path = table(folder, *numbered(*(GPT | plan for plan in PLANS)))
    result = ask("validate", path, *([form] if form else []))
    assert result.exit_code == 0, result.exception


@pytest.mark.parametrize("form", ["", *FORMS])
def test_rows_without_a_step_are_shown(form: str, folder: Path) -> None:
    path = table(folder, *numbered(GPT | {"value": None, "oom": 1}, GPT | {"metric": "peak_mem_gb", "value": 10}))
    result = ask("validate", path, *([form] if form else []))
    assert result.exit_code == 0, result.exception


BAD_FILES = {
    "empty": ("", "no column"),
    "blank": ("\n\n", "no column"),
    "header_only": (csv_text(GPT).splitlines()[0], "no rows"),
    "another_separator": (csv_text(GPT).replace(",", ";"), "no column"),
    "no_gbs_column": (csv_text({k: v for k, v in GPT.items() if k != "gbs"}), "gbs"),
    "no_metric_column": (csv_text({k: v for k, v in GPT.items() if k != "metric"}), "metric"),
    "no_good_row": (csv_text(*numbered(GPT | {"value": "x"}, GPT | {"gpus": 0})), "run-1"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_without_a_readable_row_is_refused(name: str, folder: Path) -> None:
    text, word = BAD_FILES[name]
    message = refused(folder, "validate", file_of(folder, text), "--out", folder / "out.json", "--json")
    assert word in message
    assert "runs.csv" in message


def test_a_missing_column_is_one_message_that_names_it(folder: Path) -> None:
    text = csv_text({k: v for k, v in GPT.items() if k != "value"})
    message = refused(folder, "validate", file_of(folder, text))
    assert message.count("error") == 1
    assert "no column value" in message
    assert len(message.splitlines()) == 1


def test_what_is_no_file_of_text_is_refused(folder: Path) -> None:
    (folder / "folder.csv").mkdir()
    (folder / "binary.csv").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    for name in ("folder.csv", "binary.csv", "absent.csv"):
        assert name in refused(folder, "validate", folder / name)


def test_one_bad_file_beside_a_good_one_is_refused(folder: Path) -> None:
    good = table(folder, GPT)
    assert "bad.csv" in refused(folder, "validate", good, file_of(folder, "a,b\n1,2\n", "bad.csv"))


def test_several_files_are_one_answer(folder: Path) -> None:
    first = table(folder, GPT | {"id": "a"}, name="a.csv")
    second = table(folder, GPT | {"id": "b"}, name="b.csv")
    found = answer("validate", first, second)
    assert [row["id"] for row in found["rows"]] == ["a", "b"]
    assert found["summary"]["rows"] == 2


@pytest.mark.parametrize(("one", "other"), [("--json", "--html"), ("--json", "--markdown"), ("--html", "--markdown")])
def test_two_forms_are_refused(one: str, other: str, folder: Path) -> None:
    message = refused(folder, "validate", table(folder, GPT), one, other)
    assert one in message
    assert other in message


@pytest.mark.parametrize("form", ["", *FORMS])
def test_a_folder_that_does_not_exist_is_refused_at_once(form: str, folder: Path) -> None:
    words = [form] if form else []
    message = refused(folder, "validate", table(folder, GPT), *words, "--out", folder / "none" / "out.txt")
    assert "none" in message


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_what_would_be_printed(form: str, folder: Path) -> None:
    path, out = table(folder, GPT), folder / "out"
    printed = ask("validate", path, form).stdout
    result = ask("validate", path, form, "--out", out)
    assert result.exit_code == 0
    assert result.stdout == ""
    written = out.read_text(encoding="utf-8")
    drawing = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a page names its drawing anew every time
    assert drawing.sub("", written) == drawing.sub("", printed)
    assert set(contents(folder)) == {"runs.csv", "out"}


def test_the_page_needs_no_other_file_and_shows_every_step(folder: Path) -> None:
    rows = numbered(*BY_CLASS.values(), GPT | {"value": None, "oom": 1}, GPT | {"value": "x"})
    page = ask("validate", table(folder, *rows), "--html").stdout
    assert page.lstrip().lower().startswith(("<!doctype html", "<html"))
    assert re.findall(r"<script[^>]*\ssrc\s*=", page) == []
    assert re.findall(r"<link[^>]*\shref\s*=\s*[\"']?http", page) == []
    assert points(page) == len(BY_CLASS)
    assert page.count("<html") == page.count("</html>") == 1


def test_names_of_rows_do_not_become_markup(folder: Path) -> None:
    page = ask("validate", table(folder, GPT | {"id": "</script><script>alert(1)</script>"}), "--html").stdout
    assert "<script>alert(1)" not in page


def test_the_markdown_starts_with_the_figures_and_is_the_same_every_time(folder: Path) -> None:
    path = table(folder, *numbered(*BY_CLASS.values(), GPT | {"value": "x|y"}))
    first, second = (ask("validate", path, "--markdown").stdout for _ in range(2))
    assert first == second
    head = first[: first.index("\n## ")]
    assert "6 of 7 rows read" in head
    assert re.search(r"median error \d+\.\d %", head) or re.search(r"median error \d+\.\d%", head)
    assert first.startswith("# ")


def test_tables_of_the_markdown_are_straight(folder: Path) -> None:
    path = table(folder, *numbered(*BY_CLASS.values(), GPT | {"value": "x|y"}, GPT | {"model": "two|bars"}))
    page = ask("validate", path, "--markdown").stdout
    for block in page.split("\n\n"):
        rows = block.splitlines()
        if rows[0].startswith("|"):
            assert {row.count("|") for row in rows} == {rows[0].count("|")}, block


def test_the_report_for_a_terminal_says_what_was_not_read(folder: Path) -> None:
    result = ask("validate", table(folder, *numbered(GPT, GPT | {"gbs": None})))
    assert result.exit_code == 0
    assert "1 of 2 rows read" in result.stdout
    assert "gbs is not stated" in result.stdout


def test_json_is_json_without_nan(folder: Path) -> None:
    def never(word: str) -> Any:
        raise AssertionError(word)

    text = ask("validate", table(folder, *numbered(*BY_CLASS.values())), "--json").stdout
    found = json.loads(text, parse_constant=never)
    assert {"rows", "groups", "summary", "schema_version"} <= set(found)
