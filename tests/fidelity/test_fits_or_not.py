"""Fits or not, over every published run whose outcome is known."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from autodeploy.fidelity.runs import Run, read_runs
from autodeploy.search.evaluate import arranged

pytestmark = pytest.mark.slow
TABLES = Path(__file__).parents[2] / "benchmarks" / "fidelity"
HAGEMANN = "Hagemann"


@cache
def outcomes() -> tuple[tuple[Run, bool], ...]:
    """Every run with a known outcome, and whether we call it fitting."""
    runs = [run for path in sorted(TABLES.glob("*_runs.csv")) for run in read_runs(path)[0] if run.fits is not None]
    return tuple((run, bool(arranged(run.space, run.plan).fits)) for run in runs)


def shares(source: str, use: str = "") -> tuple[float, float, int]:
    """(right, out of memory but called fitting, rows) of the rows of a source."""
    some = [(r, f) for r, f in outcomes() if source in r.row.source and use in r.row.use]
    ran_out = [called for run, called in some if not run.fits]
    return sum(run.fits == called for run, called in some) / len(some), sum(ran_out) / len(ran_out), len(some)


@pytest.mark.parametrize("use", ["", "calibrate", "validate"])
def test_at_least_93_percent_are_right_and_at_most_5_percent_missed(use: str) -> None:
    right, missed, rows = shares("", use)
    assert rows > 700
    assert right >= (0.93 if use != "calibrate" else 0.92)
    assert missed <= (0.05 if use != "calibrate" else 0.08)


def test_the_sweeps_of_13_and_65_billion_parameters() -> None:
    # arXiv 2311.05610: every layout that was tried, those that ran out of memory included
    right, missed, rows = shares(HAGEMANN)
    assert rows > 330
    assert right >= 0.93
    assert missed <= 0.05
