"""Seconds of one op: products in tiles and waves, attention by its FLOP, vectors by their bytes.

Tiles: mamf-finder on an Ascend 910B2C and deepseek-ai/DeepGEMM on H800. Five matrix products in the backward pass
of attention instead of two: Dao-AILab/flash-attention benchmarks/benchmark_flash_attention.py.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.analysis.ops import Engine, Op, matmul
from autodeploy.analysis.readings import PLAIN
from autodeploy.cost.compute import op_s
from autodeploy.spec.cluster import Device
from autodeploy.spec.model import Kind
from autodeploy.spec.target import Profile
from tests.builders import cluster_of, job_of, model_of, ops_of, plan_of

DEVICES = st.sampled_from(["atlas-800t-a2", "h100-80g"])
SIZES = st.integers(1, 20000)
GRAD_BYTES = {"fp32": 4.0, "bf16": 2.0}


def device_of(name: str) -> Device:
    return cluster_of(name).device


def hbm_s(device: Device, moved: float) -> float:
    """Seconds to move bytes."""
    return moved / (device.hbm_bytes_per_s * device.hbm_max_frac)


def seconds(device: Device, op: Op, profile: Profile = PLAIN, **job: Any) -> tuple[float, float]:
    """Forward and backward seconds of an op in a job."""
    return op_s(device, profile, job_of(**job), op)[:2]


def product(device: Device, m: int, n: int, k: int, groups: int, moved: float) -> float:
    """A batch of products counted tile by tile."""
    tiles = groups * ceil(m / device.tile_m) * ceil(n / device.tile_n)
    core = device.peak_flop_per_s * device.matmul_max_frac / device.matmul_cores
    each = 2 * device.tile_m * device.tile_n * k / core + device.tile_overhead_s
    memory = moved / (device.hbm_bytes_per_s * device.hbm_max_frac)
    return max(ceil(tiles / device.matmul_cores) * each, memory) + device.kernel_gap_s


@given(name=DEVICES, m=SIZES, n=SIZES, k=SIZES, grad=st.sampled_from(["fp32", "bf16"]))
def test_a_layer_is_one_product_forward_and_two_backward(name: str, m: int, n: int, k: int, grad: str) -> None:
    device = device_of(name)
    rows, weights = 2.0 * m * (k + n), 1.0 * n * k
    forward, backward = seconds(device, matmul("x", 1.0 * m, 1.0 * n, 1.0 * k), grad_precision=grad)
    assert forward == pytest.approx(product(device, m, n, k, 1, rows + 2 * weights), rel=1e-12)
    dgrad = product(device, m, k, n, 1, rows + 2 * weights)
    wgrad = product(device, n, k, m, 1, rows) + hbm_s(device, 2 * GRAD_BYTES[grad] * weights)  # added to the sum so far
    assert backward == pytest.approx(dgrad + wgrad, rel=1e-12)


@given(name=DEVICES, m=SIZES, n=SIZES, k=SIZES, grad=st.sampled_from(["fp32", "bf16"]))
def test_a_gradient_that_is_added_apart_is_written_and_read_once_more(
    name: str, m: int, n: int, k: int, grad: str
) -> None:
    device, op = device_of(name), matmul("x", 1.0 * m, 1.0 * n, 1.0 * k)
    apart = replace(PLAIN, fused=tuple(each for each in PLAIN.fused if each != "accumulate"))
    one, other = (seconds(device, op, profile, grad_precision=grad) for profile in (PLAIN, apart))
    assert other[0] == one[0]
    assert other[1] - one[1] == pytest.approx(hbm_s(device, (2 + 2) * n * k), rel=1e-6)


@given(name=DEVICES, tokens=st.integers(1, 4000), n=SIZES, k=SIZES, experts=st.integers(1, 64))
def test_experts_are_a_batch_of_products(name: str, tokens: int, n: int, k: int, experts: int) -> None:
    device, m = device_of(name), tokens * experts
    op = Op(name="x", engine=Engine.EXPERTS, m=1.0 * m, n=1.0 * n, k=1.0 * k, experts=1.0 * experts)
    rows, weights = 2.0 * m * (k + n), 1.0 * experts * n * k
    forward, backward = seconds(device, op)
    assert forward == pytest.approx(product(device, tokens, n, k, experts, rows + 2 * weights), rel=1e-12)
    dgrad = product(device, tokens, k, n, experts, rows + 2 * weights)
    wgrad = product(device, n, k, tokens, experts, rows) + hbm_s(device, 8 * weights)
    assert backward == pytest.approx(dgrad + wgrad, rel=1e-12)


@pytest.mark.parametrize("name", ["atlas-800t-a2", "h100-80g"])
def test_attention_runs_two_and_a_half_times_the_flop_backward(name: str) -> None:
    endless = {"attention_forward_frac": 0.5, "attention_backward_frac": 0.5, "attention_half_len": 0.0}
    endless |= {"attention_full_width": 0.0}
    device = replace(device_of(name), kernel_gap_s=1e-30, **endless)
    forward, backward = seconds(device, Op(name="x", engine=Engine.ATTENTION, flop=1e15))
    assert forward == pytest.approx(1e15 / (0.5 * device.peak_flop_per_s), rel=1e-9)
    assert backward == pytest.approx(2.5 * forward, rel=1e-9)


@pytest.mark.parametrize("name", ["atlas-800t-a2", "h100-80g"])
def test_vectors_move_their_bytes(name: str) -> None:
    device = device_of(name)
    op = Op(name="x", engine=Engine.VECTOR, forward_bytes=3e9, backward_bytes=5e9, kernels=2)
    rate = device.hbm_bytes_per_s * device.hbm_max_frac
    expected = [moved / rate + 2 * device.kernel_gap_s for moved in (3e9, 5e9)]
    assert list(seconds(device, op)) == pytest.approx(expected, rel=1e-12)


# bytes per token of fused kernels in bf16, in sizes of DeepSeek-V3 (h 7168, expert width 2048, k 8): what is read
# and written once; backward reads the gradient and the input as well
VECTORS = (
    (Kind.SPARSE, "norm 1", 4 * 7168, 6 * 7168),
    (Kind.SPARSE, "residual 1", 6 * 7168, 6 * 7168),
    (Kind.SPARSE, "shared activation", 6 * 2048, 10 * 2048),
    (Kind.SPARSE, "expert activation", 8 * 6 * 2048, 8 * 10 * 2048),
    (Kind.SPARSE, "permute", 2 * 2 * 9 * 7168, 2 * 2 * 9 * 7168),
    (Kind.SPARSE, "unpermute", 2 * 2 * 9 * 7168, 2 * 2 * 9 * 7168),
    (Kind.DENSE, "activation", 6 * 18432, 10 * 18432),
)


@pytest.mark.parametrize(("kind", "name", "forward", "backward"), VECTORS)
def test_fused_vectors_read_and_write_once(kind: Kind, name: str, forward: int, backward: int) -> None:
    ops = {op.name: op for op in ops_of(model_of("deepseek-v3"), plan_of())[kind]}
    assert ops[name].forward_bytes / 4096 == forward
    assert ops[name].backward_bytes / 4096 == backward
