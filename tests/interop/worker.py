"""One process of a real pipeline: PyTorch's own runtime over gloo, with stages that sleep instead of computing."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from tests.interop.pipelines import Pipeline, Seen

PINGS = 200
WIDTH = 4
"""Numbers in what a stage hands on: the sleeps are what takes time."""


class Nap(torch.autograd.Function):
    """The input, after the sleep of a forward; the gradient, after the sleep of a backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stage: Sleeper) -> torch.Tensor:
        ctx.stage = stage
        stage.sleep("F", stage.forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.stage.sleep("B", ctx.stage.backward_s)
        return gradient, None


class Sleeper(torch.nn.Module):
    """A stage that takes the time it is told to take, and notes the end of every op."""

    def __init__(self, slot: int, pipeline: Pipeline, ops: list[tuple[str, int, float]]) -> None:
        super().__init__()
        self.slot, self.ops = slot, ops
        self.forward_s, self.backward_s = pipeline.forward_s[slot], pipeline.backward_s[slot]
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH))  # without one the first stage would have no backward

    def sleep(self, name: str, seconds: float) -> None:
        """One op."""
        time.sleep(seconds)
        self.ops.append((name, self.slot, time.monotonic()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the runtime calls for a forward."""
        return Nap.apply(x + self.bias, self)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Something to differentiate."""
    return (output - target).sum()


def schedule_of(pipeline: Pipeline, rank: int, ops: list[tuple[str, int, float]]) -> Any:
    """The schedule of PyTorch over the stages of a rank."""
    slots = pipeline.pp * pipeline.vpp
    sent = torch.zeros(1, WIDTH, requires_grad=True)  # as an example: it tells that a gradient comes back
    stages = [
        PipelineStage(Sleeper(slot, pipeline, ops), slot, slots, torch.device("cpu"), input_args=sent, output_args=sent)
        for slot in range(rank, slots, pipeline.pp)
    ]
    if pipeline.vpp > 1:
        return ScheduleInterleaved1F1B(stages, pipeline.microbatches, loss_fn=loss)
    return Schedule1F1B(stages[0], pipeline.microbatches, loss_fn=loss)


def ping_s(rank: int) -> float:
    """A message from rank 0 to rank 1 and back, halved, while the others wait."""
    message, seen = torch.zeros(1, WIDTH), [0.0]
    dist.barrier()
    for _ in range(PINGS if rank < 2 else 0):
        start = time.monotonic()
        for sender in (0, 1):
            (dist.send if rank == sender else dist.recv)(message, 1 - rank)
        seen.append((time.monotonic() - start) / 2)
    dist.barrier()
    return statistics.median(seen)


def steps_of(pipeline: Pipeline, rank: int, steps: int) -> Seen:
    """Runs the steps of a pipeline as one rank."""
    ops: list[tuple[str, int, float]] = []
    schedule = schedule_of(pipeline, rank, ops)
    batch = torch.zeros(pipeline.microbatches, WIDTH)
    starts, ended = [], []
    for _ in range(steps):
        dist.barrier()
        starts.append(time.monotonic())
        schedule.step(*([batch] if rank == 0 else []), target=batch if rank == pipeline.pp - 1 else None)
        ended.append(ops.copy())
        ops.clear()
    return Seen(send_s=ping_s(rank), starts_s=starts, ops=ended)  # pings come last: fresh processes are slow to answer


def run(rank: int, pipelines: Sequence[Pipeline], steps: int, folder: str) -> None:
    """Runs pipelines of equal pp one after the other as one rank, and writes what it saw into the folder."""
    torch.set_num_threads(1)
    meeting, world = f"file://{folder}/meeting", pipelines[0].pp
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(minutes=1))
    seen = [asdict(steps_of(pipeline, rank, steps)) for pipeline in pipelines]
    Path(folder, f"{rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
