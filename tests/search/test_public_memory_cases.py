"""Public cases of memory that decide: fits or not, which way, exact sums. docs/memory.md lists all cases, also those
without a test; those with a measured peak are in test_public_memory_measured.py."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from autodeploy.cost.memory import bytes_per_param
from autodeploy.formats.export import export
from autodeploy.report.memory import memory_report
from autodeploy.search.nearest import miss_of
from autodeploy.search.result import PlanResult
from autodeploy.spec.plan import Overlap, Schedule, States
from autodeploy.units import GIB, GIGA
from tests.builders import cluster_of
from tests.search.public import (
    LLAMA_2_70B,
    QWEN2_7B,
    QWEN3_4B,
    V2,
    breaks_at,
    found_for,
    memory_for,
    space_for,
    with_memory,
)

BRIDGE = "megatron-bridge-2026"


def gib(found: PlanResult, term: str, stage: int = 0) -> float:
    """One term of one stage."""
    return found.stages[stage].memory_terms[term] / GIB


def test_a01_a_plan_that_fits_says_what_fragmentation_it_bears() -> None:
    """Megatron-Bridge 067f987d memory-tuning guide, PR 3107: out of memory at three quarters of the device until the
    allocator's segments could grow. Reserved is told apart, with a stated loss, and the export names the setting."""
    space = space_for("llama-3.1-70b", "h100-80g", 32, 4096, "megatron-core", grad_precision="bf16")
    found = memory_for(space, tp=8, pp=4, vpp=5, layout="even")
    stage, lost = found.fullest, space.cluster.fragmentation_frac
    assert stage.reserved_bytes == pytest.approx(stage.peak_memory_bytes / (1.0 - lost))
    assert "expandable segments" in space.cluster.sources["fragmentation_frac"]
    broken = breaks_at(found, "fragmentation")
    assert broken is not None
    assert lost < broken < 1.0
    notes = export(space, found.result, "megatron-core").notes
    assert any("expandable_segments:True" in note for note in notes)


def test_a03_more_chunks_are_no_remedy() -> None:
    """The same PR against the later guide: VPP 10 was credited with a cure, and used 1.4 GB more."""
    space = space_for("llama-3.1-70b", "h100-80g", 32, 4096, BRIDGE)
    remedies = miss_of(space, found_for(space, tp=4, pp=4, vpp=5, layout="even")).remedies
    assert remedies
    assert not any("vpp" in remedy for remedy in remedies)


FLAT = {"flat_weights": True}


def test_a09_flat_copies_of_the_weights() -> None:
    """modelscope/ms-swift issue 9403: LoRA of Qwen3-235B on 32 NPUs with 60.96 GiB: 30.23 GiB held, 26.44 asked for.
    The dense weights were copied already: 28.34 + 1.90. PP4 or EP16 would have fitted."""
    space = space_for("qwen3-235b-a22b", "atlas-800t-a2", 32, 1024, "mindspeed-llm", gbs=16, lora_rank=8, profile=FLAT)
    found = found_for(space, tp=4, pp=2, ep=8, states=States.HOST)
    experts = 47 * 16 * 3 * 4096 * 1536 * 2 / GIB
    assert experts == pytest.approx(26.44, abs=0.005)
    assert gib(found, "weights") + gib(found, "copies") - experts == pytest.approx(30.23, abs=0.03)
    assert found.stages[0].fullest_moment == "initialisation"
    assert not found.fits
    assert found_for(space, tp=4, pp=4, ep=8, states=States.HOST).fits
    assert found_for(space, tp=4, pp=2, ep=16, states=States.HOST).fits


def test_a10_frozen_experts_alone_are_too_much() -> None:
    """modelscope/ms-swift issue 5615: LoRA of Qwen3-30B-A3B on 4 x 24 GB, EP2. Experts are 27.0 GiB, with EP4 13.5 GiB
    beside 2.9 dense."""
    space = space_for("qwen3-30b-a3b", with_memory("a100-80g", 23.6 * GIB), 4, 3000, "megatron-core", lora_rank=8)
    two, four = (found_for(space, ep=ep, recompute="full") for ep in (2, 4))
    assert not two.fits
    experts = gib(two, "weights") - gib(four, "weights")
    assert 2.0 * experts == pytest.approx(27.0, abs=0.01)
    assert gib(four, "weights") - experts == pytest.approx(2.9, abs=0.05)


