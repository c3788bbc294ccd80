"""A YAML fragment of MindFormers: the keys of its two configuration generations that a plan decides."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autodeploy.formats.export import FULL, Draft, Subject, stage_text
from autodeploy.spec.plan import Dispatch, Schedule, States
from autodeploy.units import gib

Grid = list[list[int]]
"""Numbers by chunk and stage."""
MOE_ACT = r"mlp\.experts\.swiglu"
"""Of the 2026 version, which rebuilds this operator unless told otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """Where the two generations differ."""

    offsets_count_mtp: bool
    """Whether MTP modules are layers for offsets and recompute lists."""
    layers_key: str
    mtp_key: str
    patterns: Mapping[str, tuple[str, ...]]
    """Operators of a layer that rebuild a module, by our modules."""


VERSIONS = {
    "mindformers-1.5": Version(
        offsets_count_mtp=True,
        layers_key="num_layers",
        mtp_key="mtp_depth",
        patterns={
            "layernorm": (r"attention_norm\.(norm|rcast)", r"ffn_norm\.(norm|rcast)"),
            "mlp_act": (r"feed_forward\.w1\.activation\.silu", r"feed_forward\.mul", r"feed_forward\.swiglu"),
            "mlp": (r"feed_forward\.w1\.matmul", r"feed_forward\.w3\.matmul"),
            "shared_experts": (
                r"feed_forward\.shared_experts\.w1\.matmul", r"feed_forward\.shared_experts\.w3\.matmul",
                r"feed_forward\.shared_experts\.w1\.activation\.silu", r"feed_forward\.shared_experts\.(mul|swiglu)",
            ),
            "moe": (r"feed_forward\.routed_experts",),
        },
    ),
    "mindformers-2026": Version(
        offsets_count_mtp=False,
        layers_key="num_hidden_layers",
        mtp_key="num_nextn_predict_layers",
        patterns={
            "layernorm": (r"input_layernorm\.(norm|cast)", r"pre_mlp_layernorm\.(norm|cast)"),
            "mlp_act": (r"mlp\.activation_func\.(silu|mul|swiglu)", r"mlp\.mul"),
            "moe_act": (MOE_ACT,),
            "mlp": (r"mlp\.linear_fc1\.matmul",),
            "shared_experts": (
                r"mlp\.shared_experts\.linear_fc1\.matmul",
                r"mlp\.shared_experts\.activation_func\.(silu|mul|swiglu)", r"mlp\.shared_experts\.mul",
            ),
            "moe": (r"mlp\.experts",),
        },
    ),
}  # fmt: skip
DISPATCHERS = {Dispatch.HIER: "alltoall_deredundency", Dispatch.DEDUP: "alltoall_zero_redundancy"}
"""Words of the newer version; both work in whole nodes."""


def draft(subject: Subject) -> Draft:
    """A plan as YAML of MindFormers."""
    version = VERSIONS[subject.target.name]
    document = {
        "context": {"max_device_memory": f"{int(gib(subject.space.cluster.device.usable_bytes))}GB"},
        "runner_config": _runner(subject),
        "parallel_config": _parallel_config(subject),
        "micro_batch_interleave_num": 1,
        "parallel": _parallel(subject),
        **({"optimizer": {"swap": True}} if subject.plan.states is States.HOST else {}),
        "recompute_config": _recompute_config(subject, version),
        "model": {"model_config": _model_config(subject, version)},
        **_moe_config(subject),
    }
    return Draft(body=_yaml(document), losses=tuple(_losses(subject, version)), notes=tuple(_notes(subject, version)))


def _runner(subject: Subject) -> dict[str, Any]:
    """Without a pipeline, micro-batches are gradient accumulation: micro_batch_num is reset to 1 there."""
    accumulation = {} if subject.plan.pp > 1 else {"gradient_accumulation_steps": subject.microbatches}
    return {"batch_size": subject.plan.mbs, **accumulation}


def _parallel_config(subject: Subject) -> dict[str, Any]:
    plan = subject.plan
    return {
        "data_parallel": plan.dp,
        "model_parallel": plan.tp,
        "context_parallel": plan.cp,
        "pipeline_stage": plan.pp,
        "expert_parallel": plan.ep,
        "micro_batch_num": subject.microbatches if plan.pp > 1 else 1,
        "use_seq_parallel": plan.sp,
        "vocab_emb_dp": False,
        "gradient_aggregation_group": subject.target.profile.grad_buckets,
    }


def _parallel(subject: Subject) -> dict[str, Any]:
    scheduler = "zero_bubble_v" if subject.plan.schedule is Schedule.ZB_V else "1f1b"
    return {
        "parallel_mode": 1,
        "enable_alltoall": subject.space.model.moe is not None,
        "enable_parallel_optimizer": subject.plan.zero > 0,
        "parallel_optimizer_config": {"gradient_accumulation_shard": False},
        "pipeline_config": {"pipeline_interleave": subject.plan.vpp > 1, "pipeline_scheduler": scheduler},
    }


def _model_config(subject: Subject, version: Version) -> dict[str, Any]:
    plan, model = subject.plan, subject.space.model
    config = {
        "seq_length": subject.space.job.seq_len,
        version.layers_key: model.layers,
        **({version.mtp_key: subject.mtp} if model.mtp_depth else {}),
        "pp_interleave_num": plan.vpp,
        "offset": _shaped(offsets(subject.layers(mtp=version.offsets_count_mtp)), plan.pp),
    }
    if model.moe is None or subject.target.name == "mindformers-1.5":
        return config
    dispatch = {"moe_token_dispatcher_type": DISPATCHERS.get(plan.dispatch, "alltoall"), "moe_grouped_gemm": True}
    nodes = {"npu_nums_per_device": subject.space.cluster.node.size} if plan.dispatch in DISPATCHERS else {}
    return config | dispatch | nodes


