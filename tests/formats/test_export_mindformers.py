"""YAML of MindFormers: every key is the plan's, offsets restore the model, published recipes come out."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from ruamel.yaml import YAML

from autodeploy.formats.export import FULL, Export, export
from autodeploy.formats.mindformers import MOE_ACT, VERSIONS
from autodeploy.search.result import PlanResult
from autodeploy.spec.job import Job
from autodeploy.spec.layout import expand
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Dispatch
from autodeploy.spec.space import Space
from tests.builders import plan_of
from tests.formats.test_export_values import arranged, cases, lost, space_on, stage_kinds

YAML_TARGETS = tuple(VERSIONS)


@cache
def read(found: Export) -> dict[str, Any]:
    """The keys, as any YAML reader sees them."""
    return YAML(typ="safe", pure=True).load(found.text)


def grid(value: Any, result: PlanResult, layers: list[list[int]]) -> list[list[int]]:
    """Numbers by chunk and stage, from each form that MindFormers takes."""
    plan = result.plan
    if value is True:
        return layers
    if value is False or value == 0:
        return [[0] * plan.pp for _ in range(plan.vpp)]
    return value if isinstance(value[0], list) else [value]


def counted(target: str) -> str:
    """Letters that are layers for offsets and recompute lists."""
    return "tm" if target == "mindformers-1.5" else "t"


def layers_of(target: str, result: PlanResult) -> list[list[int]]:
    """Layers by chunk and stage, from the letters of the arrangement."""
    slots, plan = expand(result.arrangement.layout), result.plan
    counts = [sum(slot.count(letter) for letter in counted(target)) for slot in slots]
    return [counts[chunk * plan.pp : (chunk + 1) * plan.pp] for chunk in range(plan.vpp)]


@pytest.mark.parametrize("target", YAML_TARGETS)
@pytest.mark.slow
def test_every_key_is_the_plans(target: str) -> None:
    for space, result, written in cases(target):
        plan, found = result.plan, read(written)
        parallel = found["parallel_config"]
        assert parallel["data_parallel"] * parallel["model_parallel"] == plan.dp * plan.tp
        assert (parallel["model_parallel"], parallel["pipeline_stage"]) == (plan.tp, plan.pp)
        assert (parallel["context_parallel"], parallel["expert_parallel"]) == (plan.cp, plan.ep)
        assert parallel["use_seq_parallel"] is plan.sp
        assert found["parallel"]["enable_parallel_optimizer"] is (plan.zero == 1)
        assert found["parallel"]["pipeline_config"]["pipeline_interleave"] is (plan.vpp > 1)
        assert found["model"]["model_config"]["pp_interleave_num"] == plan.vpp
        assert found["model"]["model_config"]["seq_length"] == space.job.seq_len
        steps = found["runner_config"].get("gradient_accumulation_steps", 1)
        micro = parallel["micro_batch_num"] * found["micro_batch_interleave_num"] * steps  # V83
        assert found["runner_config"]["batch_size"] * parallel["data_parallel"] * micro == space.job.gbs
        assert (steps == 1) or plan.pp == 1


@pytest.mark.parametrize("target", YAML_TARGETS)
@pytest.mark.slow
def test_offsets_restore_the_layers(target: str) -> None:
    """V85: layers of a chunk are the even share, rounded down, plus its offset, and the offsets sum to the rest."""
    for space, result, written in cases(target):
        plan, config = result.plan, read(written)["model"]["model_config"]
        mtp = space.model.mtp_depth if space.job.mtp and target == "mindformers-1.5" else 0
        total, slots = space.model.layers + mtp, plan.pp * plan.vpp
        assert total == sum(map(sum, layers_of(target, result)))
        if plan.pp == 1:
            assert config["offset"] == 0
            continue
        offset = grid(config["offset"], result, [])
        assert sum(map(sum, offset)) == total % slots
        assert [[total // slots + each for each in chunk] for chunk in offset] == layers_of(target, result)


@pytest.mark.slow
@pytest.mark.parametrize("target", YAML_TARGETS)
def test_every_recompute_is_written_or_lost(target: str) -> None:
    for space, result, found in cases(target):
        config, layers = read(found)["recompute_config"], layers_of(target, result)
        whole = grid(config["recompute"], result, layers)
        select = {name: grid(each, result, layers) for name, each in (config["select_recompute"] or {}).items()}
        kept = config.get("select_recompute_exclude", {MOE_ACT: False})[MOE_ACT]
        for stage, modules in enumerate(result.arrangement.recompute):
            column = [chunk[stage] for chunk in layers]
            assert [chunk[stage] for chunk in whole] == (column if FULL in modules else [0] * len(column))
            for module, patterns in VERSIONS[target].patterns.items():
                want = column if module in modules else [0] * len(column)
                for pattern in (each for each in patterns if each in select):
                    assert [chunk[stage] for chunk in select[pattern]] == want
            for module in set(modules) - {FULL}:
                assert is_written(target, module, modules, select, kept) or lost(found, f"recompute {module}", stage)
            check_kept(target, space, result, stage, [chunk[stage] for chunk in grid(kept, result, layers)])


def is_written(target: str, module: str, modules: tuple[str, ...], select: dict[str, Any], kept: Any) -> bool:
    """Whether the text rebuilds a module of a stage: by patterns, with the experts around it, or by itself (2026)."""
    if module == "moe_act" and ("moe" in modules or (target == "mindformers-2026" and kept)):
        return True
    patterns = VERSIONS[target].patterns.get(module, ())
    return bool(patterns) and set(patterns) <= select.keys()


def check_kept(target: str, space: Space, result: PlanResult, stage: int, kept: list[int]) -> None:
    """The 2026 version rebuilds the activation of its experts unless told not to, layer by layer."""
    modules = set(result.arrangement.recompute[stage])
    sparse = Kind.SPARSE in stage_kinds(space, result, stage)
    keeps = target == "mindformers-2026" and sparse and not modules & {"moe_act", FULL}
    assert kept == ([chunk[stage] for chunk in layers_of(target, result)] if keeps else [0] * result.plan.vpp)


def deepseek(target: str, plan: Any, devices: int, gbs: int, *recompute: tuple[str, ...]) -> dict[str, Any]:
    """DeepSeek-V3 on Atlas 800T A2 as YAML."""
    space = space_on("deepseek-v3", "atlas-800t-a2", devices, Job(gbs=gbs, seq_len=4096), target)
    found = export(space, arranged(space, plan, *recompute), target)
    assert not any("refuses" in loss for loss in found.losses)
    return read(found)


def test_the_recipe_of_the_older_version() -> None:
    """mindformers r1.5.0 research/deepseek3/deepseek3_671b/pretrain_deepseek3_671b.yaml."""
    plan = plan_of(tp=4, pp=16, dp=16, ep=8, layout="Et*4|(t*4|)*14tmL")
    found = deepseek("mindformers-1.5", plan, 1024, 512)
    config = found["model"]["model_config"]
    assert config["offset"] == [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1]
    assert (config["num_layers"], config["mtp_depth"]) == (61, 1)
    parallel = found["parallel_config"]
    assert [parallel[key] for key in ("data_parallel", "model_parallel", "pipeline_stage")] == [16, 4, 16]
    assert [parallel[key] for key in ("expert_parallel", "micro_batch_num", "use_seq_parallel")] == [8, 32, True]
    assert found["moe_config"] == {"use_gmm": True, "enable_deredundency": False}


def test_the_recipe_of_the_newer_version() -> None:
    """mindformers 167a50de configs/deepseek3/pretrain_deepseek3_671b.yaml."""
    plan = plan_of(tp=8, pp=8, vpp=2, dp=4, ep=32, layout="Et*4|(t*4|)*14tmL")
    found = deepseek("mindformers-2026", plan, 256, 128, *((FULL,),) * 8)
    config = found["model"]["model_config"]
    assert config["offset"] == [[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, -2]]
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (61, 1)
    assert (config["pp_interleave_num"], config["moe_token_dispatcher_type"]) == (2, "alltoall")
    parallel = found["parallel_config"]
    assert [parallel[key] for key in ("data_parallel", "model_parallel", "pipeline_stage")] == [4, 8, 8]
    assert [parallel[key] for key in ("expert_parallel", "micro_batch_num", "use_seq_parallel")] == [32, 32, True]
    assert found["recompute_config"] == {"recompute": True, "select_recompute": False}
    assert found["parallel"]["pipeline_config"]["pipeline_interleave"] is True


def test_recompute_by_stage() -> None:
    """Three layers on the first of two chunks, whole layers on stage 0, activations of experts on stage 1 only."""
    plan = plan_of(tp=8, pp=4, vpp=2, dp=8, ep=64, layout="Et*8|(t*8|)*6t*5mL")
    stages = ((FULL,), ("layernorm", "moe_act"), (), ("mlp_act", "moe", "moe_act"))
    config = deepseek("mindformers-2026", plan, 256, 128, *stages)["recompute_config"]
    assert config["recompute"] == [[8, 0, 0, 0], [8, 0, 0, 0]]
    assert config["select_recompute"][r"input_layernorm\.(norm|cast)"] == [[0, 8, 0, 0], [0, 8, 0, 0]]
    assert config["select_recompute"][r"mlp\.experts"] == [[0, 0, 0, 8], [0, 0, 0, 5]]
    assert config["select_recompute_exclude"] == {MOE_ACT: [[0, 0, 8, 0], [0, 0, 8, 0]]}


@pytest.mark.parametrize("target", YAML_TARGETS)
def test_hierarchical_dispatch_has_a_key(target: str) -> None:
    """moev3.py, ffn.py: its inner groups are npu_nums_per_device ranks, so that size is written with it."""
    plan = plan_of(tp=4, pp=4, dp=16, ep=16, dispatch=Dispatch.HIER, layout="light")
    found = deepseek(target, plan, 256, 128)
    if target == "mindformers-1.5":
        assert found["moe_config"]["enable_deredundency"] is True
        assert found["moe_config"]["npu_nums_per_device"] == 8
    else:
        assert found["model"]["model_config"]["moe_token_dispatcher_type"] == "alltoall_deredundency"
        assert found["model"]["model_config"]["npu_nums_per_device"] == 8


def test_what_the_device_may_fill_is_in_whole_gibibytes() -> None:
    """60.97 GiB less 1.5 of context: the recipes set 55 to 58, and warn of more than 60."""
    found = deepseek("mindformers-1.5", plan_of(tp=4, pp=16, dp=16, ep=8, layout="light"), 1024, 512)
    assert found["context"]["max_device_memory"] == "59GB"


def test_without_a_pipeline_micro_batches_accumulate() -> None:
    """V83: with one stage micro_batch_num is reset to 1."""
    space = space_on("llama-3.1-8b", "atlas-800t-a2", 16, Job(gbs=128, seq_len=4096), "mindformers-2026")
    found = read(export(space, arranged(space, plan_of(tp=4, dp=4)), "mindformers-2026"))
    assert found["runner_config"] == {"batch_size": 1, "gradient_accumulation_steps": 32}
    assert found["parallel_config"]["micro_batch_num"] == 1
    assert found["model"]["model_config"]["offset"] == 0


def test_gradients_in_bf16_have_no_key() -> None:
    job = Job(gbs=128, seq_len=4096, grad_precision="bf16")
    space = space_on("llama-3.1-8b", "atlas-800t-a2", 16, job, "mindformers-2026")
    assert any(
        "grad_precision" in loss
        for loss in export(space, arranged(space, plan_of(tp=4, dp=4)), space.target.name).losses
    )
