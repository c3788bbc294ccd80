"""The ends of the model: embedding, head with its loss, and the MTP module (arXiv 2412.19437 section 2.2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.analysis.inventory import kind_counts
from autodeploy.analysis.ops import Group, Module
from autodeploy.analysis.readings import PLAIN, params, saved_bytes, transient_bytes
from autodeploy.spec.model import Kind, decoder_kinds, present_kinds
from tests.builders import job_of, model_of, ops_of, plan_of

GIB = 2.0**30


def test_four_bytes_a_logit_of_deepseek_v3_are_2_gib() -> None:
    # 4096 tokens x 129280 entries x 4 bytes = 1.97 GiB
    profile = replace(PLAIN, logit_saved_bytes=4.0, logit_transient_bytes=0.0)
    head = ops_of(model_of("deepseek-v3"), plan_of(), profile=profile)[Kind.HEAD]
    logits = next(row for op in head for row in op.rows if row.name == "logits")
    assert logits.bytes / GIB == pytest.approx(1.97, abs=0.005)


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("mbs", [1, 3])
def test_logits_are_cut_over_the_tensor_parallel_ranks(tp: int, mbs: int) -> None:
    model = model_of("llama-3.1-405b")
    head = ops_of(model, plan_of(tp=tp, mbs=mbs))[Kind.HEAD]
    each = 4096.0 * mbs * model.vocab / tp
    inputs = 2.0 * 2.0 * 4096 * mbs * model.hidden / tp  # of the final norm and of the product
    assert saved_bytes(head) == PLAIN.logit_saved_bytes * each + inputs
    assert transient_bytes(head) == PLAIN.logit_transient_bytes * each


def test_the_ends_are_never_rebuilt() -> None:
    ops = ops_of(model_of("deepseek-v3"), plan_of(tp=8))
    for kind in (Kind.EMBEDDING, Kind.HEAD):
        assert saved_bytes(ops[kind]) == saved_bytes(ops[kind], Module.KEPT) > 0.0


def test_tied_weights_are_counted_once() -> None:
    tied = model_of("gpt3-175b")
    once, twice = (ops_of(replace(tied, tied_embeddings=flag), plan_of())[Kind.HEAD] for flag in (True, False))
    assert params(twice) - params(once) == tied.hidden * tied.vocab
    assert [op.flop for op in once] == [op.flop for op in twice]


def test_mtp_is_a_layer_a_projection_and_a_head_pass() -> None:
    model = model_of("deepseek-v3")
    ops = ops_of(model, plan_of())
    flop = {kind: sum(op.flop for op in ops[kind]) for kind in ops}
    projection = 2.0 * 4096 * 2 * model.hidden**2
    assert flop[Kind.MTP] == pytest.approx(flop[Kind.SPARSE] + flop[Kind.HEAD] + projection, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 8])
def test_mtp_keeps_its_inputs_their_projection_a_layer_and_logits(tp: int) -> None:
    # the hidden states below and the embedding of the next token, joined before the projection
    model = model_of("deepseek-v3")
    ops = ops_of(model, plan_of(tp=tp))
    stream = 2.0 * 4096 / tp * model.hidden
    logits = PLAIN.logit_saved_bytes * 4096 * model.vocab / tp + stream
    layer = saved_bytes(ops[Kind.SPARSE])
    assert saved_bytes(ops[Kind.MTP]) == 2 * stream + 2 * stream + layer + logits


@pytest.mark.parametrize("mtp", [False, True])
def test_kinds_count_every_layer_once(mtp: bool) -> None:
    model = model_of("pangu-ultra-moe-718b")
    counts = kind_counts(model, mtp)
    assert (counts[Kind.DENSE], counts[Kind.SPARSE]) == (3, 58)  # first_k_dense_replace = 3 of 61
    assert counts.get(Kind.MTP, 0) == int(mtp)
    assert set(counts) == set(present_kinds(model, mtp)) == set(ops_of(model, plan_of(), job_of(mtp=mtp)))


@pytest.mark.parametrize(("first", "every", "sparse"), [(0, 1, 8), (3, 1, 5), (0, 2, 4), (1, 2, 4), (1, 3, 3)])
def test_sparse_layers_start_after_the_dense_ones_and_recur(first: int, every: int, sparse: int) -> None:
    base = model_of("qwen3-30b-a3b")
    assert base.moe is not None
    model = replace(base, layers=8, moe=replace(base.moe, first_dense=first, every=every))
    where = [i for i, kind in enumerate(decoder_kinds(model)) if kind is Kind.SPARSE]
    assert where == list(range(first, 8, every))
    assert len(where) == sparse


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.1-405b"])
def test_sequence_parallel_traffic_is_that_of_the_all_reduce(name: str) -> None:
    # arXiv 2205.05198 section 4.2: an all-reduce becomes a scatter and a gather, and nothing more is sent forward
    def sent(sp: bool) -> float:
        ops = ops_of(model_of(name), plan_of(tp=8, sp=sp))[Kind.DENSE]
        return sum(t.bytes * t.forward for op in ops for t in op.transfers if t.group is Group.TP)

    assert sent(True) == sent(False) > 0.0


def test_a_dense_layer_sends_two_gathers_and_two_scatters() -> None:
    # forward 2 + 2 of T h; backward the same and two more gathers for the weight gradients (arXiv 2205.05198)
    model = model_of("llama-3.1-405b")
    ops = ops_of(model, plan_of(tp=8))[Kind.DENSE]
    transfers = [t for op in ops for t in op.transfers]
    assert {t.bytes for t in transfers} == {2.0 * 4096 * model.hidden}
    assert (sum(t.forward for t in transfers), sum(t.backward for t in transfers)) == (4.0, 6.0)


@pytest.mark.parametrize("plan", [{"tp": 8, "ep": 32}, {"tp": 2, "ep": 8}])
def test_a_sparse_layer_exchanges_its_own_tokens_four_times(plan: dict[str, int]) -> None:
    model = model_of("pangu-ultra-moe-718b")
    ops = ops_of(model, plan_of(**plan))[Kind.SPARSE]
    transfers = [t for op in ops for t in op.transfers if t.group is Group.EP]
    assert {t.bytes for t in transfers} == {2.0 * 4096 / plan["tp"] * model.hidden}
    assert sum(t.forward + t.backward for t in transfers) == 4.0
