"""Intervals come from the nearest group of measured runs; beyond it there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.catalog.lookup import load
from autodeploy.catalog.measured import measured
from autodeploy.search.evaluate import evaluate
from autodeploy.search.result import PlanResult
from autodeploy.search.surety import LEVEL_FRAC, even_with_first, group_for, surety
from autodeploy.spec.job import Job
from autodeploy.spec.space import PlanValues, Space
from autodeploy.spec.target import Target
from tests.builders import cluster_of, model_of, plan_of


def answer(cluster: str = "h100-80g", devices: int = 64, seq_len: int = 4096) -> tuple[Space, PlanResult]:
    space = Space(
        name="x", model=model_of("llama-3.1-8b"), cluster=cluster_of(cluster), target=load(Target, "nemo-2025"),
        devices=devices, job=Job(gbs=devices, seq_len=seq_len), plan=PlanValues(tp=(1,), pp=(1,)),
    )  # fmt: skip
    return space, evaluate(space, plan_of(dp=devices))


def test_an_interval_holds_four_of_five_runs_of_its_group() -> None:
    space, result = answer()
    found, group = surety(space, result), group_for(space)
    assert found.interval is not None
    assert group is not None
    rate = result.tokens_per_s_per_device
    low, high = found.interval.low_tokens_per_s_per_device, found.interval.high_tokens_per_s_per_device
    inside = [low <= rate * row.ratio_frac <= high for row in group.rows]
    assert sum(inside) / len(inside) == pytest.approx(LEVEL_FRAC, abs=0.02)
    assert low < rate < high
    assert found.interval.group == "H100, dense, NeMo"
    assert {(row.generation, row.kind, row.family) for row in group.rows} == {("H100", "dense", "NeMo")}


@pytest.mark.parametrize(("kwargs", "told"), [
    ({"devices": 65536}, "devices 65,536 over"), ({"seq_len": 4194304}, "seq_len 4,194,304 over"),
    ({"cluster": "atlas-900-a3"}, "no group of ten runs"),
])  # fmt: skip
def test_beyond_the_data_there_is_no_interval(kwargs: dict[str, int | str], told: str) -> None:
    space, result = answer()
    cluster = cluster_of(str(kwargs.get("cluster", "h100-80g")))
    job = replace(space.job, seq_len=int(kwargs.get("seq_len", 4096)))
    far = replace(space, cluster=cluster, job=job, devices=int(kwargs.get("devices", 64)))
    found = surety(far, result)
    assert found.interval is None
    assert any(told in each for each in found.beyond)
    assert found.nearest


def test_the_nearest_run_of_a_measured_plan_is_like_it() -> None:
    found = surety(*answer())
    assert "8b" in found.nearest.lower()
    assert "EP 1" in found.nearest


def test_an_unknown_stack_is_measured_by_its_chip() -> None:
    space, _ = answer()
    group = group_for(replace(space, target=replace(space.target, name="mine")))
    assert group is not None
    assert group.name == "H100, dense"


def test_plans_are_even_within_the_width_of_their_group_only() -> None:
    space, result = answer()
    group = group_for(space)
    assert group is not None
    assert group.order_frac is not None
    rates = [1.0, 1.0 / (1.0 + 0.5 * group.order_frac), 1.0 / (1.0 + 2.0 * group.order_frac)]
    plans = [replace(result, tokens_per_s_per_device=rate) for rate in rates]
    assert even_with_first(space, plans) == (False, True, False)
    assert even_with_first(space, []) == ()


def test_every_measured_run_stands_once_with_a_sane_ratio() -> None:
    assert len({row.id for row in measured()}) == len(measured()) > 500
    assert all(0.05 < row.ratio_frac < 20.0 for row in measured())
