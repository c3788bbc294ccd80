"""Degrees against devices, heads, widths, sequence and batch."""

from __future__ import annotations

from autodeploy.legality.question import Question
from autodeploy.numeric import Num, where
from autodeploy.spec.model import GQA, Kind, Model, decoder_kinds
from autodeploy.spec.plan import CpComm, PlanLike, States

MOST_PASSES = 2_000_000
"""Forward passes of chunks in a step, over all stages, that are simulated."""


def v01(q: Question, p: PlanLike) -> Num:
    return q.devices % (p.tp * p.pp * p.cp) == 0


def v02(q: Question, p: PlanLike) -> Num:
    return q.devices % (p.etp * p.ep * p.pp) == 0


def v04(q: Question, p: PlanLike) -> Num:
    ranks = p.tp * p.cp * p.dp
    return (ranks * p.pp == q.devices) & (ranks % (p.etp * p.ep) == 0)


def v20(q: Question, p: PlanLike) -> Num:
    return q.model.attention.heads % p.tp == 0


def kv_heads(model: Model) -> int:
    """Of grouped-query attention; latent attention has as many as heads."""
    return model.attention.kv_heads if isinstance(model.attention, GQA) else model.attention.heads


def v21(q: Question, p: PlanLike) -> Num:
    groups = kv_heads(q.model)
    return (groups % p.tp == 0) | (p.tp % groups == 0)


def v22(q: Question, p: PlanLike) -> Num:
    return kv_heads(q.model) % p.tp == 0


def v25(q: Question, p: PlanLike) -> Num:
    moe = q.model.moe
    width = q.model.ffn_width if Kind.DENSE in decoder_kinds(q.model) else 0
    dense = width % p.tp == 0
    if moe is None:
        return dense
    return dense & (moe.shared_width % p.tp == 0) & (moe.expert_width % p.etp == 0)


def v31(q: Question, p: PlanLike) -> Num:
    halves = (p.cp == 1) | (q.job.seq_len % (2 * p.cp) == 0)
    return halves & (q.job.seq_len % (p.cp * where(p.sp, p.tp, 1)) == 0)


def v38(q: Question, p: PlanLike) -> Num:
    return q.model.vocab % p.tp == 0


def v90(q: Question, p: PlanLike) -> Num:
    return (q.job.gbs % (p.mbs * p.dp) == 0) & (q.job.gbs >= p.mbs * p.dp)


def n01(q: Question, p: PlanLike) -> Num:
    whole = q.devices % q.cluster.node.size == 0 or q.devices < q.cluster.node.size
    return (p.tp > 0) & whole


def n02(q: Question, p: PlanLike) -> Num:
    return q.job.gbs / (p.mbs * p.dp) * p.pp * p.vpp <= MOST_PASSES


def t03(q: Question, p: PlanLike) -> Num:
    del q
    return p.zero <= 1


def t04(q: Question, p: PlanLike) -> Num:
    del q
    return p.cp_comm == CpComm.RING


def t06(q: Question, p: PlanLike) -> Num:
    del q
    return p.replicas == 1


def t07(q: Question, p: PlanLike) -> Num:
    del q
    return p.cp_comm != CpComm.GATHER


def t09(q: Question, p: PlanLike) -> Num:
    del q
    return p.states != States.REUSE


def t10(q: Question, p: PlanLike) -> Num:
    del q
    return p.states != States.HOST


def n03(q: Question, p: PlanLike) -> Num:
    """Moving state to the host takes a link and memory there; a cluster that states none has none."""
    return (p.states != States.HOST) | (q.cluster.device.host_bytes > 0.0)


def p07(q: Question, p: PlanLike) -> Num:
    del q
    return (p.cp > 1) | (p.cp_comm == CpComm.RING)


def p08(q: Question, p: PlanLike) -> Num:
    """Ulysses gives every context rank its own heads; keys and values are repeated where there are fewer."""
    heads = q.model.attention.heads
    return (p.cp_comm != CpComm.ULYSSES) | (heads % (p.tp * p.cp) == 0)


def p09(q: Question, p: PlanLike) -> Num:
    """A replica is a whole number of data-parallel ranks, of experts too, and needs something to shard."""
    whole = p.dp * p.cp % p.replicas == 0
    if q.model.moe is not None:
        whole = whole & (p.edp % p.replicas == 0)
    return whole & ((p.replicas == 1) | (p.zero >= 1))


def p05(q: Question, p: PlanLike) -> Num:
    del q
    return (p.tp > 1) | (p.sp == 0)
