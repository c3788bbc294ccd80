"""Launch flags of Megatron-LM and MindSpeed-LLM: every value is the plan's, every spelling is published."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from autodeploy.formats.export import FULL, Export, export
from autodeploy.search.result import PlanResult
from autodeploy.spec.job import Job
from autodeploy.spec.layout import expand
from autodeploy.spec.model import MLA, Kind
from autodeploy.spec.plan import CpComm, Dispatch, Overlap
from autodeploy.spec.space import Space
from tests.builders import plan_of
from tests.formats.test_export_values import arranged, cases, flags, lost, space_on, stage_kinds

FLAG_TARGETS = ("megatron-core", "mindspeed-llm")
DS3 = "NVIDIA/Megatron-LM examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh"
MSL = "Ascend/MindSpeed-LLM examples/mcore/deepseek3/pretrain_deepseek3_671b_4k_ptd.sh"
LAYOUT = "NVIDIA/Megatron-LM docs/user-guide/features/pipeline_parallel_layout.md"
GUIDE = "NVIDIA/Megatron-LM docs/user-guide/parallelism-guide.md"
ARGUMENTS = "NVIDIA/Megatron-LM megatron/training/arguments.py"
CONFIG = "NVIDIA/Megatron-LM megatron/core/model_parallel_config.py"
POC = "Ascend/MindSpeed-LLM tests/poc/deepseek3/pretrain_deepseek3_671b_4k_drop_512die_A3_ptd.sh"
MLA_FEATURE = "Ascend/MindSpeed-LLM features_manager/transformer/multi_latent_attention/mla_feature.py"
GLM = "Ascend/MindSpeed-LLM examples/mcore/glm5/pretrain_glm5_744b_4k_A3_ptd.sh"
SPELLED = {
    "--tensor-model-parallel-size": DS3, "--expert-model-parallel-size": DS3, "--expert-tensor-parallel-size": DS3,
    "--context-parallel-size": DS3, "--use-distributed-optimizer": DS3, "--overlap-grad-reduce": DS3,
    "--overlap-param-gather": DS3, "--sequence-parallel": DS3, "--micro-batch-size": DS3, "--global-batch-size": DS3,
    "--seq-length": DS3, "--num-layers": DS3, "--recompute-granularity": DS3, "--recompute-modules": DS3,
    "--pipeline-model-parallel-size": MSL, "--moe-grouped-gemm": MSL, "--moe-token-dispatcher-type": MSL,
    "--mtp-num-layers": MSL, "--bf16": MSL, "--recompute-method": MSL, "--recompute-num-layers": MSL,
    "--pipeline-model-parallel-layout": LAYOUT, "--cp-comm-type": GUIDE,
    "--accumulate-allreduce-grads-in-fp32": ARGUMENTS, "--grad-reduce-in-bf16": ARGUMENTS,
}  # fmt: skip
MEGATRON_ONLY = {"--overlap-moe-expert-parallel-comm": CONFIG}
MINDSPEED_ONLY = {
    "--moe-fb-overlap": MSL,
    "--num-layers-per-virtual-pipeline-stage": GLM,
    "--recompute-activation-function": "Ascend/MindSpeed docs/zh/features/activation-function-recompute.md",
    "--recompute-norm": "Ascend/MindSpeed docs/zh/features/norm-recompute.md",
    "--recompute-mla-up-proj": POC,
    "--mla-mm-split": MLA_FEATURE,
    "--mla-up-proj-tp-overlap": MLA_FEATURE,
    "--context-parallel-algo": MSL,
}
"""Every flag that may be written, and where its spelling was read."""
REBUILT_BY = {"mlp": {"mlp", "mlp_act"}, "moe": {"moe", "moe_act", "shared_experts"}}


def value(found: dict[str, list[str]], flag: str) -> int:
    """The one number after a flag."""
    (text,) = found[flag]
    return int(text)


def slots_of(found: dict[str, list[str]]) -> list[str]:
    """Slots that the flags make: from a layout string, or equal chunks with MTP and head in the last."""
    pp, layers = value(found, "--pipeline-model-parallel-size"), value(found, "--num-layers")
    mtp = value(found, "--mtp-num-layers") if "--mtp-num-layers" in found else 0
    if "--pipeline-model-parallel-layout" in found:
        (notation,) = found["--pipeline-model-parallel-layout"]
        return expand(notation)
    each = layers // pp
    if "--num-layers-per-virtual-pipeline-stage" in found:
        each = value(found, "--num-layers-per-virtual-pipeline-stage")
        assert each * pp != layers  # V63
    slots = ["t" * each] * (layers // each)
    assert "".join(slots) == "t" * layers
    return ["E" + slot if i == 0 else slot for i, slot in enumerate(slots[:-1])] + [
        ("E" if len(slots) == 1 else "") + slots[-1] + "m" * mtp + "L"
    ]


@pytest.mark.parametrize("target", FLAG_TARGETS)
def test_every_value_is_the_plans(target: str) -> None:
    for space, result, written in cases(target):
        plan, found = result.plan, flags(written.text)
        moe = space.model.moe is not None
        assert value(found, "--tensor-model-parallel-size") == plan.tp
        assert value(found, "--pipeline-model-parallel-size") == plan.pp
        assert value(found, "--context-parallel-size") == plan.cp
        assert plan.tp * plan.pp * plan.cp * plan.dp == space.devices
        assert ("--sequence-parallel" in found) is plan.sp
        assert value(found, "--micro-batch-size") == plan.mbs
        assert value(found, "--global-batch-size") == space.job.gbs == plan.mbs * plan.dp * result.microbatches
        assert value(found, "--seq-length") == space.job.seq_len
        assert ("--use-distributed-optimizer" in found) is (plan.zero == 1)
        assert ("--expert-model-parallel-size" in found) is moe
        if moe:
            assert value(found, "--expert-model-parallel-size") == plan.ep
            assert value(found, "--expert-tensor-parallel-size") == plan.etp
            assert found["--moe-token-dispatcher-type"] == ["alltoall"]


@pytest.mark.parametrize("target", FLAG_TARGETS)
def test_the_layout_is_the_arrangements(target: str) -> None:
    """The virtual degree is said once: by the parts of a layout string, or by the layers of equal chunks (V61)."""
    for space, result, written in cases(target):
        plan, found = result.plan, flags(written.text)
        slots = slots_of(found)
        assert slots == expand(result.arrangement.layout)
        assert len(slots) == plan.pp * plan.vpp
        chosen = {"--pipeline-model-parallel-layout", "--num-layers-per-virtual-pipeline-stage"} & found.keys()
        assert len(chosen) <= 1
        assert "".join(slots).count("t") == value(found, "--num-layers") == space.model.layers
        assert not re.search(r"\([^)]*\(", "".join(found.get("--pipeline-model-parallel-layout", [])))


@pytest.mark.parametrize("target", FLAG_TARGETS)
def test_spelling_is_published(target: str) -> None:
    known = SPELLED.keys() | (MEGATRON_ONLY if target == "megatron-core" else MINDSPEED_ONLY).keys()
    written: set[str] = set()
    for _, _, found in cases(target):
        written |= flags(found.text).keys()
    assert written <= known
    assert len(written) > 20


def rebuilt_everywhere(found: dict[str, list[str]]) -> set[str]:
    """Our modules that the flags rebuild on every stage."""
    if found.get("--recompute-granularity") == ["full"]:
        assert (found["--recompute-method"], found["--recompute-num-layers"]) == (["uniform"], ["1"])  # V120
        return {FULL}
    given: set[str] = set()
    for module in found.get("--recompute-modules", []):
        assert found["--recompute-granularity"] == ["selective"]
        given |= REBUILT_BY.get(module, {module})
    given |= {"mlp_act", "moe_act"} if "--recompute-activation-function" in found else set()
    given |= {"layernorm"} if "--recompute-norm" in found else set()
    return given | ({"mla_up_proj"} if "--recompute-mla-up-proj" in found else set())


@pytest.mark.parametrize("target", FLAG_TARGETS)
def test_every_recompute_is_written_or_lost(target: str) -> None:
    for space, result, found in cases(target):
        given = rebuilt_everywhere(flags(found.text))
        for stage, modules in enumerate(result.arrangement.recompute):
            for module in modules:
                assert {module, FULL} & given or lost(found, f"recompute {module}", stage)
            for module in given & held(space, result, stage):
                assert {module, FULL} & set(modules) or lost(found, f"recompute {module}:", stage)


def held(space: Space, result: PlanResult, stage: int) -> set[str]:
    """Modules that the layers of a stage have something in."""
    kinds = stage_kinds(space, result, stage)
    found = {"layernorm", FULL} if kinds else set()
    found |= {"mlp", "mlp_act"} if Kind.DENSE in kinds else set()
    found |= {"mla_up_proj"} if kinds and isinstance(space.model.attention, MLA) else set()
    if Kind.SPARSE in kinds:
        found |= {"moe", "moe_act"}
        assert space.model.moe is not None
        found |= {"shared_experts"} if space.model.moe.shared_width else set()
    return found


def test_merged_passes_and_what_goes_beside_them() -> None:
    """V112: MindSpeed refuses gradient overlap under merged passes. V126: gathering needs the distributed optimizer."""
    seen = set()
    for target, flag in (
        ("megatron-core", "--overlap-moe-expert-parallel-comm"),
        ("mindspeed-llm", "--moe-fb-overlap"),
    ):
        for _, result, written in cases(target):
            found, pair = flags(written.text), result.plan.overlap is Overlap.PAIR
            seen.add((target, pair))
            assert (flag in found) is pair
            assert ("--overlap-grad-reduce" in found) is not (pair and target == "mindspeed-llm")
            assert ("--overlap-param-gather" in found) is ("--overlap-grad-reduce" in found and result.plan.zero == 1)
    assert len(seen) == 4


def test_the_documented_layout_of_a_published_model() -> None:
    """61 layers and one MTP module on 16 stages of two chunks: the example of Megatron's own page on layouts."""
    space = space_on("deepseek-v3", "h100-80g", 1024, Job(gbs=2048, seq_len=4096), "megatron-core")
    plan = plan_of(pp=16, vpp=2, dp=64, ep=64, layout="apart")
    found = flags(export(space, arranged(space, plan), "megatron-core").text)
    assert found["--pipeline-model-parallel-layout"] == ["Et*3|(tt|)*29,m|L".replace(",", "")]


