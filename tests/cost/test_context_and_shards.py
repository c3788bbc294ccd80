"""Ranks of a sequence and ranks of a state: what they send, what stays hidden, what each of them holds.

Rings: arXiv 2310.01889. Sharded weights: arXiv 1910.02054 section 7 (ZeRO 3 gathers the weights for both passes and
scatters the gradients). Replicas: hybrid sharding of PyTorch FSDP, Megatron-LM's distributed optimizer instances.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.analysis.readings import PLAIN
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.memory import Params, bytes_per_param, resident_terms, state_shards
from autodeploy.cost.sharding import ShardTraffic, shard_traffic
from autodeploy.cost.tail import StageTail, data_parallel, stage_tail
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import CpComm, Overlap, Plan
from autodeploy.spec.target import Profile
from tests.builders import cluster_of, costs_of, job_of, machine_of, model_of, plan_of

GIB = 2.0**30


def machine(profile: Profile = PLAIN, **changed: Any) -> Machine:
    """H100 nodes without latency, whose levels stream, some parts of the device changed."""
    base = cluster_of("h100-80g")
    node, fabric = (replace(level, latency_s=1e-30, ramp_s_per_sqrt_byte=0.0) for level in (base.node, base.fabric))
    device = replace(base.device, **changed)
    cluster = replace(base, node=node, fabric=fabric, device=device, pipelined_collectives=True)
    return Machine(cluster=cluster, profile=profile)


def dense_layer(on: Machine, name: str = "llama-3.1-70b", seq_len: int = 4096, **degrees: Any) -> LayerCost:
    return costs_of(model_of(name), plan_of(**degrees), job_of(seq_len), on)[Kind.DENSE]


OPEN = replace(PLAIN, overlap_context=False)
PAIR_BYTES = 2 * 2 * 8 * 128
"""Keys and values of a token of Llama 70B."""


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("how", [CpComm.RING, CpComm.GATHER])
def test_every_rank_gets_the_keys_and_values_of_all_others(how: CpComm, cp: int) -> None:
    # (cp - 1) parts of 2 T g d e; a ring of NVLink neighbours and a gather in a node take the same
    on = machine(OPEN)
    cost = dense_layer(on, cp=cp, cp_comm=how)
    part = PAIR_BYTES * 4096 / cp / on.cluster.node.effective_bytes_per_s
    assert cost.forward_terms["context_parallel"] == pytest.approx((cp - 1) * part, rel=1e-9)
    assert cost.backward_terms["context_parallel"] == pytest.approx(2 * (cp - 1) * part, rel=1e-9)


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_ulysses_sends_four_tensors_each_way(cp: int) -> None:
    on = machine(OPEN)
    cost = dense_layer(on, cp=cp, cp_comm=CpComm.ULYSSES)
    moved = 2 * 4096 / cp * 2 * (64 + 8) * 128 * (cp - 1) / cp
    expected = moved / on.cluster.node.effective_bytes_per_s
    assert cost.forward_terms["context_parallel"] == pytest.approx(expected, rel=1e-9)
    assert cost.backward_terms["context_parallel"] == pytest.approx(expected, rel=1e-9)


@given(
    cp=st.sampled_from([2, 4, 8, 16]), tp=st.sampled_from([1, 2, 8]), seq_len=st.sampled_from([1024, 8192, 131072]),
    how=st.sampled_from(CpComm), name=st.sampled_from(["h100-80g", "atlas-800t-a2"]),
)  # fmt: skip
@settings(max_examples=40)
def test_a_ring_hides_behind_its_attention_and_nothing_else_does(
    cp: int, tp: int, seq_len: int, how: CpComm, name: str
) -> None:
    shown, early = (
        dense_layer(machine_of(name, profile), seq_len=seq_len, cp=cp, tp=tp, cp_comm=how) for profile in (OPEN, PLAIN)
    )
    for open_terms, terms in (
        (shown.forward_terms, early.forward_terms),
        (shown.backward_terms, early.backward_terms),
    ):
        sent, beside = open_terms["context_parallel"], open_terms["attention"]
        left = max(sent - beside, 0.0) if how is CpComm.RING else sent
        assert terms["context_parallel"] == pytest.approx(left, rel=1e-9, abs=1e-12)
        same = [key for key in terms if key not in ("context_parallel", "launch")]
        assert [terms[key] for key in same] == pytest.approx([open_terms[key] for key in same], rel=1e-9)
    assert (early.forward.inner, early.forward.outer) == (shown.forward.inner, shown.forward.outer)


def test_a_long_sequence_hides_its_ring_and_a_short_one_does_not() -> None:
    # attention grows with the square of the sequence, keys and values with the sequence
    found = {
        seq_len: dense_layer(machine_of("h100-80g", PLAIN), seq_len=seq_len, cp=16).forward_terms["context_parallel"]
        for seq_len in (1024, 131072)
    }
    assert found[1024] > 0.0
    assert found[131072] == 0.0


@pytest.mark.parametrize("how", list(CpComm))
def test_one_context_rank_takes_no_time(how: CpComm) -> None:
    for cost in costs_of(model_of("deepseek-v3"), plan_of(tp=8, ep=8, cp_comm=how)).values():
        assert cost.forward_terms["context_parallel"] == cost.backward_terms["context_parallel"] == 0.0


def traffic_of(plan: Plan, on: Machine, name: str = "llama-3.1-70b", **job: Any) -> dict[Kind, ShardTraffic]:
    model, asked = model_of(name), job_of(**job)
    costs = costs_of(model, plan, asked, on)
    return shard_traffic(on, asked, plan, data_parallel(on, plan), costs)


SHOWN = replace(PLAIN, overlap_weight_gather=False)
LAYER = 2 * 8192 * 64 * 128 + 2 * 8192 * 8 * 128 + 3 * 8192 * 28672 + 2 * 8192
"""Parameters of a layer of Llama 70B."""


@pytest.mark.parametrize(("zero", "gathers", "scatters"), [(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 2, 1)])
@pytest.mark.parametrize("dp", [2, 8])
def test_sharded_weights_are_gathered_twice_and_gradients_scattered_once(
    dp: int, zero: int, gathers: int, scatters: int
) -> None:
    # 2 x Psi gathered for each pass, 4 x Psi of fp32 gradients scattered: (D - 1)/D of them a rank
    on = machine(SHOWN)
    found = traffic_of(plan_of(dp=dp, zero=zero), on).get(Kind.DENSE, ShardTraffic(0.0, 0.0))
    each = LAYER * (dp - 1) / dp / on.cluster.node.effective_bytes_per_s
    assert found.forward == pytest.approx(min(gathers, 1) * 2 * each, rel=1e-9)
    assert sum(found) == pytest.approx((gathers * 2 + scatters * 4) * each, rel=1e-9)


def test_experts_are_gathered_over_their_own_ranks() -> None:
    # ep 8 of 64 ranks: experts over 8 nodes, one rank a node; the rest over 8 x 8
    on, plan = machine(SHOWN), plan_of(dp=64, ep=8, zero=3)
    cost = costs_of(model_of("deepseek-v3"), plan, job_of(), on)[Kind.SPARSE]
    fabric = on.cluster.fabric.effective_bytes_per_s
    dense = cost.dense_params * 2 * max(7 / 8 / on.cluster.node.effective_bytes_per_s, 7 / 8 / 8 / fabric)
    experts = cost.expert_params * 2 * 7 / 8 / fabric
    assert traffic_of(plan, on, "deepseek-v3")[Kind.SPARSE].forward == pytest.approx(dense + experts, rel=1e-9)


@given(dp=st.sampled_from([2, 8, 64]), zero=st.sampled_from([2, 3]), mbs=st.sampled_from([1, 4, 64]))
@settings(max_examples=20)
def test_a_layer_hides_what_is_sent_beside_it(dp: int, zero: int, mbs: int) -> None:
    plan = plan_of(dp=dp, zero=zero, mbs=mbs)
    cost = costs_of(model_of("llama-3.1-70b"), plan, job_of(), machine())[Kind.DENSE]
    whole, left = (traffic_of(plan, machine(profile))[Kind.DENSE] for profile in (SHOWN, PLAIN))
    for sent, rest, beside in zip(whole, left, (cost.forward.alone, cost.backward.alone), strict=True):
        assert rest == pytest.approx(max(sent - beside, 0.0), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("zero", [2, 3])
def test_nothing_hides_behind_an_exchange_that_is_itself_hidden(zero: int) -> None:
    # alone, weights travel while the engine works and while it waits for the all-to-all; merged, it does not wait
    alone = plan_of(dp=64, ep=8, zero=zero)
    cost = costs_of(model_of("deepseek-v3"), alone, job_of(), machine())[Kind.SPARSE]
    whole = traffic_of(alone, machine(SHOWN), "deepseek-v3")[Kind.SPARSE]
    for overlap in Overlap:
        left = traffic_of(replace(alone, overlap=overlap), machine(), "deepseek-v3")[Kind.SPARSE]
        for sent, rest, load in zip(whole, left, (cost.forward, cost.backward), strict=True):
            beside = load.busy if overlap == Overlap.PAIR else load.alone
            assert rest == pytest.approx(max(sent - beside, 0.0), rel=1e-9, abs=1e-15)
    assert load.exchange > 0.0


def test_a_long_microbatch_hides_all_of_it() -> None:
    # NVLink brings a layer in a fraction of the time of 64 sequences
    assert traffic_of(plan_of(dp=8, zero=3, mbs=64), machine())[Kind.DENSE] == (0.0, 0.0)


@pytest.mark.parametrize("zero", [2, 3])
def test_one_rank_gathers_nothing(zero: int) -> None:
    assert set(traffic_of(plan_of(zero=zero, tp=8), machine(SHOWN)).values()) == {ShardTraffic(0.0, 0.0)}


PARAMS = Params(3e9, 5e9)


def tail_of(plan: Plan, on: Machine | None = None) -> StageTail:
    where = on or machine(replace(PLAIN, grad_buckets=1))
    dp = data_parallel(where, plan)
    return stage_tail(where, job_of(), plan, dp, Overlap.NONE, PARAMS, (0.0, 0.0), 0.0)


@pytest.mark.parametrize("zero", [2, 3])
def test_what_every_microbatch_reduced_is_not_reduced_again(zero: int) -> None:
    assert tail_of(plan_of(dp=16, ep=8, zero=zero)).grad_sync == 0.0


def test_whole_weights_are_gathered_after_the_optimizer_and_sharded_ones_are_not() -> None:
    one, two, three = (tail_of(plan_of(dp=16, ep=8, zero=zero)).param_sync for zero in (1, 2, 3))
    assert one == two > 0.0
    assert three == 0.0


@given(
    dp=st.sampled_from([1, 2, 8, 64]), cp=st.sampled_from([1, 2]), tp=st.sampled_from([1, 8]),
    replicas=st.sampled_from([1, 2, 4, 8, 16]), ep=st.sampled_from([1, 2, 8]),
)  # fmt: skip
def test_shards_times_replicas_are_all_ranks(dp: int, cp: int, tp: int, replicas: int, ep: int) -> None:
    plan = plan_of(tp=tp, cp=cp, dp=dp, ep=ep, replicas=replicas)
    if dp * cp % replicas or tp * cp * dp % ep:
        return
    dense, experts = state_shards(plan)
    assert dense * replicas == dp * cp
    assert 1.0 <= experts <= plan.edp
    assert experts * replicas == plan.edp or experts == 1.0


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_replica_on_every_rank_shards_nothing(zero: int) -> None:
    whole, copied = plan_of(dp=16, ep=2, zero=0), plan_of(dp=16, ep=2, zero=zero, replicas=16)
    assert resident_terms(job_of(), PLAIN, copied, PARAMS) == resident_terms(job_of(), PLAIN, whole, PARAMS)
    one, other = tail_of(whole), tail_of(copied)
    assert other.grad_sync == pytest.approx(one.grad_sync, rel=1e-9)
    assert other.param_sync == one.param_sync == 0.0
    assert other.optimizer == one.optimizer


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_replicas_all_reduce_their_shards(replicas: int) -> None:
    # one node a replica: in it a scatter of all gradients, across nodes an all-reduce of each rank's share
    on = machine(replace(PLAIN, grad_buckets=1))
    plan = plan_of(dp=8 * replicas, replicas=replicas)
    found = stage_tail(on, job_of(), plan, data_parallel(on, plan), Overlap.NONE, Params(8e9, 0.0), (0.0, 0.0), 0.0)
    inside = 4 * 8e9 * 7 / 8 / on.cluster.node.effective_bytes_per_s
    across = 2 * 4 * 1e9 * (replicas - 1) / replicas / on.cluster.fabric.effective_bytes_per_s
    assert found.grad_sync == pytest.approx(inside + across, rel=1e-9)
    assert found.param_sync == pytest.approx(2 * 8e9 * 7 / 8 / on.cluster.node.effective_bytes_per_s, rel=1e-9)


def test_replicas_within_a_node_gather_within_it() -> None:
    on = machine(SHOWN)
    near, far = (traffic_of(plan_of(dp=64, zero=3, replicas=n), on)[Kind.DENSE] for n in (8, 1))
    node = on.cluster.node.effective_bytes_per_s
    assert near.forward == pytest.approx(2 * LAYER * 7 / 8 / node, rel=1e-9)
    assert near.forward <= far.forward


PUBLISHED = ((0, 81.54), (1, 40.46), (2, 19.92), (3, 9.66))
"""GiB of states of four sparse layers of DeepSeek-V3 at TP2 EP8 on DP32: arXiv 2502.07846 table 8."""


@pytest.mark.parametrize(("zero", "gib"), PUBLISHED)
def test_a_stage_of_a_plan_holds_the_published_states(zero: int, gib: float) -> None:
    # the paper's classes: 32 ranks share what is not of experts, 8 the experts with router and shared expert;
    # it keeps 4 bytes of gradients and 8 of master weights and moments in bf16
    plan = plan_of(tp=2, dp=32, ep=8, zero=zero)
    cost = costs_of(model_of("deepseek-v3"), plan)[Kind.SPARSE]
    whole_on_both = (1536 * 128 * 64 + 3 * 7168 * 2048) // 2  # halved over tp by Megatron-LM, not by the paper
    feed_forward = 3 * 7168 * 2048 + 256 * 7168
    dense, experts = cost.dense_params + whole_on_both - feed_forward, cost.expert_params + feed_forward
    assert state_shards(plan) == (32, 8)
    terms = resident_terms(job_of(), PLAIN, plan, Params(4 * dense, 4 * experts))
    assert (terms["weights"] + terms["gradients"] + terms["optimizer"] * 8 / 12) / GIB == pytest.approx(gib, rel=0.001)


@given(
    dp=st.sampled_from([1, 4, 64]), cp=st.sampled_from([1, 4]), zero=st.integers(0, 2), replicas=st.sampled_from([1, 2])
)
def test_a_higher_level_never_holds_more(dp: int, cp: int, zero: int, replicas: int) -> None:
    given_ = {"dp": 2 * dp, "cp": cp, "ep": 2, "replicas": replicas}
    low, high = (bytes_per_param(job_of(), PLAIN, plan_of(**given_, zero=level)) for level in (zero, zero + 1))
    assert all(more <= less for less, more in zip(low, high, strict=True))
