"""What follows the pipeline on a stage: bytes reduced and gathered, bytes of the optimizer, what stays in the open.

Volumes: arXiv 1910.02054 section 7 and NVIDIA/Megatron-LM's distributed optimizer (gradients reduce-scattered at
their own width, bf16 parameters gathered). Ascend/MindSpeed moe-fb-overlap runs without overlap-grad-reduce.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.analysis.readings import PLAIN
from autodeploy.cost.memory import Params, boundary_buffers, bytes_per_param, communicator_bytes, resident_terms
from autodeploy.cost.slots import boundary_bytes, stage_send_s
from autodeploy.cost.tail import StageTail, data_parallel, stage_tail
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.plan import Overlap, Plan
from tests.builders import cluster_of, job_of, machine_of, model_of, plan_of

PARAMS = Params(3e9, 5e9)
"""Of the stage, dense and of experts."""


def machine(*, overlaps: bool = True, buckets: int = 4) -> Machine:
    """H100 nodes without latency, whose levels stream: a collective takes the time of its longer level."""
    base = cluster_of("h100-80g")
    node, fabric = (replace(level, latency_s=1e-30, ramp_s_per_sqrt_byte=0.0) for level in (base.node, base.fabric))
    cluster = replace(base, node=node, fabric=fabric, pipelined_collectives=True)
    profile = replace(machine_of().profile, overlap_grad_reduce=overlaps, grad_buckets=buckets)
    return Machine(cluster=cluster, profile=profile)


def tail_of(
    plan: Plan,
    windows: tuple[float, float] = (0.0, 0.0),
    shared: float = 0.0,
    *,
    job: Job | None = None,
    on: Machine | None = None,
) -> StageTail:
    where = on or machine()
    dp = data_parallel(where, plan)
    return stage_tail(where, job or job_of(), plan, dp, plan.overlap, PARAMS, windows, shared)


def wire_s(plan: Plan, bytes_per_param_: float) -> float:
    """One reduce-scatter or all-gather over both groups of an eight-device node and a port each, ranks of a group
    one node apart: (N - 1)/N of the bytes over the port."""
    rate = machine().cluster.fabric.effective_bytes_per_s
    groups = ((PARAMS.dense, plan.dp * plan.cp), (PARAMS.experts, plan.edp))
    return sum(bytes_per_param_ * count * (ranks - 1) / ranks / rate for count, ranks in groups)


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4.0), ("bf16", 2.0)])
def test_gradients_are_scattered_at_their_own_width(precision: str, width: float) -> None:
    plan = plan_of(tp=8, dp=16, ep=32)
    found = tail_of(plan, job=job_of(grad_precision=precision))
    assert found.grad_sync == pytest.approx(wire_s(plan, width), rel=1e-9)
    assert found.param_sync == pytest.approx(wire_s(plan, 2.0), rel=1e-9)


@pytest.mark.parametrize(("precision", "moved"), [("fp32", 4 + 12 + 12 + 2), ("bf16", 4 + 8 + 8 + 2)])
def test_the_optimizer_reads_and_writes_its_state(precision: str, moved: int) -> None:
    plan, device = plan_of(tp=8, dp=16, ep=32), machine().cluster.device
    share = PARAMS.dense / (plan.dp * plan.cp) + PARAMS.experts / plan.edp
    found = tail_of(plan, job=job_of(moment_precision=precision)).optimizer
    assert found == pytest.approx(moved * share / (device.hbm_bytes_per_s * device.hbm_max_frac), rel=1e-3)


def test_without_a_distributed_optimizer_gradients_are_all_reduced() -> None:
    plan = plan_of(tp=8, dp=16, ep=32, zero=0)
    found = tail_of(plan)
    assert found.grad_sync == pytest.approx(2.0 * wire_s(plan, 4.0), rel=1e-9)
    assert found.param_sync == 0.0


@pytest.mark.parametrize("zero", [0, 1])
def test_one_replica_synchronises_nothing(zero: int) -> None:
    found = tail_of(plan_of(tp=8, ep=8, zero=zero))
    assert (found.grad_sync, found.param_sync) == (0.0, 0.0)


@pytest.mark.parametrize(("zero", "dense", "experts"), [(0, 1, 1), (1, 16, 4)])
def test_adam_moves_thirty_bytes_of_each_parameter_that_it_owns(zero: int, dense: int, experts: int) -> None:
    # reads gradient, master weight and two moments in fp32, writes the last three and a bf16 weight
    device = machine().cluster.device
    owned = PARAMS.dense / dense + PARAMS.experts / experts
    moved = (4 * 4 + 3 * 4 + 2) * owned
    expected = moved / (device.hbm_bytes_per_s * device.hbm_max_frac)
    assert tail_of(plan_of(tp=8, dp=16, ep=32, zero=zero)).optimizer == pytest.approx(expected, rel=1e-9)


@given(forward=st.floats(0.0, 1.0), backward=st.floats(0.0, 1.0), buckets=st.integers(1, 8))
def test_a_pass_hides_all_but_one_bucket(forward: float, backward: float, buckets: int) -> None:
    plan = plan_of(tp=8, dp=16, ep=32)
    found = tail_of(plan, (forward, backward), on=machine(buckets=buckets))
    for exposed, width, window in ((found.grad_sync, 4.0, backward), (found.param_sync, 2.0, forward)):
        whole = wire_s(plan, width)
        hidden = min(window * (1 - 1 / buckets), whole * (1 - 1 / buckets))
        assert exposed == pytest.approx(whole - hidden, rel=1e-9)


@pytest.mark.parametrize(("overlap", "overlaps"), [(Overlap.PAIR, True), (Overlap.NONE, False)])
def test_nothing_is_hidden_under_merged_passes_or_without_overlap(overlap: Overlap, overlaps: bool) -> None:
    plan = plan_of(tp=8, dp=16, ep=32, overlap=overlap)
    found = tail_of(plan, (100.0, 100.0), on=machine(overlaps=overlaps))
    assert found.grad_sync == pytest.approx(wire_s(plan, 4.0), rel=1e-9)
    assert found.param_sync == pytest.approx(wire_s(plan, 2.0), rel=1e-9)


def test_shared_matrices_send_their_gradients_once() -> None:
    rate = machine().cluster.fabric.effective_bytes_per_s
    found = tail_of(plan_of(tp=8, pp=4, dp=16, ep=32), shared=1e8)
    assert found.shared_weights == pytest.approx(4.0 * 1e8 / rate, rel=1e-9)
    assert tail_of(plan_of(tp=8, pp=4, dp=16, ep=32)).shared_weights == 0.0


def test_the_tail_is_the_sum_of_its_terms() -> None:
    found = tail_of(plan_of(tp=8, dp=16, ep=32), (0.01, 0.02), 1e8)
    terms = (found.grad_sync, found.param_sync, found.optimizer, found.shared_weights)
    assert min(terms) > 0.0
    assert found.seconds == pytest.approx(sum(terms), rel=1e-12)


@pytest.mark.parametrize("degrees", [{"tp": 8, "dp": 48, "ep": 32}, {"tp": 2, "cp": 4, "dp": 8, "ep": 8, "etp": 2}])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_resident_bytes_are_those_of_each_parameter(degrees: dict[str, int], zero: int) -> None:
    plan = plan_of(**degrees, zero=zero)
    dense, expert, frozen, idle = bytes_per_param(job_of(), PLAIN, plan)
    params = PARAMS._replace(frozen=2e9, frozen_experts=1e9)
    total = sum(resident_terms(job_of(), PLAIN, plan, params).values())
    assert total == pytest.approx(dense * 3e9 + expert * 5e9 + frozen * 2e9 + idle * 1e9, rel=1e-12)


@pytest.mark.parametrize(("degrees", "tokens"), [({}, 4096), ({"tp": 8}, 512), ({"tp": 8, "sp": False}, 4096)])
def test_a_message_between_stages_is_the_residual_stream(degrees: dict[str, Any], tokens: int) -> None:
    # 2 n h bytes, arXiv 2205.05198 section 4.2.2: tensor-parallel ranks each send their part of the sequence
    model, plan = model_of("llama-3.1-405b"), plan_of(pp=4, dp=4, **degrees)
    message = 2.0 * tokens * model.hidden
    assert boundary_bytes(model, job_of(), plan) == message
    rate = machine().cluster.fabric.effective_bytes_per_s
    sent = stage_send_s(machine().cluster, model, job_of(), replace(plan, dp=64))
    assert sent == pytest.approx(message / rate, rel=1e-9)


def test_a_pipeline_holds_a_buffer_each_way() -> None:
    assert (boundary_buffers(1, 100.0), boundary_buffers(4, 100.0)) == (0.0, 200.0)


@pytest.mark.parametrize(
    ("model", "degrees", "groups"),
    [
        ("deepseek-v3", {}, 1),
        ("deepseek-v3", {"tp": 8, "pp": 4, "ep": 8}, 4),  # tp, pp, ep, world
        ("deepseek-v3", {"tp": 8, "pp": 16, "dp": 48, "ep": 32}, 6),  # tp, pp, dp, ep, edp, world
        ("llama-3.1-70b", {"tp": 8, "pp": 4}, 3),  # tp, pp, world: a dense model has no groups of experts
    ],
)
def test_every_group_of_several_ranks_has_a_communicator(model: str, degrees: dict[str, int], groups: int) -> None:
    # 2 x 200 MB each: HCCL_BUFFSIZE on hiascend.com
    assert communicator_bytes(machine_of(), model_of(model), plan_of(**degrees)) == groups * 400e6


def test_a_stack_that_does_not_scatter_reduces_all_gradients_twice() -> None:
    # an all-reduce over all ranks also where the optimizer is sharded: twice the bytes of a scatter
    plan = plan_of(tp=8, dp=16, ep=32)
    base = machine(buckets=1)
    found = tail_of(plan, on=replace(base, profile=replace(base.profile, scatter_gradients=False)))
    assert found.grad_sync == pytest.approx(2.0 * wire_s(plan, 4.0), rel=1e-9)
    assert found.param_sync == tail_of(plan, on=base).param_sync
    assert found.optimizer == tail_of(plan, on=base).optimizer


def test_parameters_can_be_gathered_in_the_open_alone() -> None:
    plan, base = plan_of(tp=8, dp=16, ep=32), machine()
    late = replace(base, profile=replace(base.profile, overlap_param_gather=False))
    hidden, shown = (tail_of(plan, (100.0, 100.0), on=on) for on in (base, late))
    assert shown.param_sync == pytest.approx(wire_s(plan, 2.0), rel=1e-9)
    assert shown.grad_sync == hidden.grad_sync < wire_s(plan, 4.0)


@pytest.mark.parametrize(("zero", "rounds"), [(2, 1.0), (3, 0.0)])
def test_gradients_that_every_microbatch_scatters_leave_nothing_to_reduce(zero: int, rounds: float) -> None:
    plan = plan_of(tp=8, dp=16, ep=32, zero=zero)
    found = tail_of(plan)
    assert found.grad_sync == 0.0
    assert found.param_sync == pytest.approx(rounds * wire_s(plan, 2.0), rel=1e-9)


def outlasts_s(whole: float, backward: float, pp: int, vpp: int, buckets: int) -> float:
    """How long a port is busy after the last backward pass: chunks end pp passes apart, a chunk's buckets get ready one
    after the other during its last pass, and go out in order."""
    port, one = 0.0, backward / vpp
    for chunk in range(vpp):
        for bucket in range(buckets):
            ready = chunk * pp * one + (bucket + 1) / buckets * one
            port = max(port, ready) + whole / vpp / buckets
    return port - ((vpp - 1) * pp + 1) * one


@given(
    window=st.floats(1e-3, 10.0), pp=st.integers(2, 16), vpp=st.integers(1, 8), buckets=st.integers(1, 8),
    dp=st.sampled_from([2, 16, 128]),
)  # fmt: skip
def test_gradients_of_chunks_go_out_one_after_the_other(
    window: float, pp: int, vpp: int, buckets: int, dp: int
) -> None:
    plan = plan_of(tp=8, dp=dp, pp=pp, vpp=vpp, ep=8)
    where = machine(buckets=buckets)
    found = tail_of(plan, (window, window), on=where)
    whole = tail_of(plan, on=machine(overlaps=False)).grad_sync
    assert found.grad_sync == pytest.approx(outlasts_s(whole, window, pp, vpp, buckets), rel=1e-9, abs=1e-12)
