"""A machine of many devices goes at the pace of the slowest."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autodeploy.spec.machine import Machine
from tests.builders import cluster_of, costs_of, machine_of, model_of, plan_of


def test_the_slowest_of_many_is_the_expected_largest_deviation() -> None:
    spread = cluster_of("h100-80g").device.spread_frac
    draws = np.random.default_rng(7).normal(size=(2000, 1024)).max(axis=1).mean()
    machine = replace(machine_of("h100-80g"), devices=1024)
    assert machine.slowest_over_typical == pytest.approx(1.0 + spread * draws, abs=0.2 * spread * draws)
    assert machine.slowest_over_typical >= 1.0 + spread * draws  # the closed form is the asymptote, from above


def test_one_device_waits_for_nobody() -> None:
    assert replace(machine_of("h100-80g"), devices=1).slowest_over_typical == 1.0


def test_every_engine_waits_and_no_link_does() -> None:
    model, plan = model_of("qwen3-30b-a3b"), plan_of(tp=2, ep=8, dp=8)
    alone, many = (costs_of(model, plan, machine=replace(machine_of("h100-80g"), devices=n)) for n in (1, 4096))
    factor = Machine(cluster=cluster_of("h100-80g"), profile=machine_of().profile, devices=4096).slowest_over_typical
    assert factor == pytest.approx(1.0 + 0.015 * math.sqrt(2.0 * math.log(4096)), rel=1e-12)
    for kind, cost in alone.items():
        for term, seconds in cost.forward_terms.items():
            if term in ("matmul", "experts", "attention", "vector"):
                assert many[kind].forward_terms[term] == pytest.approx(factor * seconds, rel=1e-12)
            if term in ("tensor_parallel", "expert_exchange"):
                assert many[kind].forward_terms[term] == seconds