def _moe_config(subject: Subject) -> dict[str, Any]:
    """The block of its own that the older version has for experts."""
    if subject.space.model.moe is None or subject.target.name != "mindformers-1.5":
        return {}
    hier = subject.plan.dispatch is Dispatch.HIER
    node = {"npu_nums_per_device": subject.space.cluster.node.size} if hier else {}
    return {"moe_config": {"use_gmm": True, "enable_deredundency": hier, **node}}


def offsets(layers: Grid) -> Grid:
    """Layers of every chunk and stage less the even share, rounded down (V85)."""
    even = sum(map(sum, layers)) // sum(map(len, layers))
    return [[count - even for count in chunk] for chunk in layers]


def _shaped(grid: Grid, pp: int) -> Any:
    """As MindFormers takes it: by chunk and stage, by stage where there is one chunk, 0 without a pipeline."""
    if pp == 1:
        return 0
    return grid if len(grid) > 1 else grid[0]


def _layers_on(subject: Subject, version: Version, stages: Sequence[int]) -> Any:
    """Layers of the given stages, for a recompute key: `True` for all there are, `False` for none."""
    layers = subject.layers(mtp=version.offsets_count_mtp)
    chosen = [[count if stage in stages else 0 for stage, count in enumerate(chunk)] for chunk in layers]
    if chosen == layers:
        return True
    return _shaped(chosen, subject.plan.pp) if any(map(any, chosen)) else False


def _recompute_config(subject: Subject, version: Version) -> dict[str, Any]:
    kept = _kept_moe_act(subject)
    select = {
        pattern: _layers_on(subject, version, subject.stages_with(module))
        for module in subject.rebuilt
        for pattern in version.patterns.get(module, ())
        if not (pattern == MOE_ACT and kept)
    }
    config = {"recompute": _layers_on(subject, version, subject.stages_with(FULL)), "select_recompute": select or False}
    exclude = {"select_recompute_exclude": {MOE_ACT: _layers_on(subject, version, kept)}} if kept else {}
    return config | exclude


def _kept_moe_act(subject: Subject) -> list[int]:
    """Stages that have to tell the 2026 version not to rebuild the activation of its experts."""
    return subject.stages_keeping("moe_act") if subject.target.name == "mindformers-2026" else []


def _losses(subject: Subject, version: Version) -> list[str]:
    losses = [
        f"recompute {module} on {stage_text(stages)}: no operators of this version are known that rebuild it and no "
        "more; it is kept in memory"
        for module, stages in ((module, _unwritten(subject, version, module)) for module in subject.rebuilt)
        if stages
    ]
    more = sorted(set(subject.stages_with("moe")) & set(subject.stages_keeping("moe_act")))
    if more and "moe_act" not in version.patterns:
        losses.append(f"recompute moe on {stage_text(more)}: it rebuilds the activation of the experts as well")
    uneven = any(map(any, offsets(subject.layers(mtp=version.offsets_count_mtp))))
    if uneven and subject.plan.schedule is Schedule.ZB_V:
        losses.append("layout: which chunk an offset means under zero_bubble_v is not known; equal chunks are written")
    if subject.space.job.grad_precision != "fp32":
        kind = subject.space.job.grad_precision
        losses.append(f"job.grad_precision {kind}: gradients have the format of the parameters, fp32 in the recipes")
    if subject.space.job.moment_precision != "fp32":
        losses.append("job.moment_precision bf16: its Adam keeps the moments in fp32")
    return losses


def _unwritten(subject: Subject, version: Version, module: str) -> list[int]:
    """Stages on which nothing rebuilds a module: no pattern of its own, nor (moe_act) the experts around it."""
    if module == FULL or module in version.patterns:
        return []
    around = subject.stages_with("moe") if module == "moe_act" else []
    return [stage for stage in subject.stages_with(module) if stage not in around]


def _notes(subject: Subject, version: Version) -> list[str]:
    plan, job = subject.plan, subject.space.job
    count = "micro_batch_num" if plan.pp > 1 else "gradient_accumulation_steps"
    notes = [
        f"merge these keys into a configuration of the model; batch_size x data_parallel x {count} = {job.gbs}",
        "max_device_memory is what the plan may fill, in whole GiB",
    ]
    if subject.mtp and plan.pp > 1:
        counted = "count MTP, which is in the last part" if version.offsets_count_mtp else "leave MTP out"
        notes.append(f"offset and recompute lists {counted}")
    if subject.rebuilt and subject.rebuilt != (FULL,):
        notes.append(
            "a select_recompute pattern that matches no operator is ignored: look for it in the log of the start"
        )
    return [*notes, "dataset_strategy and full_batch belong to the dataset and are not written"]


def _yaml(document: Mapping[str, Any]) -> str:
    """YAML with lists on one line, and quotes where the recipes have them."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 10_000
    out = io.StringIO()
    yaml.dump(_styled(document), out)
    return out.getvalue()


def _styled(value: Any) -> Any:
    from ruamel.yaml.comments import CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, SingleQuotedScalarString

    if isinstance(value, Mapping):
        keys = {key: SingleQuotedScalarString(key) if "\\" in key else key for key in value}
        return {keys[key]: _styled(item) for key, item in value.items()}
    if isinstance(value, list):
        styled = CommentedSeq(_styled(item) for item in value)
        styled.fa.set_flow_style()
        return styled
    return DoubleQuotedScalarString(value) if isinstance(value, str) else value
