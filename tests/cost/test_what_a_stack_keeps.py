"""What stacks keep beside weights, sums of gradients and state: narrow moments and gradients, 8-bit inputs, masks.

Figures: arXiv 2205.05198 section 4 (34 s b h), arXiv 2502.07846 table 8 (bf16 moments), arXiv 2603.07685 table 3
(inputs in 8 bits), torchtitan at 9dec370 parallelize_llama.py (selective recompute by ops).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.analysis.inventory import kind_counts
from autodeploy.analysis.readings import PLAIN, saved_bytes, transient_bytes
from autodeploy.balance.recompute import ladder
from autodeploy.catalog.lookup import load
from autodeploy.cost.memory import Params, communicator_bytes, host_bytes, moments_bytes, state_bytes
from autodeploy.fidelity.stacks import stack_of
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Overlap, States
from autodeploy.spec.target import Profile, Target
from tests.builders import cluster_of, costs_of, job_of, model_of, ops_of, plan_of
from tests.fidelity.little import row

MIB = 2.0**20
ONE = Params(1.0, 0.0)


def profile_of(target: str) -> Profile:
    return load(Target, target).profile


def bytes_of_one(profile: Profile = PLAIN, zero: int = 1, shards: float = 1.0, **job: str) -> dict[str, float]:
    """Resident bytes of one parameter."""
    found = state_bytes(job_of(**job), profile, plan_of(zero=zero), 1.0, shards)
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize(("moments", "state"), [("fp32", 12.0), ("bf16", 8.0)])
def test_moments_in_half_the_width_take_half_the_bytes(moments: str, state: float) -> None:
    job, plan = job_of(moment_precision=moments), plan_of(zero=0)
    assert bytes_of_one(moment_precision=moments)["optimizer"] == state
    assert moments_bytes(job, plan, ONE) == state - 4.0  # all but the master weight come with the first update
    assert host_bytes(job, PLAIN, replace(plan, states=States.HOST), ONE) == state


@pytest.mark.parametrize("target", ["nanotron-2025", "megatron-deepspeed-2022"])
def test_gradients_of_16_bits_stand_beside_fp32_sums(target: str) -> None:
    assert bytes_of_one(profile_of(target))["gradients"] == 4.0 + 2.0
    assert bytes_of_one(profile_of(target), grad_precision="fp16")["gradients"] == 2.0  # which are summed themselves
    assert bytes_of_one()["gradients"] == 4.0


@pytest.mark.parametrize("target", ["torchtitan-2024", "torchtitan-2025", "pytorch-fsdp-2024", "llm-foundry-2024"])
def test_shards_of_fsdp_are_the_master_weights(target: str) -> None:
    assert sum(bytes_of_one(profile_of(target), zero=3, shards=8.0).values()) == (4.0 + 4.0 + 8.0) / 8.0


def test_a_layer_with_dropout_keeps_34_bytes_an_element_beside_its_scores() -> None:
    """The count of arXiv 2205.05198 for two-matrix layers, scores and their soft-max apart."""
    gpt = model_of("gpt3-175b")
    dropped = replace(PLAIN, attention="unfused", score_saved_bytes=0.0, dropout_saved_bytes=1.0)
    tokens = 2048.0
    rows = saved_bytes(ops_of(gpt, plan_of(), job_of(2048), dropped)[Kind.DENSE])
    assert rows == pytest.approx(34.0 * tokens * gpt.hidden, rel=1e-12)


FP8_MIB = {
    # DeepSeek-V3, s = 4096, b = 1, tp = 1: half of the 16-bit rows, and a copy of the attention output beside it
    "norm-1 output": 28, "q latent normed": 6, "kv latent normed": 2, "attention output": 192,
    "shared activation output": 8, "permuted tokens": 224, "expert activation output": 64,
    "q": 192, "expert fc1 output": 256, "moe input": 56,
}  # fmt: skip


def test_inputs_of_8_bit_products_are_kept_as_they_are_taken() -> None:
    kept = replace(PLAIN, narrow_inputs_saved=True)
    ops = ops_of(model_of("deepseek-v3"), plan_of(), job_of(precision="fp8"), kept)[Kind.SPARSE]
    rows = {row.name: row.bytes / MIB for op in ops for row in op.rows}
    assert {name: rows[name] for name in FP8_MIB} == pytest.approx(FP8_MIB, rel=1e-12)
    assert 60 * rows["expert activation output"] / 1024 == pytest.approx(3.8, rel=0.02)  # published: what moe_act saves


def test_a_stack_that_keeps_16_bits_and_frozen_products_keep_rows_as_they_are() -> None:
    model, plan = model_of("llama-3.1-70b"), plan_of(tp=4)
    kept = replace(PLAIN, narrow_inputs_saved=True)
    wide = saved_bytes(ops_of(model, plan, job_of())[Kind.DENSE])
    assert saved_bytes(ops_of(model, plan, job_of(precision="fp8"))[Kind.DENSE]) == wide
    adapted = {precision: job_of(precision=precision, lora_rank=16) for precision in ("bf16", "fp8")}
    rows = {name: saved_bytes(ops_of(model, plan, job, kept)[Kind.DENSE]) for name, job in adapted.items()}
    assert rows["fp8"] == rows["bf16"]


@pytest.mark.parametrize(
    ("flags", "products"),
    [("torch.compile", 4096 + 1024 + 14336), ("", 4096 + 1024 + 14336 + 4096)],  # q, v, gate; eager keeps down as well
)
def test_selective_recompute_by_ops_keeps_what_its_list_says(flags: str, products: int) -> None:
    """Every other product, the attention output with its statistics, and the layer input."""
    model, tokens = model_of("llama-3.1-8b"), 8192.0
    stack = stack_of(row(source="pytorch torchtitan benchmarks", flags=flags))
    machine = Machine(cluster=cluster_of("h100-96g"), profile=profile_of(stack.target))
    costs = costs_of(model, plan_of(), job_of(8192), machine)
    made = ladder(costs, kind_counts(model, False), stack.selective, Overlap.NONE, machine.profile)
    listed = 2.0 * products + 2.0 * 4096 + 4.0 * 32 + 2.0 * 4096
    assert made.kept_bytes[Kind.DENSE][0] / tokens == pytest.approx(listed, rel=0.01)


LOSS_BYTES = (
    # target, tp, bytes a logit that are live together at most
    ("torchtitan-2024", 1, 12.0),  # log-soft-max, its gradient, the gradient of the logits
    ("torchtitan-2024", 8, 16.0),  # log-soft-max, one-hot, exponential, sum or product
    ("torchtitan-2025", 1, 4.0),  # bf16 logits and their gradient
    ("nanotron-2025", 2, 8.0),  # fp32 logits and soft-max
)


@pytest.mark.parametrize(("target", "tp", "each"), LOSS_BYTES)
def test_a_loss_holds_the_copies_that_its_code_makes(target: str, tp: int, each: float) -> None:
    model = model_of("llama-3.1-8b")
    ops = ops_of(model, plan_of(tp=tp), job_of(8192), profile_of(target))[Kind.HEAD]
    saved = sum(row.bytes for op in ops for row in op.rows if row.name == "logits")
    assert (saved + transient_bytes(ops)) / (8192 * model.vocab / tp) == each


def test_a_pipeline_of_deepspeed_has_four_more_groups() -> None:
    cluster, model = cluster_of("a100-80g"), model_of("gpt3-175b")
    more = Machine(cluster=cluster, profile=profile_of("megatron-deepspeed-2022"))
    plain = Machine(cluster=cluster, profile=PLAIN)
    for pp, groups in ((1, 0), (8, 4)):
        plan = plan_of(tp=8, pp=pp, dp=2)
        found = communicator_bytes(more, model, plan) - communicator_bytes(plain, model, plan)
        assert found == groups * cluster.communicator_bytes


@pytest.mark.parametrize(("precision", "copied"), [("fp32", 4.0), ("fp16", 0.0)])
def test_a_gradient_goes_into_its_fp32_sum_by_a_copy(precision: str, copied: float) -> None:
    """The largest tensor of the stage with the embedding is the embedding."""
    gpt, plan = model_of("gpt3-175b"), plan_of(tp=8)
    machine = Machine(cluster=cluster_of("a100-80g"), profile=profile_of("megatron-deepspeed-2022"))
    cost = costs_of(gpt, plan, job_of(2048, grad_precision=precision), machine)[Kind.EMBEDDING]
    assert cost.working_bytes == copied * cost.largest_params[0]
