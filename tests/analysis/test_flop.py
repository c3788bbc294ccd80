"""FLOP per token: what published throughput tables imply, published shares, and closed forms.

Throughput tables give TFLOP/s and tokens/s a device; their quotient is the FLOP a token that the counter of
NVIDIA/Megatron-LM:megatron/training/training.py (num_floating_point_operations) takes: three forward passes,
causal attention halved, router left out.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.analysis.ops import Engine
from autodeploy.analysis.readings import flop_per_token
from autodeploy.spec.model import GQA, Kind, Model, decoder_kinds
from tests.builders import job_of, model_of, ops_of, plan_of

GIGA = 1e9
IMPLIED = (
    # model, sequence, MTP, TFLOP/s a device, tokens/s a device:
    # NVIDIA-NeMo/Megatron-Bridge:docs/performance-summary.md and docs/performance-summary-archive.md
    ("deepseek-v3", 4096, True, 1635, 6288),
    ("deepseek-v3", 4096, False, 961, 3848),
    ("qwen3-30b-a3b", 4096, False, 1029, 44544),
    ("llama-3.1-405b", 8192, False, 2646, 1048),
    ("llama-3.1-70b", 8192, False, 2355, 5243),  # Llama 3 70B: the same shapes
)
ATTENTION_SHARES = (
    # arXiv 2603.07685 section 6: scores of DeepSeek-V3 at 64k, and 10-15 % at 4k
    (65536, 0.69, 0.005),
    (4096, 0.125, 0.025),
)


@pytest.mark.parametrize(("name", "seq_len", "mtp", "tflop", "tokens"), IMPLIED)
def test_flop_per_token_is_what_throughput_tables_imply(
    name: str, seq_len: int, mtp: bool, tflop: float, tokens: float
) -> None:
    implied = tflop * 1000.0 / tokens
    assert flop_per_token(model_of(name), seq_len, mtp) / GIGA == pytest.approx(implied, rel=0.005)


def test_deepseek_v3_without_mtp_is_the_reported_250_gflop() -> None:
    # arXiv 2505.09343 table 4
    assert flop_per_token(model_of("deepseek-v3"), 4096, mtp=False) / GIGA == pytest.approx(250.0, rel=0.005)


@pytest.mark.parametrize(("seq_len", "share", "tolerance"), ATTENTION_SHARES)
def test_share_of_attention_scores_is_the_published_one(seq_len: int, share: float, tolerance: float) -> None:
    model = model_of("deepseek-v3")
    core = next(op for op in ops_of(model, plan_of(), job_of(seq_len))[Kind.SPARSE] if op.name == "attention core")
    scores = 3.0 * model.layers * core.flop / seq_len
    assert scores / flop_per_token(model, seq_len, mtp=False) == pytest.approx(share, abs=tolerance)


@pytest.mark.parametrize("seq_len", [1024, 2048])
def test_gpt_equals_the_closed_form_of_megatron(seq_len: int) -> None:
    # 72 L h^2 (1 + s/6h + V/12hL) a token, arXiv 2104.04473 section 3; the score term halved as attention is causal
    model = model_of("gpt3-175b")
    h, layers = model.hidden, model.layers
    expected = 72.0 * layers * h * h * (1.0 + seq_len / (12.0 * h) + model.vocab / (12.0 * h * layers))
    assert flop_per_token(model, seq_len, mtp=False) == pytest.approx(expected, rel=1e-12)


def layer_matrices(model: Model, sparse: bool) -> int:
    """Weights that one token meets in the products of a layer, the router left out."""
    h, a = model.hidden, model.attention
    if isinstance(a, GQA):
        own = 2 * h * (a.heads + a.kv_heads) * a.head_dim
    else:
        qk = a.nope_dim + a.rope_dim
        own = h * a.q_rank + a.q_rank * a.heads * qk + h * (a.kv_rank + a.rope_dim)
        own += a.kv_rank * a.heads * (a.nope_dim + a.v_dim) + a.heads * a.v_dim * h
    matrices = 3 if model.gated else 2
    moe = model.moe
    width = moe.top_k * moe.expert_width + moe.shared_width if sparse and moe else model.ffn_width
    return own + matrices * h * width


def score_flop(model: Model, seq_len: int) -> int:
    """Causal scores and their product with the values, per token of one layer."""
    a = model.attention
    sizes = 2 * a.head_dim if isinstance(a, GQA) else a.nope_dim + a.rope_dim + a.v_dim
    return seq_len * a.heads * sizes


@pytest.mark.parametrize("seq_len", [512, 4096, 32768])
@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("name", ["deepseek-v3", "pangu-ultra-moe-718b", "qwen3-30b-a3b", "llama-3.1-405b"])
def test_flop_per_token_equals_an_independent_count(name: str, mtp: bool, seq_len: int) -> None:
    model = model_of(name)
    kinds = [kind is Kind.SPARSE for kind in decoder_kinds(model)]
    kinds += [kinds[-1]] * (model.mtp_depth if mtp else 0)
    heads = 1 + (model.mtp_depth if mtp else 0)
    weights = sum(layer_matrices(model, sparse) for sparse in kinds) + heads * model.hidden * model.vocab
    weights += (heads - 1) * 2 * model.hidden**2
    expected = 3.0 * (2.0 * weights + len(kinds) * score_flop(model, seq_len))
    assert flop_per_token(model, seq_len, mtp) == pytest.approx(expected, rel=1e-12)


def test_the_router_is_left_out_unless_asked_for() -> None:
    model = model_of("deepseek-v3")
    without, with_router = (flop_per_token(model, 4096, mtp=False, router=asked) for asked in (False, True))
    assert with_router - without == pytest.approx(6.0 * model.hidden * 256 * 58, rel=1e-9)


@pytest.mark.parametrize("plan", [{"tp": 8}, {"tp": 8, "ep": 32}, {"ep": 16, "etp": 4}, {"tp": 2, "mbs": 3}])
@pytest.mark.parametrize("name", ["deepseek-v3", "pangu-ultra-moe-718b"])
def test_ranks_share_the_work_without_adding_to_it(name: str, plan: dict[str, int]) -> None:
    # even routing: over the tp group, products and scores of every kind sum to those of one device (router too)
    model, degrees = replace(model_of(name), vocab=2**17), plan_of(**plan)
    one, cut = ops_of(model, plan_of(mbs=degrees.mbs)), ops_of(model, degrees)
    for kind, ops in one.items():
        for whole, part in zip(ops, cut[kind], strict=True):
            if whole.engine is not Engine.VECTOR:
                assert degrees.tp * part.flop == pytest.approx(whole.flop, rel=1e-12), whole.name
