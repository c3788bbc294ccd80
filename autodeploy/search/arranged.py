"""What a plan (or a column of plans) is on one layout: its case, its stages with their costs, what comes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autodeploy.balance.fit import Beside, Budget, StageMemory
from autodeploy.balance.recompute import Ladder
from autodeploy.balance.solving import Chosen
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.load import Load
from autodeploy.cost.memory import Params
from autodeploy.cost.pairing import paired_s, pass_s
from autodeploy.cost.sharding import ShardTraffic
from autodeploy.cost.tail import DataParallel, StageTail
from autodeploy.numeric import Num
from autodeploy.schedule.shapes import Shape
from autodeploy.spec.layout import Layout, Role
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import FIRST_SPLIT, Overlap, PlanLike, Schedule
from autodeploy.spec.space import Space

Distinct = tuple[np.ndarray, np.ndarray]
"""Of a column of microbatches: the distinct values, and which of them each plan has."""


@dataclass(frozen=True, slots=True)
class Case:
    """What plans must share to be costed together: pipeline shape, layout, recompute policy."""

    schedule: Schedule
    overlap: Overlap
    policy: str
    rule: str
    """The layout rule that gave the layout."""
    layout: Layout
    live_microbatches: int
    """Microbatches, capped where more change no live count."""
    taken_frac: float
    """Cores that an all-to-all beside compute takes."""
    whole_drain: bool = False
    """`Profile.whole_drain`."""

    def shape(self, microbatches: int) -> Shape:
        """The schedule shape for so many microbatches."""
        layout = self.layout
        return Shape(self.schedule, layout.pp, layout.vpp, microbatches, self.overlap, self.whole_drain)

    @property
    def split(self) -> bool:
        """Whether weight gradients may run apart."""
        return self.schedule >= FIRST_SPLIT

    def pass_s(self, load: Load) -> Num:
        """Seconds of a pass that is not merged."""
        return pass_s(load, self.overlap, self.taken_frac)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCost:
    """One role of stages under a plan."""

    role: Role
    params: Params
    held: Beside
    memory: StageMemory
    forward: tuple[Load, ...]
    """Per distinct chunk content of the role."""
    backward: tuple[Load, ...]
    extra: Mapping[Kind, Load]
    """What recompute adds to the backward pass of each kind of layer."""
    tail: StageTail
    weights_s: tuple[Num, ...] = ()
    """Weight gradients per distinct chunk content, where the schedule runs them apart."""
    chosen: Chosen | None = None
    """What its solved selection is, where the plan asks for one."""
    sharding_s: Num = 0.0
    """Gathers and scatters in the open, in a forward and backward pass of one microbatch."""

    def inputs_s(self, case: Case) -> list[Num]:
        """A backward pass without its weight gradients, per content."""
        pairs = zip(self.backward, self.weights_s, strict=True)
        return [case.pass_s(load.without(weights)) for load, weights in pairs]

    def merged_s(self, sends_s: Num, taken_frac: float) -> list[list[Num]]:
        """[i][j] forward of content i merged with backward of content j, beside the messages of the op before."""
        return [[paired_s(f, b, sends_s, taken_frac) for b in self.backward] for f in self.forward]


class Pipe(NamedTuple):
    """What the ops of a pipeline depend on beside their loads."""

    case: Case
    microbatches: Num
    send_s: Num
    """Of one message between neighbouring stages."""

    @property
    def sends_s(self) -> Num:
        """Messages that leave while a merged op runs: an activation and a gradient of the op before it."""
        return 2.0 * self.send_s if self.case.layout.pp > 1 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Arranged:
    """A plan, or a column of plans, on one layout."""

    case: Case
    microbatches: Num
    send_s: Num
    stages: tuple[StageCost, ...]
    """Per role of the layout."""
    limits: Budget
    bound_s: Num
    screen_s: Num
    peak_bytes: Num
    """Allocated on the worst stage."""
    needed_bytes: Num
    """Of the device: with what the allocator loses, and with communicators."""
    host_bytes: Num
    fits: Num
    rolls: bool = False
    """Whether every stage goes on to the next step when it is done itself (`Profile.rolling_update`)."""

    @property
    def pipe(self) -> Pipe:
        """Its pipeline."""
        return Pipe(self.case, self.microbatches, self.send_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """What all stages of a plan share, on any layout."""

    space: Space
    plan: PlanLike
    costs: Mapping[Kind, LayerCost]
    ladder: Ladder
    microbatches: Num
    distinct: Distinct | None
    send_s: Num
    limits: Budget
    dp: DataParallel
    sharding: Mapping[Kind, ShardTraffic]
    """Empty where at most the optimizer is sharded."""
