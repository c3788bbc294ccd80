"""Seconds of device time of one op: a roofline with tiles, waves and the price of a kernel (model.md 7)."""

from __future__ import annotations

from typing import NamedTuple

from autodeploy.analysis.ops import Engine, Op
from autodeploy.errors import spec_error
from autodeploy.numeric import Num, ceil, maximum, minimum
from autodeploy.spec.cluster import Device
from autodeploy.spec.job import Job
from autodeploy.spec.target import Profile

ELEMENT_BYTES = 2.0
"""bf16 operands."""
UNALIGNED = 0.25
"""Rate of products outside the tensor cores: 78 of 312 TF in FP16 (NVIDIA A100 data sheet)."""
NARROW_BYTES = {"fp8": 1.0, "nvfp4": 0.5625}
"""Per operand element; nvfp4 shares an 8-bit scale among 16."""
ATTENTION_BACKWARD_FLOP = 2.5
"""Backward over forward FLOP of fused attention: five matrix products instead of two."""


def hbm_s(device: Device, moved_bytes: Num) -> Num:
    """Time to move bytes to and from device memory. Formula: bytes / (hbm * hbm_max_frac)."""
    return moved_bytes / (device.hbm_bytes_per_s * device.hbm_max_frac)


class Format(NamedTuple):
    """What a product reaches in a number format, and the size of its operands."""

    flop_per_s: float
    element_bytes: float


def format_of(device: Device, precision: str) -> Format:
    """The rate and width of a job's products. Raises `SpecError` where the device has no such products."""
    if precision not in NARROW_BYTES:
        return Format(device.peak_flop_per_s * device.matmul_max_frac, ELEMENT_BYTES)
    rate = getattr(device, precision)
    if rate is None:
        has = [name for name in NARROW_BYTES if getattr(device, name) is not None]
        raise spec_error("job.precision", f"{device.name} has no {precision} products", " ".join(["bf16 fp16", *has]))
    return Format(rate.peak_flop_per_s * rate.max_frac, NARROW_BYTES[precision])


def product_s(
    device: Device, m: Num, n: Num, k: Num, groups: Num, moved_bytes: Num, flop_per_s: float | None = None
) -> Num:
    """`groups` products of m / groups rows: whole tiles in whole waves over the cores, or memory, whichever is longer.

    Formula: max(waves * (2 * tile_m * tile_n * k * cores / peak + tile_overhead), bytes / hbm) + gap
    Source: model.md 7.1; four shapes on 910B2C within 0.9 %, 18 shapes on H800 within 5.5 % on average.
    """
    tiles = groups * ceil(m / groups / device.tile_m) * ceil(n / device.tile_n)
    reached = (flop_per_s or format_of(device, "bf16").flop_per_s) / device.matmul_cores
    tile_s = 2.0 * device.tile_m * device.tile_n * k / reached + device.tile_overhead_s
    waves = ceil(tiles / device.matmul_cores)
    return maximum(waves * tile_s, hbm_s(device, moved_bytes)) + device.kernel_gap_s


def _apart_s(device: Device, m: Num, n: Num, k: Num, groups: Num, moved_bytes: Num, flop_per_s: float) -> Num:
    """The same as so many kernels one after the other, each with waves of its own."""
    return groups * product_s(device, m / groups, n, k, 1.0, moved_bytes / groups, flop_per_s)


class Passes(NamedTuple):
    """Seconds of an op on the device."""

    forward: Num
    backward: Num
    weights: Num = 0.0
    """The part of `backward` that is weight gradients."""


def _product(device: Device, op: Op, grad_bytes: float, how: Format) -> Passes:
    """Forward; backward as input gradient plus weight gradient, whose results are added to what earlier microbatches
    left, at `grad_bytes` of traffic a weight: each tile ends with it, so it comes on top of the product. Operands have
    the width of the format, results are bf16; frozen weights get no gradient."""
    m, n, k, groups = op.m, op.n, op.k, op.experts
    weights, rate, wide = groups * n * k, how.flop_per_s, ELEMENT_BYTES
    held = how.element_bytes
    make = _apart_s if op.apart else product_s
    forward = make(device, m, n, k, groups, held * (m * k + weights) + wide * m * n, rate)
    dgrad = make(device, m, k, n, groups, held * (m * n + weights) + wide * m * k, rate)
    if not op.trained:
        return Passes(forward, dgrad)
    wgrad = make(device, n * groups, k, m / groups, groups, held * (m * k + m * n), rate)
    wgrad = wgrad + hbm_s(device, grad_bytes * weights)
    return Passes(forward, dgrad + wgrad, wgrad)


def _attention(device: Device, profile: Profile, job: Job, op: Op) -> Passes:
    """Fused attention at a share of the peak that grows with the document, or a batched product.

    Formula: flop / (peak * frac * l / (l + l_half)), backward 2.5 x the flop
    Source: model.md 7.3; cuDNN on H200, causal, head size 128, 2K to 16K within 4 % (cudnn-frontend benchmark).
    """
    if profile.attention == "unfused":
        how = format_of(device, "bf16")
        return _product(
            device, op, ELEMENT_BYTES, how if op.aligned else how._replace(flop_per_s=UNALIGNED * how.flop_per_s)
        )
    length = job.mean_document
    kernel = {"flash2": device.flash2_frac, "flash1": device.flash1_frac}.get(profile.attention, 1.0)
    wide = minimum(op.k / device.attention_full_width, 1.0) if device.attention_full_width else 1.0
    peak = device.peak_flop_per_s * kernel * wide * length / (length + device.attention_half_len)
    forward = op.flop / (peak * device.attention_forward_frac) + device.kernel_gap_s
    backward = ATTENTION_BACKWARD_FLOP * op.flop / (peak * device.attention_backward_frac)
    return Passes(forward, backward + device.kernel_gap_s)


def _vector(device: Device, op: Op) -> Passes:
    gaps = op.kernels * device.kernel_gap_s
    return Passes(hbm_s(device, op.forward_bytes) + gaps, hbm_s(device, op.backward_bytes) + gaps)


def op_s(device: Device, profile: Profile, job: Job, op: Op) -> Passes:
    """Seconds of an op on the device, communication apart."""
    if op.engine is Engine.VECTOR:
        return _vector(device, op)
    if op.engine is Engine.ATTENTION:
        return _attention(device, profile, job, op)
    how = format_of(device, job.precision if op.narrow else "bf16")
    return _product(device, op, accumulation_bytes(profile, job), how)


def accumulation_bytes(profile: Profile, job: Job) -> float:
    """Traffic of adding one weight's gradient to the sum: read and written once inside the product, or written in bf16
    by it and added by a kernel of its own."""
    inside = 2.0 * job.grad_bytes
    return inside if "accumulate" in profile.fused else inside + 2.0 * ELEMENT_BYTES


def kernels(op: Op) -> tuple[Num, Num]:
    """Kernels launched forward and backward."""
    backward = 2 if op.engine in (Engine.MATMUL, Engine.EXPERTS) and op.trained else 1
    launched = op.kernels * op.experts if op.apart else op.kernels
    return launched, backward * launched