@pytest.mark.parametrize("target", FLAG_TARGETS)
def test_a_shell_passes_the_words_on(target: str) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    space = space_on("deepseek-v3", "h100-80g", 1024, Job(gbs=2048, seq_len=4096), target)
    result = arranged(space, plan_of(pp=16, vpp=2, dp=64, ep=64, layout="light"))
    text = export(space, result, target).text
    head = [line for line in text.splitlines(keepends=True) if line.startswith("#")]
    script = "".join(head) + "printf '%s\\n' \\\n" + text[len("".join(head)) :]
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True)
    assert result.arrangement.layout in done.stdout.splitlines()
    assert done.stdout.split() == [word for flag, values in flags(text).items() for word in (flag, *values)]


def megatron(*recompute: tuple[str, ...], model: str = "deepseek-v3") -> Export:
    """Two stages of a model with a given recompute, under Megatron."""
    space = space_on(model, "h100-80g", 512, Job(gbs=1024, seq_len=4096), "megatron-core")
    plan = plan_of(tp=2, pp=2, dp=128, ep=8 if space.model.moe else 1, layout="even")
    return export(space, arranged(space, plan, *recompute), "megatron-core")


@pytest.mark.parametrize(
    ("recompute", "modules", "losses"),
    [
        ((("moe_act",), ("moe_act",)), ["moe_act"], []),
        ((("mla_up_proj",), ()), ["mla_up_proj"], ["recompute mla_up_proj: the flag holds for every stage; stage 1 "]),
        ((("mlp", "mlp_act"), ()), ["mlp"], []),
        ((("mlp",), ()), ["mlp"], ["recompute mlp_act: the flag holds for every stage; stage 0 would"]),
        ((("mlp_act",), ()), [], ["recompute mlp_act on stage 0: --recompute-modules has only the whole mlp"]),
        (
            (("moe", "moe_act"), ("moe_act",)),
            ["moe"],
            ["recompute shared_experts: the flag holds for every stage; stages 0-1 ", "recompute moe: the flag holds"],
        ),
        ((("layernorm",), ("layernorm",)), ["layernorm"], ["recompute layernorm on stage 0: with Transformer Engine"]),
        ((("layernorm", "mlp", "mlp_act"), ("layernorm",)), ["layernorm", "mlp"], []),
        ((("full",), ("full",)), None, []),
        ((("full",), ("layernorm",)), None, ["recompute full: the flag holds for every stage; stage 1 would rebuild"]),
    ],
)
def test_one_set_of_modules_for_all_stages(recompute: tuple, modules: list[str] | None, losses: list[str]) -> None:
    """DeepSeek-V3: three dense layers at the bottom, all on stage 0."""
    found = megatron(*recompute)
    written = flags(found.text)
    assert written.get("--recompute-granularity") == (
        ["full"] if modules is None else ["selective"] if modules else None
    )
    assert written.get("--recompute-modules", []) == (modules or [])
    assert len(found.losses) == len(losses)
    assert all(any(loss.startswith(start) for loss in found.losses) for start in losses)