def test_a11_context_parallelism_cuts_rows_alone() -> None:
    """modelscope/ms-swift issue 6923: LoRA of Qwen3-VL-4B, CP2 needs what CP1 needs. Frozen weights stay."""
    both = [
        found_for(space_for(QWEN3_4B, "a100-40g", 16 * cp, 8192, "megatron-core", lora_rank=8), tp=4, pp=4, cp=cp)
        for cp in (1, 2)
    ]
    one, two = both
    assert gib(two, "weights") == gib(one, "weights")
    assert gib(two, "activations") == pytest.approx(gib(one, "activations") / 2.0, rel=0.01)
    assert two.peak_memory_bytes > one.peak_memory_bytes / 2.0


def test_a12_the_report_names_the_version() -> None:
    """modelscope/ms-swift issue 8288: 67 GB a card with framework 3.12, 37 GB with 4.0, all flags the same."""
    space = space_for("qwen3-30b-a3b", "a100-80g", 16, 4096, "megatron-core")
    text = StringIO()
    Console(width=200, file=text).print(memory_report(space, memory_for(space, tp=4, ep=4, recompute="full"), {}))
    assert "Megatron-LM d98e8a64 (2026-08-22)" in text.getvalue()


def test_a14_not_without_more_devices_or_recompute() -> None:
    """ISEEKYAN/verl_megatron_practice issue 2: Qwen2-7B, TP2, 10,240 tokens, does not fit in 80 GB. Ours says so where
    nothing shards the state (DP1); the degree is not stated."""
    found = found_for(space_for(QWEN2_7B, "h100-80g", 2, 10240, "megatron-core"), tp=2)
    assert found.peak_memory_bytes > 80.0 * GIGA
    assert not found.fits


def test_a21_states_alone() -> None:
    """hpcaitech/ColossalAI issue 5068: Llama-2-70B on 32 A100: TP4 with DP8 needs 88 GB of states, TP8 PP2 40 GB
    (by its count of 64.24B)."""
    space = space_for(LLAMA_2_70B, "a100-80g", 32, 1024, "generic", gbs=64, grad_precision="bf16")
    for shape, states, fits in (({"tp": 4}, 88.3, False), ({"tp": 8, "pp": 2}, 40.2, True)):
        found = found_for(space, mbs=2, recompute="full", **shape)
        each = bytes_per_param(space.job, space.target.profile, found.plan).dense
        assert each * 64.24 / (found.plan.tp * found.plan.pp) == pytest.approx(states, abs=0.1)
        assert found.fits is fits
        assert "initialisation" in found.stages[0].memory_moments


SELECTED = "mla_up_proj+layernorm+moe_act"


def test_a22_dropless_routing_breaks_at_a_stated_imbalance() -> None:
    """NVIDIA/Megatron-LM issue 1445: DeepSeek-V2, EP8, ends of two layers, selective recompute: out of memory after
    some hundred steps. (PP16 TP2 on 256 H100 assumed: not stated.)"""
    space = space_for(V2, "h100-80g", 256, 4096, "megatron-core", gbs=2048)
    found = memory_for(space, tp=2, pp=16, ep=8, recompute=SELECTED, layout="first:2,last:2")
    broken = breaks_at(found, "imbalance")
    assert broken is not None
    for value, fits in ((0.999 * broken, True), (1.001 * broken, False)):
        uneven = replace(space, job=replace(space.job, expert_imbalance=value))
        assert found_for(uneven, **given_of(found.result)).fits is fits


def given_of(found: PlanResult) -> dict[str, Any]:
    names = ("tp", "pp", "vpp", "ep", "recompute", "layout")
    return {name: getattr(found.plan, name) for name in names}


def test_a23_recompute_bears_more_imbalance() -> None:
    """deepseek-ai/DeepEP issue 99: one rank receives far more than the mean; the advice is more TP
    or more recompute."""
    space = space_for("qwen3-30b-a3b", "h100-80g", 16, 4096, BRIDGE, gbs=1024)
    none, some, full = (
        breaks_at(memory_for(space, ep=16, recompute=modules), "imbalance") for modules in ("none", "moe_act", "full")
    )
    assert none is not None
    assert some is not None
    assert 1.2 < none < some
    assert full is None  # not up to 16 times the mean


