"""Every rule by its id: V.. from the frameworks' own checks, T.. techniques that a version lacks, N.. the machine,
L.. layouts, P.. plain sense.

A predicate takes a `Question` and a plan or a table and says where the rule holds. Targets list the ids that
they enforce (catalog/targets); the order of that list decides which rule a refusal is counted under. Some rules
(also) ask about the layout that a plan resolves to: one plan and one layout at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autodeploy.numeric import Num, where
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Layout
from autodeploy.spec.model import GQA, MLA, Kind, Model, decoder_kinds
from autodeploy.spec.plan import Dispatch, Overlap, Plan, PlanLike, PlanTable, Schedule

LAYOUT_FIELDS = ("pp", "vpp", "layout", "overlap")
"""All of a plan that rules about layouts depend on."""
MEGATRON_MODULES = frozenset({"layernorm", "moe_act", "mla_up_proj", "shared_experts", "mlp", "moe"})
"""Of our modules, those that `--recompute-modules` takes."""
MINDSPEED_MODULES = frozenset({"layernorm", "mlp_act", "moe_act", "mla_up_proj"})
"""Those with a switch of their own: `--recompute-norm`, `--recompute-activation-function`, `--mla-up-proj-..`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What the rules ask about, apart from the plan."""

    model: Model
    job: Job
    cluster: Cluster
    devices: int

    @property
    def mtp(self) -> int:
        """MTP modules that are trained."""
        return self.model.mtp_depth if self.job.mtp else 0


Predicate = Callable[[Question, PlanLike], Num]
LayoutPredicate = Callable[[Question, Plan, Layout], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """`holds` is None where only layouts decide."""

    id: str
    text: str
    source: str
    holds: Predicate | None
    layout_holds: LayoutPredicate | None = None


def allowed_layouts(
    rules: Iterable[Rule], q: Question, plan: Plan, found: Sequence[tuple[str, Layout]]
) -> list[tuple[str, Layout]]:
    """Of the (rule, layout) pairs that a plan's layout field makes, those that no rule about layouts refuses."""
    asked = [rule.layout_holds for rule in rules if rule.layout_holds is not None]
    return [pair for pair in found if all(holds(q, plan, pair[1]) for holds in asked)]


def _v01(q: Question, p: PlanLike) -> Num:
    return q.devices % (p.tp * p.pp * p.cp) == 0


def _v02(q: Question, p: PlanLike) -> Num:
    return q.devices % (p.etp * p.ep * p.pp) == 0


def _v04(q: Question, p: PlanLike) -> Num:
    ranks = p.tp * p.cp * p.dp
    return (ranks * p.pp == q.devices) & (ranks % (p.etp * p.ep) == 0)


def _v20(q: Question, p: PlanLike) -> Num:
    return q.model.attention.heads % p.tp == 0


def _kv_heads(model: Model) -> int:
    return model.attention.kv_heads if isinstance(model.attention, GQA) else model.attention.heads


def _v21(q: Question, p: PlanLike) -> Num:
    groups = _kv_heads(q.model)
    return (groups % p.tp == 0) | (p.tp % groups == 0)


def _v22(q: Question, p: PlanLike) -> Num:
    return _kv_heads(q.model) % p.tp == 0


def _v25(q: Question, p: PlanLike) -> Num:
    moe = q.model.moe
    width = q.model.ffn_width if Kind.DENSE in decoder_kinds(q.model) else 0
    dense = width % p.tp == 0
    if moe is None:
        return dense
    return dense & (moe.shared_width % p.tp == 0) & (moe.expert_width % p.etp == 0)


def _v27(q: Question, p: PlanLike) -> Num:
    return (p.tp == 1) | (p.sp == 1) | (q.model.moe is None)


def _v31(q: Question, p: PlanLike) -> Num:
    halves = (p.cp == 1) | (q.job.seq_len % (2 * p.cp) == 0)
    return halves & (q.job.seq_len % (p.cp * where(p.sp, p.tp, 1)) == 0)


def _v38(q: Question, p: PlanLike) -> Num:
    return q.model.vocab % p.tp == 0


def _microbatches(q: Question, p: PlanLike) -> Num:
    return q.job.gbs // (p.mbs * p.dp)


