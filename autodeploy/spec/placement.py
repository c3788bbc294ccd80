"""Which chunk of which stage a pipeline slot is: round after round down the stages, or down and back up (a V)."""

from __future__ import annotations

import numpy as np

from autodeploy.numeric import Num, where
from autodeploy.spec.plan import FIRST_VEE, Overlap, Schedule

VEE_CHUNKS = 2
"""Chunks of a stage on a V."""


def is_vee(schedule: Schedule) -> bool:
    """Whether the chunks of a schedule lie on a V."""
    return schedule >= FIRST_VEE


def is_paired(schedule: Schedule, overlap: Overlap) -> bool:
    """Whether gradients are reduced as where passes are merged: DualPipeV refuses the overlap of others as they do.

    Source: MindSpeed features_manager/pipeline_parallel/dualpipev_feature.py, moe/fb_overlap.py.
    """
    return overlap == Overlap.PAIR or schedule == Schedule.DUALPIPE_V


def usual_schedule(vpp: int) -> Schedule:
    """The schedule of a plan whose space leaves it open."""
    return Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B


def chunks_fit(schedule: Num, vpp: Num) -> Num:
    """Whether a schedule runs so many chunks: one, two on a V, or any number from two on where they are interleaved."""
    interleaved = schedule == Schedule.INTERLEAVED
    exact = where(schedule >= FIRST_VEE, VEE_CHUNKS, 1)
    return where(interleaved, vpp > 1, vpp == exact)


def slot_of(vee: bool, pp: int, stage: Num, chunk: Num) -> Num:
    """The slot that is a chunk of a stage, also for arrays of whole numbers.

    Formula: chunk x pp + stage; on a V 2 pp - 1 - stage for the second chunk.
    """
    return stage + chunk * (2 * pp - 1 - 2 * stage) if vee else chunk * pp + stage


def stage_of(vee: bool, pp: int, slot: Num) -> Num:
    """The stage that holds a slot, also for arrays."""
    return np.minimum(slot, 2 * pp - 1 - slot) if vee else slot % pp
