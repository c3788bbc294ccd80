"""From a published figure to seconds a step, against sums that are done here by hand.

The small model has l = 8 layers of h = 1024, 4 h wide, V = 51200; it trains B = 64 sequences of s = 2048 on N = 8
A100.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.little import SPARSE, read, run_in

LAYERS, HIDDEN, VOCAB, SEQ, GBS, DEVICES = 8, 1024, 51200, 2048, 64, 8
TOKENS = GBS * SEQ
MATRICES = 72 * LAYERS * HIDDEN**2
"""FLOP a token of the layers' matrices, forward and backward: 24 h^2 a layer forward (arXiv 2104.04473, appendix)."""
SCORES = 12 * LAYERS * SEQ * HIDDEN
"""Of scores and weighted values over whole sequences; causal halves it."""
HEAD = 6 * HIDDEN * VOCAB
A100 = 312e12
"""Dense bf16 peak of the data sheet."""
CAUSAL = "model FLOPs, attention counted causal (halved)"
WHOLE = "model FLOPs, attention not causal-halved"
WITHOUT = "model FLOPs without the attention-score term [inferred from arithmetic]"
HARDWARE = "hardware FLOPs (recompute counted), attention not causal-halved"
FLOP = {CAUSAL: MATRICES + SCORES / 2 + HEAD, WHOLE: MATRICES + SCORES + HEAD, WITHOUT: MATRICES + HEAD}
CONVENTIONS = {
    "causal": (CAUSAL, "none", FLOP[CAUSAL]),
    "causal_in_other_words": ("model FLOPs (Megatron-Core formula, causal-halved)", "none", FLOP[CAUSAL]),
    "whole": (WHOLE, "none", FLOP[WHOLE]),
    "without_attention": (WITHOUT, "none", FLOP[WITHOUT]),
    "nothing_is_recomputed": (HARDWARE, "none", FLOP[WHOLE]),
    "model_flop_under_recompute": (WHOLE, "full", FLOP[WHOLE]),
}


def narayanan() -> float:
    """FLOP a token that the hardware runs under full recompute: 96 l h^2 (1 + s / 6h + V / 16 l h).

    Source: arXiv 2104.04473 section 5.1, equation 3; the same line stands in Megatron-DeepSpeed, which BLOOM ran.
    """
    return 96 * LAYERS * HIDDEN**2 * (1 + SEQ / (6 * HIDDEN) + VOCAB / (16 * LAYERS * HIDDEN))


def seconds(flop: float, flop_per_s: float) -> float:
    """Of a step at a rate per device."""
    return TOKENS * flop / (flop_per_s * DEVICES)


def test_tokens_per_second_and_device(tmp_path: Path) -> None:
    run = run_in(tmp_path, metric="tokens_per_s_per_gpu", value=8192)
    assert run.step_s == pytest.approx(131072 / 65536, rel=1e-12)
    assert run_in(tmp_path, metric="tokens_per_s_per_npu", value=8192).step_s == run.step_s


def test_samples_per_second_are_those_of_the_whole_machine(tmp_path: Path) -> None:
    assert run_in(tmp_path, metric="samples_per_s", value=16).step_s == pytest.approx(4.0, rel=1e-12)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_flop_per_second_by_convention(name: str, tmp_path: Path) -> None:
    words, recompute, flop = CONVENTIONS[name]
    for metric in ("tflops_per_gpu", "tflops_per_npu"):
        run = run_in(tmp_path, metric=metric, value=40, flops_convention=words, recompute=recompute)
        assert run.step_s == pytest.approx(seconds(flop, 40e12), rel=1e-9)


def test_hardware_flop_of_full_recompute_are_those_of_the_published_formula(tmp_path: Path) -> None:
    """The layers run forward once more, the head does not: 4/3 of everything is 8 % too much here."""
    given = {"metric": "tflops_per_gpu", "value": 40, "flops_convention": HARDWARE, "recompute": "full"}
    assert run_in(tmp_path, **given).step_s == pytest.approx(seconds(narayanan(), 40e12), rel=1e-6)


def test_hardware_flop_reproduce_a_row_of_the_paper(tmp_path: Path) -> None:
    """Table 1 of arXiv 2104.04473, first row: 1.7 B, 24 layers of 2304, 32 GPUs, batch 512, 137 TFLOP/s a GPU."""
    flop = 96 * 24 * 2304**2 * (1 + 2048 / (6 * 2304) + 51200 / (16 * 24 * 2304))
    run = run_in(
        tmp_path, layers=24, hidden=2304, ffn_hidden=9216, heads=24, gpus=32, gbs=512, recompute="full",
        metric="tflops_per_gpu", value=137, flops_convention=HARDWARE,
    )  # fmt: skip
    assert run.step_s == pytest.approx(512 * 2048 * flop / (137e12 * 32), rel=1e-6)