def test_a24_routing_inside_a_rank_moves_no_rows() -> None:
    """databricks/megablocks issue 154: no expert parallelism, so a rank holds T k rows however uneven the routing is;
    the growth seen there is not ours."""
    peaks = {
        found_for(
            space_for("qwen3-30b-a3b", "h100-80g", 8, 4096, "generic", expert_imbalance=value), zero=3
        ).peak_memory_bytes
        for value in (1.0, 3.0)
    }
    assert len(peaks) == 1


RECIPE: dict[str, Any] = {
    "pp": 8, "vpp": 2, "ep": 32, "schedule": Schedule.DUALPIPE_V, "overlap": Overlap.PAIR, "recompute": "full",
}  # fmt: skip


@pytest.mark.parametrize(("name", "cluster", "tp"), [("A26", "atlas-800t-a2", 4), ("A27", "atlas-900-a3", 2)])
def test_a26_a27_a_shipped_recipe_of_v3_fits(name: str, cluster: str, tp: int) -> None:
    """Ascend/MindSpeed-LLM c77308a1: DeepSeek-V3 on 512 NPUs, layers 61 to 63 idle, DualPipeV with merged passes,
    state on the host. Without the host nothing is missing."""
    a2, base = cluster_of("atlas-800t-a2").device, cluster_of(cluster)
    linked = replace(base.device, host_bytes=a2.host_bytes, host_bytes_per_s=a2.host_bytes_per_s)
    space = space_for(
        "deepseek-v3", replace(base, device=linked), 512, 4096, "mindspeed-llm", gbs=3840, expert_imbalance=1.2
    )
    host, here = (
        found_for(space, tp=tp, layout="noop:61,62,63", states=states, **RECIPE)
        for states in (States.HOST, States.DEVICE)
    )
    assert host.microbatches == 3840 * tp * 8 // 512 >= 15, name
    assert host.fits
    assert here.fits
    assert here.needed_memory_bytes - host.needed_memory_bytes > 15.0 * GIB
    # MindSpeed docs dualpipev.md: weight gradients apart in the drain raise the peak by much where layers are rebuilt
    profile = replace(space.target.profile, whole_drain=False)
    apart = found_for(
        replace(space, target=replace(space.target, profile=profile)), tp=tp, layout="noop:61,62,63",
        states=States.HOST, **RECIPE,
    )  # fmt: skip
    assert apart.needed_memory_bytes - host.needed_memory_bytes > 15.0 * GIB


def test_a29_a_shipped_recipe_of_qwen3_fits() -> None:
    """Ascend/MindSpeed-LLM c77308a1: Qwen3-30B-A3B on 16 NPUs of 64 GB."""
    space = space_for("qwen3-30b-a3b", "atlas-800t-a2", 16, 4096, "mindspeed-llm", gbs=256, expert_imbalance=1.2)
    assert found_for(space, pp=2, ep=8, recompute="full").fits


A37: list[tuple[str, int, int, dict[str, Any]]] = [
    ("qwen3-235b-a22b", 256, 2048, {"tp": 2, "pp": 8, "vpp": 4, "ep": 32}),
    ("deepseek-v3", 1024, 8192, {"tp": 2, "pp": 16, "vpp": 2, "ep": 64, "layout": "Et*3|(tt|)*29m|L"}),
]


@pytest.mark.parametrize(("model", "devices", "gbs", "shape"), A37)
def test_a37_every_rank_of_a_large_job(model: str, devices: int, gbs: int, shape: dict[str, Any]) -> None:
    """NVIDIA/Megatron-LM PR 2280 profiles one rank on one device, without the buffers of communication."""
    space = space_for(model, "h100-80g", devices, 4096, "megatron-core", gbs=gbs)
    found = memory_for(space, recompute="full", **shape)
    assert len(found.result.stages) == shape["pp"]
    assert all(stage.memory_terms["communicators"] > GIGA for stage in found.result.stages)
