"""Expert groups, dispatch and merged passes."""

from __future__ import annotations

from autodeploy.legality.pipeline import has_decoder
from autodeploy.legality.question import Question
from autodeploy.numeric import Num
from autodeploy.spec.layout import Layout
from autodeploy.spec.plan import Dispatch, Overlap, Plan, PlanLike


def v27(q: Question, p: PlanLike) -> Num:
    return (p.tp == 1) | (p.sp == 1) | (q.model.moe is None)


def v100(q: Question, p: PlanLike) -> Num:
    if q.model.moe is None:
        return (p.ep == 1) & (p.etp == 1)
    return q.model.moe.experts % p.ep == 0


def v101(q: Question, p: PlanLike) -> Num:
    return (p.dp * p.cp % p.ep == 0) & (q.devices % p.ep == 0)


def v101b(q: Question, p: PlanLike) -> Num:
    del q
    return p.dp * p.tp % p.ep == 0


def pair_can_run(q: Question, p: PlanLike) -> Num:
    """Merged passes need spread experts and, where there are stages, chunks."""
    del q
    return (p.overlap != Overlap.PAIR) | ((p.ep > 1) & ((p.pp == 1) | (p.vpp > 1)))


def v112(q: Question, p: PlanLike) -> Num:
    return pair_can_run(q, p) & ((p.overlap != Overlap.PAIR) | (p.etp == 1))


def v112_layout(q: Question, plan: Plan, layout: Layout) -> bool:
    del q
    alone = plan.overlap != Overlap.PAIR or plan.pp == 1
    return alone or all(has_decoder(layout, slot) for slot in range(len(layout.slots)))


def v117(q: Question, p: PlanLike) -> Num:
    del q
    return p.etp == 1


def v118(q: Question, p: PlanLike) -> Num:
    return (p.dispatch != Dispatch.HIER) | (p.ep % q.cluster.node.size == 0)


def p06(q: Question, p: PlanLike) -> Num:
    del q
    alone = (p.dispatch == Dispatch.FLAT) | (p.dispatch == Dispatch.HIER)
    return alone | (p.ep > 1)


def t05(q: Question, p: PlanLike) -> Num:
    del q
    return p.dispatch != Dispatch.DEDUP


def t13(q: Question, p: PlanLike) -> Num:
    del q
    return p.dispatch != Dispatch.GATHER


def t14(q: Question, p: PlanLike) -> Num:
    del q
    return p.dispatch != Dispatch.FUSED


def t01(q: Question, p: PlanLike) -> Num:
    del q
    return p.overlap == Overlap.NONE


def t02(q: Question, p: PlanLike) -> Num:
    del q
    return p.dispatch != Dispatch.HIER


def p02(q: Question, p: PlanLike) -> Num:
    del q
    return (p.overlap == Overlap.NONE) | (p.ep > 1)


def p03(q: Question, p: PlanLike) -> Num:
    return (p.dispatch != Dispatch.HIER) | ((p.ep > 1) & (p.etp * p.ep > q.cluster.inner.size))
