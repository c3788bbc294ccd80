"""The memory reserve is found again from runs that fitted and runs that did not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.catalog.lookup import load
from autodeploy.fidelity.predict import predict
from autodeploy.fidelity.reserve import LEAST_EACH, fit_reserve
from autodeploy.fidelity.runs import Run
from autodeploy.fidelity.stacks import stacks
from autodeploy.spec.job import Job
from autodeploy.spec.space import PlanValues, Space
from autodeploy.spec.target import Target
from tests.builders import cluster_of, model_of, plan_of
from tests.fidelity.little import row

BASE = cluster_of("h100-80g")
TRUE_FRAC = 0.12


def run(number: int, seq_len: int) -> Run:
    """One of a series that grows past the memory of 8 devices."""
    plan = replace(plan_of(tp=8), recompute="none")
    space = Space(
        name="x", model=model_of("llama-3.1-8b"), cluster=BASE, target=load(Target, "megatron-core"), devices=8,
        job=Job(gbs=1, seq_len=seq_len), plan=PlanValues(tp=(8,), pp=(1,)),
    )  # fmt: skip
    found = Run(
        row=row(id=f"r{number}"), stack=stacks()[-1], space=space, plan=plan, step_s=None, fits=None, peak_bytes=None
    )
    lost = replace(space, cluster=replace(BASE, fragmentation_frac=TRUE_FRAC))
    result = predict(replace(found, space=lost)).result
    assert result is not None
    return replace(found, fits=result.fits)


@pytest.mark.slow
def test_the_lost_share_is_found_within_two_points() -> None:
    runs = [run(number, 1024 * number) for number in range(8, 96, 2)]
    assert min(sum(bool(each.fits) for each in runs), sum(not each.fits for each in runs)) >= LEAST_EACH
    found = fit_reserve(runs, BASE)
    assert found is not None
    assert abs(found - TRUE_FRAC) <= 0.02


def test_runs_that_all_fitted_tell_nothing() -> None:
    assert fit_reserve([replace(run(1, 2048), fits=True)] * 20, BASE) is None
