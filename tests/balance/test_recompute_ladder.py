"""Recompute: what a rung keeps, what it repeats, and the lowest rung that fits.

Modules: NVIDIA/Megatron-LM:megatron/core/transformer/transformer_config.py (recompute_modules); full recompute
keeps the input of a layer alone (arXiv 2205.05198 section 5).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.analysis.inventory import kind_counts
from autodeploy.analysis.ops import REBUILDABLE, Module
from autodeploy.analysis.readings import PLAIN
from autodeploy.balance.fit import Beside, Budget, fit_stage
from autodeploy.balance.layouts import resolve
from autodeploy.balance.recompute import Ladder, full_share, ladder, parse_policy, present_modules
from autodeploy.cost.layers import LayerCost
from autodeploy.cost.memory import Params
from autodeploy.errors import SpecError
from autodeploy.spec.layout import Role
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import Overlap, table_of
from tests.builders import costs_of, job_of, machine_of, model_of, plan_of

DENSE = {"layernorm", "mlp_act", "mlp", "core_attn", "full"}
SPARSE = {"layernorm", "moe_act", "mla_up_proj", "shared_experts", "moe", "mlp_act", "mlp", "core_attn", "full"}
PLANS = ({"tp": 8, "ep": 32}, {"tp": 1, "ep": 64, "mbs": 2}, {"tp": 4, "ep": 8, "etp": 2}, {"tp": 1})
CASES = [(name, plan) for name in ("pangu-ultra-moe-718b", "deepseek-v3") for plan in PLANS]
CASES += [("llama-3.1-405b", {"tp": 8}), ("llama-3.1-405b", {"tp": 1, "mbs": 2})]
LADDERS = pytest.mark.parametrize(("name", "plan"), CASES)
CAPACITY = st.floats(0.0, 1.2)


def layers(name: str, plan: dict[str, int]) -> dict[Kind, LayerCost]:
    return costs_of(model_of(name), plan_of(**plan))


def ladder_of(name: str, plan: dict[str, int], policy: str, overlap: Overlap = Overlap.NONE) -> Ladder:
    return ladder(layers(name, plan), kind_counts(model_of(name), mtp=True), policy, overlap, PLAIN)


def seconds(made: Ladder, kind: Kind, rung: int) -> float:
    return made.extra_load(kind, rung).alone


def modules_of(made: Ladder) -> list[Module]:
    return [Module(int(place)) for place in made.order]


@LADDERS
def test_climbing_keeps_less_and_repeats_more(name: str, plan: dict[str, int]) -> None:
    made = ladder_of(name, plan, "fit")
    for kind, kept in made.kept_bytes.items():
        assert len(kept) == made.rungs
        assert all(upper <= lower for lower, upper in itertools.pairwise(kept))
        work = [seconds(made, kind, rung) for rung in range(made.rungs)]
        assert work == sorted(work)
        assert work[0] == 0.0


@LADDERS
def test_the_lowest_rung_is_none_and_the_highest_full(name: str, plan: dict[str, int]) -> None:
    fit, none, full = (ladder_of(name, plan, policy) for policy in ("fit", "none", "full"))
    assert (none.rungs, full.rungs) == (1, 1)
    for kind, kept in fit.kept_bytes.items():
        assert (kept[0], kept[-1]) == (none.kept_bytes[kind][0], full.kept_bytes[kind][0])
        assert seconds(fit, kind, fit.rungs - 1) == seconds(full, kind, 0)
        assert seconds(none, kind, 0) == 0.0


@LADDERS
def test_full_keeps_what_is_never_rebuilt(name: str, plan: dict[str, int]) -> None:
    full = ladder_of(name, plan, "full")
    for kind, cost in layers(name, plan).items():
        rest = cost.rows_bytes[Module.KEPT]
        assert full.kept_bytes[kind][0] == pytest.approx(rest, rel=1e-9)
        assert seconds(full, kind, 0) == pytest.approx(sum(load.alone for load in cost.rebuild), rel=1e-9)


@LADDERS
def test_order_is_by_seconds_per_byte_with_full_last(name: str, plan: dict[str, int]) -> None:
    costs, counts = layers(name, plan), kind_counts(model_of(name), mtp=True)
    order = modules_of(ladder_of(name, plan, "fit"))
    assert order[-1] is Module.FULL

    def price(module: Module) -> float:
        spent = sum(counts[kind] * cost.rebuild[module].alone for kind, cost in costs.items())
        return spent / sum(counts[kind] * cost.rows_bytes[module] for kind, cost in costs.items())

    prices = [price(module) for module in order[:-1]]
    assert prices == sorted(prices)


@pytest.mark.parametrize(("name", "words"), [("llama-3.1-405b", DENSE), ("deepseek-v3", SPARSE)])
def test_modules_are_those_with_rows_in_the_model(name: str, words: set[str]) -> None:
    # several tp ranks: then the gathered expert input is a row of its own
    assert {module.name.lower() for module in present_modules(layers(name, {"tp": 2}))} == words


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize(
    "policy", ["layernorm", "moe_act", "layernorm+moe_act", "mla_up_proj+layernorm", "moe+shared_experts+mlp_act"]
)
@pytest.mark.parametrize("plan", PLANS)
def test_named_modules_are_rebuilt_and_no_others(policy: str, overlap: Overlap, plan: dict[str, int]) -> None:
    made, chosen = ladder_of("deepseek-v3", plan, policy, overlap), parse_policy(policy)
    assert chosen is not None
    assert made.rungs == 1
    assert set(modules_of(made)[: made.lowest]) == set(chosen)
    for kind, cost in layers("deepseek-v3", plan).items():
        dropped = sum(cost.rows_bytes[module] for module in chosen)
        assert made.kept_bytes[kind][0] == pytest.approx(sum(cost.rows_bytes) - dropped, rel=1e-9)
        assert seconds(made, kind, 0) == pytest.approx(sum(cost.rebuild[m].alone for m in chosen), rel=1e-9)


@LADDERS
def test_what_is_rebuilt_is_held_while_its_layer_runs_backward(name: str, plan: dict[str, int]) -> None:
    # modules one at a time, a whole layer at once
    made, costs = ladder_of(name, plan, "fit"), layers(name, plan)
    order = modules_of(made)
    for kind, cost in costs.items():
        for rung, transient in enumerate(made.transient_bytes[kind]):
            rows = [cost.rows_bytes[module] for module in order[:rung]]
            held = sum(rows) if rung == len(order) else max(rows, default=0.0)
            assert transient == pytest.approx(held + cost.working_bytes, rel=1e-9)


def test_merged_passes_hold_two_more_exchange_buffers() -> None:
    plain, pair = (ladder_of("deepseek-v3", {"tp": 8, "ep": 32}, "none", overlap) for overlap in Overlap)
    for kind, cost in layers("deepseek-v3", {"tp": 8, "ep": 32}).items():
        extra = pair.transient_bytes[kind][0] - plain.transient_bytes[kind][0]
        assert extra == pytest.approx(2.0 * cost.exchange_bytes, rel=1e-9)


@pytest.mark.parametrize("policy", ["none", "fit", "full"])
def test_policies_name_no_modules(policy: str) -> None:
    assert parse_policy(policy) is None


@pytest.mark.parametrize("policy", ["", "norm", "layernorm+", "full+moe", "kept", "layernorm moe_act", "Moe_act"])
def test_unknown_modules_are_refused(policy: str) -> None:
    with pytest.raises(SpecError, match="recompute"):
        parse_policy(policy)


@pytest.mark.parametrize("words", [("layernorm",), ("moe", "mlp"), tuple(m.name.lower() for m in REBUILDABLE[:-1])])
def test_modules_are_read_by_name(words: tuple[str, ...]) -> None:
    assert parse_policy("+".join(words)) == tuple(Module[word.upper()] for word in words)


SHARES = st.floats(0.01, 1.0)


@LADDERS
@settings(max_examples=8)
@given(share=SHARES)
def test_a_share_of_the_layers_lies_between_none_and_full(name: str, plan: dict[str, int], share: float) -> None:
    none, full, some = (ladder_of(name, plan, policy) for policy in ("none", "full", f"full:{share!r}"))
    assert some.rungs == 1
    for kind in some.kept_bytes:
        mixed = share * full.kept_bytes[kind][0] + (1.0 - share) * none.kept_bytes[kind][0]
        assert some.kept_bytes[kind][0] == pytest.approx(mixed, rel=1e-9)
        assert seconds(some, kind, 0) == pytest.approx(share * seconds(full, kind, 0), rel=1e-9)
        # the layer whose backward pass runs is rebuilt whole
        assert some.transient_bytes[kind][0] == full.transient_bytes[kind][0]


@LADDERS
def test_all_of_the_layers_are_full(name: str, plan: dict[str, int]) -> None:
    full, every = (ladder_of(name, plan, policy) for policy in ("full", "full:1"))
    for kind in full.kept_bytes:
        assert every.kept_bytes[kind][0] == pytest.approx(full.kept_bytes[kind][0], rel=1e-12)
        assert every.transient_bytes[kind] == full.transient_bytes[kind]
        assert seconds(every, kind, 0) == seconds(full, kind, 0)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_a_share_is_read_from_its_word(share: float) -> None:
    assert full_share(f"full:{share}") == share
    assert parse_policy(f"full:{share}") is None
    assert full_share("full") is full_share("none") is full_share("core_attn") is None


@pytest.mark.parametrize("policy", ["full:", "full:0", "full:-0.5", "full:1.5", "full:x", "full:nan", "full:inf"])
def test_a_share_that_is_none_is_refused(policy: str) -> None:
    with pytest.raises(SpecError, match="recompute"):
        parse_policy(policy)


@pytest.mark.parametrize("score_bytes", [2.0, 5.0])
def test_selective_recompute_frees_the_scores(score_bytes: float) -> None:
    # arXiv 2205.05198 section 5: 5 a s^2 b a layer go, the attention core runs again, and nothing else does
    profile = replace(PLAIN, attention="unfused", score_saved_bytes=score_bytes)
    model, plan = model_of("gpt3-175b"), plan_of(tp=8)
    costs = costs_of(model, plan, job_of(2048), machine_of("a100-80g", profile))
    none, core = (
        ladder(costs, kind_counts(model, True), each, Overlap.NONE, profile) for each in ("none", "core_attn")
    )
    freed = none.kept_bytes[Kind.DENSE][0] - core.kept_bytes[Kind.DENSE][0]
    assert freed == pytest.approx(score_bytes * 96 / 8 * 2048**2, rel=1e-9)
    repeated = seconds(core, Kind.DENSE, 0)
    assert repeated == pytest.approx(costs[Kind.DENSE].rebuild[Module.CORE_ATTN].alone, rel=1e-12)
    terms = costs[Kind.DENSE].forward_terms
    assert terms["attention"] < repeated < terms["attention"] + terms["vector"]


def role_of(name: str) -> Role:
    layout = resolve(model_of(name), job_of(), 4, 1, "even")
    assert layout is not None
    return layout.roles[0]


def needed(made: Ladder, role: Role, moments: Any, rung: int, fixed: float) -> float:
    """Bytes on a rung: all live rows at the worst moment, one layer's backward pass, what is always there."""
    live = max(sum(count * made.kept_bytes[kind][rung] for kind, count, _ in moment) for moment in moments)
    return fixed + live + max(made.transient_bytes[kind][rung] for kind in role.kinds)


