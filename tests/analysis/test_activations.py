"""Rows kept for the backward pass: the published list of DeepSeek-V3 row by row, and closed forms.

Row list: yanring/Megatron-MoE-ModelZoo:misc/tools/deepseek_mem_estimate.py; sums over a run: arXiv 2603.07685
table 3; full recompute: arXiv 2502.07846 table 10; formulas of a dense layer: arXiv 2205.05198 sections 4 and 5.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.analysis.ops import REBUILDABLE, Module, Op
from autodeploy.analysis.readings import PLAIN, delayed_bytes, saved_bytes
from autodeploy.spec.model import GQA, Kind, Model, decoder_kinds
from tests.builders import job_of, model_of, ops_of, plan_of

MIB = 2.0**20
DEEPSEEK_MIB = {
    # s = 4096, b = 1, tp = 1
    "layer input": 56,
    "norm-1 output": 56,
    "q latent": 12,
    "q latent normed": 12,
    "kv latent": 4,
    "kv latent normed": 4,
    "q": 192,
    "k": 192,
    "v": 128,
    "attention output": 128,
    "softmax statistics": 2,
    "residual after attention": 56,
    "moe input": 56,
    "router probabilities": 2,
    "row-id map": 8,
    "shared fc1 output": 32,
    "shared activation output": 16,
    "permuted tokens": 448,
    "expert fc1 output": 256,
    "expert activation output": 128,
    "combine input": 448,
}
SHARES_OF_A_RUN = (
    # GiB over the 60 layer-microbatches of the published PP4 VPP4 example, arXiv 2603.07685 table 3
    (tuple(DEEPSEEK_MIB), 131.0, 0.002),
    (("combine input",), 26.3, 0.003),
    (("q", "k", "v"), 30.4, 0.015),
)


def rows_of(ops: tuple[Op, ...]) -> dict[str, float]:
    """MiB of every row that is not empty."""
    return {row.name: row.bytes / MIB for op in ops for row in op.rows if row.bytes}


def deepseek_layer() -> tuple[Op, ...]:
    return ops_of(model_of("deepseek-v3"), plan_of())[Kind.SPARSE]


def test_rows_of_a_deepseek_v3_layer_are_the_published_list() -> None:
    assert rows_of(deepseek_layer()) == DEEPSEEK_MIB


def test_rows_of_a_deepseek_v3_layer_sum_to_2236_mib() -> None:
    assert saved_bytes(deepseek_layer()) / MIB == 2236


@pytest.mark.parametrize(("rows", "gib", "tolerance"), SHARES_OF_A_RUN)
def test_rows_over_a_run_are_the_published_ones(rows: tuple[str, ...], gib: float, tolerance: float) -> None:
    held = rows_of(deepseek_layer())
    assert 60 * sum(held[row] for row in rows) / 1024 == pytest.approx(gib, rel=tolerance)


def test_fused_weighting_drops_the_combine_input() -> None:
    fused = ops_of(model_of("deepseek-v3"), plan_of(), profile=replace(PLAIN, combine_saved=False))[Kind.SPARSE]
    assert rows_of(fused) == {name: mib for name, mib in DEEPSEEK_MIB.items() if name != "combine input"}


def test_full_recompute_of_four_layers_keeps_their_inputs() -> None:
    # 224 MiB for four layers, arXiv 2502.07846 table 10
    assert 4 * saved_bytes(deepseek_layer(), Module.KEPT) / MIB == pytest.approx(224, rel=0.002)


@pytest.mark.parametrize(("norms", "mib"), [(4, 721), (2, 691)])
def test_a_pangu_layer_keeps_721_mib_and_691_without_sandwich_norms(norms: int, mib: float) -> None:
    # 691 is the row list above at TP8, s = 8192, hidden 7680; sandwich norms add two inputs of 15 MiB each
    model = replace(model_of("pangu-ultra-moe-718b"), norms_per_layer=norms)
    ops = ops_of(model, plan_of(tp=8), job_of(8192))[Kind.SPARSE]
    assert saved_bytes(ops) / MIB == pytest.approx(mib, abs=0.5)


@given(
    heads=st.sampled_from([8, 32, 64]), head_dim=st.sampled_from([64, 128]), width=st.integers(1, 64),
    tp=st.sampled_from([1, 2, 8]), mbs=st.integers(1, 4), seq_len=st.sampled_from([512, 4096]),
)  # fmt: skip
def test_a_dense_layer_keeps_the_closed_form(
    heads: int, head_dim: int, width: int, tp: int, mbs: int, seq_len: int
) -> None:
    # 16 n h + 6 n f + 4 n a with a d = h and as many kv heads: arXiv 2205.05198 without dropout, scores and masks
    h, f, n = heads * head_dim, width * 64, mbs * seq_len / tp
    attention = GQA(heads=heads, kv_heads=heads, head_dim=head_dim)
    model = replace(model_of("llama-3.1-70b"), hidden=h, ffn_width=f, attention=attention)
    ops = ops_of(model, plan_of(tp=tp, mbs=mbs), job_of(seq_len))[Kind.DENSE]
    assert saved_bytes(ops) == 16 * n * h + 6 * n * f + 4 * n * heads


LAYERS = tuple(
    (name, kind)
    for name in ("deepseek-v3", "pangu-ultra-moe-718b", "mixtral-8x7b", "llama-3.1-405b")
    for kind in dict.fromkeys(decoder_kinds(model_of(name)))
)


@pytest.mark.parametrize("plan", [{}, {"tp": 8}, {"tp": 8, "sp": False}, {"tp": 2, "mbs": 2}])
@pytest.mark.parametrize(("name", "kind"), LAYERS)
def test_modules_partition_the_rows(name: str, kind: Kind, plan: dict[str, int]) -> None:
    ops = ops_of(model_of(name), plan_of(**plan))[kind]
    assert sum(saved_bytes(ops, module) for module in Module) == saved_bytes(ops)


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize(("name", "kind"), LAYERS)
def test_everything_rebuilt_leaves_the_layer_input(name: str, kind: Kind, tp: int, sp: bool) -> None:
    model = model_of(name)
    ops = ops_of(model, plan_of(tp=tp, sp=sp))[kind]
    rest = saved_bytes(ops) - sum(saved_bytes(ops, module) for module in REBUILDABLE)
    assert rest == 2.0 * 4096 / (tp if sp else 1) * model.hidden


def kept(model: Model, **given: float) -> float:
    """Bytes that a sparse layer keeps under a plan."""
    plan = plan_of(**{name: value for name, value in given.items() if name != "imbalance"})
    job = job_of(expert_imbalance=given.get("imbalance", 1.0))
    return saved_bytes(ops_of(model, plan, job)[Kind.SPARSE])


@given(tp=st.sampled_from([1, 2, 4, 8]), mbs=st.integers(1, 8))
def test_rows_grow_with_the_microbatch(tp: int, mbs: int) -> None:
    model = model_of("deepseek-v3")
    assert kept(model, tp=tp, mbs=mbs) == mbs * kept(model, tp=tp)


@given(imbalance=st.floats(1.0, 4.0), ep=st.sampled_from([2, 8, 64]))
def test_imbalance_multiplies_the_routed_rows_alone(imbalance: float, ep: int) -> None:
    # four rows of routed tokens, 1280 of the 2236 MiB; one device that holds all experts sees no imbalance
    model, routed = model_of("deepseek-v3"), 1280 * MIB
    extra = kept(model, ep=ep, imbalance=imbalance) - kept(model, ep=ep)
    assert extra == pytest.approx((imbalance - 1.0) * routed, rel=1e-9, abs=1.0)
    assert kept(model, imbalance=imbalance) == kept(model)


def test_no_row_grows_with_sequence_parallelism() -> None:
    model = model_of("pangu-ultra-moe-718b")
    off, on = (rows_of(ops_of(model, plan_of(tp=8, sp=sp))[Kind.SPARSE]) for sp in (False, True))
    gathered = "moe input, gathered part"  # without sp the whole input is the rank's own
    assert all(on[name] <= off[name] for name in off)
    assert set(on) - set(off) == {gathered}
    assert on[gathered] + on["moe input"] == off["moe input"]


def test_weight_gradients_of_a_gpt_layer_wait_with_32_s_b_h() -> None:
    # arXiv 2401.10241 table 1: inputs and output gradients of the four products
    model = model_of("gpt3-175b")
    dense = ops_of(model, plan_of(mbs=2), job_of(2048))[Kind.DENSE]
    assert delayed_bytes(dense) == 32.0 * 2048 * 2 * model.hidden


@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_parallelism_cuts_what_waits_but_for_gathered_inputs(tp: int) -> None:
    model = model_of("gpt3-175b")
    each = 2048.0 * model.hidden
    # whole: input of qkv and fc1, output gradient of the other two; cut: 3 h and 4 h outputs, 1 h and 4 h inputs
    without = delayed_bytes(ops_of(model, plan_of(tp=tp, sp=False), job_of(2048))[Kind.DENSE])
    assert without == pytest.approx(2.0 * each * (4.0 + 12.0 / tp), rel=1e-12)
    shared = delayed_bytes(ops_of(model, plan_of(tp=tp, sp=True), job_of(2048))[Kind.DENSE])
    assert shared == pytest.approx(2.0 * each * (2.0 + 14.0 / tp), rel=1e-12)