def _v66(q: Question, p: PlanLike) -> Num:
    microbatches = _microbatches(q, p)
    return (p.vpp == 1) | ((microbatches >= p.pp) & (microbatches % p.pp == 0))


def _v71(q: Question, plan: Plan, layout: Layout) -> bool:
    del q, plan
    held = _slots_with(layout, Kind.MTP)
    last_chunk = all(slot // layout.pp == layout.vpp - 1 for slot in held)
    first_stage = any(slot % layout.pp == 0 for slot in held) and layout.pp > 1
    return len(held) <= 1 and last_chunk and not first_stage


def _slots_with(layout: Layout, kind: Kind) -> list[int]:
    return [i for i, slot in enumerate(layout.slots) if slot[kind]]


def _has_decoder(layout: Layout, slot: int) -> bool:
    return layout.slots[slot][Kind.DENSE] + layout.slots[slot][Kind.SPARSE] > 0


def _v72(q: Question, p: PlanLike) -> Num:
    return (p.tp > 0) & (q.mtp == 0 or q.model.learned_positions == 0)


def _v80(q: Question, p: PlanLike) -> Num:
    first = q.model.moe.first_dense if q.model.moe else 0
    return (p.pp == 1) | (first == 0) | (first < q.model.layers // p.pp)


def _v82(q: Question, p: PlanLike) -> Num:
    items = q.model.layers + q.mtp
    return (p.pp * p.vpp <= items) & (q.mtp <= 1)


def _v85(q: Question, plan: Plan, layout: Layout) -> bool:
    del q, plan
    return all(slot == len(layout.slots) - 1 for slot in _slots_with(layout, Kind.MTP))


def _v85b(q: Question, plan: Plan, layout: Layout) -> bool:
    last = len(layout.slots) - 1
    inner = all(_has_decoder(layout, slot) for slot in range(1, last))
    return inner and _v85(q, plan, layout) and (q.mtp == 0 or _has_decoder(layout, last))


def _v86(q: Question, p: PlanLike) -> Num:
    return (p.pp == 1) | (_microbatches(q, p) >= p.pp)


def _v90(q: Question, p: PlanLike) -> Num:
    return (q.job.gbs % (p.mbs * p.dp) == 0) & (q.job.gbs >= p.mbs * p.dp)


def _v94(q: Question, p: PlanLike) -> Num:
    return (p.overlap != Overlap.PAIR) | (p.vpp == 1) | (q.job.gbs // (p.mbs * p.pp * p.dp) > 1)


def _v100(q: Question, p: PlanLike) -> Num:
    if q.model.moe is None:
        return (p.ep == 1) & (p.etp == 1)
    return q.model.moe.experts % p.ep == 0


def _v101(q: Question, p: PlanLike) -> Num:
    return (p.dp * p.cp % p.ep == 0) & (q.devices % p.ep == 0)


def _v101b(q: Question, p: PlanLike) -> Num:
    del q
    return p.dp * p.tp % p.ep == 0


def _by_policy(p: PlanLike, passes: Callable[[str], bool]) -> Num:
    """A test of the recompute policy, asked once per word."""
    if isinstance(p, PlanTable):
        return np.array([passes(word) for word in p.words["recompute"]], dtype=bool)[p.recompute]
    return passes(p.recompute)


def _modules(policy: str) -> frozenset[str]:
    """Modules that a policy names; `none` and `fit` name none, `full` itself."""
    return frozenset(policy.split("+")) - {"none", "fit"}


def _pair_can_run(q: Question, p: PlanLike) -> Num:
    del q
    return (p.overlap != Overlap.PAIR) | ((p.ep > 1) & ((p.pp == 1) | (p.vpp > 1)))


def _v108(q: Question, p: PlanLike) -> Num:
    rebuilds_exchange = _by_policy(p, lambda policy: bool(_modules(policy) & {"full", "moe"}))
    refused = (p.overlap == Overlap.PAIR) & ((q.mtp > 1) | rebuilds_exchange)
    return _pair_can_run(q, p) & (refused == 0)


def _v112(q: Question, p: PlanLike) -> Num:
    return _pair_can_run(q, p) & ((p.overlap != Overlap.PAIR) | (p.etp == 1))


def _v112_layout(q: Question, plan: Plan, layout: Layout) -> bool:
    del q
    alone = plan.overlap != Overlap.PAIR or plan.pp == 1
    return alone or all(_has_decoder(layout, slot) for slot in range(len(layout.slots)))


def _v117(q: Question, p: PlanLike) -> Num:
    del q
    return p.etp == 1


def _v118(q: Question, p: PlanLike) -> Num:
    return (p.dispatch == Dispatch.FLAT) | (p.ep % q.cluster.node.size == 0)


def _v120(q: Question, p: PlanLike) -> Num:
    del q
    return _by_policy(p, lambda policy: "full" not in _modules(policy) or policy == "full")


def _v121(q: Question, p: PlanLike) -> Num:
    present = set(MEGATRON_MODULES)
    present -= {"moe_act"} if q.model.moe is None else set()
    present -= set() if isinstance(q.model.attention, MLA) else {"mla_up_proj"}
    return _by_policy(p, lambda policy: policy == "full" or _modules(policy) <= present)


def _v134(q: Question, p: PlanLike) -> Num:
    del q
    return _by_policy(p, lambda policy: policy == "full" or _modules(policy) <= MINDSPEED_MODULES)


def _v135(q: Question, p: PlanLike) -> Num:
    asked = _by_policy(p, lambda policy: "mla_up_proj" in _modules(policy))
    can = ((p.tp == 1) | (p.sp == 1)) & isinstance(q.model.attention, MLA)
    return can | (asked == 0)


def _t01(q: Question, p: PlanLike) -> Num:
    del q
    return p.overlap == Overlap.NONE


def _t02(q: Question, p: PlanLike) -> Num:
    del q
    return p.dispatch == Dispatch.FLAT


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
_MINDSPEED = "Ascend/MindSpeed 028de58c"
_MINDSPEED_LLM = "Ascend/MindSpeed-LLM c77308a1"
_MINDFORMERS = "mindspore-lab/mindformers r1.5.0"
_MINDFORMERS_NEW = "mindspore-ai/mindformers 167a50de"
_ROWS: tuple[tuple[str, str, str, Predicate | None], ...] = (
    ("V01", "devices must be a multiple of tp x pp x cp", f"{_MEGATRON} training/arguments.py", _v01),
    ("V02", "devices must be a multiple of etp x ep x pp", f"{_MEGATRON} core/parallel_state.py", _v02),
    ("V04", "tp x cp x dp x pp must be all devices, and tp x cp x dp a multiple of etp x ep",
     f"{_MEGATRON} core/parallel_state.py", _v04),
    ("V20", "attention heads must divide by tp", f"{_MEGATRON} core/transformer/transformer_config.py", _v20),
    ("V21", "kv heads must divide by tp, or tp by kv heads", f"{_MEGATRON} transformer_config.py", _v21),
    ("V22", "kv heads must divide by tp: they are not replicated", f"{_MINDFORMERS} llama_transformer.py", _v22),
    ("V25", "feed-forward widths must divide by tp, expert width by etp", f"{_MEGATRON} layers.py", _v25),
    ("V27", "experts with tp > 1 need sequence parallelism", f"{_MEGATRON} core/transformer/moe/moe_layer.py", _v27),
    ("V28", "experts with tp > 1 need sequence parallelism", f"{_MINDFORMERS_NEW} moe/moe_layer.py", _v27),
    ("V31", "the sequence must divide by 2 x cp, and by cp x tp under sp", f"{_MEGATRON} schedules.py", _v31),
    ("V38", "the vocabulary must divide by tp: it is not padded", f"{_MINDFORMERS} models/llama/llama.py", _v38),
    ("V64", "interleaving needs pp > 1 (2 is enough: transfers between stages overlap)",
     f"{_MEGATRON} training/arguments.py", _p01),
    ("V66", "interleaving needs microbatches in whole groups of pp", f"{_MEGATRON} schedules.py", _v66),
    ("V71", "all MTP in one slot: the last chunk of its stage, not the first stage",
     f"{_MEGATRON} core/transformer/pipeline_parallel_layer_layout.py", None),
    ("V72", "MTP needs rotary positions, or none", f"{_MEGATRON} training/arguments.py", _v72),
    ("V80", "dense layers at the bottom must be fewer than layers // pp",
     f"{_MINDSPEED_LLM} core/transformer/transformer_block.py", _v80),
    ("V82", "pp x vpp must not exceed layers with MTP; at most one MTP module",
     f"{_MINDFORMERS} models/deepseek3/utils.py", _v82),
    ("V85", "MTP sits in the last slot", f"{_MINDFORMERS} models/utils.py LayerSetting", None),
    ("V85b", "every slot between the first and the last needs a decoder layer, and MTP sits beside one in the last",
     f"{_MINDFORMERS_NEW} parallel_core/training_graph/transformer/utils.py", None),
    ("V86", "a pipeline needs microbatches >= pp", f"{_MINDFORMERS} TransformerOpParallelConfig", _v86),
    ("V90", "gbs must be a multiple of mbs x dp", f"{_MEGATRON} core/num_microbatches_calculator.py", _v90),
    ("V94", "overlap = pair with interleaving needs more than one group of pp microbatches",
     f"{_MINDSPEED} features_manager/moe/fb_overlap.py", _v94),
    ("V100", "routed experts must divide by ep; ep and etp need experts", f"{_MEGATRON} arguments.py", _v100),
    ("V101", "ep must divide dp x cp: it does not fold over tp", f"{_MINDFORMERS} modules/transformer/moe.py", _v101),
    ("V101b", "ep must divide dp x tp", f"{_MINDFORMERS_NEW} device_matrix.py; r1.5.0 moev3.py", _v101b),
    ("V108", "overlap = pair needs ep > 1, vpp > 1 where pp > 1, at most one MTP module, no moe or full recompute",
     f"{_MEGATRON} core/transformer/transformer_config.py", _v108),
    ("V112", "overlap = pair needs etp = 1, ep > 1, vpp > 1 where pp > 1, and a decoder layer in every slot",
     f"{_MINDSPEED} features_manager/moe/fb_overlap.py", _v112),
    ("V117", "experts are not cut: etp must be 1", f"{_MINDFORMERS} modules/transformer/moev3.py", _v117),
    ("V118", "hierarchical dispatch needs ep in whole nodes", f"{_MINDFORMERS} modules/transformer/moev3.py", _v118),
    ("V120", "full recompute takes no modules beside it", f"{_MEGATRON} transformer_config.py", _v120),
    ("V121", f"recompute modules are {' '.join(sorted(MEGATRON_MODULES))}, where the model has them",
     f"{_MEGATRON} core/transformer/transformer_config.py", _v121),
    ("V134", f"recompute modules are {' '.join(sorted(MINDSPEED_MODULES))}",
     f"{_MINDSPEED} features_manager/recompute", _v134),
    ("V135", "mla_up_proj needs MLA, and tp = 1 or sequence parallelism",
     f"{_MINDSPEED_LLM} mla_feature.py", _v135),
    ("T01", "this version does not merge passes: overlap must be none", "the target's own description", _t01),
    ("T02", "this version has no hierarchical dispatch", "the target's own description", _t02),
    ("N01", "devices must be whole nodes, or less than one", "arithmetic", _n01),
    ("L01", "no layout leaves every slot a layer, or its embedding, MTP or head", "arithmetic", None),
    ("P01", "interleaving (vpp > 1) needs pp > 1", "arithmetic", _p01),
    ("P02", "overlap = pair hides expert all-to-all: it needs ep > 1", "arithmetic", _p02),
    ("P03", "hierarchical dispatch needs experts spread over several nodes", "arithmetic", _p03),
    ("P04", "the interleaved schedule is the one with vpp > 1", "arithmetic", _p04),
    ("P05", "sequence parallelism needs tp > 1", f"{_MEGATRON} model_parallel_config.py (V26)", _p05),
)  # fmt: skip
_LAYOUTS: dict[str, LayoutPredicate] = {"V71": _v71, "V85": _v85, "V85b": _v85b, "V112": _v112_layout}

RULES: dict[str, Rule] = {
    id: Rule(id=id, text=text, source=source, holds=holds, layout_holds=_LAYOUTS.get(id))
    for id, text, source, holds in _ROWS
}
