"""Every rule by its id: V.. from the frameworks' own checks, T.. techniques that a version lacks, N.. the machine,
L.. layouts, P.. plain sense.

A predicate takes a `Question` and a plan or a table and says where the rule holds. Targets list the ids that
they enforce (catalog/targets); the order of that list decides which rule a refusal is counted under. Some rules
(also) ask about the layout that a plan resolves to: one plan and one layout at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autodeploy.legality import experts, mesh, pipeline, recompute
from autodeploy.legality.question import LayoutPredicate, Predicate, Question
from autodeploy.legality.recompute import MEGATRON_MODULES, MINDSPEED_MODULES
from autodeploy.spec.layout import Layout
from autodeploy.spec.plan import Plan

LAYOUT_FIELDS = ("pp", "vpp", "schedule", "layout", "overlap")
"""All of a plan that rules about layouts depend on."""


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


_MEGATRON = "NVIDIA/Megatron-LM d98e8a64"
_MINDSPEED = "Ascend/MindSpeed 028de58c"
_MINDSPEED_LLM = "Ascend/MindSpeed-LLM c77308a1"
_MINDFORMERS = "mindspore-lab/mindformers r1.5.0"
_MINDFORMERS_NEW = "mindspore-ai/mindformers 167a50de"
_ROWS: tuple[tuple[str, str, str, Predicate | None], ...] = (
    ("V01", "devices must be a multiple of tp x pp x cp", f"{_MEGATRON} training/arguments.py", mesh.v01),
    ("V02", "devices must be a multiple of etp x ep x pp", f"{_MEGATRON} core/parallel_state.py", mesh.v02),
    ("V04", "tp x cp x dp x pp must be all devices, and tp x cp x dp a multiple of etp x ep",
     f"{_MEGATRON} core/parallel_state.py", mesh.v04),
    ("V20", "attention heads must divide by tp", f"{_MEGATRON} core/transformer/transformer_config.py", mesh.v20),
    ("V21", "kv heads must divide by tp, or tp by kv heads", f"{_MEGATRON} transformer_config.py", mesh.v21),
    ("V22", "kv heads must divide by tp: they are not replicated", f"{_MINDFORMERS} llama_transformer.py", mesh.v22),
    ("V25", "feed-forward widths must divide by tp, expert width by etp", f"{_MEGATRON} layers.py", mesh.v25),
    ("V27", "experts with tp > 1 need sequence parallelism", f"{_MEGATRON} moe/moe_layer.py", experts.v27),
    ("V28", "experts with tp > 1 need sequence parallelism", f"{_MINDFORMERS_NEW} moe/moe_layer.py", experts.v27),
    ("V31", "the sequence must divide by 2 x cp, and by cp x tp under sp", f"{_MEGATRON} schedules.py", mesh.v31),
    ("V38", "the vocabulary must divide by tp: it is not padded", f"{_MINDFORMERS} models/llama/llama.py", mesh.v38),
    ("V64", "interleaving needs pp > 1 (2 is enough: transfers between stages overlap)",
     f"{_MEGATRON} training/arguments.py", pipeline.p01),
    ("V66", "interleaving needs microbatches in whole groups of pp", f"{_MEGATRON} schedules.py", pipeline.v66),
    ("V71", "all MTP in one slot: the last chunk of its stage, not the first stage",
     f"{_MEGATRON} core/transformer/pipeline_parallel_layer_layout.py", None),
    ("V72", "MTP needs rotary positions, or none", f"{_MEGATRON} training/arguments.py", pipeline.v72),
    ("V76", "dualpipev needs two layers a stage or more, cp = 1, untied embeddings and the layout even",
     f"{_MINDSPEED} features_manager/pipeline_parallel/dualpipev_feature.py", pipeline.v76),
    ("V76b", "zbv needs two microbatches a stage or more", "MindFormers configuration guide", pipeline.v76b),
    ("V80", "dense layers at the bottom must be fewer than layers // pp",
     f"{_MINDSPEED_LLM} core/transformer/transformer_block.py", pipeline.v80),
    ("V82", "pp x vpp must not exceed layers with MTP; at most one MTP module",
     f"{_MINDFORMERS} models/deepseek3/utils.py", pipeline.v82),
    ("V85", "MTP sits in the last slot", f"{_MINDFORMERS} models/utils.py LayerSetting", None),
    ("V85b", "every slot between the first and the last needs a decoder layer, and MTP sits beside one in the last",
     f"{_MINDFORMERS_NEW} parallel_core/training_graph/transformer/utils.py", None),
    ("V86", "a pipeline needs microbatches >= pp", f"{_MINDFORMERS} TransformerOpParallelConfig", pipeline.v86),
    ("V90", "gbs must be a multiple of mbs x dp", f"{_MEGATRON} core/num_microbatches_calculator.py", mesh.v90),
    ("V94", "overlap = pair with interleaving needs more than one group of pp microbatches",
     f"{_MINDSPEED} features_manager/moe/fb_overlap.py", pipeline.v94),
    ("V100", "routed experts must divide by ep; ep and etp need experts", f"{_MEGATRON} arguments.py", experts.v100),
    ("V101", "ep must divide dp x cp: it does not fold over tp", f"{_MINDFORMERS} moe.py", experts.v101),
    ("V101b", "ep must divide dp x tp", f"{_MINDFORMERS_NEW} device_matrix.py; r1.5.0 moev3.py", experts.v101b),
    ("V108", "overlap = pair needs ep > 1, vpp > 1 where pp > 1, at most one MTP module, no moe or full recompute",
     f"{_MEGATRON} core/transformer/transformer_config.py", recompute.v108),
    ("V112", "overlap = pair needs etp = 1, ep > 1, vpp > 1 where pp > 1, and a decoder layer in every slot",
     f"{_MINDSPEED} features_manager/moe/fb_overlap.py", experts.v112),
    ("V117", "experts are not cut: etp must be 1", f"{_MINDFORMERS} modules/transformer/moev3.py", experts.v117),
    ("V118", "hierarchical dispatch needs ep in whole nodes", f"{_MINDFORMERS} moev3.py", experts.v118),
    ("V120", "full recompute takes no modules beside it", f"{_MEGATRON} transformer_config.py", recompute.v120),
    ("V121", f"recompute modules are {' '.join(sorted(MEGATRON_MODULES))}, where the model has them",
     f"{_MEGATRON} core/transformer/transformer_config.py", recompute.v121),
    ("V134", f"recompute modules are {' '.join(sorted(MINDSPEED_MODULES))}",
     f"{_MINDSPEED} features_manager/recompute", recompute.v134),
    ("V135", "mla_up_proj needs MLA, and tp = 1 or sequence parallelism",
     f"{_MINDSPEED_LLM} mla_feature.py", recompute.v135),
    ("T01", "this version does not merge passes: overlap must be none", "the target's own description", experts.t01),
    ("T02", "this version has no hierarchical dispatch", "the target's own description", experts.t02),
    ("T03", "what is exported to it shards at most the optimizer state: zero must be 0 or 1",
     "the target's own description", mesh.t03),
    ("T04", "what is exported to it passes keys and values around a ring", "the target's own description", mesh.t04),
    ("T05", "this version has no de-duplicated dispatch", "the target's own description", experts.t05),
    ("T06", "this version keeps one copy of the sharded state: replicas must be 1", "the target's own description",
     mesh.t06),
    ("T07", "this version does not gather keys and values", "the target's own description", mesh.t07),
    ("T08", "what is exported to it rebuilds a module in all layers or in none", "the target's own description",
     recompute.t08),
    ("T09", "this version keeps fp32 and bf16 weights apart: states must not be reuse", "the target's own description",
     mesh.t09),
    ("T10", "this version keeps the optimizer's state on the device: states must not be host",
     "the target's own description", mesh.t10),
    ("T11", "what is exported to it keeps all rows on the device", "the target's own description", recompute.t11),
    ("T12", "what is exported to it swaps only what goes into the attention core and comes out of it",
     "the target's own description", recompute.t12),
    ("T13", "this version does not gather tokens for its experts", "the target's own description", experts.t13),
    ("T14", "this version has no fused dispatch", "the target's own description", experts.t14),
    ("T15", "this version keeps backward passes whole: schedule must be 1f1b or interleaved",
     "the target's own description", pipeline.t15),
    ("T16", "of the schedules with weight gradients apart this version has dualpipev", "the target's own description",
     pipeline.t16),
    ("T17", "of the schedules with weight gradients apart this version has zbv", "the target's own description",
     pipeline.t17),
    ("T18", "of the schedules with weight gradients apart this version has zbh1, zbv and dualpipev",
     "the target's own description", pipeline.t18),
    ("T19", "of the schedules with weight gradients apart this version has zbh1 and zbh2",
     "the target's own description", pipeline.t19),
    ("N01", "devices must be whole nodes, or less than one", "arithmetic", mesh.n01),
    ("N02", f"a step of more than {mesh.MOST_PASSES:,} chunk passes is not simulated", "arithmetic", mesh.n02),
    ("N03", "states = host needs the cluster's host link and memory (device.host_gb_per_s, device.host_gib)",
     "arithmetic", mesh.n03),
    ("L01", "no layout leaves every slot a layer, or its embedding, MTP or head", "arithmetic", None),
    ("P01", "interleaving (vpp > 1) needs pp > 1", "arithmetic", pipeline.p01),
    ("P02", "overlap = pair hides expert all-to-all: it needs ep > 1", "arithmetic", experts.p02),
    ("P03", "hierarchical dispatch needs experts spread over several nodes", "arithmetic", experts.p03),
    ("P04", "interleaved has vpp > 1; zbv, dualpipev and dualpipe have vpp 2, the others vpp 1", "arithmetic",
     pipeline.p04),
    ("P06", "dedup, gather and fused dispatch need spread experts: ep > 1", "arithmetic", experts.p06),
    ("P07", "kvgather and ulysses share keys and values: they need cp > 1", "arithmetic", mesh.p07),
    ("P08", "ulysses gives every rank whole heads: they must divide by tp x cp", "arXiv 2309.14509", mesh.p08),
    ("P09", "replicas must divide dp x cp (and edp), and need zero >= 1", "arithmetic", mesh.p09),
    ("P10", "weight gradients apart need pp > 1; dualpipev and dualpipe two microbatches a stage or more",
     "deepseek-ai/DualPipe dualpipe/dualpipev.py", pipeline.p10),
    ("P12", "dualpipe needs an even pp and an even number of microbatches", "deepseek-ai/DualPipe dualpipe/dualpipe.py",
     pipeline.p12),
    ("P11", "of the schedules with weight gradients apart dualpipev and dualpipe have passes to merge", "arithmetic",
     pipeline.p11),
    ("P05", "sequence parallelism needs tp > 1", f"{_MEGATRON} model_parallel_config.py (V26)", mesh.p05),
)  # fmt: skip
_LAYOUTS: dict[str, LayoutPredicate] = {
    "V71": pipeline.v71,
    "V76": pipeline.v76_layout,
    "V85": pipeline.v85,
    "V85b": pipeline.v85b,
    "V112": experts.v112_layout,
}

RULES: dict[str, Rule] = {
    id: Rule(id=id, text=text, source=source, holds=holds, layout_holds=_LAYOUTS.get(id))
    for id, text, source, holds in _ROWS
}
