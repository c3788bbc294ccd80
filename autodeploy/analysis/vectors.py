"""Vector ops that blocks share: norm, residual, activation, rope; as one kernel, or as PyTorch runs them line by line.

Fused bytes: model.md 7.4. Unfused: bytes read and written by every line of the eager form, in bf16 unless said.
"""

from __future__ import annotations

from autodeploy.analysis.ops import Module, Op, Row, vector
from autodeploy.numeric import Num
from autodeploy.spec.model import Model
from autodeploy.spec.target import Profile

BF16 = 2.0

EAGER_NORM_BYTES = (36.0, 54.0)
"""RMSNorm line by line, per element: to fp32 (2 + 4), square (4 + 4), mean (4), scale (4 + 4), to bf16 (4 + 2), times
weight (2 + 2), and the copies between; backward half as much again. One kernel moves 4 and 6."""
EAGER_NORM_KERNELS = 7
EAGER_GATED_BYTES = (12.0, 22.0)
"""SwiGLU as chunk, silu (2 + 2), times (4 + 2) and the copy of a half (2): per output element; backward with the
halves joined again. One kernel moves 6 and 10."""
EAGER_PLAIN_BYTES = (8.0, 12.0)
"""Bias, then activation: (2 + 2) each. One kernel moves 4 and 6."""
EAGER_ROPE_BYTES = 18.0
"""times cos (2 + 2), rotate half (3 + 2), times sin (2 + 2), sum (4 + 2) less one copy kept in place. Fused: 4."""


def norm(
    name: str, model: Model, profile: Profile, tokens: Num, *, rows: tuple[Row, ...], module: Module, width: int = 0
) -> Op:
    """RMSNorm or LayerNorm over the hidden size, or over `width`. PyTorch's own LayerNorm is one kernel."""
    size = 1.0 * (width or model.hidden)
    params = size if model.norm == "rmsnorm" else 2.0 * size
    fused = "norm" in profile.fused or model.norm == "layernorm"
    forward, backward = (2.0 * BF16, 3.0 * BF16) if fused else EAGER_NORM_BYTES
    kernels = 1 if fused else EAGER_NORM_KERNELS
    traffic = size * tokens
    if not fused:
        rows = (*rows, Row(name=f"{name} line by line", bytes=profile.norm_saved_bytes * traffic, module=module))
    return vector(name, forward * traffic, backward * traffic, params=params, rows=rows, module=module, kernels=kernels)


def residual(name: str, model: Model, profile: Profile, tokens: Num, rows: tuple[Row, ...] = ()) -> Op:
    """Residual addition: two reads and a write, forward and backward; with the mask of the dropout before it."""
    traffic = 3.0 * BF16 * model.hidden * tokens
    if profile.dropout_saved_bytes:
        mask = profile.dropout_saved_bytes * model.hidden * tokens
        rows = (*rows, Row(name=f"{name}, dropout mask", bytes=mask, module=Module.FULL))
    return vector(name, traffic, traffic, rows=rows)


def activation(
    name: str, model: Model, profile: Profile, tokens: Num, width: Num, module: Module, rows: tuple[Row, ...]
) -> Op:
    """SwiGLU reads 2f and writes f (backward: reads 3f, writes 2f); GELU reads and writes f. Line by line SwiGLU keeps
    silu(gate) as well (MindSpeed's page on recomputing it counts both)."""
    eager = "activation" not in profile.fused
    if eager and model.gated:
        rows = (*rows, Row(name=f"{name}, gate", bytes=BF16 * tokens * width, module=module))
    if model.gated:
        forward, backward = EAGER_GATED_BYTES if eager else (3.0 * BF16, 5.0 * BF16)
    else:
        forward, backward = EAGER_PLAIN_BYTES if eager else (2.0 * BF16, 3.0 * BF16)
    size = tokens * width
    return vector(name, forward * size, backward * size, module=module, rows=rows, kernels=3 if eager else 1)


def rope(profile: Profile, elements: Num, module: Module = Module.FULL, rows: tuple[Row, ...] = ()) -> Op:
    """Rotation of so many query and key elements: one read and one write each way."""
    eager = "rope" not in profile.fused
    each = EAGER_ROPE_BYTES if eager else 2.0 * BF16
    return vector("rope", each * elements, each * elements, module=module, rows=rows, kernels=5 if eager else 1)