def test_norms_inside_a_linear_layer_are_not_rebuilt() -> None:
    """Transformer Engine has the norm before grouped-query attention in the qkv layer (gpt_layer_specs.py)."""
    (loss,) = megatron(("layernorm",), ("layernorm",), model="llama-3.1-70b").losses
    assert loss.startswith("recompute layernorm on stages 0-1: with Transformer Engine the norm before attention")


def mindspeed(
    layout: str, vpp: int, *recompute: tuple[str, ...], tp: int = 2, model: str = "qwen3-235b-a22b"
) -> Export:
    """Two stages of a model under MindSpeed-LLM."""
    space = space_on(model, "atlas-800t-a2", 512, Job(gbs=1024, seq_len=4096), "mindspeed-llm")
    plan = plan_of(tp=tp, pp=2, vpp=vpp, dp=256 // tp, ep=8 if space.model.moe else 1, layout=layout)
    return export(space, arranged(space, plan, *recompute), "mindspeed-llm")


def test_equal_chunks_are_said_by_their_size_and_others_by_a_layout_string() -> None:
    """94 layers on two stages: 47 each; with two chunks 24, 24, 23, 23."""
    assert not any("--num-layers-per" in flag or "layout" in flag for flag in flags(mindspeed("even", 1).text))
    assert flags(mindspeed("even", 2).text)["--pipeline-model-parallel-layout"] == ["Et*24|t*24|t*23|t*23L"]
    found = flags(mindspeed("even", 2, model="llama-3.1-70b").text)
    assert found["--num-layers-per-virtual-pipeline-stage"] == ["20"]
    assert "--pipeline-model-parallel-layout" not in found


def test_per_layer_switches_need_equal_chunks() -> None:
    """mindspeed/model/transformer.py divides by the layers per virtual stage, which a layout string leaves unset."""
    asked = (("layernorm", "mlp_act"),) * 2
    found = mindspeed("even", 2, *asked, model="llama-3.1-70b")
    assert {"--recompute-norm", "--recompute-activation-function"} <= flags(found.text).keys()
    assert found.losses == ()
    for layout, vpp, works in (("Et*48|t*46L", 1, True), ("light", 2, False)):
        found = mindspeed(layout, vpp, ("layernorm", "moe_act"), ("layernorm", "moe_act"))
        assert ("--recompute-norm" in flags(found.text)) is works
        assert (found.losses == ()) is works
    assert [loss.split(":")[0] for loss in found.losses] == [
        f"recompute {m} on stages 0-1" for m in ("layernorm", "moe_act")
    ]


def test_latent_up_projection_under_tensor_parallelism_takes_two_more_flags() -> None:
    """V135: without --mla-up-proj-tp-overlap it is refused where tp > 1, and that one needs --mla-mm-split."""
    extra = {"--mla-mm-split", "--mla-up-proj-tp-overlap"}
    for tp, more in ((2, extra), (1, set())):
        found = mindspeed("even", 1, ("mla_up_proj",), ("mla_up_proj",), tp=tp, model="deepseek-v3")
        assert "--recompute-mla-up-proj" in flags(found.text)
        assert flags(found.text).keys() & extra == more


def test_a_switch_for_activations_rebuilds_those_of_dense_and_sparse_layers() -> None:
    losses = mindspeed("even", 1, ("moe_act",), ("moe_act",), model="deepseek-v3").losses
    assert [loss for loss in losses if "recompute" in loss] == [
        "recompute mlp_act: the flag holds for every stage; stage 0 would rebuild it too"
    ]
    assert mindspeed("even", 1, ("moe",), ("moe",)).losses == (
        "recompute moe on stages 0-1: mindspeed-llm has no flag for it; it is kept in memory",
    )


@pytest.mark.parametrize("target", FLAG_TARGETS)
def test_notes_on_the_launch(target: str) -> None:
    cluster = "h100-80g" if target == "megatron-core" else "atlas-800t-a2"
    space = space_on("deepseek-v3", cluster, 1024, Job(gbs=2048, seq_len=4096), target)

    def notes(**given: int) -> str:
        return "\n".join(export(space, arranged(space, plan_of(layout="light", **given)), target).notes)

    wide, narrow = notes(tp=8, pp=16, vpp=2, dp=8, ep=64), notes(pp=16, vpp=2, dp=64, ep=64)
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in wide
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in narrow
    assert "vpp 2 follows from the 32 parts of the layout" in wide
    assert "expandable_segments:True" in wide
    assert ("--moe-tp-extend-ep" in wide) is (target == "mindspeed-llm")
    assert "--moe-tp-extend-ep" not in narrow
    multiple, padded = (128, 130048) if target == "megatron-core" else (1, 129280)
    assert f"--make-vocab-size-divisible-by {multiple} pads the vocabulary to {padded}" in wide


CONTEXTS = (
    # target, flag, its words: Megatron-LM arguments.py (--cp-comm-type); MindSpeed features_manager
    # /context_parallel/context_parallel_feature.py, which maps each to the same three of Megatron-LM
    ("megatron-core", "--cp-comm-type", {CpComm.RING: "p2p", CpComm.GATHER: "all_gather", CpComm.ULYSSES: "a2a"}),
    ("mindspeed-llm", "--context-parallel-algo", {CpComm.RING: "megatron_cp_algo", CpComm.ULYSSES: "ulysses_cp_algo"}),
)


@pytest.mark.parametrize(("target", "flag", "ways"), CONTEXTS)
def test_context_ranks_share_keys_as_the_plan_says(target: str, flag: str, ways: dict[CpComm, str]) -> None:
    cluster = "h100-80g" if target == "megatron-core" else "atlas-800t-a2"
    space = space_on("llama-3.1-70b", cluster, 64, Job(gbs=64, seq_len=8192), target)
    for how, word in ways.items():
        plan = plan_of(tp=4, pp=2, cp=4, dp=2, cp_comm=how)
        found = export(space, arranged(space, plan), target)
        assert flags(found.text)[flag] == [word]
        assert found.losses == ()
    alone = plan_of(tp=4, pp=2, dp=8)
    assert flag not in flags(export(space, arranged(space, alone), target).text)


def test_fused_dispatch_is_that_of_deepep() -> None:
    """NVIDIA/Megatron-LM megatron/core/transformer/moe/README.md: the flex dispatcher and its backend."""
    space = space_on("deepseek-v3", "h100-80g", 256, Job(gbs=2048, seq_len=4096), "megatron-core")
    plan = plan_of(tp=2, pp=4, dp=32, ep=32, layout="light", dispatch=Dispatch.FUSED)
    found = flags(export(space, arranged(space, plan), "megatron-core").text)
    assert found["--moe-token-dispatcher-type"] == ["flex"]
    assert found["--moe-flex-dispatcher-backend"] == ["deepep"]
    assert "--moe-grouped-gemm" in found


def test_gathered_dispatch_has_a_dispatcher_of_its_own() -> None:
    space = space_on("deepseek-v3", "h100-80g", 256, Job(gbs=2048, seq_len=4096), "megatron-core")
    plan = plan_of(tp=2, pp=4, dp=32, ep=8, layout="light", dispatch=Dispatch.GATHER)
    found = flags(export(space, arranged(space, plan), "megatron-core").text)
    assert found["--moe-token-dispatcher-type"] == ["allgather"]


@pytest.mark.parametrize("replicas", [1, 4])
def test_replicas_are_instances_of_the_distributed_optimizer(replicas: int) -> None:
    """NVIDIA/Megatron-LM megatron/training/arguments.py."""
    space = space_on("llama-3.1-70b", "h100-80g", 64, Job(gbs=64, seq_len=8192), "megatron-core")
    found = flags(export(space, arranged(space, plan_of(tp=8, dp=8, replicas=replicas)), "megatron-core").text)
    assert found.get("--num-distributed-optimizer-instances", ["1"]) == [str(replicas)]
    assert "--use-distributed-optimizer" in found


def test_narrow_moments_are_those_of_the_precision_aware_optimizer() -> None:
    """NVIDIA/Megatron-LM megatron/core/optimizer/optimizer_config.py; it needs Transformer Engine."""
    plan, job = plan_of(tp=8, dp=8), Job(gbs=64, seq_len=8192, moment_precision="bf16")
    space = space_on("llama-3.1-70b", "h100-80g", 64, job, "megatron-core")
    found = export(space, arranged(space, plan), "megatron-core")
    assert "--use-precision-aware-optimizer" in flags(found.text)
    assert flags(found.text)["--exp-avg-dtype"] == flags(found.text)["--exp-avg-sq-dtype"] == ["bf16"]
    assert found.losses == ()
    for target in ("mindspeed-llm", "mindformers-2026"):
        assert any("moment_precision" in loss for loss in export(space, arranged(space, plan), target).losses)


JOBS: tuple[tuple[dict[str, Any], str, str], ...] = (
    # a job of another kind, what a flag that says so holds, and the word of a loss where there is none
    ({"precision": "fp16"}, "--fp16", "precision"),
    ({"precision": "fp8"}, "--fp8", "precision"),
    ({"lora_rank": 8}, "--lora", "lora"),
)


@pytest.mark.parametrize(("job", "flag", "word"), JOBS)
@pytest.mark.parametrize("target", FLAG_TARGETS)
def test_what_is_trained_otherwise_is_written_or_lost(target: str, job: dict[str, Any], flag: str, word: str) -> None:
    space = space_on("llama-3.1-70b", "h100-80g", 64, Job(gbs=64, seq_len=8192, **job), target)
    found = export(space, arranged(space, plan_of(tp=8, pp=2, dp=4)), target)
    written = any(each.startswith(flag) for each in flags(found.text))
    assert written or any(word in loss for loss in found.losses)
