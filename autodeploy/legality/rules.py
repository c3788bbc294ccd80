"""Every rule by its id: V.. from the frameworks' own checks, N.. the machine, L.. layouts, P.. plain sense.

A predicate takes a `Question` and a plan or a table and says where the rule holds. Targets list the ids that
they enforce (catalog/targets); the order of that list decides which rule a refusal is counted under.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autodeploy.numeric import Num, where
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.model import GQA, Model
from autodeploy.spec.plan import Dispatch, Overlap, PlanLike, Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What the rules ask about, apart from the plan."""

    model: Model
    job: Job
    cluster: Cluster
    devices: int


Predicate = Callable[[Question, PlanLike], Num]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """`holds` is None where layouts have to be resolved first (L01)."""

    id: str
    text: str
    source: str
    holds: Predicate | None


def _v01(q: Question, p: PlanLike) -> Num:
    return q.devices % (p.tp * p.pp * p.cp) == 0


def _v02(q: Question, p: PlanLike) -> Num:
    return q.devices % (p.etp * p.ep * p.pp) == 0


def _v20(q: Question, p: PlanLike) -> Num:
    return q.model.attention.heads % p.tp == 0


def _v21(q: Question, p: PlanLike) -> Num:
    groups = q.model.attention.kv_heads if isinstance(q.model.attention, GQA) else q.model.attention.heads
    return (groups % p.tp == 0) | (p.tp % groups == 0)


def _v25(q: Question, p: PlanLike) -> Num:
    dense = q.model.ffn_width % p.tp == 0
    if q.model.moe is None:
        return dense
    moe = q.model.moe
    return dense & (moe.shared_width % p.tp == 0) & (moe.expert_width % p.etp == 0)


def _v31(q: Question, p: PlanLike) -> Num:
    halves = (p.cp == 1) | (q.job.seq_len % (2 * p.cp) == 0)
    return halves & (q.job.seq_len % (p.cp * where(p.sp, p.tp, 1)) == 0)


def _v66(q: Question, p: PlanLike) -> Num:
    microbatches = q.job.gbs // (p.mbs * p.dp)
    return (p.vpp == 1) | ((microbatches >= p.pp) & (microbatches % p.pp == 0))


def _v90(q: Question, p: PlanLike) -> Num:
    return (q.job.gbs % (p.mbs * p.dp) == 0) & (q.job.gbs >= p.mbs * p.dp)


def _v100(q: Question, p: PlanLike) -> Num:
    if q.model.moe is None:
        return (p.ep == 1) & (p.etp == 1)
    return q.model.moe.experts % p.ep == 0


def _n01(q: Question, p: PlanLike) -> Num:
    whole = q.devices % q.cluster.node.size == 0 or q.devices < q.cluster.node.size
    return (p.tp > 0) & whole


def _p01(q: Question, p: PlanLike) -> Num:
    del q
    return (p.vpp == 1) | (p.pp > 1)


def _p02(q: Question, p: PlanLike) -> Num:
    del q
    return (p.overlap == Overlap.NONE) | (p.ep > 1)


def _p03(q: Question, p: PlanLike) -> Num:
    return (p.dispatch == Dispatch.FLAT) | ((p.ep > 1) & (p.etp * p.ep > q.cluster.inner.size))


def _p04(q: Question, p: PlanLike) -> Num:
    del q
    return (p.schedule == Schedule.INTERLEAVED) == (p.vpp > 1)


def _p05(q: Question, p: PlanLike) -> Num:
    del q
    return (p.tp > 1) | (p.sp == 0)


_MEGATRON = "NVIDIA/Megatron-LM d98e8a64"
_ROWS: tuple[tuple[str, str, str, Predicate | None], ...] = (
    ("V01", "devices must be a multiple of tp x pp x cp", f"{_MEGATRON} training/arguments.py", _v01),
    ("V02", "devices must be a multiple of etp x ep x pp", f"{_MEGATRON} core/parallel_state.py", _v02),
    ("V20", "attention heads must divide by tp", f"{_MEGATRON} core/transformer/transformer_config.py", _v20),
    ("V21", "kv heads must divide by tp, or tp by kv heads", f"{_MEGATRON} transformer_config.py", _v21),
    ("V25", "feed-forward widths must divide by tp, expert width by etp", f"{_MEGATRON} layers.py", _v25),
    ("V31", "the sequence must divide by 2 x cp, and by cp x tp under sp", f"{_MEGATRON} schedules.py", _v31),
    ("V66", "interleaving needs microbatches in whole groups of pp", f"{_MEGATRON} schedules.py", _v66),
    ("V90", "gbs must be a multiple of mbs x dp", f"{_MEGATRON} core/num_microbatches_calculator.py", _v90),
    ("V100", "routed experts must divide by ep; ep and etp need experts", f"{_MEGATRON} arguments.py", _v100),
    ("N01", "devices must be whole nodes, or less than one", "arithmetic", _n01),
    ("L01", "no layout leaves every slot a layer, or its embedding, MTP or head", "arithmetic", None),
    ("P01", "interleaving (vpp > 1) needs pp > 1", "arithmetic", _p01),
    ("P02", "overlap = pair hides expert all-to-all: it needs ep > 1", "arithmetic", _p02),
    ("P03", "hierarchical dispatch needs experts spread over several nodes", "arithmetic", _p03),
    ("P04", "the interleaved schedule is the one with vpp > 1", "arithmetic", _p04),
    ("P05", "sequence parallelism needs tp > 1", f"{_MEGATRON} model_parallel_config.py (V26)", _p05),
)  # fmt: skip

RULES: dict[str, Rule] = {id: Rule(id=id, text=text, source=source, holds=holds) for id, text, source, holds in _ROWS}
