"""Distinct destinations against real routers: transformers' of Qwen3 and of DeepSeek-V3 (at most 4 of 8 groups), with
random weights, and with biases that make some experts busy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autodeploy.cost.routing import hit_frac, visited_nodes, visited_ranks
from autodeploy.spec.model import MoE
from tests.interop.conftest import skip_without

pytestmark = pytest.mark.interop
TOKENS, HIDDEN = 8192, 256


@pytest.fixture(autouse=True)
def transformers_is_installed(request: pytest.FixtureRequest) -> None:
    skip_without(request, "transformers")


def qwen(experts: int, top_k: int, skew: float) -> np.ndarray:
    """Experts that a Qwen3 router chooses, (tokens, k). Skew: one direction of the input that experts like more or
    less."""
    import torch
    from transformers.models.qwen3_moe import modeling_qwen3_moe as module

    config = module.Qwen3MoeConfig(hidden_size=HIDDEN, num_experts=experts, num_experts_per_tok=top_k)
    router = module.Qwen3MoeTopKRouter(config)
    torch.manual_seed(5)
    with torch.no_grad():
        router.weight.normal_(std=HIDDEN**-0.5)
        router.weight[:, 0] = skew * torch.randn(experts)
        tokens = torch.randn(TOKENS, HIDDEN)
        tokens[:, 0] = 1.0
        return np.asarray(router(tokens)[2])


def deepseek(skew: float) -> np.ndarray:
    """Experts that DeepSeek-V3's router chooses: 8 of 256 in 4 of 8 groups; its correction bias makes the skew."""
    import torch
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as module

    config = module.DeepseekV3Config(
        hidden_size=HIDDEN, n_routed_experts=256, num_experts_per_tok=8, n_group=8, topk_group=4
    )
    router = module.DeepseekV3TopkRouter(config)
    torch.manual_seed(5)
    with torch.no_grad():
        router.weight.normal_(std=HIDDEN**-0.5)
        router.e_score_correction_bias.copy_(0.2 * skew * torch.randn(256))
        chosen: Any = router(torch.randn(TOKENS, HIDDEN))
        return np.asarray(next(part for part in chosen if not part.is_floating_point()))


def hits(chosen: np.ndarray, experts: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Per group: share of all copies, and share of tokens with at least one."""
    places = chosen * groups // experts
    inside = [places == group for group in range(groups)]
    return np.array([each.mean() for each in inside]), np.array([each.any(axis=1).mean() for each in inside])


@pytest.mark.parametrize(("experts", "top_k"), [(128, 8), (64, 6), (60, 4), (256, 8)])
@pytest.mark.parametrize("groups", [2, 4, 8])
def test_a_router_at_random_visits_as_many_groups_as_the_formula_says(experts: int, top_k: int, groups: int) -> None:
    _, hit = hits(qwen(experts, top_k, 0.0), experts, groups)
    moe = MoE(experts=experts, top_k=top_k, expert_width=1)
    assert visited_nodes(moe, groups) == pytest.approx(hit.sum(), rel=0.02)


@pytest.mark.parametrize(("skew", "each", "whole"), [(0.3, 0.04, 0.02), (1.0, 0.2, 0.08)])
@pytest.mark.parametrize(("experts", "top_k", "groups"), [(128, 8, 16), (256, 8, 4), (256, 8, 32), (64, 6, 8)])
def test_a_skewed_router_visits_a_group_as_often_as_its_load_says(
    experts: int, top_k: int, groups: int, skew: float, each: float, whole: float
) -> None:
    share, hit = hits(qwen(experts, top_k, skew), experts, groups)
    ours = np.array([hit_frac(1.0 * experts, top_k, part) for part in share])
    assert ours == pytest.approx(hit, rel=each, abs=0.01)
    assert ours.sum() == pytest.approx(hit.sum(), rel=whole)


def test_a_router_that_is_limited_to_four_nodes_visits_as_many_nodes_and_ranks() -> None:
    chosen, moe = deepseek(0.0), MoE(experts=256, top_k=8, expert_width=1, node_limit=4)
    nodes, ranks = (hits(chosen, 256, groups)[1].sum() for groups in (8, 64))
    assert nodes <= 4.0 + 1e-9
    assert visited_nodes(moe, 8) == pytest.approx(nodes, rel=0.03)
    assert visited_ranks(moe, 8, 8) == pytest.approx(ranks, rel=0.03)


@pytest.mark.parametrize("skew", [0.5, 1.0])
def test_the_busiest_node_of_a_limited_router_gets_what_its_load_says(skew: float) -> None:
    share, hit = hits(deepseek(skew), 256, 8)
    moe = MoE(experts=256, top_k=8, expert_width=1, node_limit=4)
    busiest = int(share.argmax())
    ours = float(visited_nodes(moe, 8, share[busiest] * 8)) / 8
    assert ours == pytest.approx(hit[busiest], rel=0.2)
