"""Public cases of memory that are sums: logits, second copies of vocabulary matrices, inputs of adapters, shards of
experts. docs/memory.md lists all cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autodeploy.cost.memory import bytes_per_param, stage_params, stand_in_bytes
from autodeploy.search.layers import layers_of
from autodeploy.spec.layout import make_layout
from autodeploy.spec.model import GQA, Kind, Model, MoE
from autodeploy.units import GIB, GIGA
from tests.builders import costs_of, job_of, machine_of, plan_of
from tests.search.public import LLAMA_70B_12, QWEN3_8B, V3_4, found_for, legal_plan, space_for

BRIDGE = "megatron-bridge-2026"


def head_of(tokens: int, vocab: int, tp: int = 1, **profile: Any) -> tuple[float, float]:
    """GiB of logits that the head keeps, and works on beside, with four bytes a logit or as a profile says."""
    stack = replace(
        machine_of().profile, vocab_multiple=1, **{"logit_saved_bytes": 0, "logit_transient_bytes": 4, **profile}
    )
    model = replace(QWEN3_8B, vocab=vocab)
    head = costs_of(model, plan_of(tp=tp), job_of(tokens), machine_of(profile=stack))[Kind.HEAD]
    inputs = 2.0 * 2.0 * tokens / tp * model.hidden
    return (float(sum(head.rows_bytes)) - inputs) / GIB, float(head.forward_bytes) / GIB


@pytest.mark.parametrize(
    ("tokens", "vocab", "chunk", "working"),
    [(4096, 248320, 0, 3.79), (8192, 151936, 0, 4.638), (8192, 151936, 1024, 0.58)],
    ids=["A16", "A17", "A17 in chunks"],
)
def test_a16_a17_logits_in_fp32(tokens: int, vocab: int, chunk: int, working: float) -> None:
    """NVIDIA-NeMo/Megatron-Bridge PR 5508: one buffer of 4,096 x 248,320; ISEEKYAN/Megatron-LM PR 132: 8,192 tokens
    at once, or 1,024 at a time."""
    kept, beside = head_of(tokens, vocab, loss_chunk_tokens=chunk)
    assert kept == pytest.approx(0.0, abs=1e-9)
    assert beside == pytest.approx(working, abs=0.005)


def test_a18_chunks_at_65k() -> None:
    """NovaSky-AI/SkyRL PR 1610: 42 GB less with 1,024 tokens at a time; five bytes a logit, ours six."""
    whole = sum(head_of(65536, 128256, logit_saved_bytes=2))
    cut = sum(head_of(65536, 128256, logit_saved_bytes=2, loss_chunk_tokens=1024))
    assert (whole - cut) * GIB / GIGA == pytest.approx(42.0, rel=0.2)


def test_a19_logits_are_cut_by_tensor_parallelism() -> None:
    """THUDM/slime issue 2253: all of [T, V/TP] in fp32."""
    assert head_of(32768, 151936, tp=4)[1] == pytest.approx(32768 * 151936 / 4 * 4 / GIB)


def test_a20_mtp_holds_a_second_embedding() -> None:
    """NVIDIA/Megatron-LM PR 5034: on its stage, away from the embedding. (There an optimizer of whole matrices did not
    shard it; ours is Adam, which does.)"""
    model = replace(V3_4, mtp_depth=1)
    plan = plan_of(pp=2, ep=4, dp=4)
    costs = costs_of(model, plan)
    layout = make_layout(model, True, 2, 1, "Ett|ttmL")
    last = stage_params(model, 2, layout.roles[-1], costs)
    own = sum(layout.roles[-1].count(kind) * costs[kind].dense_params for kind in layout.roles[-1].kinds)
    assert last.dense - own == model.vocab * model.hidden


A25: list[tuple[Model | str, dict[str, int], int, float]] = [
    (QWEN3_8B, {"tp": 2}, 2, 2.0 * 2.0), ("qwen3-30b-a3b", {"tp": 4, "ep": 4}, 4, 2.0),
]  # fmt: skip


@pytest.mark.parametrize(("model", "shape", "devices", "each"), A25)
def test_a25_adapters_keep_gathered_inputs(
    model: Model | str, shape: dict[str, int], devices: int, each: float
) -> None:
    """Megatron-Bridge memory guide: 4.7 and 1.6 GB less once they are gathered again (ours 2.4 and 1.2: one copy for
    all adapters of an input)."""
    space = space_for(model, "h100-80g", devices, 8192, BRIDGE, lora_rank=32)
    plan = legal_plan(space, **shape)
    kept = {rank: costs_of(space.model, plan, replace(space.job, lora_rank=rank), space.machine) for rank in (0, 32)}
    kind = Kind.SPARSE if "ep" in shape else Kind.DENSE
    more = sum(kept[32][kind].rows_bytes) - sum(kept[0][kind].rows_bytes)
    assert more == each * 8192 * space.model.hidden * (1.0 - 1.0 / plan.tp)


def test_a39_expert_state_shards_over_its_own_group() -> None:
    """deepspeedai/DeepSpeed issue 7156: 6B, 5B of them experts; EP8 on 8 devices leaves one rank for each expert."""
    model = Model(
        name="moe-6b", title="6B", hidden=2048, layers=16, vocab=151936, ffn_width=8192, max_seq_len=4096,
        attention=GQA(heads=16, kv_heads=16, head_dim=128), moe=MoE(experts=16, top_k=2, expert_width=3200),
    )  # fmt: skip
    plan = plan_of(dp=8, ep=8, zero=2)
    each = bytes_per_param(job_of(), machine_of().profile, plan)
    assert (each.dense, each.experts) == (2.0 + 16.0 / 8.0, 18.0)
    found = found_for(space_for(model, "a100-80g", 8, 2048, "generic"), ep=8, zero=2)
    experts = 16 * 2 * 3 * 2048 * 3200
    assert found.stages[0].memory_terms["optimizer"] > 12.0 * experts


def test_stand_ins_are_counted_once_a_shape() -> None:
    """What A31 and A34 need beside rows and state: of Llama-3-70B fc1, fc2, qkv and output projection, and the head."""
    space = space_for(LLAMA_70B_12, "b200", 8, 4096, "megatron-core-plain")
    costs, _ = layers_of(space, legal_plan(space, pp=2))
    first, last = make_layout(space.model, False, 2, 1, "Et*6|t*6L").roles
    layer = 8192 * (2 * 28672 + 28672 + (64 + 16) * 128 + 8192)
    assert stand_in_bytes(space.machine, first, costs) == 2.0 * layer
    assert stand_in_bytes(space.machine, last, costs) == 2.0 * (layer + 8192 * space.model.vocab)
