"""Seconds of device time of one op: a roofline with tiles, waves and the price of a kernel (model.md 7)."""

from __future__ import annotations

from autodeploy.analysis.ops import Engine, Op
from autodeploy.numeric import Num, ceil, maximum
from autodeploy.spec.cluster import Device

ELEMENT_BYTES = 2.0
"""bf16 operands."""
ATTENTION_BACKWARD_FLOP = 2.5
"""Backward over forward FLOP of fused attention: five matrix products instead of two."""


def hbm_s(device: Device, moved_bytes: Num) -> Num:
    """Time to move bytes to and from device memory. Formula: bytes / (hbm * hbm_max_frac)."""
    return moved_bytes / (device.hbm_bytes_per_s * device.hbm_max_frac)


def product_s(device: Device, m: Num, n: Num, k: Num, groups: Num, moved_bytes: Num) -> Num:
    """`groups` products of m / groups rows: whole tiles in whole waves over the cores, or memory, whichever is longer.

    Formula: max(waves * (2 * tile_m * tile_n * k * cores / peak + tile_overhead), bytes / hbm) + gap
    Source: model.md 7.1; four shapes on 910B2C within 0.9 %, 18 shapes on H800 within 5.5 % on average.
    """
    tiles = groups * ceil(m / groups / device.tile_m) * ceil(n / device.tile_n)
    reached = device.peak_flop_per_s * device.matmul_max_frac / device.matmul_cores
    tile_s = 2.0 * device.tile_m * device.tile_n * k / reached + device.tile_overhead_s
    waves = ceil(tiles / device.matmul_cores)
    return maximum(waves * tile_s, hbm_s(device, moved_bytes)) + device.kernel_gap_s


def _product(device: Device, op: Op, grad_bytes: float) -> tuple[Num, Num]:
    """Forward; backward as input gradient plus weight gradient, which reads and writes the accumulated gradient."""
    m, n, k, groups = op.m, op.n, op.k, op.experts
    weights = groups * n * k
    operands = ELEMENT_BYTES * (m * k + m * n)
    once = operands + ELEMENT_BYTES * weights
    forward = product_s(device, m, n, k, groups, once)
    dgrad = product_s(device, m, k, n, groups, once)
    accumulate = operands + 2.0 * grad_bytes * weights
    wgrad = product_s(device, n * groups, k, m / groups, groups, accumulate)
    return forward, dgrad + wgrad


def _attention(device: Device, op: Op) -> tuple[Num, Num]:
    """Fused attention at a share of the peak. Source: model.md 7.3."""
    forward = op.flop / (device.peak_flop_per_s * device.attention_forward_frac) + device.kernel_gap_s
    rate = device.peak_flop_per_s * device.attention_backward_frac
    return forward, ATTENTION_BACKWARD_FLOP * op.flop / rate + device.kernel_gap_s


def _vector(device: Device, op: Op) -> tuple[Num, Num]:
    gaps = op.kernels * device.kernel_gap_s
    return hbm_s(device, op.forward_bytes) + gaps, hbm_s(device, op.backward_bytes) + gaps


def op_s(device: Device, op: Op, grad_bytes: float) -> tuple[Num, Num]:
    """Forward and backward seconds of an op on the device, communication apart."""
    if op.engine is Engine.VECTOR:
        return _vector(device, op)
    if op.engine is Engine.ATTENTION:
        return _attention(device, op)
    return _product(device, op, grad_bytes)


def kernels(op: Op) -> tuple[int, int]:
    """Kernels launched forward and backward."""
    backward = 2 if op.engine in (Engine.MATMUL, Engine.EXPERTS) else 1
    return op.kernels, backward * op.kernels
