"""Measured memory of single ranks: what is read, what is refused, and the stage that a rank belongs to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autodeploy.errors import SpecError
from autodeploy.fidelity.ranks import COLUMNS, read_ranks, stage_of_rank
from autodeploy.fidelity.runs import read_runs, run_of
from autodeploy.units import MIB
from tests.fidelity.little import GPT, ROOT, SPARSE, reason_in, row, run_in

OWN = ROOT / "benchmarks" / "fidelity"
HEAD = ",".join(COLUMNS)
CI = {"source": "ci-baseline", "hardware": "atlas-900-a2-pod", "overlap_notes": ""}
EXACT_FRAC = 0.001
"""Published to a tenth of a MiB; beside the states lie masks and seeds of a few MiB."""


def written(folder: Path, *lines: str, head: str = HEAD) -> Path:
    path = folder / "ranks.csv"
    path.write_text("\n".join((head, *lines)) + "\n", encoding="utf-8")
    return path


def test_ranks_are_read_in_order_and_in_bytes(tmp_path: Path) -> None:
    found = read_ranks(written(tmp_path, "a,4,2.5,3", "b,0,1,1", "a,0,10,12.5"))
    assert list(found) == ["a", "b"]
    assert [each.rank for each in found["a"]] == [0, 4]
    assert (found["a"][1].allocated_bytes, found["a"][1].peak_bytes) == (2.5 * MIB, 3 * MIB)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a,-1,1,2", "rank '-1'"),
        ("a,1.5,1,2", "rank '1.5'"),
        ("a,,1,2", "rank ''"),
        ("a,0,x,2", "allocated_mib 'x'"),
        ("a,0,nan,2", "allocated_mib 'nan'"),
        ("a,0,1,inf", "max_allocated_mib 'inf'"),
        ("a,0,0,2", "allocated_mib '0'"),
        ("a,0,3,2", "below allocated_mib"),
        ("a,0,1", "4 cells"),
        ("a,0,1,2,3", "4 cells"),
        (",0,1,2", "has no id"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(SpecError, match="row 2") as caught:
        read_ranks(written(tmp_path, "good,0,1,2", line))
    assert said in str(caught.value)


def test_every_faulty_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_ranks(written(tmp_path, "a,0,1,2", "a,0,1,2", "a,1,2,1"))
    assert [fault.path for fault in caught.value.faults] == ["row 2 (a)", "row 3 (a)"]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="max_allocated_mib"):
        read_ranks(written(tmp_path, head="id,rank,allocated_mib"))
    with pytest.raises(SpecError, match="cannot read"):
        read_ranks(tmp_path / "none.csv")
    with pytest.raises(SpecError, match="taken apart"):
        read_ranks(written(tmp_path, 'a,0,"1,2'))


def test_pipeline_parallelism_is_outermost() -> None:
    plan = replace(run_of(row()).plan, tp=2, cp=2, dp=3, pp=4)
    assert [stage_of_rank(plan, rank) for rank in (0, 11, 12, 35, 36, 47)] == [0, 0, 1, 2, 3, 3]
    for rank in (-1, 48):
        with pytest.raises(SpecError, match="48 ranks"):
            stage_of_rank(plan, rank)


def test_every_measured_rank_belongs_to_a_run_that_is_read() -> None:
    runs = {run.row.id: run for run in read_runs(OWN / "ascend_runs.csv")[0]}
    found = read_ranks(OWN / "ascend_memory.csv")
    assert sum(map(len, found.values())) > 300
    for name, ranks in found.items():
        assert {stage_of_rank(runs[name].plan, each.rank) for each in ranks} <= set(range(runs[name].plan.pp))


def test_the_fullest_rank_is_the_peak_that_the_run_states() -> None:
    runs = {run.row.id: run for run in read_runs(OWN / "ascend_runs.csv")[0]}
    for name, ranks in read_ranks(OWN / "ascend_memory.csv").items():
        assert max(each.peak_bytes for each in ranks) == pytest.approx(runs[name].peak_bytes, rel=EXACT_FRAC), name


def test_layers_that_do_nothing_hold_nothing(tmp_path: Path) -> None:
    run = run_in(tmp_path, pp=2, vpp=2, gbs=64, gpus=2, overlap_notes="noop-layers=0,7")
    assert run.space.model.layers == 6
    assert run.plan.layout == "Et|(tt|)*2tL"


def test_idle_layers_among_the_dense_ones_are_not_counted_as_dense() -> None:
    sparse = run_of(row(SPARSE, layers=8, dense_layers=3, overlap_notes="noop-layers=1,6"))
    moe = sparse.space.model.moe
    assert moe is not None
    assert (sparse.space.model.layers, moe.first_dense) == (6, 2)


def test_idle_layers_must_leave_some_and_lie_in_the_model(tmp_path: Path) -> None:
    assert "leave none of 8 layers" in reason_in(tmp_path, overlap_notes="noop-layers=0,1,2,3,4,5,6,7")
    assert "noop-layers 9" in reason_in(tmp_path, pp=2, overlap_notes="noop-layers=9,8")


@pytest.mark.parametrize(
    ("said", "vpp", "layout"),
    [
        ("offset=[-1; 1]", 1, "Et*3|t*5L"),
        ("offset=[[-1; 0]; [0; 1]]", 2, "Et|(tt|)*2t*3L"),
    ],
)
def test_offsets_of_stages_are_a_layout(tmp_path: Path, said: str, vpp: int, layout: str) -> None:
    assert run_in(tmp_path, pp=2, vpp=vpp, gpus=2, overlap_notes=said).plan.layout == layout


def test_offsets_that_do_not_cut_the_model_are_refused(tmp_path: Path) -> None:
    assert "offset -1,0" in reason_in(tmp_path, pp=2, overlap_notes="offset=[-1; 0]")


def test_experts_of_test_scripts_are_cut_as_tp_unless_they_say() -> None:
    base = SPARSE | CI | {"tp": 2, "ep": 2}
    assert run_of(row(base)).plan.etp == 2
    assert run_of(row(base, overlap_notes="expert-tensor-parallel-size=1")).plan.etp == 1


def test_half_precision_runs_keep_half_precision_gradients() -> None:
    assert run_of(row(GPT | CI, precision="fp16")).space.job.grad_precision == "fp16"
    assert run_of(row(GPT | CI)).space.job.grad_precision == "fp32"


@pytest.mark.parametrize(
    ("recompute", "flags", "policy"),
    [
        ("activation-function(n=1)", "", "none"),
        ("activation-function(n=8)", "", "mlp_act"),
        ("num-layers=8(no granularity flag)", "", "none"),
        ("num-layers=8(no granularity flag)", "swap-attention", "swap:attention+mlp"),
        ("num-layers=1(no granularity flag)", "swap-attention", "swap:attention"),
    ],
)
def test_counts_of_layers_say_whether_most_are_rebuilt(recompute: str, flags: str, policy: str) -> None:
    assert run_of(row(recompute=recompute, overlap_notes=flags)).plan.recompute == policy
