"""A machine with known constants is found again from noisy runs, and refused where runs cannot tell."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from autodeploy.catalog.lookup import load
from autodeploy.errors import SpecError
from autodeploy.fidelity.own_machine import OwnFit, fit_machine, fit_pace
from autodeploy.fidelity.runs import Run
from autodeploy.fidelity.stacks import stacks
from autodeploy.search.evaluate import evaluate
from autodeploy.spec.constants import scaled
from autodeploy.spec.job import Job
from autodeploy.spec.machine import paced
from autodeploy.spec.space import PlanValues, Space
from autodeploy.spec.target import Target
from tests.builders import cluster_of, model_of, plan_of
from tests.fidelity.little import row

TRUE = {"matmul": 0.88, "attention": 0.85, "fabric": 0.75}
NOISE_LOG = 0.02
PLANS = (
    ("llama-3.1-8b", 128, {"dp": 64}),
    ("llama-3.1-8b", 128, {"tp": 4, "dp": 16}),
    ("llama-3.1-8b", 128, {"tp": 8, "dp": 8, "mbs": 2}),
    ("llama-3.1-70b", 64, {"tp": 8, "pp": 4, "dp": 2}),
    ("llama-3.1-70b", 64, {"tp": 4, "pp": 8, "dp": 2}),
    ("llama-3.1-70b", 64, {"tp": 8, "dp": 8, "zero": 3}),
    ("qwen3-30b-a3b", 128, {"dp": 64, "ep": 8}),
    ("qwen3-30b-a3b", 128, {"dp": 64, "ep": 64}),
    ("mixtral-8x7b", 64, {"tp": 2, "dp": 32, "ep": 8}),
    ("mixtral-8x7b", 64, {"pp": 2, "dp": 32, "ep": 8}),
)
BASE = cluster_of("h100-80g")


@cache
def runs(noise_log: float = NOISE_LOG) -> tuple[Run, ...]:
    """Thirty runs on a machine that differs from the catalog's in three constants."""
    noise = np.random.default_rng(4).normal(0.0, noise_log, 30)
    cases = product((2048, 8192, 32768), PLANS)
    return tuple(run(n, seq_len, *case, noise[n]) for n, (seq_len, case) in enumerate(cases))


def run(number: int, seq_len: int, model: str, gbs: int, degrees: dict[str, int], noise_log: float) -> Run:
    plan = replace(plan_of(**degrees), recompute="none")
    space = Space(
        name="x", model=model_of(model), cluster=BASE, target=load(Target, "megatron-core"), devices=64,
        job=Job(gbs=gbs, seq_len=seq_len), plan=PlanValues(tp=(plan.tp,), pp=(plan.pp,)),
    )  # fmt: skip
    seconds = evaluate(replace(space, cluster=scaled(BASE, TRUE)), plan).step_time_s * float(np.exp(noise_log))
    return Run(
        row=row(id=f"r{number}"), stack=stacks()[-1], space=space, plan=plan, step_s=seconds, fits=True, peak_bytes=None
    )


@cache
def fitted() -> OwnFit:
    return fit_machine(runs(), BASE)


@pytest.mark.slow
def test_known_constants_are_found_within_three_per_cent() -> None:
    found = {each.name: each.factor for each in fitted().parameters}
    assert set(found) >= set(TRUE)
    assert {name: found[name] for name in TRUE} == pytest.approx(TRUE, rel=0.03)


@pytest.mark.slow
def test_the_fitted_machine_predicts_as_well_as_runs_repeat() -> None:
    found = fitted()
    assert found.after_frac[0] < 1.5 * NOISE_LOG < found.before_frac[0]
    assert found.unseen_model_frac is not None
    assert found.after_frac[0] <= found.unseen_model_frac[0] < found.before_frac[0]
    assert len(found.residuals) == 30


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_runs_are_refused(count: int) -> None:
    with pytest.raises(SpecError, match=f"{count} runs cannot tell matmul, .* apart"):
        fit_machine(runs()[:count], BASE)


def test_one_run_sets_the_pace_shrunk_towards_one() -> None:
    one = [replace(runs()[3], step_s=(evaluate(runs()[3].space, runs()[3].plan).step_time_s * 1.2))]
    (pace,) = fit_pace(one, BASE).parameters
    # a prior of 15 % and a row of 5 % share the answer by their variances, the row bent by its robust loss
    assert 1.1 < pace.factor < 1.2 ** (0.15**2 / (0.15**2 + 0.05**2)) + 1e-9


@pytest.mark.slow
def test_runs_on_the_stated_machine_change_nothing_much() -> None:
    stated = [replace(each, step_s=evaluate(each.space, each.plan).step_time_s) for each in runs()]
    assert [each.factor for each in fit_machine(stated, BASE).parameters] == pytest.approx(
        [1.0] * len(fit_machine(stated, BASE).parameters), abs=1e-6
    )


@pytest.mark.parametrize("pace", [0.8, 1.25])
def test_a_pace_scales_every_step_exactly(pace: float) -> None:
    for each in (runs()[0], runs()[5], runs()[7], runs()[9]):
        slow = replace(each.space, cluster=paced(BASE, pace))
        profile = replace(each.space.target.profile, pace=each.space.target.profile.pace * pace)
        same = replace(each.space, target=replace(each.space.target, profile=profile))
        base = evaluate(each.space, each.plan).step_time_s
        assert evaluate(slow, each.plan).step_time_s == pytest.approx(pace * base)
        assert evaluate(same, each.plan).step_time_s == pytest.approx(pace * base)


@pytest.mark.slow
def test_the_names_of_what_is_kept_are_constants() -> None:
    assert all(re.fullmatch("[a-z]+", name) for name in fitted().kept)
    assert not set(fitted().kept) & {each.name for each in fitted().parameters}