@pytest.mark.parametrize(("words", "flop"), FLOP.items())
def test_mfu_is_per_cent_of_the_data_sheet(words: str, flop: float, tmp_path: Path) -> None:
    run = run_in(tmp_path, metric="mfu", value=30, flops_convention=words)
    assert run.step_s == pytest.approx(seconds(flop, 0.30 * A100), rel=1e-9)


def test_mfu_of_an_fp8_run_is_of_the_fp8_peak(tmp_path: Path) -> None:
    given = {"hardware": "h100-80g-sxm", "metric": "mfu", "value": 20, "flops_convention": WHOLE}
    run = run_in(tmp_path, **given, precision="fp8")
    assert run.step_s == pytest.approx(seconds(FLOP[WHOLE], 0.20 * 1979e12), rel=1e-3)
    assert run_in(tmp_path, **given).step_s == pytest.approx(seconds(FLOP[WHOLE], 0.20 * 989.5e12), rel=1e-3)


def test_mfu_of_a_source_with_a_peak_of_its_own(tmp_path: Path) -> None:
    """MindSpeed-LLM's table divides by about 360 TFLOP/s, and counts attention whole."""
    run = run_in(tmp_path, source="readme-mfu-table", hardware="atlas-900-a2-pod", metric="mfu", value=40)
    assert run.stack.mfu_peak_flop_per_s == 360e12
    assert run.step_s == pytest.approx(seconds(FLOP[WHOLE], 0.40 * 360e12), rel=1e-9)


def test_grouped_queries_and_gates_by_hand(tmp_path: Path) -> None:
    """4 groups of keys and values for 16 heads, and three matrices of 2816 wide."""
    projections = 2 * HIDDEN**2 * (2 + 2 * 4 / 16)
    flop = 3 * LAYERS * (projections + 6 * HIDDEN * 2816) + SCORES / 2 + HEAD
    run = run_in(
        tmp_path, model="llama little", kv_heads=4, ffn_hidden=2816, metric="tflops_per_gpu", value=40,
        flops_convention=CAUSAL,
    )  # fmt: skip
    assert run.step_s == pytest.approx(seconds(flop, 40e12), rel=1e-9)


def test_experts_by_hand(tmp_path: Path) -> None:
    """Every token runs through 2 experts of three matrices, 2048 wide; Megatron leaves the router out."""
    projections = 2 * HIDDEN**2 * (2 + 2 * 8 / 16)
    flop = 3 * LAYERS * (projections + 2 * 6 * HIDDEN * 2048) + SCORES / 2 + HEAD
    given = {"metric": "tflops_per_gpu", "value": 40, "flops_convention": CAUSAL}
    runs, _ = read(tmp_path, SPARSE | given)
    assert runs[0].step_s == pytest.approx(seconds(flop, 40e12), rel=1e-9)


def test_a_wider_batch_takes_longer_at_the_same_rate(tmp_path: Path) -> None:
    given = {"metric": "tokens_per_s_per_gpu", "value": 8192}
    once, twice = run_in(tmp_path, **given).step_s, run_in(tmp_path, **given, gbs=128).step_s
    assert once is not None
    assert twice == pytest.approx(2 * once)


@pytest.mark.parametrize(
    ("notes", "wanted_bytes"),
    [
        ("peak_mem=58.2GB", 58.2e9),
        ("trust=A; peak_mem=58.2 GB per GPU; more", 58.2e9),
        ("peak_mem=58.2GiB (torch max allocated)", 58.2 * 2**30),
        ("peak_mem=58.2GiB (reserved)", 58.2 * 2**30),
        ("peak_mem=58.2MiB", 58.2 * 2**20),
        ("peak_mem_mib=46214 on device 1", 46214 * 2**20),
        ("peak_alloc_mib=22651.5 (max over logged ranks)", 22651.5 * 2**20),
        ("peak_mem_gib=52.3 of 64 (as published)", 52.3 * 2**30),
        ("uses about 70 GB of memory (peak_mem_gb~70)", 70e9),
        ("tried to allocate 26.44 GiB, capacity 60.96 GiB", None),
        ("", None),
    ],
)
def test_peak_memory_in_the_notes(notes: str, wanted_bytes: float | None, tmp_path: Path) -> None:
    found = run_in(tmp_path, notes=notes).peak_bytes
    assert found == (None if wanted_bytes is None else pytest.approx(wanted_bytes, rel=1e-12))


def test_peak_memory_as_the_metric(tmp_path: Path) -> None:
    run = run_in(tmp_path, metric="peak_mem_gb", value=61.5)
    assert run.peak_bytes == pytest.approx(61.5e9, rel=1e-12)
    assert run.step_s is None
