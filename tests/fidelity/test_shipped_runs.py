"""The published runs that we ship are read whole and predicted by the command as a user runs it."""

from __future__ import annotations

import csv
import fcntl
import io
import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from autodeploy.fidelity.predict import predict
from autodeploy.fidelity.runs import read_runs
from tests.cli.asking import ask
from tests.fidelity.little import SHIPPED, table

ROW_KEYS = {
    "id", "predicted_step_time_s", "measured_step_time_s", "error_frac", "predicted_fits", "measured_fits",
    "predicted_peak_memory_bytes", "unread_reason",
}  # fmt: skip
LEAST_READ = 0.95
EVERY = 97
"""One row in so many is also read in a file of its own."""

pytestmark = pytest.mark.slow
Lines = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def lines() -> Lines:
    """Every line of the shipped files, by id."""
    texts = [path.read_text(encoding="utf-8-sig") for path in SHIPPED]
    return {line["id"]: line for text in texts for line in csv.DictReader(io.StringIO(text))}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answer over all shipped files: made once, also where several processes test."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if base.name.startswith("popen-") else base) / "shipped.json"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            result = ask("validate", "--json", "--out", shared)
            assert result.exit_code == 0, (result.stderr, result.exception)
    document: dict[str, Any] = json.loads(shared.read_text(encoding="utf-8"))
    return document


def test_every_id_appears_exactly_once(found: dict[str, Any], lines: Lines) -> None:
    counted = Counter(row["id"] for row in found["rows"])
    assert set(counted) == set(lines)
    assert set(counted.values()) == {1}


def test_every_row_has_the_agreed_keys(found: dict[str, Any]) -> None:
    assert [row["id"] for row in found["rows"] if not set(row) >= ROW_KEYS] == []
    assert {"rows", "groups", "summary"} <= set(found)
    assert all({"regret_frac", "kendall_tau", "plans"} <= set(group) for group in found["groups"])


def test_nearly_all_complete_rows_are_read(found: dict[str, Any], lines: Lines) -> None:
    complete = [name for name, line in lines.items() if "cfg=full" in line["notes"] and line["value"]]
    read = {row["id"] for row in found["rows"] if row["unread_reason"] is None}
    assert len(complete) > 800
    assert sum(name in read for name in complete) >= LEAST_READ * len(complete)


def test_what_is_not_predicted_has_a_reason_and_what_is_has_none(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        assert (row["predicted_step_time_s"] is None) == bool(row["unread_reason"]), row["id"]
        assert row["unread_reason"] is None or len(row["unread_reason"]) > 10, row["id"]


def test_every_error_is_predicted_over_measured_less_one(found: dict[str, Any]) -> None:
    known = [row for row in found["rows"] if row["predicted_step_time_s"] and row["measured_step_time_s"]]
    assert len(known) > 1400
    for row in known:
        assert row["error_frac"] == pytest.approx(row["predicted_step_time_s"] / row["measured_step_time_s"] - 1.0)
    assert all(row["error_frac"] is None for row in found["rows"] if row not in known)


def test_step_times_are_taken_as_they_stand(found: dict[str, Any], lines: Lines) -> None:
    for row in found["rows"]:
        line = lines[row["id"]]
        if line["metric"] == "step_time_s" and row["unread_reason"] is None and line["value"]:
            assert row["measured_step_time_s"] == float(line["value"])


def test_rates_give_the_batch_back(found: dict[str, Any], lines: Lines) -> None:
    for row in found["rows"]:
        line = lines[row["id"]]
        if line["metric"].startswith("tokens_per_s_per_") and row["measured_step_time_s"]:
            devices = int(line.get("gpus") or line["npus"])
            tokens = float(line["value"]) * devices * row["measured_step_time_s"]
            assert tokens == pytest.approx(int(line["gbs"]) * int(line["seq_len"])), row["id"]


def test_the_summary_counts_what_the_rows_say(found: dict[str, Any]) -> None:
    summary, rows = found["summary"], found["rows"]
    errors = [abs(row["error_frac"]) for row in rows if row["error_frac"] is not None]
    assert summary["rows"] == len(rows)
    assert summary["with_step_time"] == len(errors)
    assert summary["pooled"]["median_abs_frac"] == pytest.approx(median(errors))
    assert summary["read"] + sum(summary["unread"].values()) == len(rows)
    assert sum(each["runs"] for each in summary["sources"].values()) == len(errors)
    assert sum(each["runs"] for each in summary["hardware"].values()) == len(errors)
    pairs = [(row["measured_fits"], row["predicted_fits"]) for row in rows]
    known = [(ran, called) for ran, called in pairs if ran is not None and called is not None]
    assert summary["fits"]["right"] == sum(ran == called for ran, called in known)
    assert summary["fits"]["ran_but_refused"] == sum(ran and not called for ran, called in known)


def test_the_median_of_sources_is_that_of_the_rows(found: dict[str, Any]) -> None:
    by_source: dict[str, list[float]] = {}
    for row in found["rows"]:
        if row["error_frac"] is not None:
            by_source.setdefault(row["source"], []).append(abs(row["error_frac"]))
    assert found["summary"]["median_of_source_medians"] == pytest.approx(median(map(median, by_source.values())))


def test_groups_hold_at_least_four_plans(found: dict[str, Any]) -> None:
    assert found["groups"] != []
    for group in found["groups"]:
        assert group["plans"] >= 4
        assert 0.0 <= group["regret_frac"] <= group["spread"] - 1.0 + 1e-9
        assert group["kendall_tau"] is None or -1.0 <= group["kendall_tau"] <= 1.0


def test_out_of_memory_is_taken_from_the_file(found: dict[str, Any], lines: Lines) -> None:
    for row in found["rows"]:
        if row["unread_reason"] is None and lines[row["id"]]["oom"] == "1":
            assert row["measured_fits"] is False


def test_a_row_in_a_file_of_its_own_is_predicted_the_same(found: dict[str, Any], lines: Lines, tmp_path: Path) -> None:
    """Nothing is taken from the other rows of a file."""
    for row in found["rows"][::EVERY]:
        runs, unread = read_runs(table(tmp_path, lines[row["id"]]))
        if row["unread_reason"]:
            assert [line.reason for line in unread] == [row["unread_reason"]]
        else:
            alone = predict(runs[0])
            assert alone.result is not None
            assert alone.result.step_time_s == row["predicted_step_time_s"]
            assert alone.memory_bytes == row["predicted_peak_memory_bytes"]
