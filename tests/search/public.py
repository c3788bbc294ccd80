"""What tests of public memory cases share: models that the catalog lacks, a plan in a space, and its stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autodeploy.catalog.lookup import load
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.evaluate import evaluate
from autodeploy.search.memory import PlanMemory, memory_of
from autodeploy.search.result import PlanResult
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import GQA, MLA, Model, MoE
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import PlanValues, Space
from autodeploy.spec.target import Target
from tests.builders import cluster_of, job_of, model_of, plan_of

LATENT: dict[str, Any] = {"kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "v_dim": 128}
LONG = 131072
LLAMA_70B_12 = replace(model_of("llama-3.1-70b"), layers=12)
LLAMA_405B_4 = replace(model_of("llama-3.1-405b"), layers=4)
V3 = model_of("deepseek-v3")
assert V3.moe is not None
V3_4 = replace(V3, layers=4, mtp_depth=0, moe=replace(V3.moe, first_dense=1))
V3_14 = replace(V3, layers=14)
V2 = Model(
    name="deepseek-v2", title="DeepSeek-V2", hidden=5120, layers=60, vocab=102400, ffn_width=12288, max_seq_len=LONG,
    attention=MLA(heads=128, q_rank=1536, **LATENT),
    moe=MoE(experts=160, top_k=6, expert_width=1536, shared_width=3072, first_dense=1),
)  # fmt: skip
V2_4 = replace(V2, layers=4)
MOONLIGHT = Model(
    name="moonlight", title="Moonlight 16B-A3B", hidden=2048, layers=27, vocab=163840, ffn_width=11264,
    max_seq_len=8192, attention=MLA(heads=16, **LATENT),
    moe=MoE(experts=64, top_k=6, expert_width=1408, shared_width=2816, first_dense=1),
)  # fmt: skip
GPT_13B = Model(
    name="gpt-13b", title="GPT-13B", hidden=5120, layers=40, vocab=50257, ffn_width=20480, gated=False,
    norm="layernorm", linear_bias=True, learned_positions=2048, tied_embeddings=True, max_seq_len=2048,
    attention=GQA(heads=40, kv_heads=40, head_dim=128),
)  # fmt: skip


def dense(
    name: str, hidden: int, layers: int, vocab: int, ffn_width: int, heads: tuple[int, int], **more: Any
) -> Model:
    """A gated dense model with heads of 128."""
    attention = GQA(heads=heads[0], kv_heads=heads[1], head_dim=128, **more)
    return Model(
        name=name, title=name, hidden=hidden, layers=layers, vocab=vocab, ffn_width=ffn_width, attention=attention,
        max_seq_len=LONG,
    )  # fmt: skip


LLAMA_2_7B = dense("llama-2-7b", 4096, 32, 32000, 11008, (32, 32))
LLAMA_2_70B = dense("llama-2-70b", 8192, 80, 32000, 28672, (64, 8))
QWEN_7B = dense("qwen-7b", 4096, 32, 151936, 11008, (32, 32), qkv_bias=True)
QWEN2_7B = dense("qwen2-7b", 3584, 28, 152064, 18944, (28, 4), qkv_bias=True)
QWEN3_4B = replace(dense("qwen3-4b", 2560, 36, 151936, 9728, (32, 8), qk_norm=True), tied_embeddings=True)
QWEN3_8B = dense("qwen3-8b", 4096, 36, 151936, 12288, (32, 8), qk_norm=True)


def space_for(
    model: Model | str, cluster: Cluster | str, devices: int, seq_len: int, target: str, **given: Any
) -> Space:
    """A job on machines under a target; `gbs` is one sequence a device unless given, `profile` changes the stack's."""
    stack = load(Target, target)
    stack = replace(stack, profile=replace(stack.profile, **given.pop("profile", {})))
    return Space(
        name="public",
        model=model_of(model) if isinstance(model, str) else model,
        cluster=cluster_of(cluster) if isinstance(cluster, str) else cluster,
        target=stack,
        devices=devices,
        job=job_of(seq_len, **{"gbs": devices, **given}),
        plan=PlanValues(tp=(1,), pp=(1,)),
    )


def legal_plan(space: Space, **given: Any) -> Plan:
    """A plan over all devices, which its target must accept."""
    over = given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)
    plan = plan_of(dp=space.devices // over, **given)
    assert broken_rules(space, plan) == []
    return plan


def found_for(space: Space, **given: Any) -> PlanResult:
    """What the tool says of a legal plan."""
    return evaluate(space, legal_plan(space, **given))


def memory_for(space: Space, **given: Any) -> PlanMemory:
    """The same with what breaks first."""
    return memory_of(space, legal_plan(space, **given))


def breaks_at(found: PlanMemory, name: str) -> float | None:
    """Where a plan breaks when one thing grows."""
    return next(each.breaks_at for each in found.pressures if each.name == name)


def with_memory(cluster: str, hbm_bytes: float) -> Cluster:
    """A cluster with devices of another size."""
    base = cluster_of(cluster)
    return replace(base, device=replace(base.device, hbm_bytes=hbm_bytes))
