"""ZB-H1, ZB-V and DualPipeV run in the order in which torch.distributed.pipelining (2.13.0) runs them, op by op.

torch has ZB-H1 as the interleaved zero-bubble schedule with one stage a rank; it has no ZB-H2.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from autodeploy.schedule.orders import rank_order
from autodeploy.schedule.shapes import NONE, Shape
from autodeploy.spec.plan import Overlap, Schedule

pytestmark = pytest.mark.interop

STAGES = (2, 3, 4, 5, 8)
NAMES = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def mocked_stage(shape: Shape, index: int) -> MagicMock:
    """A stage that a schedule can be made of."""
    return MagicMock(
        group_size=shape.pp, group_rank=index % shape.pp, num_stages=shape.positions, stage_index=index, is_last=False
    )


def actions(listed: list[Any]) -> list[tuple]:
    """Ops among the actions of torch: name, stage and microbatch, or both halves of a merged one."""
    out: list[tuple] = []
    for each in filter(None, listed):
        name = each.computation_type.name
        if name == "OVERLAP_F_B":
            out.append(tuple((part.stage_index, part.microbatch_index) for part in each.sub_actions))
        elif name in NAMES:
            out.append((NAMES[name], each.stage_index, each.microbatch_index))
    return out


def ours(shape: Shape, rank: int) -> list[tuple]:
    """The same of the package."""
    out: list[tuple] = []
    for f_m, f_c, b_m, b_c, w_m, w_c in zip(*(each.tolist() for each in rank_order(shape, rank)), strict=True):
        f, b, w = (rank if chunk == 0 else 2 * shape.pp - 1 - rank for chunk in (f_c, b_c, w_c))
        if NONE not in (f_c, b_c):
            out.append(((f, f_m), (b, b_m)))
        elif f_c != NONE:
            out.append(("F", f, f_m))
        elif b_c != NONE:
            out.append(("I" if w_c == NONE else "B", b, b_m))
        else:
            out.append(("W", w, w_m))
    return out


@pytest.mark.parametrize("pp", STAGES)
def test_zb_h1_runs_in_the_order_of_torch(pp: int) -> None:
    from torch.distributed.pipelining import ScheduleInterleavedZeroBubble

    shape = Shape(Schedule.ZB_H1, pp, 1, 4 * pp, Overlap.NONE)
    schedule = ScheduleInterleavedZeroBubble([mocked_stage(shape, 0)], shape.microbatches)
    for rank in range(pp):
        assert ours(shape, rank) == actions(schedule.pipeline_order[rank])


@pytest.mark.parametrize("pp", STAGES)
@pytest.mark.parametrize("more", [-1, 0, 1, 7])
def test_zb_v_runs_in_the_order_of_torch(pp: int, more: int) -> None:
    from torch.distributed.pipelining import ScheduleZBVZeroBubble

    shape = Shape(Schedule.ZB_V, pp, 2, 2 * pp + more, Overlap.NONE)
    stages = [mocked_stage(shape, index) for index in (0, 2 * pp - 1)]
    schedule = ScheduleZBVZeroBubble(stages, shape.microbatches)
    for rank in range(pp):
        assert ours(shape, rank) == actions(schedule.pipeline_order[rank])


@pytest.mark.parametrize("pp", STAGES)
@pytest.mark.parametrize("more", [0, 1, 7])
def test_dualpipe_v_runs_in_the_order_of_torch(pp: int, more: int) -> None:
    from torch.distributed.pipelining.schedules import ScheduleDualPipeV

    shape = Shape(Schedule.DUALPIPE_V, pp, 2, 2 * pp + more, Overlap.PAIR)
    stages = [mocked_stage(shape, index) for index in (0, 2 * pp - 1)]
    schedule = ScheduleDualPipeV(stages, shape.microbatches)
    for rank in range(pp):
        assert ours(shape, rank) == actions(schedule.pipeline_order[rank])
