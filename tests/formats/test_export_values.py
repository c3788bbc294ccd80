"""Exports in general: who may ask, what the header says, what counts as a loss. Helpers of the other export tests."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from autodeploy.catalog.lookup import load
from autodeploy.errors import SpecError
from autodeploy.formats.document import plan_short
from autodeploy.formats.export import TARGETS, Export, export, stage_text
from autodeploy.search.enumerate import broken_rules, enumerate_plans
from autodeploy.search.evaluate import evaluate
from autodeploy.search.result import PlanResult
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.model import Kind, Model, mtp_kind
from autodeploy.spec.plan import Dispatch, Overlap, Plan
from autodeploy.spec.space import PlanValues, Space
from autodeploy.spec.target import Target
from tests.builders import SPACES, plan_of, some_rows, space_of

POLICIES = ("none", "fit", "full", "layernorm+mlp_act", "layernorm+moe_act", "mlp+moe+shared_experts", "mla_up_proj")
LAYOUTS = ("auto", "even", "light", "apart", "late")
Drawn = tuple[Space, PlanResult]


@cache
def drawn(path: Path, target: str) -> tuple[Drawn, ...]:
    """Random legal plans of a shipped space under a target, with more layouts and recompute policies than it lists."""
    space = replace(space_of(path), target=load(Target, target))
    legal = enumerate_plans(space).legal
    rng = np.random.default_rng(0)
    plans = [
        replace(legal.row(int(row)), layout=str(rng.choice(LAYOUTS)), recompute=str(rng.choice(POLICIES)))
        for row in some_rows(len(legal), 40, seed=0)
    ]
    return tuple((space, evaluate(space, plan)) for plan in plans if not broken_rules(space, plan))


@cache
def cases(target: str) -> tuple[tuple[Space, PlanResult, Export], ...]:
    """Exports of plans of every shipped space: legal for the target, and legal in no framework's eyes in particular."""
    plans = [case for path in SPACES for own in (target, "generic") for case in drawn(path, own)]
    return tuple((space, result, export(space, result, target)) for space, result in plans)


def space_on(model: str, cluster: str, devices: int, job: Job, target: str = "generic") -> Space:
    """A space of one's own, without plan values that matter."""
    return Space(
        name="x", model=load(Model, model), cluster=load(Cluster, cluster), target=load(Target, target),
        devices=devices, job=job, plan=PlanValues(tp=(1,), pp=(1,)),
    )  # fmt: skip


def arranged(space: Space, plan: Plan, *recompute: tuple[str, ...]) -> PlanResult:
    """A plan, and if given the recompute of every stage instead of what its policy comes to."""
    result = evaluate(space, plan)
    return replace(result, arrangement=replace(result.arrangement, recompute=recompute)) if recompute else result


