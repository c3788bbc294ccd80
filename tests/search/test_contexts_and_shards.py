"""Spaces over context parallelism, sharding levels, replicas and ways of sending: one formula, ranked and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from autodeploy.analysis.readings import flop_per_token
from autodeploy.cost.layers import layer_costs
from autodeploy.cost.memory import state_shards
from autodeploy.errors import SpecError
from autodeploy.formats.document import document_plan, document_space, search_document, to_json
from autodeploy.formats.short import read_short, short_form
from autodeploy.search.enumerate import broken_rules, enumerate_plans, field_values
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import search_exact
from autodeploy.search.layers import layers_of
from autodeploy.search.result import PlanResult
from autodeploy.search.screen import screen
from autodeploy.spec.model import Kind
from autodeploy.spec.plan import PLAN_FIELDS, CpComm, Dispatch, Plan, PlanTable, layer_key, table_of
from autodeploy.spec.space import Space
from tests.builders import model_of, some_rows
from tests.cost.test_layer_times import leaves
from tests.search.little import space_of_values

WAYS: tuple[Any, ...] = ("ring", "kvgather", "ulysses")


@cache
def spaces() -> dict[str, Space]:
    """A dense and a sparse model over all that ranks can share; adapters in 8 bits; a stack that overlaps nothing."""
    dense = space_of_values(
        "llama-3.1-8b", "h100-80g", 32, 32, 8192, tp=(1, 2, 4), pp=(1, 2), vpp=(1, 2), cp=(1, 2, 4), mbs=(1, 2),
        zero=(0, 1, 2, 3), cp_comm=WAYS, replicas=(1, 2, 4),
    )  # fmt: skip
    sparse = space_of_values(
        "mixtral-8x7b", "atlas-800t-a2", 64, 128, 4096, tp=(1, 2), pp=(1, 2), vpp=(1, 2), cp=(1, 2), ep=(4, 8),
        etp=(1, 2), overlap=("none", "pair"), dispatch=("flat", "hier", "dedup"), zero=(1, 3), cp_comm=WAYS,
        replicas=(1, 2), recompute=("fit", "full:0.5"),
    )  # fmt: skip
    open_profile = replace(
        dense.target.profile, overlap_context=False, overlap_weight_gather=False, overlap_tensor=True,
        attention="unfused", fused=(), split_logits=False,
    )  # fmt: skip
    return {
        "dense": dense,
        "sparse": sparse,
        "adapters": replace(dense, job=replace(dense.job, precision="fp8", lora_rank=16, document_len=2048)),
        "open": replace(dense, target=replace(dense.target, profile=open_profile)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("level", ["node", "fabric"])
def test_a_slower_network_never_makes_a_step_shorter(level: str) -> None:
    space = space_of_values(
        "deepseek-v3", "h800", 512, 960, 4096, tp=(4, 8), pp=(2, 4), vpp=(1, 2), cp=(1, 2), ep=(8, 32),
        overlap=("none", "pair"), dispatch=("flat", "hier", "dedup"), zero=(1, 3), recompute=("none",),
        layout=("even",),
    )  # fmt: skip
    links = getattr(space.cluster, level)
    slow = replace(links, link_bytes_per_s=0.3 * links.link_bytes_per_s)
    slower = replace(space, cluster=replace(space.cluster, **{level: slow}))
    legal = enumerate_plans(space).legal
    for row in some_rows(len(legal), 150, seed=47):
        plan = legal.row(int(row))
        assert evaluate(slower, plan).step_time_s >= evaluate(space, plan).step_time_s * (1 - 1e-12)


NAMES = ("dense", "sparse", "adapters", "open")
EVERY = pytest.mark.parametrize("name", NAMES)


@cache
def legal_of(name: str) -> PlanTable:
    """The legal plans of a space."""
    return enumerate_plans(spaces()[name]).legal


def sample(name: str, count: int, seed: int) -> list[Plan]:
    """Random legal plans."""
    legal = legal_of(name)
    return [legal.row(int(i)) for i in some_rows(len(legal), count, seed)]


@cache
def evaluated(name: str) -> tuple[PlanResult, ...]:
    """Random legal plans, evaluated."""
    return tuple(evaluate(spaces()[name], plan) for plan in sample(name, 60, seed=53))


@EVERY
def test_every_way_of_sharing_is_among_the_legal_plans(name: str) -> None:
    values, legal = field_values(spaces()[name]), legal_of(name)
    for field in ("cp", "zero", "cp_comm", "replicas", "dispatch"):
        assert set(legal.columns[field]) == set(values[field])
    assert np.all((legal.cp > 1) | (legal.cp_comm == CpComm.RING))
    assert np.all((legal.zero > 0) | (legal.replicas == 1))
    assert np.all(legal.tp * legal.pp * legal.cp * legal.dp == spaces()[name].devices)


@EVERY
def test_one_plan_is_evaluated_as_its_column_is_screened(name: str) -> None:
    space, plans = spaces()[name], [found.plan for found in evaluated(name)]
    screened = screen(space, table_of(plans))
    for i, alone in enumerate(evaluated(name)):
        assert alone.screen_s == screened.screen_s[i]
        assert alone.bound_s == screened.bound_s[i]
        assert alone.needed_memory_bytes == screened.needed_bytes[i]
        assert alone.fits == screened.fits[i]


@EVERY
def test_layers_of_a_plan_are_those_of_its_column(name: str) -> None:
    space, plans = spaces()[name], sample(name, 40, seed=52)
    column = layer_costs(space.model, space.job, space.machine, layer_key(table_of(plans)))
    for place, plan in enumerate(plans):
        for kind, cost in layer_costs(space.model, space.job, space.machine, plan).items():
            for one, many in zip(leaves(cost), leaves(column[kind]), strict=True):
                assert one == np.broadcast_to(many, (len(plans),))[place]


@EVERY
def test_terms_add_up_and_none_is_negative(name: str) -> None:
    for found in evaluated(name):
        assert sum(found.time_terms.values()) == pytest.approx(found.step_time_s, rel=1e-9)
        assert min(found.time_terms.values()) >= -1e-9 * found.step_time_s
        assert found.bound_s <= found.step_time_s * (1 + 1e-12)
        for stage in found.stages:
            assert sum(stage.memory_terms.values()) == pytest.approx(stage.needed_bytes, rel=1e-9)
            assert min(stage.memory_terms.values()) >= 0.0
        if found.plan.cp == 1:
            assert abs(found.time_terms["context_parallel"]) <= 1e-9 * found.step_time_s
        if found.plan.zero < 2:
            assert found.time_terms["weight_gather"] == 0.0


@EVERY
def test_what_nothing_hides_is_in_the_terms(name: str) -> None:
    shown = {found.plan: found.time_terms for found in evaluated(name)}
    exchanged = [terms["context_parallel"] for plan, terms in shown.items() if plan.cp_comm is CpComm.ULYSSES]
    assert exchanged
    assert min(exchanged) > 0.0
    if name == "open":
        sharded = [t["weight_gather"] for p, t in shown.items() if p.zero == 3 and p.dp * p.cp > p.replicas]
        ringed = [t["context_parallel"] for p, t in shown.items() if p.cp > 1]
        assert min(sharded) > 0.0
        assert min(ringed) > 0.0


@EVERY
def test_ranked_steps_are_those_of_each_plan_alone(name: str) -> None:
    space = spaces()[name]
    outcome = search_exact(space, top=15)
    assert outcome.status == "optimal"
    assert len(outcome.rows) == 15
    for row, step in zip(outcome.rows, outcome.step_s, strict=True):
        plan = outcome.screened.plans.row(int(row))
        assert evaluate(space, plan).step_time_s == step
        assert broken_rules(space, plan) == []
    fitting = [found.step_time_s for found in evaluated(name) if found.fits]
    assert outcome.step_s[0] <= min(fitting)


HELD: dict[str, dict[str, Any]] = {
    "ring": {"cp": (4,), "cp_comm": ("ring",)},
    "gathered": {"cp": (4,), "cp_comm": ("kvgather",)},
    "exchanged": {"cp": (2, 4), "cp_comm": ("ulysses",)},
    "sharded": {"zero": (3,)},
    "sharded_ring": {"cp": (2,), "zero": (3,), "replicas": (1, 4)},
}


@pytest.mark.parametrize("case", HELD)
def test_the_best_of_a_narrower_space_is_that_of_brute_force(case: str) -> None:
    whole = spaces()["dense"]
    space = replace(whole, plan=replace(whole.plan, tp=(1, 2), vpp=(1,), mbs=(1,), **HELD[case]))
    legal = enumerate_plans(space).legal
    found = [evaluate(space, legal.row(i)) for i in range(len(legal))]
    steps = sorted(each.step_time_s for each in found if each.fits)
    assert search_exact(space, top=len(steps)).step_s.tolist() == steps
    assert steps


@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_a_higher_level_never_holds_more_of_weights_gradients_and_state(name: str) -> None:
    space = spaces()[name]
    for found in evaluated(name)[:15]:
        plan = replace(found.plan, replicas=1, recompute="none", layout="even")
        held = [[stage.memory_terms for stage in evaluate(space, replace(plan, zero=zero)).stages] for zero in range(4)]
        for low, high in pairwise(held):
            for one, other in zip(low, high, strict=True):
                for term in ("weights", "gradients", "optimizer"):
                    assert other[term] <= one[term]


@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_a_rank_holds_the_weights_that_it_multiplies_by(name: str) -> None:
    """Sharded weights are whole while their layer runs (arXiv 1910.02054 section 5.3; FSDP also holds the next)."""
    space = spaces()[name]
    for each in sample(name, 15, seed=54):
        plan = replace(each, replicas=1, recompute="none", layout="even", zero=3)
        costs, _ = layers_of(space, plan)
        dense, experts = state_shards(plan)
        for one, other in zip(evaluate(space, replace(plan, zero=2)).stages, evaluate(space, plan).stages, strict=True):
            layers = [costs[kind] for kind in costs if kind in (Kind.DENSE, Kind.SPARSE)]
            whole = max(2.0 * (c.dense_params * (1 - 1 / dense) + c.expert_params * (1 - 1 / experts)) for c in layers)
            held = [sum(stage.memory_terms[term] for term in ("weights", "transient")) for stage in (one, other)]
            cut = one.memory_terms["weights"] - other.memory_terms["weights"]
            assert held[1] >= (held[0] - cut + whole) * (1 - 1e-9)


@pytest.mark.parametrize("cp", [2, 4])
def test_a_longer_ring_holds_a_shorter_part_of_the_sequence(cp: int) -> None:
    # with as many sequences in flight a rank keeps 1/c of their rows, and does 1/c of their products
    space = spaces()["dense"]
    one = evaluate(space, Plan(**{**fields_of(sample("dense", 1, 3)[0]), **ALONE}))
    many = evaluate(space, Plan(**{**fields_of(one.plan), "cp": cp, "dp": 16 // cp}))
    assert many.microbatches == cp * one.microbatches
    for alone, cut in zip(one.stages, many.stages, strict=True):
        assert cut.memory_terms["activations"] * cp == pytest.approx(alone.memory_terms["activations"], rel=1e-9)
        assert cut.memory_terms["optimizer"] == pytest.approx(alone.memory_terms["optimizer"], rel=1e-12)
    spent = [found.time_terms["attention"] for found in (one, many)]
    assert spent[0] == pytest.approx(spent[1], rel=0.05)  # kernel gaps apart


ALONE: dict[str, Any] = {
    "tp": 1, "pp": 2, "vpp": 1, "cp": 1, "dp": 16, "mbs": 1, "zero": 1, "replicas": 1, "cp_comm": CpComm.RING,
    "schedule": 0, "sp": False, "recompute": "full",
}  # fmt: skip


def fields_of(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in PLAN_FIELDS}


@EVERY
def test_documents_hold_the_plans_that_they_rank(name: str) -> None:
    space = spaces()[name]
    space = replace(space, inputs={"model": space.model.name, "cluster": space.cluster.name, "target": "generic"})
    results = evaluated(name)[:12]
    text = to_json(search_document(space, list(results), "optimal", search_exact(space, top=1).facts(), {}))
    document = json.loads(text)
    assert document_space(document, "file") == space
    for entry, found in zip(document["plans"], results, strict=True):
        assert document_plan(document, entry["rank"], "file") == found.plan
        assert entry["plan"]["cp_comm"] in WAYS
        told = read_short(entry["plan_short"])
        assert told.items() <= fields_of(found.plan).items()
        assert {"cp", "zero", "cp_comm", "replicas"} <= told.keys()
        assert read_short(short_form(found.plan, PLAN_FIELDS)) == fields_of(found.plan)


def test_plans_of_a_space_without_these_fields_do_not_print_them() -> None:
    space = space_of_values("llama-3.1-8b", "h100-80g", 8, 8, 8192, tp=(1, 2), pp=(1, 2))
    found = evaluate(space, enumerate_plans(space).legal.row(0))
    document = search_document(space, [found], "optimal", {}, {})
    assert set(read_short(document["plans"][0]["plan_short"])) == {"tp", "pp", "dp"}


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_a_search_says_that_a_device_lacks_a_format(precision: Any) -> None:
    space = spaces()["sparse"]
    with pytest.raises(SpecError, match=r"job\.precision"):
        search_exact(replace(space, job=replace(space.job, precision=precision)), top=1)


def test_eight_bit_products_make_a_step_faster() -> None:
    # of a model whose products are most of the step, on a device that runs them twice as fast
    space = space_of_values("llama-3.1-70b", "h100-80g", 64, 256, 8192, tp=(4, 8), pp=(2, 4), vpp=(1, 2), mbs=(1, 2))
    wide, narrow = (
        float(search_exact(replace(space, job=replace(space.job, precision=p)), top=1).step_s[0])
        for p in ("bf16", "fp8")
    )
    assert narrow < wide < 2.0 * narrow


def test_adapters_take_less_memory_and_less_time() -> None:
    space = spaces()["dense"]
    thin = replace(space, job=replace(space.job, lora_rank=8))
    for found in evaluated("dense")[:15]:
        plan = replace(found.plan, recompute="none", layout="even", zero=1)
        whole, frozen = evaluate(space, plan), evaluate(thin, plan)
        for one, other in zip(whole.stages, frozen.stages, strict=True):
            assert other.memory_terms["weights"] > one.memory_terms["weights"]  # the adapters
            assert other.memory_terms["gradients"] < 0.05 * one.memory_terms["gradients"]
            assert other.memory_terms["optimizer"] < 0.05 * one.memory_terms["optimizer"]
        assert frozen.time_terms["matmul"] < whole.time_terms["matmul"]


def test_utilisation_counts_the_keys_of_documents() -> None:
    """Model FLOP of packed documents: s stands for sum l^2 / sum l (Megatron-LM's counter takes the same sums)."""
    space = spaces()["dense"]
    packed = replace(space, job=replace(space.job, document_len=1024))
    found = evaluate(packed, sample("dense", 1, seed=55)[0])
    flop = flop_per_token(space.model, 1024, mtp=True)
    assert found.mfu_frac == pytest.approx(found.tokens_per_s_per_device * flop / 989.4e12, rel=1e-9)


def test_packed_documents_never_take_longer() -> None:
    space = spaces()["dense"]
    packed = replace(space, job=replace(space.job, document_len=1024))
    endless = replace(space.cluster, device=replace(space.cluster.device, attention_half_len=0.0))
    for found in evaluated("dense")[:15]:
        whole, short = (evaluate(replace(each, cluster=endless), found.plan) for each in (space, packed))
        assert short.time_terms["attention"] < 0.2 * whole.time_terms["attention"]
        assert short.peak_memory_bytes == whole.peak_memory_bytes


def test_a_token_visits_the_nodes_that_its_model_allows() -> None:
    base = space_of_values(
        "deepseek-v3", "h100-80g", 512, 512, 4096, tp=(1,), pp=(4,), ep=(64,), dispatch=("flat", "dedup"),
        recompute=("full",),
    )  # fmt: skip
    assert base.model.moe is not None
    free = replace(base, model=replace(base.model, moe=replace(base.model.moe, node_limit=0)))
    near = replace(base, model=replace(base.model, moe=replace(base.model.moe, node_limit=4)))
    legal = enumerate_plans(base).legal
    flat, once = (
        next(legal.row(i) for i in range(len(legal)) if legal.dispatch[i] == kind)
        for kind in (Dispatch.FLAT, Dispatch.DEDUP)
    )
    spent = [evaluate(space, plan).time_terms["expert_exchange"] for space, plan in
             ((free, flat), (near, flat), (free, once), (near, once))]  # fmt: skip
    assert spent[0] == spent[1] > spent[2] > spent[3] > 0.0


def test_the_shipped_deepseek_goes_to_four_nodes_at_most() -> None:
    # arXiv 2412.19437 section 2.1.2
    moe = model_of("deepseek-v3").moe
    assert moe is not None
    assert moe.node_limit == 4
