"""What is run, what was seen, and what the package says of it. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autodeploy.schedule.orders import rank_order
from autodeploy.schedule.program import compile_program
from autodeploy.schedule.shapes import Shape
from autodeploy.schedule.simulate import simulate
from tests.schedule.oracle import shape_of, written

Op = tuple[str, int, int]
"""("F" or "B", slot, microbatch); slot = chunk * pp + rank, which is what torch calls a stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """What to run: stages over processes, and how long each one sleeps, by slot."""

    pp: int
    vpp: int
    microbatches: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]

    @property
    def shape(self) -> Shape:
        """Its shape, as the package names it."""
        return shape_of(self.pp, self.vpp, self.microbatches)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What one process measured of a pipeline, by the clock that all processes of a machine share."""

    send_s: float
    """A small message from rank 0 to rank 1 and back, halved; 0 on the other ranks."""
    starts_s: list[float]
    """[step] when it entered the step."""
    ops: list[list[tuple[str, int, float]]]
    """[step] name, slot and moment of the end of every op, in order."""


def ops_of(shape: Shape, rank: int) -> list[Op]:
    """The package's order of a rank."""
    ops = []
    for forward, backward in written(rank_order(shape, rank)):
        name, half = ("F", forward) if forward is not None else ("B", backward)
        assert half is not None
        ops.append((name, half[1] * shape.pp + rank, half[0]))
    return ops


def simulated_s(pipeline: Pipeline, send_s: float) -> np.ndarray:
    """[pp] when every rank ends its last op."""
    forward, backward = np.array(pipeline.forward_s)[:, None], np.array(pipeline.backward_s)[:, None]
    return simulate(compile_program(pipeline.shape), forward, backward, None, np.array([send_s]))[:, 0]
