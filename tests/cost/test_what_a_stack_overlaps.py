"""What a stack fuses and sends beside its products: never faster than the longer of both, never slower than both.

Pieces: userbuffers of Transformer Engine, MindSpeed's computation-communication overlap; graphs: CUDA and ACL graphs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.analysis.ops import Engine, Group, Op, Transfer
from autodeploy.analysis.readings import PLAIN, saved_bytes, transient_bytes
from autodeploy.cost.collectives import gather_rates, serial, span
from autodeploy.cost.compute import op_s
from autodeploy.cost.layers import ENGINE_WORDS, LayerCost
from autodeploy.cost.traffic import OVERLAP_PIECES, Traffic
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import GQA, Kind
from autodeploy.spec.target import FUSIBLE, Profile
from tests.builders import cluster_of, costs_of, job_of, machine_of, model_of, ops_of, plan_of

PIECES = replace(PLAIN, overlap_tensor=True)
MACHINES = st.sampled_from(["h100-80g", "atlas-800t-a2"])


@given(
    name=MACHINES, tp=st.sampled_from([1, 2, 4, 8, 16]), moved=st.floats(0.0, 1e10), product=st.floats(0.0, 1.0),
    count=st.sampled_from([0.0, 1.0, 2.0]),
)  # fmt: skip
def test_a_product_and_its_transfer_in_pieces(name: str, tp: int, moved: float, product: float, count: float) -> None:
    # all but one piece of the shorter runs beside the longer: max + min / pieces
    on = machine_of(name, PIECES)
    transfer = Transfer(group=Group.TP, bytes=moved)
    alone = count * serial(on.cluster, gather_rates(on.cluster, span(on.cluster, tp, 1)).lanes(moved))
    traffic = Traffic(model_of("llama-3.1-70b"), job_of(), on, plan_of(tp=tp))
    both = product + traffic.load(transfer, count, product).busy
    assert both <= (product + alone) * (1 + 1e-9)
    assert both >= max(product, alone) * (1 - 1e-9)
    pieces = max(product, alone) + min(product, alone) / (OVERLAP_PIECES if tp > 1 else 1.0)
    assert both == pytest.approx(pieces, rel=1e-9, abs=1e-15)


def dense(name: str, profile: Profile, **plan: Any) -> LayerCost:
    return costs_of(model_of("llama-3.1-70b"), plan_of(**plan), job_of(), machine_of(name, profile))[Kind.DENSE]


@given(name=MACHINES, tp=st.sampled_from([1, 2, 4, 8]), sp=st.booleans(), mbs=st.integers(1, 4))
@settings(max_examples=25)
def test_a_layer_in_pieces_is_between_the_longer_and_the_sum(name: str, tp: int, sp: bool, mbs: int) -> None:
    plan = {"tp": tp, "mbs": mbs, "sp": sp and tp > 1}
    apart, pieces = (dense(name, replace(p, graphs=True), **plan) for p in (PLAIN, PIECES))
    for terms, cut in ((apart.forward_terms, pieces.forward_terms), (apart.backward_terms, pieces.backward_terms)):
        engines, sent = sum(terms[word] for word in ENGINE_WORDS), terms["tensor_parallel"]
        together = sum(cut[word] for word in ENGINE_WORDS) + cut["tensor_parallel"]
        assert sum(cut[word] for word in ENGINE_WORDS) == engines
        assert together <= (engines + sent) * (1 + 1e-12)
        assert together >= max(engines, sent) * (1 - 1e-12)
        assert (together < engines + sent) is (tp > 1)
    assert pieces.forward.inner == apart.forward.inner  # the links are as busy


@pytest.mark.parametrize("name", ["h100-80g", "atlas-800t-a2"])
def test_experts_cut_over_ranks_are_not_sent_in_pieces(name: str) -> None:
    plan, model = plan_of(ep=8, etp=2), model_of("mixtral-8x7b")
    one, other = (costs_of(model, plan, job_of(), machine_of(name, p))[Kind.SPARSE] for p in (PLAIN, PIECES))
    assert one.forward_terms == other.forward_terms


def test_recorded_graphs_need_no_host() -> None:
    base = machine_of("h100-80g").cluster
    slow_host = replace(base, device=replace(base.device, issue_s=1e-3))
    plain, recorded = (
        costs_of(model_of("deepseek-v3"), plan_of(tp=8), job_of(), Machine(cluster=slow_host, profile=profile))
        for profile in (PLAIN, replace(PLAIN, graphs=True))
    )
    for kind, cost in recorded.items():
        assert {**plain[kind].forward_terms, "launch": 0.0} == cost.forward_terms
        assert {**plain[kind].backward_terms, "launch": 0.0} == cost.backward_terms
    assert plain[Kind.SPARSE].forward_terms["launch"] > 0.0


KERNELS: tuple[tuple[Any, str], ...] = (("flash2", "flash2_frac"), ("flash1", "flash1_frac"))


@pytest.mark.parametrize("share", [0.25, 0.5])
@pytest.mark.parametrize(("kernel", "field"), KERNELS)
def test_an_older_attention_kernel_takes_as_much_longer(kernel: Any, field: str, share: float) -> None:
    base = machine_of("h100-80g").cluster
    on = replace(base, device=replace(base.device, kernel_gap_s=1e-30, **{field: share}))
    old, best = (
        costs_of(model_of("llama-3.1-70b"), plan_of(), job_of(), Machine(cluster=on, profile=profile))[Kind.DENSE]
        for profile in (replace(PLAIN, attention=kernel), PLAIN)
    )
    for one, other in ((old.forward_terms, best.forward_terms), (old.backward_terms, best.backward_terms)):
        assert one["attention"] * share == pytest.approx(other["attention"], rel=1e-9)
        assert one["matmul"] == other["matmul"]


@given(length=st.sampled_from([512, 2048, 16384]), half=st.floats(0.0, 8192.0))
@settings(max_examples=20)
def test_attention_reaches_half_of_its_rate_at_its_half_length(length: int, half: float) -> None:
    base = machine_of("h100-80g", PLAIN)
    op = Op(name="x", engine=Engine.ATTENTION, k=128.0, flop=1e15)
    at, endless = (replace(base.cluster.device, kernel_gap_s=1e-30, attention_half_len=n) for n in (half, 0.0))
    for one, other in zip(
        op_s(at, PLAIN, job_of(length), op)[:2], op_s(endless, PLAIN, job_of(length), op)[:2], strict=True
    ):
        assert one / other == pytest.approx(1.0 + half / length, rel=1e-9)
    packed = op_s(at, PLAIN, job_of(16384, document_len=length), op)[:2]
    assert packed == op_s(at, PLAIN, job_of(length), op)[:2]  # the kernel runs document by document


@given(width=st.sampled_from([64, 80, 96, 128, 192, 256]), full=st.sampled_from([64.0, 128.0]))
def test_narrow_heads_reach_a_share_of_the_rate(width: int, full: float) -> None:
    base = machine_of("h100-80g", PLAIN)
    op = Op(name="x", engine=Engine.ATTENTION, k=1.0 * width, flop=1e15)
    narrow, wide = (replace(base.cluster.device, kernel_gap_s=1e-30, attention_full_width=each) for each in (full, 0.0))
    for one, other in zip(op_s(narrow, PLAIN, job_of(), op)[:2], op_s(wide, PLAIN, job_of(), op)[:2], strict=True):
        assert other / one == pytest.approx(min(width / full, 1.0), rel=1e-9)


def test_heads_of_a_model_are_as_wide_as_its_keys_and_values() -> None:
    for name, width in (("llama-3.1-70b", 128), ("deepseek-v3", (192 + 128) / 2), ("gpt3-175b", 128)):
        (core,) = [op for op in ops_of(model_of(name), plan_of())[Kind.DENSE] if op.engine is Engine.ATTENTION]
        assert core.k == width


@pytest.mark.parametrize("stalls", [(0, 0), (1, 0), (2, 2)])  # counts on the device; used again; asked each time
def test_a_sparse_layer_waits_for_its_counts_and_a_dense_one_does_not(stalls: tuple[int, int]) -> None:
    base = machine_of("h100-80g").cluster
    on = replace(base, device=replace(base.device, stall_s=1e-4))
    profile = replace(PLAIN, graphs=True, moe_stalls=stalls[0], moe_backward_stalls=stalls[1])
    costs = costs_of(model_of("deepseek-v3"), plan_of(ep=8), job_of(), Machine(cluster=on, profile=profile))
    for kind, cost in costs.items():
        waits = [count * 1e-4 if kind in (Kind.SPARSE, Kind.MTP) else 0.0 for count in stalls]
        found = [cost.forward_terms["launch"], cost.backward_terms["launch"]]
        assert found == pytest.approx(waits, rel=1e-12)


def layer_with(name: str = "atlas-800t-a2", kind: Kind = Kind.SPARSE, **profile: Any) -> LayerCost:
    """A layer of DeepSeek-V3 under a stack that differs in some facts."""
    machine = machine_of(name, replace(PLAIN, **profile))
    return costs_of(model_of("deepseek-v3"), plan_of(tp=8, ep=32), job_of(), machine)[kind]


def test_threads_with_cores_of_their_own_launch_and_wait_less() -> None:
    """One wait of 2.1 ms before, 0.6 ms after (Pangu Ultra MoE training report)."""
    device = cluster_of("atlas-800t-a2").device
    graphs = {"graphs": True, "moe_stalls": 1}
    waits = [layer_with(pinned_host=each, **graphs).forward_terms["launch"] for each in (False, True)]
    assert waits == pytest.approx([2.1e-3, 0.6e-3], rel=1e-12)
    machine = machine_of("h100-80g", replace(PLAIN, pinned_host=True))
    assert (machine.issue_s, machine.stall_s) == (machine.cluster.device.issue_s, machine.cluster.device.stall_s)
    assert device.pinned_issue_s < device.issue_s


def test_vector_chains_beside_weight_gradients_leave_the_longer() -> None:
    plain, beside = layer_with(), layer_with(overlap_vector=True)
    hidden = plain.backward_terms["vector"] - beside.backward_terms["vector"]
    assert plain.backward.busy - beside.backward.busy == pytest.approx(hidden, rel=1e-9)
    assert plain.backward.aside - beside.backward.aside == pytest.approx(hidden, rel=1e-9)
    assert hidden == pytest.approx(min(plain.backward_terms["vector"], plain.backward.aside), rel=0.5)
    assert 0.0 <= beside.backward_terms["vector"] < plain.backward_terms["vector"]
    assert beside.forward == plain.forward  # nothing in a forward pass waits for nothing
    assert layer_with("h100-80g", overlap_vector=True) == layer_with("h100-80g")  # one kind of cores


def test_values_padded_to_the_width_of_keys_cost_a_fifth_more() -> None:
    """192 + 192 against 192 + 128 (model.md 7.3); values and outputs are half as wide again."""
    plain, padded = (ops_of(model_of("deepseek-v3"), plan_of(), job_of(), replace(PLAIN, padded_values=each))
                     for each in (False, True))  # fmt: skip
    cores = [next(op for op in ops[Kind.SPARSE] if op.engine is Engine.ATTENTION) for ops in (plain, padded)]
    assert cores[1].flop / cores[0].flop == pytest.approx(384 / 320, rel=1e-12)
    for name in ("v", "attention output"):
        rows = [next(row.bytes for op in ops[Kind.SPARSE] for row in op.rows if row.name == name)
                for ops in (plain, padded)]  # fmt: skip
        assert rows[1] / rows[0] == pytest.approx(1.5, rel=1e-12)


def test_a_narrow_dispatch_halves_what_goes_out_and_not_what_comes_back() -> None:
    bare = {"moe_stalls": 0, "graphs": True}
    wide, narrow = (layer_with("h100-80g", dispatch_bytes=each, **bare).forward.outer for each in (2.0, 1.0))
    idle = layer_with("h100-80g", dispatch_bytes=1e-9, **bare).forward.outer
    back = wide - (wide - idle)  # combine, latency and the rest
    assert narrow == pytest.approx(back + (wide - idle) / 2.0, rel=1e-6)
    assert wide > narrow > back


def test_experts_one_kernel_each_are_launched_and_tiled_one_by_one() -> None:
    together, apart = layer_with(), layer_with(fused=tuple(set(PLAIN.fused) - {"grouped"}))
    gaps = (32 / 4 - 1) * 2 * cluster_of("atlas-800t-a2").device.kernel_gap_s  # eight local experts, two products
    assert apart.forward_terms["experts"] >= together.forward_terms["experts"] + gaps * (1 - 1e-9)
    assert apart.forward_terms["launch"] >= together.forward_terms["launch"]


LOSSES: tuple[tuple[Any, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]], ...] = (
    # bytes read and written a logit by every kernel, forward and backward
    # logits.float(), log_softmax; its gradient, to bf16: torch.nn.functional.cross_entropy
    ("torch", ((2, 4), (8, 4)), ((4, 4), (4, 2))),
    # to fp32, max, minus, exp, sum, divide; two lines and a cast: core/tensor_parallel/cross_entropy.py
    ("megatron", ((2, 4), (4, 0), (4, 4), (4, 4), (4, 0), (4, 4)), ((4, 4), (4, 4), (4, 2))),
)


@pytest.mark.parametrize(("loss", "forward", "backward"), LOSSES)
def test_a_loss_line_by_line_moves_what_its_lines_do(loss: Any, forward: Any, backward: Any) -> None:
    model = model_of("llama-3.1-70b")
    ops = ops_of(model, plan_of(tp=8), profile=replace(PLAIN, loss=loss))[Kind.HEAD]
    (op,) = [each for each in ops if each.name == "loss"]
    logits = 4096 * model.vocab / 8
    assert op.forward_bytes / logits == sum(map(sum, forward))
    assert op.backward_bytes / logits == sum(map(sum, backward))


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_whole_logits_are_gathered_before_the_loss(tp: int) -> None:
    model, whole = model_of("llama-3.1-70b"), replace(PLAIN, split_logits=False)
    for profile, expected in ((PLAIN, 0.0), (whole, 2.0 * 4096 * model.vocab)):
        (op,) = [o for o in ops_of(model, plan_of(tp=tp), profile=profile)[Kind.HEAD] if o.name == "loss"]
        assert sum(t.bytes * t.forward for t in op.transfers) == expected
        assert sum(t.backward for t in op.transfers) == 0.0  # of the gradient every rank takes its part


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3", "gpt3-175b", "mixtral-8x7b"])
@pytest.mark.parametrize("chain", FUSIBLE)
def test_a_chain_of_kernels_is_never_faster_than_one(model: str, chain: Any) -> None:
    lines = replace(PLAIN, fused=tuple(each for each in FUSIBLE if each != chain))
    for kind, ops in ops_of(model_of(model), plan_of()).items():
        apart = ops_of(model_of(model), plan_of(), profile=lines)[kind]
        for one, other in zip(ops, apart, strict=True):
            assert one.name == other.name
            assert other.forward_bytes >= one.forward_bytes
            assert other.backward_bytes >= one.backward_bytes
            assert other.kernels >= one.kernels
            assert (one.engine, one.flop) == (other.engine, other.flop)
            assert set(one.rows) <= set(other.rows)  # what the lines keep beside


def test_a_norm_line_by_line_reads_and_writes_what_its_lines_do() -> None:
    # x.float(); x^2; mean; x * rsqrt; to bf16; * weight: transformers' LlamaRMSNorm, bytes an element
    lines = ((2, 4), (4, 4), (4, 0), (4, 4), (4, 2), (2, 2))
    eager = replace(PLAIN, fused=())
    norm = next(op for op in ops_of(model_of("llama-3.1-70b"), plan_of(), profile=eager)[Kind.DENSE])
    assert norm.name == "norm 1"
    assert norm.forward_bytes / (4096 * 8192) == sum(read + written for read, written in lines)


def test_one_kernel_of_pytorch_is_one_kernel() -> None:
    # torch.nn.LayerNorm has a kernel of its own, whatever else is not fused
    eager = replace(PLAIN, fused=())
    ops, apart = (ops_of(model_of("gpt3-175b"), plan_of(), profile=p)[Kind.DENSE] for p in (PLAIN, eager))
    norms = [(one, other) for one, other in zip(ops, apart, strict=True) if one.name.startswith("norm")]
    assert len(norms) == 2
    assert all(one == other for one, other in norms)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_logits_that_are_gathered_are_whole_on_every_rank(tp: int) -> None:
    whole = replace(PLAIN, split_logits=False)
    model = model_of("llama-3.1-70b")
    alone, cut = (ops_of(model, plan_of(tp=degree, sp=False), profile=whole)[Kind.HEAD] for degree in (1, tp))
    assert saved_bytes(cut) == saved_bytes(alone)
    assert transient_bytes(cut) == transient_bytes(alone)
    assert sum(op.flop for op in cut) * tp == sum(op.flop for op in alone)


def test_unfused_attention_writes_what_fused_attention_never_does() -> None:
    fused, apart = (dense("h100-80g", replace(PLAIN, attention=kind), tp=8) for kind in ("best", "unfused"))
    assert apart.forward_terms["vector"] > fused.forward_terms["vector"]
    assert apart.forward.busy > fused.forward.busy
    assert sum(apart.rows_bytes) > sum(fused.rows_bytes)


def test_products_of_unfused_attention_are_a_batch_over_heads() -> None:
    # one product of (s/c) x s x d for each head and sequence; two gradients of each backward
    ops = {op.name: op for op in ops_of(model_of("llama-3.1-70b"), plan_of(tp=8, mbs=2, cp=2), job_of(),
                                        replace(PLAIN, attention="unfused"))[Kind.DENSE]}  # fmt: skip
    scores, values = ops["scores"], ops["weighted values"]
    assert scores.engine is values.engine is Engine.ATTENTION
    assert scores.experts == values.experts == 2 * 64 / 8
    assert (scores.m / scores.experts, scores.n, scores.k) == (2048, 4096, 128)
    assert (values.m / values.experts, values.n, values.k) == (2048, 128, 4096)


def test_odd_heads_miss_the_tensor_cores() -> None:
    # FP16 of an A100: 312 TF in tensor cores, 78 outside (NVIDIA A100 data sheet); they take 8 elements at a time
    base = machine_of("a100-80g").cluster.device
    on = replace(base, kernel_gap_s=1e-30, tile_overhead_s=1e-30, hbm_bytes_per_s=1e30)
    apart = replace(PLAIN, attention="unfused")
    model = model_of("gpt3-175b")
    for width, times in ((128, 1.0), (104, 1.0), (100, 4.0)):
        attention = GQA(heads=96, kv_heads=96, head_dim=width)
        ops = ops_of(replace(model, attention=attention), plan_of(), job_of(2048), apart)[Kind.DENSE]
        scores = next(op for op in ops if op.name == "scores")
        whole = op_s(on, apart, job_of(2048), replace(scores, aligned=True))[:2]
        found = op_s(on, apart, job_of(2048), scores)[:2]
        assert [each / one for each, one in zip(found, whole, strict=True)] == pytest.approx([times, times], rel=1e-9)
