"""Parameters that a rank holds of a layer: Megatron-Core (0.16.1) builds it, the inventory counts it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autodeploy.analysis.ops import Shard
from autodeploy.analysis.readings import params
from autodeploy.spec.model import GQA, Kind, Model
from tests.builders import ops_of, plan_of
from tests.interop.conftest import skip_without
from tests.interop.hf_layers import ONE, model_like

# its import warns of accelerator libraries that are not there
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

SIZES = replace(ONE, a=8, g=4, h=64, f=104, f_e=24, E=16)
MODELS = {
    "gqa": model_like("llama", SIZES),
    "qk norm, experts": model_like("qwen3-moe", SIZES),
    "mla": model_like("deepseek-v3", SIZES, dense=True),
    "mla, experts": model_like("deepseek-v3", SIZES),
}
PLANS: tuple[dict[str, Any], ...] = (
    {}, {"tp": 2}, {"tp": 4}, {"ep": 8}, {"tp": 2, "ep": 4}, {"tp": 2, "etp": 2, "ep": 2},
)  # fmt: skip
CASES = [(name, plan) for name in MODELS for plan in PLANS if MODELS[name].moe or "ep" not in plan]


@pytest.fixture(autouse=True)
def megatron_is_installed(request: pytest.FixtureRequest) -> None:
    """As for torch: each test is skipped under its own name."""
    skip_without(request, "megatron", "megatron-core")


def held(model: Model, plan: dict[str, Any]) -> dict[Shard, int]:
    """Parameters on rank 0 by how they are spread. Outside the experts, those are cut that tensor parallelism makes
    smaller."""
    from tests.interop.megatron import parameters

    whole, least = (parameters(model, plan_of(tp=tp)) for tp in (1, 4))
    found = dict.fromkeys(Shard, 0)
    for name, each in parameters(model, plan_of(**plan)).items():
        if "local_experts" in name:
            spread = Shard.EXPERT
        else:
            spread = Shard.TP if least[name].numel() < whole[name].numel() else Shard.REPLICATED
        found[spread] += each.numel()
    return found


def counted(model: Model, plan: dict[str, Any]) -> dict[Shard, float]:
    """Ours."""
    ops = ops_of(model, plan_of(**plan))[Kind.SPARSE if model.moe else Kind.DENSE]
    return {shard: params(ops, shard) for shard in Shard}


@pytest.mark.parametrize(("name", "plan"), CASES, ids=str)
def test_a_rank_holds_the_parameters_that_megatron_gives_it(name: str, plan: dict[str, Any]) -> None:
    assert held(MODELS[name], plan) == counted(MODELS[name], plan)


@pytest.mark.parametrize("name", ["gqa", "qk norm, experts"])
def test_megatron_cuts_keys_and_values_beyond_their_heads(name: str) -> None:
    # ours gives every rank a whole head of keys and one of values; Megatron cuts the rows of their projection on, and
    # gathers its output before it splits it (core/transformer/attention.py, num_query_groups < world_size)
    model, tp = MODELS[name], 8
    a = model.attention
    assert isinstance(a, GQA)
    beyond = 2 * a.head_dim * model.hidden * (1 - a.kv_heads / tp)
    found, ours = held(model, {"tp": tp}), counted(model, {"tp": tp})
    assert found[Shard.TP] == ours[Shard.TP] - beyond
    assert found[Shard.REPLICATED] == ours[Shard.REPLICATED]
