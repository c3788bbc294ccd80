"""Peak memory of published runs: what a source counts, in which unit, and what its stack holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.fidelity.cuts import filled_stages
from autodeploy.fidelity.measured import peak_memory_bytes
from autodeploy.fidelity.predict import Prediction
from autodeploy.fidelity.runs import run_of
from autodeploy.fidelity.stacks import stack_of
from tests.builders import model_of
from tests.fidelity.little import predicted, row


def counted(memory: str) -> Prediction:
    """The small dense row, its source counting memory in one of three ways."""
    base = predicted()
    return replace(base, run=replace(base.run, stack=replace(base.run.stack, memory=memory), peak_bytes=1e9))


def test_memory_is_compared_as_the_source_counts_it() -> None:
    result, cluster = predicted().result, predicted().run.space.cluster
    assert result is not None
    reserved = result.peak_memory_bytes / (1.0 - cluster.fragmentation_frac)
    expected = {
        "allocated": result.peak_memory_bytes,
        "reserved": reserved,
        "device": result.needed_memory_bytes + cluster.device.context_bytes,
    }
    for memory, size in expected.items():
        assert counted(memory).memory_bytes == pytest.approx(size, rel=1e-12)
        assert counted(memory).memory_error_frac == pytest.approx(size / 1e9 - 1.0, rel=1e-12)
    assert result.peak_memory_bytes < reserved < result.needed_memory_bytes


@pytest.mark.parametrize(
    ("source", "memory", "gigabyte"),
    [
        ("BigScience BLOOM chronicles (A100 tuning)", "device", 1e9),
        ("pytorch torchtitan benchmarks", "reserved", 1e9),
        ("nanotron ultra-scale playbook benchmark", "reserved", 2.0**30),
        ("Megatron-LM functional-test golden values", "allocated", 1e9),
        ("ms-swift Megatron-SWIFT quick start benchmark", "device", 1e9),
    ],
)
def test_a_source_counts_in_its_own_way(source: str, memory: str, gigabyte: float) -> None:
    published = row(source=source, notes="peak_mem=50GB; cfg=full")
    assert stack_of(published).memory == memory
    assert peak_memory_bytes(published, stack_of(published)) == 50 * gigabyte
    binary = row(source=source, notes="peak_mem=50GiB; cfg=full")
    assert peak_memory_bytes(binary, stack_of(binary)) == 50 * 2.0**30


@pytest.mark.parametrize(
    ("name", "precision"), [("DeepSeek-V3", "bf16"), ("Moonlight-16B-A3B", "bf16"), ("Qwen3-30B-A3B", "fp32")]
)
def test_recipes_of_deepseek_shapes_keep_moments_in_half_the_width(name: str, precision: str) -> None:
    published = row(source="Megatron-Bridge performance docs", model=name)
    assert stack_of(published).moment_precision == precision


@pytest.mark.parametrize(
    ("layers", "hidden", "width", "pp", "first"),
    [(16, 2048, 8192, 2, (11, 5)), (28, 3072, 8192, 2, (16, 12)), (80, 8192, 28672, 16, (6, 5, 5, 5, 5, 5, 5))],
)
def test_stages_of_nanotron_take_layers_until_they_are_beyond_their_share(
    layers: int, hidden: int, width: int, pp: int, first: tuple[int, ...]
) -> None:
    """By hand: a layer has 4 h^2 + 3 h f parameters, the head V h; ten of sixteen layers are exactly half."""
    model = replace(model_of("llama-3.1-8b"), layers=layers, hidden=hidden, ffn_width=width, vocab=131072)
    counts = filled_stages(model, pp)
    assert (sum(counts), len(counts), tuple(counts[: len(first)])) == (layers, pp, first)


def test_runs_of_nanotron_lie_on_such_stages() -> None:
    found = run_of(
        row(
            source="nanotron ultra-scale playbook benchmark", model="nanotron-1.34B", layers=16, hidden=2048,
            ffn_hidden=8192, heads=32, vocab=131072, seq_len=4096, hardware="h100-80g-sxm", pp=2, gbs=256,
        )
    )  # fmt: skip
    assert found.plan.layout == "Et*11|t*5L"
    assert found.space.model.layers == 16


def test_dropped_outputs_are_a_matter_of_the_source() -> None:
    tests, plain = (
        run_of(row(source=source)).space.target.profile.dropout_saved_bytes
        for source in ("Megatron-LM functional-test golden values", "SimuMax B200 release v1.2 real runs")
    )
    assert (tests, plain) == (1.0, 0.0)
