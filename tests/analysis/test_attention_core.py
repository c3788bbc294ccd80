"""The attention core: keys under a mask, documents in a sequence, the whole score matrix, ranks of a sequence.

Masks are counted one query at a time. Score matrix: arXiv 2205.05198 sections 4 and 5. Rings and exchanges for
heads: arXiv 2310.01889, arXiv 2309.14509.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.analysis.core import mean_keys
from autodeploy.analysis.ops import Engine, Group, Module, Op
from autodeploy.analysis.readings import PLAIN, flop_per_token, saved_bytes
from autodeploy.spec.job import Job
from autodeploy.spec.model import GQA, Kind, Model
from autodeploy.spec.plan import CpComm, Plan
from autodeploy.spec.target import Profile
from tests.builders import job_of, model_of, ops_of, plan_of

DENSE_MODELS = ("llama-3.1-70b", "deepseek-v3")


def windowed(window: int, share: float = 1.0) -> Model:
    """A dense model of which some layers see a window."""
    return replace(model_of("llama-3.1-70b"), window=window, window_frac=share)


def masked_keys(length: int, window: int) -> float:
    """Keys of a causal mask with a window (0: none), on average over queries: entries of the mask, counted."""
    query, key = np.mgrid[:length, :length]
    seen = (key <= query) & (query - key < (window or length))
    return float(seen.sum() / length)


@given(length=st.integers(1, 300), window=st.integers(0, 400))
def test_keys_of_a_window_are_those_of_its_mask(length: int, window: int) -> None:
    # s/2 a query is the convention of FLOP counters: half of a key less than the mask has on its diagonal
    counted = masked_keys(length, window) - mean_keys(windowed(window), length)
    assert 0.0 <= counted <= 0.5
    assert counted == pytest.approx(min(window or length, length) / length / 2.0, abs=1e-9)


@given(length=st.integers(1, 8192), window=st.integers(1, 8192), share=st.floats(0.0, 1.0))
def test_layers_with_and_without_a_window_mix(length: int, window: int, share: float) -> None:
    inside, whole = mean_keys(windowed(window), length), mean_keys(windowed(0), length)
    assert mean_keys(windowed(window, share), length) == pytest.approx(share * inside + (1 - share) * whole, rel=1e-12)
    assert inside <= whole
    assert (inside == whole) is (window >= length) or inside == pytest.approx(whole, rel=1e-9)


def core_flop(job: Job, plan: Plan | None = None, model: Model | None = None, profile: Profile = PLAIN) -> float:
    """FLOP of the attention core of one layer."""
    ops = ops_of(model or model_of("llama-3.1-70b"), plan or plan_of(), job, profile)[Kind.DENSE]
    return sum(op.flop for op in ops if op.engine is Engine.ATTENTION)


@pytest.mark.parametrize("documents", [(4096,), (1024,) * 4, (2048, 1024, 512, 512), (3000, 1000, 96)])
def test_packed_documents_see_their_own_keys_alone(documents: tuple[int, ...]) -> None:
    # sum l^2 / sum l stands for all of them: each token sees half of its own document
    assert sum(documents) == 4096
    counted = sum(masked_keys(length, 0) * length for length in documents) / 4096
    mean = sum(length**2 for length in documents) / 4096
    assert mean_keys(model_of("llama-3.1-70b"), mean) == pytest.approx(counted, abs=0.5)
    if mean.is_integer():
        share = core_flop(job_of(document_len=int(mean))) / core_flop(job_of())
        assert share == pytest.approx(mean / 4096, rel=1e-12)


@pytest.mark.parametrize("window", [0, 512])
@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_documents_in_a_sequence_cost_what_they_cost_apart(pieces: int, window: int) -> None:
    model = windowed(window)
    packed = core_flop(job_of(4096, document_len=4096 // pieces), model=model)
    apart = core_flop(job_of(4096 // pieces), plan_of(mbs=pieces), model)
    assert packed == apart


def test_documents_change_the_core_alone_and_never_grow_a_sequence() -> None:
    ops, packed = (ops_of(model_of("llama-3.1-70b"), plan_of(), job_of(document_len=n))[Kind.DENSE] for n in (0, 512))
    for one, other in zip(ops, packed, strict=True):
        assert (one == other) is (one.engine is not Engine.ATTENTION)
    assert core_flop(job_of(document_len=8192)) == core_flop(job_of()) == core_flop(job_of(document_len=4096))


def test_a_window_lowers_the_flop_of_a_model() -> None:
    whole, cut = (flop_per_token(windowed(window), 32768, mtp=False) for window in (0, 4096))
    heads, dim, layers = 64, 128, 80
    saved = 3.0 * layers * 2.0 * heads * 2.0 * dim * (32768 / 2 - (4096 - 4096**2 / (2 * 32768)))
    assert whole - cut == pytest.approx(saved, rel=1e-9)


def unfused(score_bytes: float = 5.0) -> Profile:
    return replace(PLAIN, attention="unfused", score_saved_bytes=score_bytes)


def gpt(heads: int, hidden: int) -> Model:
    """A GPT with multi-head attention and four times its width inside."""
    attention = GQA(heads=heads, kv_heads=heads, head_dim=hidden // heads)
    return replace(model_of("gpt3-175b"), hidden=hidden, ffn_width=4 * hidden, attention=attention)


GPTS = (
    # heads, hidden, 5 a s / h, share of the rows that selective recompute saves: arXiv 2205.05198 section 5
    (96, 12288, 80, 0.70),
    (128, 20480, 64, 0.65),
)


def layer_of(heads: int, hidden: int, tp: int = 8, mbs: int = 1) -> tuple[Op, ...]:
    return ops_of(gpt(heads, hidden), plan_of(tp=tp, mbs=mbs), job_of(2048), unfused())[Kind.DENSE]


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize(("heads", "hidden", "scores", "share"), GPTS)
def test_scores_of_a_layer_are_the_published_ones(heads: int, hidden: int, scores: int, share: float, tp: int) -> None:
    # s b h / t (34 + 5 a s / h), of which 2 are the masks of dropout after attention and after the feed-forward
    ops, each = layer_of(heads, hidden, tp), 2048 * hidden / tp
    assert saved_bytes(ops, Module.CORE_ATTN) == scores * each
    assert saved_bytes(ops) + 2.0 * each == (34 + scores) * each
    masks = 2.0 * each
    assert saved_bytes(ops, Module.CORE_ATTN) / (saved_bytes(ops) + masks) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("score_bytes", [2.0, 5.0])
def test_the_score_matrix_is_whole_where_it_is_written(score_bytes: float) -> None:
    # causal or not, s keys a query: 2 s^2 a d b FLOP a product, twice what is counted of it
    ops = {op.name: op for op in ops_of(gpt(96, 12288), plan_of(), job_of(2048), unfused(score_bytes))[Kind.DENSE]}
    for name in ("scores", "weighted values"):
        op = ops[name]
        assert 2.0 * op.m * op.n * op.k == 2.0 * 2048**2 * 12288 == 2.0 * op.flop
    kept = sum(row.bytes for row in ops["scores"].rows + ops["softmax"].rows)
    assert kept == score_bytes * 96 * 2048**2
    assert ops["softmax"].forward_bytes >= 4.0 * 96 * 2048**2  # read and written once at the least


def test_unfused_attention_counts_the_same_flop() -> None:
    assert core_flop(job_of(), profile=unfused()) == core_flop(job_of())


def test_fused_attention_keeps_no_scores() -> None:
    ops = ops_of(gpt(96, 12288), plan_of(), job_of(2048))[Kind.DENSE]
    assert saved_bytes(ops, Module.CORE_ATTN) == 4.0 * 96 * 2048  # one statistic of the soft-max for a query and head


@pytest.mark.parametrize("name", ["llama-3.1-70b", "gpt3-175b"])
def test_a_bias_on_the_scores_turns_nothing(name: str) -> None:
    # ALiBi, arXiv 2108.12409
    names = [op.name for op in ops_of(replace(model_of(name), alibi=True), plan_of())[Kind.DENSE]]
    assert "rope" not in names
    plain = [op.name for op in ops_of(model_of(name), plan_of())[Kind.DENSE]]
    assert ("rope" in plain) is (model_of(name).learned_positions == 0)
    assert [each for each in plain if each != "rope"] == names


COMMS = st.sampled_from(CpComm)


@given(
    name=st.sampled_from(DENSE_MODELS), cp=st.sampled_from([2, 4, 8]), tp=st.sampled_from([1, 2, 4]), how=COMMS,
    kind=st.sampled_from(["best", "unfused"]),
)  # fmt: skip
def test_ranks_of_a_sequence_together_do_what_one_does(name: str, cp: int, tp: int, how: CpComm, kind: Any) -> None:
    model, profile = model_of(name), replace(PLAIN, attention=kind)
    one, cut = (ops_of(model, plan_of(tp=tp, cp=n, cp_comm=how), profile=profile) for n in (1, cp))
    for layer, whole in one.items():
        assert sum(op.flop for op in cut[layer]) * cp == pytest.approx(sum(op.flop for op in whole), rel=1e-12)
        assert saved_bytes(cut[layer]) * cp == pytest.approx(saved_bytes(whole), rel=1e-12)
        assert [op.params for op in cut[layer]] == [op.params for op in whole]


def sent(model: Model, plan: Plan, kind: Kind = Kind.DENSE) -> tuple[float, float, float]:
    """Bytes of a context transfer of one layer, and how often it runs forward and backward."""
    (transfer,) = [t for op in ops_of(model, plan)[kind] for t in op.transfers if t.group is Group.CP]
    return transfer.bytes, transfer.forward, transfer.backward


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("how", [CpComm.RING, CpComm.GATHER])
def test_keys_and_values_are_shared_and_their_gradients_go_home(how: CpComm, cp: int) -> None:
    # 2 T g d e forward, and twice that backward: keys and values again, and their gradients
    tokens = 4096 / cp
    assert sent(model_of("llama-3.1-70b"), plan_of(cp=cp, cp_comm=how)) == (2 * tokens * 8 * 128 * 2, 1, 2)
    latent = sent(model_of("deepseek-v3"), plan_of(cp=cp, cp_comm=how))
    assert latent == (2 * tokens * 128 * (128 + 64 + 128), 1, 2)  # keys 192 wide, values 128
    assert sent(model_of("llama-3.1-70b"), plan_of(cp=cp, tp=4, cp_comm=how))[0] == 2 * tokens * 2 * 128 * 2


def test_ulysses_exchanges_queries_keys_values_and_outputs() -> None:
    # four all-to-all of n h e with as many key heads: arXiv 2309.14509 section 3.2
    model = replace(model_of("gpt3-175b"), max_seq_len=4096)
    assert sent(model, plan_of(cp=4, cp_comm=CpComm.ULYSSES)) == (4 * 2 * 1024 * 12288, 1, 1)
    grouped = sent(model_of("llama-3.1-70b"), plan_of(cp=4, cp_comm=CpComm.ULYSSES))
    assert grouped == (2 * 1024 * (2 * 64 + 2 * 8) * 128, 1, 1)


@pytest.mark.parametrize(("tp", "cp"), [(1, 4), (1, 8), (1, 16), (4, 8), (8, 8), (2, 16)])
def test_a_rank_of_ulysses_gets_the_whole_sequence_of_a_key_head_at_least(tp: int, cp: int) -> None:
    # 8 key heads: where a rank has fewer than cp of them, each is sent to several ranks
    moved, _, _ = sent(model_of("llama-3.1-70b"), plan_of(tp=tp, cp=cp, cp_comm=CpComm.ULYSSES))
    received = moved * (cp - 1) / cp  # an all-to-all brings all but the own share
    part, dim, heads = 4096 / cp, 128, 64 / tp
    queries_and_outputs = 2 * part * 2 * heads * dim * (cp - 1) / cp
    one_head = 2 * 2 * dim * part * (cp - 1)
    assert received >= (queries_and_outputs + one_head) * (1 - 1e-12)


@pytest.mark.parametrize("name", DENSE_MODELS)
def test_one_context_rank_sends_nothing(name: str) -> None:
    for ops in ops_of(model_of(name), plan_of(tp=2)).values():
        assert [t for op in ops for t in op.transfers if t.group is Group.CP] == []
