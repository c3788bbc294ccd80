"""Where chunks lie: round after round down the stages, down and back up (a V), or two whole pipelines, head to tail."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from autodeploy.numeric import Num, where
from autodeploy.spec.plan import FIRST_OF_TWO, Overlap, Plan, Schedule

TWO_CHUNKS = 2


class Placement(IntEnum):
    """How the chunks of a pipeline lie on its stages.

    A pass travels from position to position. In ROUND and VEE every position is a slot of the layout. MIRROR is a V cut
    in its middle: two pipelines of pp slots each, the second with its first slot on the last stage.
    """

    ROUND = 0
    VEE = 1
    MIRROR = 2


def placement_of(schedule: Schedule) -> Placement:
    """How the chunks of a schedule lie."""
    if schedule == Schedule.DUALPIPE:
        return Placement.MIRROR
    return Placement.VEE if schedule >= FIRST_OF_TWO else Placement.ROUND


def is_paired(schedule: Schedule, overlap: Overlap) -> bool:
    """Whether gradients are reduced as where passes are merged: DualPipe refuses the overlap of others as they do.

    Source: MindSpeed features_manager/pipeline_parallel/dualpipev_feature.py, moe/fb_overlap.py.
    """
    return overlap == Overlap.PAIR or schedule >= Schedule.DUALPIPE_V


def usual_schedule(vpp: int) -> Schedule:
    """The schedule of a plan whose space leaves it open."""
    return Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B


def chunks_fit(schedule: Num, vpp: Num) -> Num:
    """Whether a schedule runs so many chunks: one, two, or any number from two on where they are interleaved."""
    interleaved = schedule == Schedule.INTERLEAVED
    exact = where(schedule >= FIRST_OF_TWO, TWO_CHUNKS, 1)
    return where(interleaved, vpp > 1, vpp == exact)


def slots_in(placement: Placement, pp: int, vpp: int) -> int:
    """Slots of a layout."""
    return pp if placement == Placement.MIRROR else pp * vpp


def slots_of_plan(plan: Plan) -> int:
    """Slots of a plan's layout."""
    return slots_in(placement_of(plan.schedule), plan.pp, plan.vpp)


def position_of(placement: Placement, pp: int, stage: Num, chunk: Num) -> Num:
    """The position that is a chunk of a stage, also for arrays of whole numbers.

    Formula: chunk x pp + stage; on a V 2 pp - 1 - stage for the second chunk.
    """
    return chunk * pp + stage if placement == Placement.ROUND else stage + chunk * (2 * pp - 1 - 2 * stage)


def slot_of(placement: Placement, pp: int, stage: int, chunk: int) -> int:
    """The slot of a layout that lies there."""
    position = int(position_of(placement, pp, stage, chunk))
    return position % pp if placement == Placement.MIRROR else position


def stage_of(placement: Placement, pp: int, position: Num) -> Num:
    """The stage that holds a position, also for arrays."""
    return position % pp if placement == Placement.ROUND else np.minimum(position, 2 * pp - 1 - position)
