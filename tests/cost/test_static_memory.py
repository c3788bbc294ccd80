"""Weights, gradients and optimizer state: published bytes per device, and the table of ZeRO stages.

ZeRO: arXiv 1910.02054 section 3. DeepSeek-V3 figures: arXiv 2502.07846 tables 6 and 8, arXiv 2603.07685 table 3.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.analysis.readings import PLAIN
from autodeploy.balance.layouts import resolve
from autodeploy.cost.memory import (
    Params,
    bytes_per_param,
    resident_terms,
    stage_params,
    state_bytes,
    vocabulary_copies,
)  # fmt: skip
from autodeploy.spec.layout import Layout
from autodeploy.spec.model import Kind
from tests.builders import costs_of, job_of, model_of, plan_of

GIB = 2.0**30
PARAMETERS_TP2_EP8 = 6_250_364_928  # four sparse layers on one device: arXiv 2502.07846 table 6
TABLE_8 = ((0, 81.54), (1, 40.46), (2, 19.92), (3, 9.66))  # GiB with 2 + 4 + 8 bytes, DP32, EDP8
ZERO = (
    # (unsharded, sharded) bytes of a parameter: 2 weights, 4 or 2 gradient, 12 master and moments
    ("fp32", 0, 18.0, 0.0),
    ("fp32", 1, 6.0, 12.0),
    ("fp32", 2, 2.0, 16.0),
    ("fp32", 3, 0.0, 18.0),
    ("bf16", 0, 16.0, 0.0),
    ("bf16", 1, 4.0, 12.0),
    ("bf16", 2, 2.0, 14.0),
    ("bf16", 3, 0.0, 16.0),
)


def four_layers() -> tuple[float, float]:
    """(dense, expert) parameters that a device holds of four sparse DeepSeek-V3 layers at TP2 EP8."""
    cost = costs_of(model_of("deepseek-v3"), plan_of(tp=2, ep=8))[Kind.SPARSE]
    return 4 * cost.dense_params, 4 * cost.expert_params


def replicated_by_the_paper() -> int:
    """What arXiv 2502.07846 keeps whole on both tp ranks and Megatron-LM halves: the rope part of the query
    up-projection and the shared expert, in four layers."""
    rope = 1536 * 128 * 64
    shared = 3 * 7168 * 2048
    return 4 * (rope + shared) // 2


def test_parameters_on_a_device_at_tp2_ep8_are_exact() -> None:
    assert sum(four_layers()) == 6_137_118_720
    assert sum(four_layers()) + replicated_by_the_paper() == PARAMETERS_TP2_EP8


@pytest.mark.parametrize(("zero", "gib"), TABLE_8)
def test_states_of_four_layers_are_the_published_ones(zero: int, gib: float) -> None:
    dense, experts = four_layers()
    feed_forward = 4 * (3 * 7168 * 2048 + 256 * 7168)  # shared expert and router, which the paper shards as experts
    classes = ((dense + replicated_by_the_paper() - feed_forward, 32), (experts + feed_forward, 8))
    terms = [state_bytes(job_of(), PLAIN, plan_of(zero=zero), count, shards) for count, shards in classes]
    # bf16 moments: 8 of our 12 bytes
    total = sum(term["weights"] + term["gradients"] + term["optimizer"] * 8 / 12 for term in terms)
    assert total / GIB == pytest.approx(gib, rel=0.001)


def test_sixteen_layers_at_ep64_are_the_published_ones() -> None:
    # PP4 VPP4 EP64 on 256 devices: 36.4 GiB of weights and gradients, 32.1 of master weights and moments,
    # counted over the matrices of attention and experts (no router, no norms, no ends)
    plan = plan_of(pp=4, vpp=4, dp=64, ep=64)
    cost = costs_of(model_of("deepseek-v3"), plan)[Kind.SPARSE]
    small = 256 * 7168 + 2 * 7168 + 1536 + 512
    terms = resident_terms(job_of(), PLAIN, plan, Params(16 * (cost.dense_params - small), 16 * cost.expert_params))
    assert (terms["weights"] + terms["gradients"]) / GIB == pytest.approx(36.4, rel=0.003)
    assert terms["optimizer"] / GIB == pytest.approx(32.1, rel=0.003)


@pytest.mark.parametrize(("precision", "zero", "whole", "cut"), ZERO)
@pytest.mark.parametrize("shards", [1, 8, 384])
def test_bytes_per_parameter_are_the_table_of_zero(
    precision: str, zero: int, whole: float, cut: float, shards: int
) -> None:
    terms = state_bytes(job_of(grad_precision=precision), PLAIN, plan_of(zero=zero), 1.0, float(shards))
    assert sum(terms.values()) == pytest.approx(whole + cut / shards, rel=1e-12)


@given(
    zero=st.integers(0, 2), params=st.floats(1.0, 1e12), shards=st.integers(1, 4096),
    precision=st.sampled_from(["fp32", "bf16"]),
)  # fmt: skip
def test_a_higher_zero_stage_never_takes_more(zero: int, params: float, shards: int, precision: str) -> None:
    job = job_of(grad_precision=precision)
    lower, higher = (state_bytes(job, PLAIN, plan_of(zero=stage), params, shards) for stage in (zero, zero + 1))
    assert all(higher[name] <= lower[name] for name in lower)


@given(shards=st.integers(1, 4096), zero=st.integers(0, 3))
def test_more_shards_never_take_more(shards: int, zero: int) -> None:
    few, many = (state_bytes(job_of(), PLAIN, plan_of(zero=zero), 1e9, count) for count in (shards, shards + 1))
    assert all(many[name] <= few[name] for name in few)


@pytest.mark.parametrize("degrees", [{"tp": 8, "dp": 48, "ep": 32}, {"tp": 2, "cp": 2, "dp": 16, "ep": 8, "etp": 2}])
def test_dense_state_is_cut_over_dp_cp_and_expert_state_over_edp(degrees: dict[str, int]) -> None:
    plan = plan_of(**degrees)
    edp = plan.tp * plan.cp * plan.dp / (plan.etp * plan.ep)
    dense, expert, *frozen = bytes_per_param(job_of(), PLAIN, plan)
    assert dense == pytest.approx(6.0 + 12.0 / (plan.dp * plan.cp), rel=1e-12)
    assert expert == pytest.approx(6.0 + 12.0 / edp, rel=1e-12)
    assert frozen == [2.0, 2.0]


def layout_of(name: str, pp: int, vpp: int, rule: str) -> Layout:
    layout = resolve(model_of(name), job_of(), pp, vpp, rule)
    assert layout is not None
    return layout


def copies(name: str, pp: int, vpp: int, rule: str) -> dict[int, int]:
    """Stages that hold a vocabulary matrix a second time, and how many."""
    layout = layout_of(name, pp, vpp, rule)
    found = {stage: vocabulary_copies(model_of(name), pp, role) for role in layout.roles for stage in role.stages}
    return {stage: count for stage, count in found.items() if count}


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "rule", "expected"),
    [
        # an MTP module needs the embedding and the head; tied weights need the embedding at the head
        ("pangu-ultra-moe-718b", 16, 1, "even", {15: 1}),  # MTP beside the head: the embedding
        ("pangu-ultra-moe-718b", 16, 2, "apart", {14: 2}),  # MTP alone: both
        ("pangu-ultra-moe-718b", 1, 1, "even", {}),
        ("llama-3.1-405b", 9, 1, "even", {}),
        ("gpt3-175b", 8, 1, "even", {7: 1}),
        ("gpt3-175b", 1, 1, "even", {}),
    ],
)
def test_vocabulary_matrices_are_held_again_where_needed(
    name: str, pp: int, vpp: int, rule: str, expected: dict[int, int]
) -> None:
    assert copies(name, pp, vpp, rule) == expected


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (16, 2), (8, 4)])
@pytest.mark.parametrize("rule", ["even", "light", "apart"])
@pytest.mark.parametrize("name", ["pangu-ultra-moe-718b", "llama-3.1-405b", "gpt3-175b"])
def test_stages_together_hold_the_model_and_the_copies(name: str, rule: str, pp: int, vpp: int) -> None:
    model = model_of(name)
    layout = resolve(model, job_of(), pp, vpp, rule)
    if layout is None:  # too few slots for the rule
        assert pp * vpp < 3
        return
    costs = costs_of(model, plan_of(pp=pp, vpp=vpp))
    matrix = 1.0 * model.vocab * model.hidden
    held = [stage_params(model, pp, layout.roles[layout.role_of_stage[stage]], costs) for stage in range(pp)]
    one = stage_params(model, 1, layout_of(name, 1, 1, "even").roles[0], costs)
    extra = sum(copies(name, pp, vpp, rule).values()) * matrix
    assert sum(stage.dense for stage in held) == one.dense + extra
    assert sum(stage.experts for stage in held) == one.experts
    assert [stage.frozen for stage in held] == [0.0] * pp
