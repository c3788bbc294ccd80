"""Launch flags of Megatron-LM, as megatron/training/arguments.py and its configuration classes read them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from autodeploy.formats.export import FULL, Draft, Subject, global_losses, stage_text
from autodeploy.spec.model import MLA
from autodeploy.spec.plan import CpComm, Dispatch, Overlap, States

Flag = tuple[str, ...]
"""A flag and its values."""
COVERS = {
    "layernorm": frozenset({"layernorm"}),
    "moe_act": frozenset({"moe_act"}),
    "mla_up_proj": frozenset({"mla_up_proj"}),
    "shared_experts": frozenset({"shared_experts"}),
    "mlp": frozenset({"mlp", "mlp_act"}),
    "moe": frozenset({"moe", "moe_act", "shared_experts"}),
    "core_attn": frozenset({"core_attn"}),
}
"""What a module of --recompute-modules rebuilds, in our modules; the names are the same."""
CP_COMM_TYPES = {CpComm.RING: "p2p", CpComm.GATHER: "all_gather", CpComm.ULYSSES: "a2a"}
DISPATCHERS: dict[Dispatch, list[Flag]] = {
    Dispatch.FLAT: [("--moe-token-dispatcher-type", "alltoall")],
    Dispatch.GATHER: [("--moe-token-dispatcher-type", "allgather")],
    Dispatch.FUSED: [("--moe-token-dispatcher-type", "flex"), ("--moe-flex-dispatcher-backend", "deepep")],
}
"""Of the other ways both say alltoall, and the loss is named."""
GRADIENT_FLAGS: dict[str, list[Flag]] = {
    "fp32": [("--accumulate-allreduce-grads-in-fp32",)], "bf16": [("--grad-reduce-in-bf16",)], "fp16": [],
}  # fmt: skip
"""fp16 runs keep fp16 gradients by themselves."""
NARROW_FLAGS: dict[str, Flag] = {"fp8": ("--fp8-format", "hybrid"), "nvfp4": ("--fp4-format", "e2m1")}
MOMENT_FLAGS: dict[str, list[Flag]] = {
    "fp32": [],
    "bf16": [("--use-precision-aware-optimizer",), ("--exp-avg-dtype", "bf16"), ("--exp-avg-sq-dtype", "bf16")],
}
STATE_FLAGS: dict[States, list[Flag]] = {States.HOST: [("--offload-optimizer-states",)]}
REASONS = {"mlp_act": "--recompute-modules has only the whole mlp"}
FULL_FLAGS: list[Flag] = [
    ("--recompute-granularity", "full"), ("--recompute-method", "uniform"), ("--recompute-num-layers", "1"),
]  # fmt: skip


def draft(subject: Subject) -> Draft:
    """A plan as flags of Megatron-LM."""
    recompute, losses = _recompute(subject)
    groups = [
        [*parallel_flags(subject), *_context_flags(subject)],
        batch_flags(subject),
        [*count_flags(subject), *layout_flags(subject)],
        recompute,
        expert_flags(subject, "--overlap-moe-expert-parallel-comm"),
        [
            *optimizer_flags(subject),
            *MOMENT_FLAGS[subject.space.job.moment_precision],
            *STATE_FLAGS.get(subject.plan.states, []),
        ],
    ]
    return Draft(body=flag_text(groups), losses=losses, notes=tuple(_notes(subject)))


def flag_text(groups: Sequence[Sequence[Flag]]) -> str:
    """One flag a line, continued by backslashes, quoted for a shell; an empty continued line parts two groups."""
    written = [" \\\n".join(" ".join(map(shlex.quote, flag)) for flag in group) for group in groups if group]
    return " \\\n\\\n".join(written) + "\n"


def parallel_flags(subject: Subject) -> list[Flag]:
    """Degrees; dp follows from the devices. The expert degree is always stated: unset, it takes the value of tp."""
    plan = subject.plan
    flags: list[Flag] = [
        ("--tensor-model-parallel-size", str(plan.tp)),
        ("--pipeline-model-parallel-size", str(plan.pp)),
        ("--context-parallel-size", str(plan.cp)),
    ]
    if subject.space.model.moe:
        flags += [("--expert-model-parallel-size", str(plan.ep)), ("--expert-tensor-parallel-size", str(plan.etp))]
    return flags + ([("--sequence-parallel",)] if plan.sp else [])


def _context_flags(subject: Subject) -> list[Flag]:
    return [("--cp-comm-type", CP_COMM_TYPES[subject.plan.cp_comm])] if subject.plan.cp > 1 else []


def batch_flags(subject: Subject) -> list[Flag]:
    """Sequences per micro-batch and step, and their length."""
    job = subject.space.job
    return [
        ("--micro-batch-size", str(subject.plan.mbs)),
        ("--global-batch-size", str(job.gbs)),
        ("--seq-length", str(job.seq_len)),
    ]


def count_flags(subject: Subject) -> list[Flag]:
    """What a layout counts."""
    mtp: list[Flag] = [("--mtp-num-layers", str(subject.mtp))] if subject.mtp else []
    return [("--num-layers", str(subject.space.model.layers)), *mtp]


def layout_flags(subject: Subject) -> list[Flag]:
    """The layout string, which also says vpp: its parts over pp."""
    return [("--pipeline-model-parallel-layout", subject.layout.notation)] if subject.plan.pp > 1 else []


def expert_flags(subject: Subject, pair_flag: str) -> list[Flag]:
    """Dispatch of tokens to experts; `pair_flag` merges passes."""
    if not subject.space.model.moe:
        return []
    dispatcher = DISPATCHERS.get(subject.plan.dispatch, DISPATCHERS[Dispatch.FLAT])
    flags = [*dispatcher, ("--moe-grouped-gemm",)]
    return flags + ([(pair_flag,)] if subject.plan.overlap is Overlap.PAIR else [])


def optimizer_flags(subject: Subject) -> list[Flag]:
    """Number formats, where the optimizer state lives, and what travels beside the passes."""
    job, sharded = subject.space.job, subject.plan.zero > 0
    flags: list[Flag] = [("--fp16",) if job.precision == "fp16" else ("--bf16",), *GRADIENT_FLAGS[job.grad_precision]]
    flags += [NARROW_FLAGS[job.precision]] if job.precision in NARROW_FLAGS else []
    flags += [("--use-distributed-optimizer",)] if sharded else []
    if subject.plan.replicas > 1:
        flags += [("--num-distributed-optimizer-instances", str(subject.plan.replicas))]
    if subject.overlaps_gradients:
        flags += [("--overlap-grad-reduce",), *([("--overlap-param-gather",)] if sharded else [])]
    return flags


def _recompute(subject: Subject) -> tuple[list[Flag], tuple[str, ...]]:
    """One set of modules for all stages: the union of what they rebuild."""
    if FULL in subject.rebuilt:
        return FULL_FLAGS, global_losses(subject, frozenset({FULL}), REASONS)
    named = [module for module in subject.rebuilt if module in COVERS]
    named = [module for module in named if not any(module in COVERS[other] - {other} for other in named)]
    given = frozenset().union(*(COVERS[module] for module in named))
    losses = (*global_losses(subject, given, REASONS), *_fused_norms(subject))
    if not named:
        return [], losses
    return [("--recompute-granularity", "selective"), ("--recompute-modules", *named)], losses


def _fused_norms(subject: Subject) -> list[str]:
    """Transformer Engine, the default, puts some norms inside the linear layer that follows; no flag rebuilds those."""
    latent = isinstance(subject.space.model.attention, MLA)
    stages = subject.stages_with("layernorm")
    if latent:
        stages = [stage for stage in stages if subject.holds(stage, "mlp") and "mlp" not in subject.rebuilt]
    if not stages:
        return []
    place = "" if latent else "before attention and "
    text = f"with Transformer Engine the norm {place}before a dense feed-forward is part of a linear layer"
    return [f"recompute layernorm on {stage_text(stages)}: {text}; the flag does not rebuild it"]


def _notes(subject: Subject) -> list[str]:
    notes = []
    if subject.plan.pp > 1:
        notes.append(vpp_note(subject))
    notes.append(vocab_note(subject))
    notes += _connection_notes(subject)
    if subject.plan.overlap is Overlap.PAIR:
        notes.append("--overlap-moe-expert-parallel-comm needs torch 2.6 and excludes --moe-shared-expert-overlap")
    return [*notes, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True keeps the allocator from fragmenting"]


def vpp_note(subject: Subject) -> str:
    """Which flag says vpp."""
    plan = subject.plan
    return (
        f"vpp {plan.vpp} follows from the {len(subject.layout.slots)} parts of the layout; no --num-layers-per-virtual-"
        "pipeline-stage or --num-virtual-stages-per-pipeline-rank beside it"
    )


def vocab_note(subject: Subject) -> str:
    """What the vocabulary is padded to."""
    multiple = subject.target.profile.vocab_multiple
    whole = multiple * subject.plan.tp
    padded = -(-subject.space.model.vocab // whole) * whole
    return f"--make-vocab-size-divisible-by {multiple} pads the vocabulary to {padded}"


def _connection_notes(subject: Subject) -> list[str]:
    plan = subject.plan
    if plan.tp == 1 and plan.cp == 1:
        return []
    if plan.overlap is Overlap.PAIR:
        return ["before Blackwell, CUDA_DEVICE_MAX_CONNECTIONS is 1 for tp and cp but 32 for merged passes: try both"]
    return ["before Blackwell, CUDA_DEVICE_MAX_CONNECTIONS=1 is required with tp > 1 or cp > 1"]
