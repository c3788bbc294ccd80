"""Single ranks: what MindSpeed-LLM's tests report of them against what we say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from autodeploy.errors import SpecError
from autodeploy.fidelity.document import rank_summary
from autodeploy.fidelity.own import own_table
from autodeploy.fidelity.predict import Prediction, predict
from autodeploy.fidelity.rank_errors import RankErrors, rank_errors
from autodeploy.fidelity.ranks import RankMemory, read_ranks
from autodeploy.fidelity.reasons import Reasons
from autodeploy.fidelity.rows import read_rows
from autodeploy.fidelity.runs import read_runs

TABLES = Path(__file__).parents[2] / "benchmarks" / "fidelity"


@cache
def shipped() -> tuple[RankErrors, ...]:
    """Every measured rank of the shipped tables."""
    measured = read_ranks(TABLES / "ascend_memory.csv")
    runs = [run for run in read_runs(TABLES / "ascend_runs.csv")[0] if run.row.id in measured]
    return tuple(rank_errors([predict(run) for run in runs], measured))


def test_static_memory_is_within_2_percent_or_the_reason_is_known() -> None:
    far = [each for each in shipped() if abs(each.allocated_error_frac) > 0.02 and not each.reason]
    assert far == []


def test_first_peaks_are_within_18_percent_or_the_reason_is_known() -> None:
    far = [each.id for each in shipped() if abs(each.peak_error_frac) > 0.18 and not each.reason]
    assert far == []


def test_most_ranks_are_near() -> None:
    figures = rank_summary(shipped())
    plain = figures["without_known_reason"]
    assert plain["peak"]["runs"] >= 90
    assert plain["allocated"]["median_abs_frac"] < 0.01
    assert plain["peak"]["median_abs_frac"] < 0.04
    assert figures["all"]["peak"]["median_abs_frac"] < 0.04


def test_peaks_set_by_the_update_are_exact() -> None:
    # 4 bytes x the largest tensor: embedding 32000 x 4096, fc1 2 x 11008 x 4096, 16 experts of 4096 x 2 x 6400
    for name, stage, mib in (("mslmci-019", 0, 500.0), ("mslmci-019", 3, 344.0), ("mslmci-029", 0, 3200.0)):
        (each,) = {e.stage: e for e in shipped() if e.id == name and e.stage == stage}.values()
        assert (each.measured_peak_bytes - each.measured_allocated_bytes) / 2**20 == pytest.approx(mib, abs=1.0)
        assert each.peak_error_frac == pytest.approx(0.0, abs=0.005)


def test_every_reason_is_of_some_row() -> None:
    names = [row.id for table in TABLES.glob("*_runs.csv") for row in read_rows(table)[0]]
    for reason in own_table(Reasons, "memory_reasons").reason:
        assert any(re.fullmatch(reason.match, name) for name in names)


def test_ranks_of_no_run_are_refused() -> None:
    ranks = {"nobody": (RankMemory(rank=0, allocated_bytes=1.0, peak_bytes=2.0),)}
    with pytest.raises(SpecError, match="nobody"):
        rank_errors([], ranks, "ranks.csv")


def test_a_run_without_an_answer_has_no_errors() -> None:
    run = read_runs(TABLES / "ascend_runs.csv")[0][0]
    ranks = {run.row.id: (RankMemory(rank=0, allocated_bytes=1.0, peak_bytes=2.0),)}
    assert rank_errors([Prediction(run=run, result=None, reason="none")], ranks) == []
