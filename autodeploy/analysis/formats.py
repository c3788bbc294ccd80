"""What a job's number format and its adapters add to the ops of a layer: casts, low-rank products, frozen weights."""

from __future__ import annotations

from dataclasses import replace

from autodeploy.analysis.ops import Engine, Op, Shard, matmul, vector
from autodeploy.numeric import Num
from autodeploy.spec.job import Job
from autodeploy.spec.target import Profile

NARROW = ("fp8", "nvfp4")
CAST_FORWARD_BYTES = 3.0
"""Per input element of a narrow product: read in bf16, written in 8 bits."""
CAST_BACKWARD_BYTES = 5.0
"""Per element of its output gradient: read in bf16, written in 8 bits as it is and transposed (Transformer Engine
transposes for the weight gradient on Hopper), and the input transposed: 2 + 1 + 1 and 1."""
NARROW_INPUT = {"fp8": 0.5, "nvfp4": 0.28125}
"""Of a 16-bit row, what its narrow copy takes: 1 byte an element, or half a byte and a scale of 8 bits for 16."""
LINEAR = (Engine.MATMUL, Engine.EXPERTS)


def narrowed(profile: Profile, job: Job, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """With the casts around every product that runs below 16 bits, and rows as those products keep them."""
    if job.precision not in NARROW:
        return ops
    if profile.narrow_inputs_saved and not job.lora_rank:  # adapters keep the 16-bit input, frozen products none
        ops = tuple(_kept_narrow(op, NARROW_INPUT[job.precision]) for op in ops)
    return tuple(each for op in ops for each in ((_cast(op), op) if op.narrow else (op,)))


def _kept_narrow(op: Op, share: float) -> Op:
    """An op whose rows are kept as linear products take them: a narrow copy in the row's place, or beside it."""
    if not any(row.taken for row in op.rows):
        return op
    factor = {"": 1.0, "only": share, "also": 1.0 + share}
    return replace(op, rows=tuple(replace(row, bytes=factor[row.taken] * row.bytes) for row in op.rows))


def _cast(op: Op) -> Op:
    forward, backward = CAST_FORWARD_BYTES * op.m * op.k, CAST_BACKWARD_BYTES * op.m * op.n
    return vector(f"{op.name} cast", forward, backward, module=op.module)


def adapted(job: Job, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """With all weights frozen and a pair of low-rank products beside every linear layer (arXiv 2106.09685)."""
    if not job.lora_rank:
        return ops
    return tuple(each for op in ops for each in _with_adapter(op, job.lora_rank))


def _with_adapter(op: Op, rank: int) -> tuple[Op, ...]:
    if op.engine is Engine.ATTENTION:
        return (op,)
    frozen = replace(op, trained=False)
    if op.engine not in LINEAR or not op.narrow or op.shard is not Shard.TP:
        return (frozen,)
    return (frozen, *_low_rank(op, 1.0 * rank))


def _low_rank(op: Op, rank: Num) -> tuple[Op, Op]:
    down = matmul(f"{op.name} adapter down", op.m, rank, op.k, module=op.module)
    up = matmul(f"{op.name} adapter up", op.m, op.n, rank, module=op.module)
    return replace(down, counted=False, narrow=False), replace(up, counted=False, narrow=False)
