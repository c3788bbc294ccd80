"""`autodeploy calibrate` as a user runs it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from autodeploy.catalog.lookup import load
from autodeploy.catalog.measured import measured
from autodeploy.cli.validate import OWN_RUNS
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.constants import changed_fields
from tests.cli.asking import ask
from tests.fidelity.little import GPT, numbered, table


def test_one_run_sets_a_pace_and_the_file_can_be_loaded(folder: Path) -> None:
    out = folder / "mine.toml"
    path = table(folder, *numbered(GPT))
    ran = ask("calibrate", path, "--pace", "--cluster", "a100-80g", "--out", out)
    assert ran.exit_code == 0, ran.stderr
    assert "pace" in ran.stdout
    assert "before" in ran.stdout
    mine, base = load(Cluster, str(out)), load(Cluster, "a100-80g")
    moved = changed_fields(base, mine)
    pace = base.device.matmul_max_frac / mine.device.matmul_max_frac
    assert pace != pytest.approx(1.0, abs=1e-3)
    assert base.fabric.link_max_frac / moved["fabric.link_max_frac"] == pytest.approx(pace, rel=1e-4)
    assert moved["device.issue_s"] / base.device.issue_s == pytest.approx(pace, rel=1e-4)
    assert mine.sources["device.matmul_max_frac"].startswith("calibrated (1 rows, 1 models")


def test_two_runs_are_refused_and_nothing_is_written(folder: Path) -> None:
    out = folder / "mine.toml"
    ran = ask("calibrate", table(folder, *numbered(GPT, GPT)), "--cluster", "a100-80g", "--out", out)
    assert ran.exit_code == 2
    assert "2 runs cannot tell" in ran.stderr
    assert "--pace" in ran.stderr
    assert not out.exists()


@pytest.mark.parametrize(("flags", "told"), [
    (("--cluster", "a100-80g"), "--out"), (("--out", "x.toml"), "--cluster"),
    (("--cluster", "a100-80g", "--out", "x.toml"), "nothing to fit on"),
    (("--catalog", "--cluster", "a100-80g"), "--catalog"),
    (("--cluster", "no-such", "--out", "x.toml"), "no-such"),
])  # fmt: skip
def test_what_is_missing_is_said(flags: tuple[str, ...], told: str) -> None:
    ran = ask("calibrate", *flags)
    assert ran.exit_code == 2
    assert told in ran.stderr


def test_one_run_is_refused_too_unless_a_pace_is_asked(folder: Path) -> None:
    ran = ask("calibrate", table(folder, *numbered(GPT)), "--cluster", "a100-80g", "--out", folder / "mine.toml")
    assert ran.exit_code == 2
    assert "1 runs cannot tell" in ran.stderr


def test_a_log_changes_its_level_alone(folder: Path) -> None:
    log, out = folder / "log.txt", folder / "mine.toml"
    rows = "".join(f"{2**n} 1 float none -1 {20 + 2**n / 1.8e5:.2f} 1 1 0\n" for n in range(16, 32))
    log.write_text(rows)
    flags = ("--collective", "all_gather", "--ranks", "8", "--hosts", "1")
    ran = ask("calibrate", "--collective-log", log, *flags, "--cluster", "a100-80g", "--out", out)
    assert ran.exit_code == 0, ran.stderr
    moved = changed_fields(load(Cluster, "a100-80g"), load(Cluster, str(out)))
    assert {field.split(".")[0] for field in moved} == {"node"}


def test_catalog_rows_of_validation_are_never_fitted() -> None:
    used = {row.id for row in measured()}
    rows = [
        row
        for path in OWN_RUNS.glob("*_runs.csv")
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    ]
    assert {row["use"] for row in rows if row["id"] in used} == {"calibrate"}