def words(text: str) -> list[str]:
    """The words of a text as a shell would pass them on."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(line.endswith("\\") for line in lines[:-1])
    assert not lines[-1].endswith("\\")
    return shlex.split(" ".join(line.removesuffix("\\") for line in lines))


def flags(text: str) -> dict[str, list[str]]:
    """Flags and their values; each occurs once."""
    found: dict[str, list[str]] = {}
    for word in words(text):
        if word.startswith("--"):
            assert word not in found
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def stage_kinds(space: Space, result: PlanResult, stage: int) -> set[Kind]:
    """Kinds of layer on a stage, counted from its letters."""
    model, seen, held = space.model, 0, set()
    first, every = (model.moe.first_dense, model.moe.every) if model.moe else (model.layers, 1)
    slots = [slot for chunk in range(result.plan.vpp) for slot in [s.layers[chunk] for s in result.stages]]
    for i, slot in enumerate(slots):
        for letter in slot:
            sparse = seen >= first and (seen - first) % every == 0
            if i % result.plan.pp == stage and letter in "tm":
                held.add(mtp_kind(model) if letter == "m" else Kind.SPARSE if sparse else Kind.DENSE)
            seen += letter == "t"
    return held


def lost(found: Export, field: str, stage: int) -> bool:
    """Whether a loss of an export is about a field on a stage."""
    numbers = {
        number
        for loss in found.losses
        if loss.startswith(field + " ")
        for text in re.findall(r"stages? ([\d, -]+)", loss)
        for run in text.rstrip(", ").split(", ")
        for number in range(int(run.split("-")[0]), int(run.split("-")[-1]) + 1)
    }
    return stage in numbers


def test_a_target_without_a_writer_is_refused_by_the_names_of_those_with_one() -> None:
    space, result = drawn(SPACES[0], "generic")[0]
    for name in ("generic", "megatron", ""):
        with pytest.raises(SpecError, match=re.escape(" ".join(TARGETS))):
            export(space, result, name)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_header_names_everything_and_the_text_is_the_same_again(target: str) -> None:
    for space, result, found in cases(target)[::6]:
        head = [line for line in found.text.splitlines() if line.startswith("#")]
        assert found == export(space, result, target)
        for part in (space.model.title, space.cluster.title, load(Target, target).title, result.plan_id):
            assert any(part in line for line in head)
        assert any(f"plan {plan_short(space, result.plan)}, " in line for line in head)
        assert {f"# loss: {loss}" for loss in found.losses} | {f"# note: {note}" for note in found.notes} < set(head)
        assert found.text.startswith("\n".join(head) + "\n")
        assert found.text.isascii()


@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_of_the_targets_own_space_is_not_refused_and_any_other_by_the_rules_that_it_breaks(target: str) -> None:
    for space, result, found in cases(target):
        refusals = {loss for loss in found.losses if "refuses" in loss}
        ours = replace(space, target=load(Target, target))
        plan = replace(result.plan, layout=result.arrangement.layout, recompute="none")
        assert {f"plan: {target} refuses it by {rule}" for rule in broken_rules(ours, plan)} <= refusals
        assert not refusals or space.target.name == "generic"
    assert len(cases(target)) > 50


@pytest.mark.parametrize(
    ("target", "given", "rule"),
    [
        ("megatron-core", {"dispatch": Dispatch.HIER}, "T02"),
        ("mindspeed-llm", {"dispatch": Dispatch.HIER}, "T02"),
        ("megatron-core", {"dispatch": Dispatch.DEDUP}, "T05"),
        ("mindspeed-llm", {"dispatch": Dispatch.FUSED}, "T14"),
        ("mindformers-2026", {"dispatch": Dispatch.GATHER}, "T13"),
        ("mindformers-2026", {"overlap": Overlap.PAIR}, "T01"),
        ("mindformers-1.5", {"overlap": Overlap.PAIR}, "T01"),
        ("mindformers-2026", {"etp": 2}, "V117"),
        ("mindformers-1.5", {"ep": 256}, "V101"),
    ],
)
def test_what_a_target_cannot_do_is_a_loss(target: str, given: dict, rule: str) -> None:
    space = space_of(SPACES[1])
    plan = plan_of(tp=8, pp=16, vpp=2, dp=48, layout="light", **{"ep": 32, **given})
    losses = export(space, evaluate(space, plan), target).losses
    assert any(f"refuses it by {rule}: " in loss for loss in losses)


def test_recompute_is_asked_about_as_it_was_arranged() -> None:
    """V108: merged passes exclude moe and full recompute, which `fit` may come to on some stage."""
    space = space_on("deepseek-v3", "h100-80g", 2048, Job(gbs=8192, seq_len=4096), "megatron-core")
    plan = plan_of(tp=1, pp=2, vpp=2, dp=1024, ep=64, overlap=Overlap.PAIR, layout="light", recompute="fit")
    for modules, refused in ((("moe",), True), (("full",), True), (("mlp",), False), ((), False)):
        losses = export(space, arranged(space, plan, modules, ()), "megatron-core").losses
        assert any("V108" in loss for loss in losses) is refused


def test_parts_of_an_arrangement_that_nothing_writes_are_losses() -> None:
    space, result = drawn(SPACES[0], "megatron-core")[0]
    other = replace(result.arrangement, swap=(("attention",),), rank_order="tp-pp-dp")
    losses = export(space, replace(result, arrangement=other), "megatron-core").losses
    assert any(loss.startswith("swap: ") for loss in losses)
    assert any("'tp-pp-dp'" in loss for loss in losses)


def test_notes_say_whose_figures_these_are_and_whether_it_fits() -> None:
    space, result = drawn(SPACES[0], "generic")[0]
    notes = export(space, replace(result, fits=False), "megatron-core").notes
    assert any("target generic, not megatron-core" in note for note in notes)
    assert any("does not fit" in note for note in notes)
    own, fitting = drawn(SPACES[0], "megatron-core")[0]
    notes = export(own, replace(fitting, fits=True), "megatron-core").notes
    assert not any("were computed for" in note or "does not fit" in note for note in notes)


@pytest.mark.parametrize(
    ("stages", "text"), [((3,), "stage 3"), ((0, 1, 2), "stages 0-2"), ((0, 2, 3, 7), "stages 0, 2-3, 7")]
)
def test_stages_in_words(stages: tuple[int, ...], text: str) -> None:
    assert stage_text(stages) == text
