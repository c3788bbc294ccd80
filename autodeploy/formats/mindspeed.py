"""Launch flags of MindSpeed-LLM over MindSpeed: Megatron's, where these do not have their own."""

from __future__ import annotations

from autodeploy.formats.export import FULL, Draft, Subject, global_losses
from autodeploy.formats.megatron import (
    FULL_FLAGS,
    Flag,
    batch_flags,
    count_flags,
    expert_flags,
    flag_text,
    layout_flags,
    optimizer_flags,
    parallel_flags,
    vocab_note,
    vpp_note,
)  # fmt: skip
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import CpComm, Schedule, States

ACTIVATIONS = frozenset({"mlp_act", "moe_act"})
STATE_FLAGS: dict[States, list[Flag]] = {States.REUSE: [("--reuse-fp32-param",)], States.HOST: [("--swap-optimizer",)]}
VEE_FLAGS: list[Flag] = [("--schedules-method", "dualpipev")]
PER_LAYER = ACTIVATIONS | {"layernorm"}
"""Their switches find the place of a layer in its chunk, by the layers per virtual stage."""
UNEVEN = "its switch needs equal chunks: it divides by the layers per virtual stage, which a layout string leaves unset"


def draft(subject: Subject) -> Draft:
    """A plan as flags of MindSpeed-LLM."""
    recompute, given = _recompute(subject)
    reasons = dict.fromkeys(PER_LAYER, UNEVEN) if _blocks_switches(subject) else {}
    groups = [
        [*parallel_flags(subject), *_context_flags(subject)],
        batch_flags(subject),
        [*_count_flags(subject), *_layout_flags(subject)],
        recompute,
        expert_flags(subject, "--moe-fb-overlap"),
        [*optimizer_flags(subject), *STATE_FLAGS.get(subject.plan.states, [])],
    ]
    losses = (*global_losses(subject, given, reasons), *_state_losses(subject))
    return Draft(body=flag_text(groups), losses=losses, notes=tuple(_notes(subject, recompute)))


def _state_losses(subject: Subject) -> tuple[str, ...]:
    """The optimizer with narrow moments is Transformer Engine's."""
    narrow = subject.space.job.moment_precision != "fp32"
    return ("job.moment_precision bf16: its Adam keeps the moments in fp32",) if narrow else ()


def _context_flags(subject: Subject) -> list[Flag]:
    algorithm = "ulysses_cp_algo" if subject.plan.cp_comm is CpComm.ULYSSES else "megatron_cp_algo"
    overlap: list[Flag] = [("--use-cp-send-recv-overlap",)] if subject.plan.cp_comm is CpComm.RING else []
    return [("--context-parallel-algo", algorithm), *overlap] if subject.plan.cp > 1 else []


def _count_flags(subject: Subject) -> list[Flag]:
    """Layers; on a V idle ones as well, which make its chunks equal."""
    if subject.plan.schedule is not Schedule.DUALPIPE_V:
        return count_flags(subject)
    layers, slots = subject.space.model.layers, len(subject.layout.slots)
    whole = -(-layers // slots) * slots
    mtp = count_flags(subject)[1:]
    idle = [("--noop-layers", ",".join(map(str, range(layers, whole))))] if whole > layers else []
    return [("--num-layers", str(whole)), *idle, *mtp]


def _is_even(subject: Subject) -> bool:
    """Whether the usual cut gives this layout: equal chunks, MTP in the last."""
    counts = {count for chunk in subject.layers(mtp=False) for count in chunk}
    return len(counts) == 1 and subject.layout.slots[-1][Kind.MTP] == subject.mtp


def _layout_flags(subject: Subject) -> list[Flag]:
    """Equal chunks by their size, with which every recompute switch works; all others by a layout string. DualPipeV
    cuts them itself."""
    if subject.plan.schedule is Schedule.DUALPIPE_V:
        return VEE_FLAGS
    if not _is_even(subject):
        return layout_flags(subject)
    if subject.plan.vpp == 1:
        return []
    return [("--num-layers-per-virtual-pipeline-stage", str(subject.layers(mtp=False)[0][0]))]


def _blocks_switches(subject: Subject) -> bool:
    return subject.plan.vpp > 1 and subject.plan.schedule is not Schedule.DUALPIPE_V and not _is_even(subject)


def _recompute(subject: Subject) -> tuple[list[Flag], frozenset[str]]:
    """Switches for the union of what the stages rebuild, each for all layers, and the modules that they rebuild."""
    named = frozenset(subject.rebuilt)
    if FULL in named:
        return FULL_FLAGS, frozenset({FULL})
    named -= PER_LAYER if _blocks_switches(subject) else frozenset()
    flags: list[Flag] = []
    given: frozenset[str] = named & {"layernorm", "mla_up_proj"}
    if named & ACTIVATIONS:
        flags.append(("--recompute-activation-function",))
        given |= ACTIVATIONS
    if "layernorm" in named:
        flags.append(("--recompute-norm",))
    if "mla_up_proj" in named:
        flags.append(("--recompute-mla-up-proj",))
        flags += [("--mla-mm-split",), ("--mla-up-proj-tp-overlap",)] if subject.plan.tp > 1 else []
    return flags, given


def _notes(subject: Subject, recompute: list[Flag]) -> list[str]:
    plan = subject.plan
    notes = []
    if plan.schedule is Schedule.DUALPIPE_V:
        notes.append("--schedules-method dualpipev makes the two chunks of a stage; vpp has no flag beside it")
    elif plan.pp > 1 and not _is_even(subject):
        notes.append(vpp_note(subject))
    elif plan.pp > 1:
        notes.append(f"equal chunks need no layout string; vpp {plan.vpp} follows from the layers per virtual stage")
    if plan.ep * plan.etp > plan.dp * plan.cp:
        notes.append(
            f"ep {plan.ep} is the whole expert group over tp x cp x dp; --moe-tp-extend-ep would multiply it by tp"
        )
    if ("--mla-mm-split",) in recompute:
        notes.append(
            "--recompute-mla-up-proj with tp > 1 needs --mla-mm-split, which checkpoints must be converted with"
        )
    notes.append(vocab_note(subject))
    if plan.tp > 1 or plan.cp > 1:
        notes.append("CUDA_DEVICE_MAX_CONNECTIONS=1 is set by the recipes and required with tp > 1")
    return [*notes, "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True keeps the allocator from fragmenting"]
