"""Parameter counts: published totals, and a count written out from the architecture papers alone.

Formulas: DeepSeek-V2 (arXiv 2405.04434) for latent attention, DeepSeek-V3 (arXiv 2412.19437) for experts and MTP,
NVIDIA/Megatron-LM:megatron/training/theoretical_memory_usage.py for the rest.
"""

from __future__ import annotations

import pytest

from autodeploy.analysis.ends import padded_vocab
from autodeploy.analysis.ops import Shard
from autodeploy.analysis.readings import model_size, params
from autodeploy.catalog.lookup import names
from autodeploy.spec.model import GQA, Kind, Model, decoder_kinds
from tests.builders import model_of, ops_of, plan_of

BILLION = 1e9
PUBLISHED_TOTALS = (
    ("deepseek-v3", 671.0, 0.002),  # arXiv 2412.19437 abstract
    ("pangu-ultra-moe-718b", 718.0, 0.002),  # arXiv 2505.04519
    ("llama-3.1-405b", 405.85, 0.002),  # meta-llama/Llama-3.1-405B
    ("mixtral-8x7b", 46.7, 0.002),  # arXiv 2401.04088
    ("qwen3-30b-a3b", 30.5, 0.002),  # Qwen/Qwen3-30B-A3B
    ("gpt3-175b", 175.0, 0.005),  # arXiv 2005.14165 table 2.1
)
PUBLISHED_ACTIVE = (
    # without the input embedding, the convention of these two reports
    ("deepseek-v3", 37.0, 0.011),  # arXiv 2412.19437
    ("pangu-ultra-moe-718b", 39.0, 0.006),  # arXiv 2505.04519
)
WITH_EMBEDDING_ACTIVE = (
    # with it, the convention of these
    ("mixtral-8x7b", 12.9, 0.004),  # arXiv 2401.04088
    ("qwen3-30b-a3b", 3.3, 0.02),  # Qwen/Qwen3-30B-A3B
)
LAYER_EXACT = (
    # arXiv 2502.07846 section 2
    ("latent attention", 187_107_328),
    ("experts", 11_320_164_352),
)


@pytest.mark.parametrize(("name", "billions", "tolerance"), PUBLISHED_TOTALS)
def test_total_is_the_published_one(name: str, billions: float, tolerance: float) -> None:
    assert model_size(model_of(name)).total / BILLION == pytest.approx(billions, rel=tolerance)


@pytest.mark.parametrize(("name", "billions", "tolerance"), PUBLISHED_ACTIVE)
def test_active_without_embedding_is_the_published_one(name: str, billions: float, tolerance: float) -> None:
    assert model_size(model_of(name)).active / BILLION == pytest.approx(billions, rel=tolerance)


@pytest.mark.parametrize(("name", "billions", "tolerance"), WITH_EMBEDDING_ACTIVE)
def test_active_with_embedding_is_the_published_one(name: str, billions: float, tolerance: float) -> None:
    size = model_size(model_of(name))
    assert (size.active + size.embedding) / BILLION == pytest.approx(billions, rel=tolerance)


def test_mtp_of_deepseek_v3_is_the_published_one() -> None:
    # deepseek-ai/DeepSeek-V3 README_WEIGHTS.md: 11.5 B unique; by tensor shapes 11.608 B
    assert model_size(model_of("deepseek-v3")).mtp / BILLION == pytest.approx(11.608, rel=0.002)


@pytest.mark.parametrize(("part", "count"), LAYER_EXACT)
def test_parts_of_a_deepseek_v3_layer_are_exact(part: str, count: int) -> None:
    ops = {op.name: op for op in ops_of(model_of("deepseek-v3"), plan_of())[Kind.SPARSE]}
    attention = ("q down", "q latent norm", "q up", "kv down", "kv latent norm", "kv up", "output projection")
    experts = ("router", "expert fc1", "expert fc2", "shared fc1", "shared fc2")
    chosen = attention if part == "latent attention" else experts
    assert params(ops[name] for name in chosen) == count


def attention_count(model: Model) -> int:
    """Trainable scalars of one attention block, from the architecture papers."""
    h, a = model.hidden, model.attention
    if isinstance(a, GQA):
        weights = 2 * h * a.heads * a.head_dim + 2 * h * a.kv_heads * a.head_dim
        bias = (a.heads + 2 * a.kv_heads) * a.head_dim * a.qkv_bias + h * model.linear_bias
        return weights + bias + 2 * a.head_dim * a.qk_norm
    q = h * a.q_rank + a.q_rank + a.q_rank * a.heads * (a.nope_dim + a.rope_dim)
    kv = h * (a.kv_rank + a.rope_dim) + a.kv_rank + a.kv_rank * a.heads * (a.nope_dim + a.v_dim)
    return q + kv + a.heads * a.v_dim * h


