"""Plans that were refused, or ran, in public: issues, pull requests, guides and shipped recipes."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.spec.model import GQA
from autodeploy.spec.plan import Overlap, Plan, Schedule
from tests.builders import plan_of
from tests.legality.asked import accepted, broken, question, spread_over, with_heads

MOE = "qwen3-30b-a3b"


def megatron(model: Any, devices: int, plan: Plan, **job: Any) -> list[str]:
    """Rules of Megatron-LM that a plan breaks."""
    return broken("megatron-core", question(model, devices=devices, **job), plan)


def test_eight_devices_cannot_hold_two_stages_of_eight_expert_ranks() -> None:
    """THUDM/slime issue 1818, PR 2077: TP2 PP2 EP8 ETP1 on 8 devices; 16 are needed, or EP4."""
    shape = {"tp": 2, "pp": 2}
    assert "V02" in megatron(MOE, 8, spread_over(8, **shape, ep=8))
    assert megatron(MOE, 8, spread_over(8, **shape, ep=4)) == []
    assert megatron(MOE, 16, spread_over(16, **shape, ep=8)) == []


def test_expert_degree_left_to_tp_asks_for_more_devices() -> None:
    """NVIDIA-NeMo/Megatron-Bridge issue 546: TP4 EP4 on 4 devices works with ETP1 only; unset, ETP is TP."""
    assert megatron(MOE, 4, plan_of(tp=4, ep=4, etp=1)) == []
    assert megatron(MOE, 4, plan_of(tp=4, ep=4, etp=4)) == ["V02", "V04"]


def test_experts_under_tp_need_sequence_parallelism() -> None:
    """NVIDIA/Megatron-LM issue 1587, NVIDIA/NeMo-Framework-Launcher PR 309: Mixtral 8x7B with EP and TP, SP off."""
    assert megatron("mixtral-8x7b", 8, plan_of(tp=2, dp=4, ep=4, sp=False)) == ["V27"]
    assert megatron("mixtral-8x7b", 8, plan_of(tp=2, dp=4, ep=4, sp=True)) == []
    assert megatron("llama-3.1-8b", 8, plan_of(tp=2, dp=4, sp=False)) == []


@pytest.mark.parametrize(
    ("shape", "fewest"),
    [({"tp": 2, "cp": 4, "ep": 8}, 8), ({"tp": 2, "ep": 4, "etp": 2}, 8), ({"pp": 2, "tp": 2, "ep": 8}, 16)],
)
def test_experts_fold_over_the_other_groups(shape: dict[str, int], fewest: int) -> None:
    """Megatron-Bridge parallelism guide: the fewest devices of a shape, not the product of all degrees."""
    legal = [n for n in (1, 2, 4, 8, 16, 32, 64) if megatron(MOE, n, spread_over(n, **shape)) == []]
    assert legal[0] == fewest


def test_two_stages_may_interleave() -> None:
    """NVIDIA/Megatron-LM issue 750: refused once, allowed since transfers overlap."""
    assert megatron("llama-3.1-8b", 2, plan_of(pp=2, vpp=4)) == []


@pytest.mark.parametrize(("gbs", "holds"), [(8, True), (12, True), (10, False), (2, False)])
def test_interleaving_takes_whole_groups_of_microbatches(gbs: int, holds: bool) -> None:
    """verl-project/verl PR 1617, 9rum/flatflow PR 20: microbatches padded to, or refused unless, a multiple of pp."""
    found = megatron("llama-3.1-8b", 4, plan_of(pp=4, vpp=2), gbs=gbs)
    assert found == ([] if holds else ["V66"])


@pytest.mark.parametrize(("heads", "kv_heads", "tp", "works"), [(16, 2, 4, 2), (32, 4, 8, 4)])
def test_fewer_kv_heads_than_tp(heads: int, kv_heads: int, tp: int, works: int) -> None:
    """pytorch/torchtitan issue 2574 and huggingface/transformers issue 48307: refused where kv heads are not copied."""
    q = question(with_heads(heads, kv_heads), devices=8)
    assert broken("megatron-core", q, spread_over(8, tp=tp)) == []
    for target in ("mindformers-1.5", "mindformers-2026"):
        assert broken(target, q, spread_over(8, tp=tp)) == ["V22"]
        assert broken(target, q, spread_over(8, tp=works)) == []


def test_every_broken_rule_is_named() -> None:
    """vllm-project/vllm issue 52435: 64 heads and 256 experts under TP3 and EP3; both are at fault."""
    q = question("deepseek-v3", devices=3)
    assert {"V20", "V100"} <= set(broken("megatron-core", q, plan_of(tp=3, ep=3)))


@pytest.mark.parametrize(
    ("heads", "tps"),
    [(52, [1, 2, 4, 13, 26, 52]), (28, [1, 2, 4, 7, 14, 28])],
    ids=["DeepSpeed-3634", "AdaptThink-1"],
)
def test_heads_that_eight_does_not_divide(heads: int, tps: list[int]) -> None:
    """deepspeedai/DeepSpeed issue 3634 (52 heads) and THU-KEG/AdaptThink issue 1 (28 heads), TP8."""
    assert accepted("V20", range(1, heads + 1), question(with_heads(heads, heads))) == tps


def test_three_stages_do_not_divide_eight_devices() -> None:
    """hpcaitech/ColossalAI issue 6202: 8 devices, TP1 PP3."""
    assert megatron("llama-3.1-8b", 8, spread_over(8, pp=3)) == ["V01", "V02", "V04"]


@pytest.mark.parametrize(
    ("change", "found"),
    [({}, []), ({"vpp": 1}, ["V108"]), ({"recompute": "moe"}, ["V108"]), ({"recompute": "moe_act"}, [])],
)
def test_what_expert_overlap_excludes(change: dict[str, Any], found: list[str]) -> None:
    """Megatron-Bridge guide to expert-parallel overlap: needs interleaving under PP, no recompute of whole experts."""
    plan = spread_over(64, pp=4, **{"vpp": 2, "ep": 16, "overlap": Overlap.PAIR, **change})
    assert megatron(MOE, 64, plan) == found


def test_a_stage_of_dense_layers_only_is_refused() -> None:
    """Ascend/MindSpeed-LLM c77308a1 transformer_block.py: 3 dense layers at the bottom, PP32 leaves 1 a stage."""
    q = question("deepseek-v3", devices=512, cluster="atlas-800t-a2", gbs=3840)
    assert broken("mindspeed-llm", q, spread_over(512, pp=32, ep=16)) == ["V80"]
    assert broken("megatron-core", q, spread_over(512, pp=32, ep=16)) == []


RECIPES: list[tuple[str, str, str, int, int, dict[str, Any]]] = [
    # Ascend/MindSpeed-LLM c77308a1: Qwen3-30B-A3B on 16 NPUs of 64 GB
    ("mindspeed-llm", "qwen3-30b-a3b", "atlas-800t-a2", 16, 256, {"pp": 2, "ep": 8, "recompute": "full"}),
    # the same, DeepSeek-V3 on 512 NPUs, layers 61 to 63 idle, DualPipeV
    ("mindspeed-llm", "deepseek-v3", "atlas-800t-a2", 512, 3840, {
        "tp": 4, "pp": 8, "vpp": 2, "ep": 32, "schedule": Schedule.DUALPIPE_V, "overlap": Overlap.PAIR,
        "recompute": "full", "layout": "noop:61,62,63"}),
    # NVIDIA/Megatron-LM PR 2280: Qwen3-235B on 256 GPUs, DeepSeek-V3 on 1024
    ("megatron-core", "qwen3-235b-a22b", "h100-80g", 256, 2048, {"tp": 2, "pp": 8, "vpp": 4, "ep": 32}),
    ("megatron-core", "deepseek-v3", "h100-80g", 1024, 8192, {
        "tp": 2, "pp": 16, "vpp": 2, "ep": 64, "layout": "Et*3|(tt|)*29m|L"}),
    # mindspore-lab/mindformers r1.5.0 research/deepseek3: dp 16, mp 4, pp 16, ep 8, offsets 1 and -1
    ("mindformers-1.5", "deepseek-v3", "atlas-800t-a2", 1024, 512, {
        "tp": 4, "pp": 16, "ep": 8, "layout": "Et*4|(t*4|)*14tmL"}),
    # mindspore-ai/mindformers 167a50de configs/deepseek3: dp 4, mp 8, pp 8, ep 32, interleaved twice
    ("mindformers-2026", "deepseek-v3", "atlas-800t-a2", 256, 128, {"tp": 8, "pp": 8, "vpp": 2, "ep": 32}),
]  # fmt: skip


@pytest.mark.parametrize(("target", "model", "cluster", "devices", "gbs", "shape"), RECIPES)
def test_a_shipped_recipe_is_legal(
    target: str, model: str, cluster: str, devices: int, gbs: int, shape: dict[str, Any]
) -> None:
    q = question(model, devices=devices, cluster=cluster, gbs=gbs)
    assert broken(target, q, spread_over(devices, **shape)) == []


def test_versions_differ_in_what_bounds_the_experts() -> None:
    """EP inside DP x CP in MindFormers 1.x, over DP x TP in 2026, over all three in Megatron."""
    q = question("deepseek-v3", devices=256, cluster="atlas-800t-a2", gbs=128)
    plan = spread_over(256, tp=8, pp=8, vpp=2, ep=32)
    assert broken("mindformers-1.5", q, plan) == ["V101"]
    assert broken("mindformers-2026", q, plan) == []
    assert broken("megatron-core", q, plan) == []


def test_made_models_have_the_heads_asked_for() -> None:
    assert with_heads(28, 4).attention == GQA(heads=28, kv_heads=4, head_dim=128)
