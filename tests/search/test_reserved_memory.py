"""What stacks hold beside rows and state, by hand: messages of a pipeline, flat copies of an update, blocks left over.

DeepSpeed runtime/pipe/engine.py (pipe_buffers), runtime/zero/stage_1_and_2.py (step), runtime/utils.py
(all_gather_dp_groups); torchtitan train.py; PyTorch's CUDA caching allocator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autodeploy.fidelity.runs import run_of
from autodeploy.search.evaluate import evaluate
from autodeploy.search.result import StageResult
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space
from tests.fidelity.little import row

BLOOM = "BigScience BLOOM chronicles (A100 tuning)"
PASSES = ("first_forward", "first_backward", "forward", "backward")


def case_of(**changed: Any) -> tuple[Space, Plan]:
    run = run_of(row(**changed))
    return run.space, run.plan


def stages_with(space: Space, plan: Plan, **profile: Any) -> tuple[StageResult, ...]:
    target = replace(space.target, profile=replace(space.target.profile, **profile))
    return evaluate(replace(space, target=target), plan).stages


def test_a_pipeline_of_deepspeed_keeps_what_a_stage_receives_and_sends() -> None:
    space, plan = case_of(source=BLOOM, tp=1, pp=4, devices=8, precision="fp16")
    message = 2.0 * space.job.seq_len * plan.mbs * space.model.hidden
    plain, kept = (stages_with(space, plan, stage_copies=copies) for copies in (False, True))
    for stage, (before, after) in enumerate(zip(plain, kept, strict=True)):
        live, sides = 4 - stage, 2 - (stage in (0, 3))
        for moment in PASSES:
            grown = after.memory_moments[moment]["transient"] - before.memory_moments[moment]["transient"]
            assert grown == pytest.approx(live * sides * message, rel=1e-12)
        assert after.memory_moments["update"] == pytest.approx(before.memory_moments["update"])


@pytest.mark.parametrize(("precision", "cast"), [("fp16", 4.0), ("bf16", 0.0)])
def test_flat_copies_of_an_update_lie_beside_what_the_passes_left(precision: str, cast: float) -> None:
    space, plan = case_of(source=BLOOM, tp=1, pp=4, devices=8, precision=precision)
    for stage in evaluate(space, plan).stages:
        params = stage.memory_moments["update"]["weights"] / 2.0
        copied = cast * params / plan.dp + 2.0 * min(params, 5e8)
        assert stage.memory_moments["update"]["copies"] == pytest.approx(copied, rel=1e-12)
        passes = max(_allocated(stage, moment) for moment in PASSES)
        left = 1.0 - space.cluster.fragmentation_frac
        assert stage.reserved_bytes == pytest.approx((passes + copied) / left, rel=1e-12)
        assert stage.peak_memory_bytes == pytest.approx(max(passes, _allocated(stage, "update")), rel=1e-12)
        assert stage.allocated_first_step_bytes < _allocated(stage, "update")  # both copies are dropped again


def test_one_replica_gathers_nothing() -> None:
    space, plan = case_of(source=BLOOM, tp=1, pp=4, devices=4, precision="bf16")
    assert [stage.memory_moments["update"]["copies"] for stage in evaluate(space, plan).stages] == [0.0] * 4


def test_a_block_of_16_bit_logits_is_reserved_for_nothing() -> None:
    space, plan = case_of(source="pytorch torchtitan benchmarks", tp=1, pp=1, devices=8, flags="torch.compile")
    ((stage,), (with_block,)) = (stages_with(space, plan, logit_block_bytes=each) for each in (0.0, 2.0))
    block = 2.0 * plan.mbs * space.job.seq_len * space.model.vocab / (1.0 - space.cluster.fragmentation_frac)
    assert with_block.reserved_bytes - stage.reserved_bytes == pytest.approx(block, rel=1e-9)
    assert with_block.needed_bytes == stage.needed_bytes  # where memory is short the allocator gives it back


def test_graphs_of_single_layers_hold_their_input_and_two_gradients() -> None:
    source = "Megatron-Bridge performance docs"
    plain, recorded = (
        evaluate(*case_of(source=source, flags=flags, tp=1, pp=1, devices=8)).stages[0]
        for flags in ("", "TE CUDA graphs moe_router")
    )
    space, plan = case_of(source=source, tp=1, pp=1, devices=8)
    copies = space.model.layers * 3 * 2.0 * space.job.seq_len * plan.mbs * space.model.hidden
    grown = recorded.memory_moments["backward"]["activations"] - plain.memory_moments["backward"]["activations"]
    assert grown == pytest.approx(copies, rel=1e-9)


def _allocated(stage: StageResult, moment: str) -> float:
    terms = stage.memory_moments[moment]
    return sum(value for name, value in terms.items() if name not in ("communicators", "fragmentation"))