def norm_count(model: Model) -> int:
    """One norm over the hidden size."""
    return model.hidden * (2 if model.norm == "layernorm" else 1)


def layer_count(model: Model, sparse: bool, experts: int) -> int:
    """One decoder layer with so many routed experts."""
    h, matrices = model.hidden, 3 if model.gated else 2
    common = attention_count(model) + model.norms_per_layer * norm_count(model)
    if not sparse or model.moe is None:
        return common + matrices * h * model.ffn_width + model.linear_bias * (model.ffn_width + h)
    moe = model.moe
    return common + matrices * h * (experts * moe.expert_width + moe.shared_width) + h * moe.experts


def total_count(model: Model, experts: int, embeddings: int) -> int:
    """Decoder layers, ends and final norm; `embeddings` vocabulary matrices."""
    layers = sum(layer_count(model, kind is Kind.SPARSE, experts) for kind in decoder_kinds(model))
    return layers + norm_count(model) + model.hidden * (embeddings * model.vocab + model.learned_positions)


@pytest.mark.parametrize("name", names(Model))
def test_total_equals_an_independent_count(name: str) -> None:
    model = model_of(name)
    routed = model.moe.experts if model.moe else 0
    assert model_size(model).total == total_count(model, routed, 1 if model.tied_embeddings else 2)


@pytest.mark.parametrize("name", names(Model))
def test_active_equals_an_independent_count(name: str) -> None:
    model = model_of(name)
    expected = total_count(model, model.moe.top_k if model.moe else 0, 1)
    assert model_size(model).active == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["deepseek-v3", "pangu-ultra-moe-718b"])
def test_mtp_equals_an_independent_count(name: str) -> None:
    model = model_of(name)
    assert model.moe is not None
    one = layer_count(model, sparse=True, experts=model.moe.experts)
    assert model_size(model).mtp == model.mtp_depth * (one + 2 * model.hidden**2 + 3 * model.hidden)


@pytest.mark.parametrize("etp", [1, 2, 8])
@pytest.mark.parametrize("ep", [1, 4, 32, 256])
@pytest.mark.parametrize("tp", [1, 2, 8, 64])
def test_ranks_together_hold_the_model_once(tp: int, ep: int, etp: int) -> None:
    model = model_of("deepseek-v3")
    one, cut = (ops_of(model, plan) for plan in (plan_of(), plan_of(tp=tp, ep=ep, etp=etp)))
    for kind, whole in one.items():
        assert tp * params(cut[kind], Shard.TP) == params(whole, Shard.TP)
        assert params(cut[kind], Shard.REPLICATED) == params(whole, Shard.REPLICATED)
        assert ep * etp * params(cut[kind], Shard.EXPERT) == params(whole, Shard.EXPERT)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["llama-3.1-405b", "llama-3.1-70b"])
def test_tensor_parallel_ranks_hold_a_dense_model_once(name: str, tp: int) -> None:
    one, cut = (ops_of(model_of(name), plan_of(tp=degree)) for degree in (1, tp))
    for kind, whole in one.items():
        assert tp * params(cut[kind], Shard.TP) == params(whole, Shard.TP)
        assert params(cut[kind], Shard.REPLICATED) == params(whole, Shard.REPLICATED)


@pytest.mark.parametrize("tp", [16, 32, 128])
def test_key_and_value_heads_are_copied_beyond_their_number(tp: int) -> None:
    model = model_of("llama-3.1-405b")
    one, cut = (params(ops_of(model, plan_of(tp=degree))[Kind.DENSE], Shard.TP) for degree in (1, tp))
    copies = tp / 8 - 1  # 8 kv heads
    assert tp * cut == one + copies * 2 * model.hidden * 8 * 128


@pytest.mark.parametrize("multiple", [1, 128])
@pytest.mark.parametrize("tp", [1, 8, 64])
def test_padding_adds_fewer_rows_than_one_multiple(tp: int, multiple: int) -> None:
    model = model_of("gpt3-175b")
    padded = padded_vocab(model, tp, multiple)
    assert padded % (multiple * tp) == 0
    assert 0 <= padded - model.vocab < multiple * tp