def limits_of(capacity: float) -> Budget:
    return Budget(
        bytes_per_param=Params(6.5, 7.0, 2.0, 2.0),
        communicators=1e9,
        boundary=1e8,
        message_copy=0.0,
        gathered={},
        capacity_bytes=capacity,
        host_bytes=0.0,
    )


HELD = Beside(update=0.0, start=0.0, always=0.0, host=0.0)


FIXED = 6.5e9 + 7.0 * 2e9 + 2.0 * 3e9 + 1e8
PARAMS = Params(1e9, 2e9, 3e9)


def moments_of(role: Role, seed: int) -> Any:
    """Two moments with different mixtures of live layers."""
    rng = np.random.default_rng(seed)
    return tuple(tuple((kind, float(rng.integers(0, 40)), 0) for kind in role.kinds) for _ in range(2))


@settings(max_examples=60)
@given(case=st.sampled_from(CASES), share=CAPACITY, seed=st.integers(0, 1000))
def test_fit_takes_the_lowest_rung_that_fits(case: tuple[str, dict[str, int]], share: float, seed: int) -> None:
    name, plan = case
    made, role = ladder_of(name, plan, "fit"), role_of(name)
    moments = moments_of(role, seed)
    each = [needed(made, role, moments, rung, FIXED) for rung in range(made.rungs)]
    capacity = min(each) + share * (max(each) - min(each)) - 1.0
    fitting = [rung for rung, total in enumerate(each) if total <= capacity]
    found = fit_stage(limits_of(capacity), role, made, moments, PARAMS, HELD)
    assert int(found.rung) == (fitting[0] if fitting else made.rungs - 1)
    assert found.allocated_bytes == pytest.approx(each[int(found.rung)], rel=1e-12)


@settings(max_examples=25)
@given(share=CAPACITY, seed=st.integers(0, 1000))
def test_fit_of_a_column_is_fit_of_each_plan(share: float, seed: int) -> None:
    name = "pangu-ultra-moe-718b"
    plans = [plan_of(**plan) for plan in PLANS]
    model, role = model_of(name), role_of(name)
    moments, counts = moments_of(role, seed), kind_counts(model, mtp=True)
    column = ladder(costs_of(model, table_of(plans)), counts, "fit", Overlap.NONE, PLAIN)
    each = [needed(ladder_of(name, plan, "fit"), role, moments, 0, FIXED) for plan in PLANS]
    limits = limits_of(share * max(each))
    found = fit_stage(limits, role, column.at(np.arange(len(plans))), moments, PARAMS, HELD)
    for place, plan in enumerate(PLANS):
        alone = fit_stage(limits, role, ladder_of(name, plan, "fit"), moments, PARAMS, HELD)
        assert int(found.rung[place]) == int(alone.rung)
        assert found.allocated_bytes[place] == alone.allocated_bytes
