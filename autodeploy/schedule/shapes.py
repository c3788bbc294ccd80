"""What an order of ops depends on, and the form in which a rank's order is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autodeploy.spec.placement import Placement, placement_of
from autodeploy.spec.plan import FIRST_SPLIT, Overlap, Schedule

NONE = -1
"""Stands where an op has no forward, no backward or no weight-gradient part."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that the order of ops depends on."""

    schedule: Schedule
    pp: int
    vpp: int
    microbatches: int
    """Of every chunk."""
    overlap: Overlap
    whole_drain: bool = False
    """DualPipeV: backward passes stay whole while the pipeline drains, which holds less for a longer step."""

    @property
    def chunk_passes(self) -> int:
        """Forward passes of chunks on one rank."""
        return self.microbatches * self.vpp

    @property
    def positions(self) -> int:
        """Positions that passes travel along."""
        return self.pp * self.vpp

    @property
    def split(self) -> bool:
        """Whether weight gradients may run apart from the backward pass that they belong to."""
        return self.schedule >= FIRST_SPLIT

    @property
    def placement(self) -> Placement:
        """How its chunks lie."""
        return placement_of(self.schedule)

    @property
    def ends(self) -> tuple[int, ...]:
        """Positions whose outputs go nowhere: the last one of every pipeline."""
        last = self.positions - 1
        return (self.pp - 1, last) if self.placement == Placement.MIRROR else (last,)


class RankOrder(NamedTuple):
    """Ops of one rank in order, in arrays of equal length. An op is a forward, a backward, or both merged; a backward
    is whole where its weight gradients are in the same op, else they follow as an op of their own."""

    f_microbatch: np.ndarray
    f_chunk: np.ndarray
    b_microbatch: np.ndarray
    b_chunk: np.ndarray
    w_microbatch: np.ndarray
    w_chunk: np.ndarray
    """Weight gradients."""


class OpCounts(NamedTuple):
    """How often each kind of op occurs on a rank, per distinct chunk content."""

    forward: np.ndarray
    """[i] forwards on their own."""
    backward: np.ndarray
    """[i] whole backwards on their own."""
    merged: np.ndarray
    """[i, j] forward of content i merged with the whole backward of content j."""
    inputs: np.ndarray
    """[i] backwards without their weight gradients."""
    weights: np.ndarray
    """[i] weight gradients on their own."""
