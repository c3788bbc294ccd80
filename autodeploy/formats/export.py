"""A plan in the words of a training framework: launch flags or a YAML fragment (docs/export.md).

What a target cannot state, or would silently do otherwise, is a loss; what its user should know beside it is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autodeploy.catalog.lookup import load
from autodeploy.errors import spec_error
from autodeploy.formats.document import plan_short, tool_version
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.result import PlanResult
from autodeploy.spec.arrangement import Arrangement
from autodeploy.spec.layout import Layout, make_layout
from autodeploy.spec.model import MLA, Kind, mtp_kind
from autodeploy.spec.placement import is_paired, placement_of, usual_schedule
from autodeploy.spec.plan import FIRST_SPLIT, RANK_ORDER, SCHEDULE_WORDS, Plan, Schedule
from autodeploy.spec.space import Space
from autodeploy.spec.target import ALL_MODULES, Target

TARGETS = ("megatron-core", "mindspeed-llm", "mindformers-1.5", "mindformers-2026")
WRITTEN_FORMATS = {"megatron-core": ("bf16", "fp16", "fp8", "nvfp4"), "mindspeed-llm": ("bf16", "fp16")}
"""Number formats that a target's writer states; of the others only bf16."""
WRITTEN_SCHEDULES = {"mindspeed-llm": Schedule.DUALPIPE_V, "mindformers-2026": Schedule.ZB_V}
"""The schedule with weight gradients apart that a target's writer states."""
FULL = "full"
DENSE_MODULES = frozenset({"mlp", "mlp_act"})
SPARSE_MODULES = frozenset({"moe", "moe_act", "shared_experts"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """A plan as one target reads it."""

    target: str
    text: str
    losses: tuple[str, ...]
    """What the text does not say of the plan, or what the target would do otherwise; one sentence each."""
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """What a writer makes of a plan: the text without its header."""

    body: str
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A plan to write, with everything that a writer asks about it."""

    space: Space
    result: PlanResult
    target: Target
    layout: Layout

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.result.plan

    @property
    def arrangement(self) -> Arrangement:
        """What the plan's rules came to."""
        return self.result.arrangement

    @property
    def mtp(self) -> int:
        """MTP modules that are trained."""
        return self.space.model.mtp_depth if self.space.job.mtp else 0

    @property
    def rebuilt(self) -> tuple[str, ...]:
        """Every module that some stage rebuilds."""
        named = {module for stage in self.arrangement.recompute for module in stage}
        return tuple(module for module in ALL_MODULES if module in named)

    @property
    def overlaps_gradients(self) -> bool:
        """Whether the target reduces gradients beside this plan's passes."""
        profile, paired = self.target.profile, is_paired(self.plan.schedule, self.plan.overlap)
        return profile.overlap_grad_reduce_paired if paired else profile.overlap_grad_reduce

    @property
    def microbatches(self) -> int:
        """Of a data-parallel rank in a step, from both ends where they enter at two."""
        return self.result.microbatches * (2 if self.plan.schedule is Schedule.DUALPIPE else 1)

    def layers(self, *, mtp: bool) -> list[list[int]]:
        """Decoder layers (and MTP modules) by chunk and stage."""
        kinds = (Kind.DENSE, Kind.SPARSE, *((Kind.MTP,) if mtp else ()))
        chunks = zip(*(self.layout.chunks(stage) for stage in range(self.plan.pp)), strict=True)
        return [[sum(slot[kind] for kind in kinds) for slot in stages] for stages in chunks]

    def holds(self, stage: int, module: str) -> bool:
        """Whether a stage has layers with something of a module in them."""
        model = self.space.model
        found = {kind for chunk in self.layout.chunks(stage) for kind in Kind if chunk[kind]}
        kinds = {mtp_kind(model) if kind is Kind.MTP else kind for kind in found} & {Kind.DENSE, Kind.SPARSE}
        if module == "shared_experts" and not (model.moe and model.moe.shared_width):
            return False
        if module in DENSE_MODULES or module in SPARSE_MODULES:
            return (Kind.DENSE if module in DENSE_MODULES else Kind.SPARSE) in kinds
        return bool(kinds) and (module != "mla_up_proj" or isinstance(model.attention, MLA))

    def stages_with(self, module: str) -> list[int]:
        """Stages that rebuild a module by name."""
        return [stage for stage, modules in enumerate(self.arrangement.recompute) if module in modules]

    def stages_keeping(self, module: str) -> list[int]:
        """Stages that hold a module and rebuild neither it nor whole layers."""
        return [
            stage
            for stage, modules in enumerate(self.arrangement.recompute)
            if self.holds(stage, module) and module not in modules and FULL not in modules
        ]


def export(space: Space, result: PlanResult, target: str) -> Export:
    """A plan for a target. Raises `SpecError` for a target that has no writer."""
    write = writer(target)
    subject = _subject(space, result, target)
    draft = write(subject)
    losses = tuple(dict.fromkeys((*_refusals(subject), *_unwritten(subject), *draft.losses)))
    notes = (*_own_notes(subject), *draft.notes)
    return Export(target=target, text=_header(subject, losses, notes) + draft.body, losses=losses, notes=notes)


def writer(target: str) -> Callable[[Subject], Draft]:
    """What writes plans for a target. Raises `SpecError` with the names allowed."""
    from autodeploy.formats import megatron, mindformers, mindspeed

    writers: Mapping[str, Callable[[Subject], Draft]] = {
        "megatron-core": megatron.draft,
        "mindspeed-llm": mindspeed.draft,
        "mindformers-1.5": mindformers.draft,
        "mindformers-2026": mindformers.draft,
    }
    if target not in writers:
        raise spec_error("--target", f"no export for {target!r}", " ".join(TARGETS))
    return writers[target]


def _subject(space: Space, result: PlanResult, target: str) -> Subject:
    plan = result.plan
    placement = placement_of(plan.schedule)
    layout = make_layout(space.model, space.job.mtp, plan.pp, plan.vpp, result.arrangement.layout, placement=placement)
    return Subject(space=space, result=result, target=load(Target, target), layout=layout)


def _refusals(subject: Subject) -> list[str]:
    """Rules of the target that the arranged plan breaks: it may come from another target's space."""
    known = [module for module in subject.rebuilt if module in subject.target.profile.modules]
    shares = [word for stage in subject.arrangement.recompute for word in stage if ":" in word]
    policy = shares[0] if shares else FULL if FULL in known else "+".join(known) or "none"
    asked = replace(subject.plan, layout=subject.arrangement.layout, recompute=policy)
    space = replace(subject.space, target=subject.target, only=(), ban=())
    return [f"plan: {subject.target.name} refuses it by {rule}" for rule in broken_rules(space, asked)]


def _unwritten(subject: Subject) -> list[str]:
    """Parts of an arrangement that no writer knows yet."""
    found = subject.arrangement
    losses = ["swap: rows kept on the host are not written"] if any(found.swap) else []
    job, family, schedule = subject.space.job, subject.target.name, subject.plan.schedule
    if schedule >= FIRST_SPLIT and schedule is not WRITTEN_SCHEDULES.get(family):
        word, usual = SCHEDULE_WORDS[schedule], SCHEDULE_WORDS[usual_schedule(subject.plan.vpp)]
        losses.append(f"schedule {word}: not written for {family}; the launch would run {usual}, on other stages")
    if job.lora_rank:
        losses.append(f"lora_rank {job.lora_rank}: adapters are not written; the launch would train all weights")
    if job.precision not in WRITTEN_FORMATS.get(family, ("bf16",)):
        losses.append(f"precision {job.precision}: not written for {family}; the launch would run in bf16")
    other = found.rank_order != RANK_ORDER
    return losses + ([f"rank_order: {found.rank_order!r} is not the order of the launch"] if other else [])


def _own_notes(subject: Subject) -> list[str]:
    space, result = subject.space, subject.result
    notes = [] if result.fits else ["does not fit in memory: a launch would run out of it"]
    if space.target.name != subject.target.name:
        notes.append(f"times and memory were computed for target {space.target.name}, not {subject.target.name}")
    return notes


def _header(subject: Subject, losses: Sequence[str], notes: Sequence[str]) -> str:
    space, plan, result = subject.space, subject.plan, subject.result
    spread = f"{space.devices} devices / (tp {plan.tp} x pp {plan.pp} x cp {plan.cp})"
    lines = [
        f"{space.model.title} on {space.devices} x {space.cluster.device.name} ({space.cluster.title})",
        f"plan {plan_short(space, plan)}, plan_id {result.plan_id}",
        f"for {subject.target.title}, target {subject.target.name}, written by autodeploy {tool_version()}",
        f"dp {plan.dp} = {spread}; {subject.microbatches} micro-batches a step; layout {result.arrangement.layout}",
        *(f"loss: {loss}" for loss in losses),
        *(f"note: {note}" for note in notes),
    ]
    return "".join(f"# {line}\n" for line in lines)


def stage_text(stages: Sequence[int]) -> str:
    """Stages in words, runs joined: `stages 0-3, 7`."""
    runs: list[list[int]] = []
    for stage in stages:
        if runs and stage == runs[-1][-1] + 1:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ("stage " if len(stages) == 1 else "stages ") + ", ".join(parts)


def global_losses(subject: Subject, given: frozenset[str], reasons: Mapping[str, str]) -> tuple[str, ...]:
    """Losses of recompute flags that hold for every stage: what they miss of the arrangement, and what they add.

    `given` are the modules that the flags rebuild, `reasons` say why a module is not among them.
    """
    losses = []
    for module in ALL_MODULES:
        asked, spared = subject.stages_with(module), subject.stages_keeping(module)
        if asked and module not in given and FULL not in given:
            reason = reasons.get(module, f"{subject.target.name} has no flag for it")
            losses.append(f"recompute {module} on {stage_text(asked)}: {reason}; it is kept in memory")
        if spared and module in given:
            losses.append(
                f"recompute {module}: the flag holds for every stage; {stage_text(spared)} would rebuild it too"
            )
    return tuple(losses)
