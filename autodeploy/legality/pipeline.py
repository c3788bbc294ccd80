"""Stages, chunks, microbatches and layouts."""

from __future__ import annotations

from autodeploy.legality.question import Question
from autodeploy.numeric import Num
from autodeploy.spec.layout import Layout
from autodeploy.spec.model import Kind
from autodeploy.spec.placement import TWO_CHUNKS, Placement, chunks_fit
from autodeploy.spec.plan import FIRST_OF_TWO, FIRST_SPLIT, Overlap, Plan, PlanLike, Schedule


def microbatches(q: Question, p: PlanLike) -> Num:
    """Per data-parallel rank and step."""
    return q.job.gbs // (p.mbs * p.dp)


def v66(q: Question, p: PlanLike) -> Num:
    count = microbatches(q, p)
    whole = (count >= p.pp) & (count % p.pp == 0)
    return (p.schedule != Schedule.INTERLEAVED) | whole


def v71(q: Question, plan: Plan, layout: Layout) -> bool:
    del q, plan
    held = slots_with(layout, Kind.MTP)
    if layout.placement != Placement.ROUND:  # whose last slot is on the first stage
        return len(held) <= 1
    last_chunk = all(slot // layout.pp == layout.vpp - 1 for slot in held)
    first_stage = any(layout.stage_of(slot) == 0 for slot in held) and layout.pp > 1
    return len(held) <= 1 and last_chunk and not first_stage


def slots_with(layout: Layout, kind: Kind) -> list[int]:
    """Slots that hold a kind."""
    return [i for i, slot in enumerate(layout.slots) if slot[kind]]


def has_decoder(layout: Layout, slot: int) -> bool:
    """Whether a slot holds a decoder layer."""
    return layout.slots[slot][Kind.DENSE] + layout.slots[slot][Kind.SPARSE] > 0


def v72(q: Question, p: PlanLike) -> Num:
    return (p.tp > 0) & (q.mtp == 0 or q.model.learned_positions == 0)


def v76(q: Question, p: PlanLike) -> Num:
    """The feature cuts equal chunks itself: a layout that a user writes is refused (`v76_layout`)."""
    able = (q.model.layers >= TWO_CHUNKS * p.pp) & (p.cp == 1) & (not q.model.tied_embeddings)
    return (p.schedule != Schedule.DUALPIPE_V) | able


def v76_layout(q: Question, plan: Plan, layout: Layout) -> bool:
    del q
    *counts, last = (slot[Kind.DENSE] + slot[Kind.SPARSE] for slot in layout.slots)
    return plan.schedule != Schedule.DUALPIPE_V or (len(set(counts)) == 1 and counts[0] >= last)


def v76b(q: Question, p: PlanLike) -> Num:
    return (p.schedule != Schedule.ZB_V) | (microbatches(q, p) >= 2 * p.pp)


def v80(q: Question, p: PlanLike) -> Num:
    first = q.model.moe.first_dense if q.model.moe else 0
    return (p.pp == 1) | (first == 0) | (first < q.model.layers // p.pp)


def v82(q: Question, p: PlanLike) -> Num:
    items = q.model.layers + q.mtp
    return (p.pp * p.vpp <= items) & (q.mtp <= 1)


def v85(q: Question, plan: Plan, layout: Layout) -> bool:
    del q, plan
    return all(slot == len(layout.slots) - 1 for slot in slots_with(layout, Kind.MTP))


def v85b(q: Question, plan: Plan, layout: Layout) -> bool:
    last = len(layout.slots) - 1
    inner = all(has_decoder(layout, slot) for slot in range(1, last))
    return inner and v85(q, plan, layout) and (q.mtp == 0 or has_decoder(layout, last))


def v86(q: Question, p: PlanLike) -> Num:
    return (p.pp == 1) | (microbatches(q, p) >= p.pp)


def v94(q: Question, p: PlanLike) -> Num:
    return (p.overlap != Overlap.PAIR) | (p.schedule != Schedule.INTERLEAVED) | (q.job.gbs // (p.mbs * p.pp * p.dp) > 1)


def p01(q: Question, p: PlanLike) -> Num:
    del q
    return (p.vpp == 1) | (p.pp > 1)


def p04(q: Question, p: PlanLike) -> Num:
    del q
    return chunks_fit(p.schedule, p.vpp)


def p10(q: Question, p: PlanLike) -> Num:
    """With fewer stages than two nothing waits; DualPipe of both kinds has at least two microbatches a stage."""
    enough = (p.schedule < Schedule.DUALPIPE_V) | (microbatches(q, p) >= 2 * p.pp)
    return ((p.schedule < FIRST_SPLIT) | (p.pp > 1)) & enough


def p11(q: Question, p: PlanLike) -> Num:
    """Zero-bubble orders have no pairs of passes to merge."""
    del q
    return (p.overlap == Overlap.NONE) | (p.schedule < FIRST_SPLIT) | (p.schedule >= Schedule.DUALPIPE_V)


def p12(q: Question, p: PlanLike) -> Num:
    return (p.schedule != Schedule.DUALPIPE) | ((p.pp % 2 == 0) & (microbatches(q, p) % 2 == 0))


def _whole(p: PlanLike) -> Num:
    """No weight gradients apart."""
    return p.schedule < FIRST_SPLIT


def t15(q: Question, p: PlanLike) -> Num:
    del q
    return _whole(p)


def t16(q: Question, p: PlanLike) -> Num:
    del q
    return _whole(p) | (p.schedule == Schedule.DUALPIPE_V)


def t17(q: Question, p: PlanLike) -> Num:
    del q
    return _whole(p) | (p.schedule == Schedule.ZB_V)


def t18(q: Question, p: PlanLike) -> Num:
    del q
    return (p.schedule != Schedule.ZB_H2) & (p.schedule != Schedule.DUALPIPE)


def t19(q: Question, p: PlanLike) -> Num:
    del q
    return p.schedule < FIRST_OF_TWO
