"""Every predicate on a plan that it accepts and one that it refuses, and as one formula for plans and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.catalog.lookup import load, names
from autodeploy.legality.rules import RULES, Question
from autodeploy.spec.model import Model
from autodeploy.spec.plan import CpComm, Dispatch, Overlap, Plan, Schedule, States, table_of
from autodeploy.spec.target import Target
from tests.builders import model_of, plan_of
from tests.legality.asked import question, with_heads

SPARSE = "deepseek-v3"
PAIR: dict[str, Any] = {"overlap": Overlap.PAIR}
HIER: dict[str, Any] = {"dispatch": Dispatch.HIER}
DEDUP: dict[str, Any] = {"dispatch": Dispatch.DEDUP}
ALL_GATHER: dict[str, Any] = {"dispatch": Dispatch.GATHER}
FUSED: dict[str, Any] = {"dispatch": Dispatch.FUSED}
GATHER: dict[str, Any] = {"cp_comm": CpComm.GATHER}
ULYSSES: dict[str, Any] = {"cp_comm": CpComm.ULYSSES}
H1, H2, ZBV, DUAL, TWO_WAY = ({"schedule": schedule} for schedule in list(Schedule)[Schedule.ZB_H1 :])
TIED = replace(model_of("llama-3.1-8b"), tied_embeddings=True)
TWO_MTP = replace(model_of("deepseek-v3"), mtp_depth=2)
LEARNED = replace(model_of("deepseek-v3"), learned_positions=4096)
ODD_VOCAB = replace(model_of("llama-3.1-8b"), vocab=50257)
ALL_SPARSE = replace(model_of("qwen3-30b-a3b"), ffn_width=6145)
Given = dict[str, Any]
CASES: list[tuple[str, Model | str, Given, Given]] = [
    ("V01", "llama-3.1-8b", {"tp": 8, "pp": 4, "cp": 2}, {"tp": 8, "pp": 3}),
    ("V02", SPARSE, {"ep": 32, "pp": 2}, {"ep": 32, "pp": 2, "etp": 2}),
    ("V04", SPARSE, {"tp": 2, "pp": 2, "dp": 16, "ep": 32}, {"tp": 2, "pp": 2, "dp": 8, "ep": 8}),
    ("V04", SPARSE, {"tp": 4, "dp": 16, "ep": 64}, {"tp": 4, "dp": 16, "ep": 64, "etp": 2}),
    ("V20", with_heads(28, 4), {"tp": 14}, {"tp": 8}),
    ("V21", with_heads(32, 2), {"tp": 8}, {"tp": 3}),
    ("V22", with_heads(32, 2), {"tp": 2}, {"tp": 4}),
    ("V22", SPARSE, {"tp": 128}, {"tp": 3}),
    ("V25", SPARSE, {"tp": 8, "etp": 8}, {"etp": 3}),
    ("V25", "llama-3.1-8b", {"tp": 7}, {"tp": 3}),
    ("V25", ALL_SPARSE, {"tp": 8, "etp": 2}, {"etp": 5}),
    ("V27", SPARSE, {"tp": 2, "sp": True}, {"tp": 2, "sp": False}),
    ("V28", SPARSE, {"tp": 1, "sp": False}, {"tp": 2, "sp": False}),
    ("V31", SPARSE, {"tp": 8, "cp": 4}, {"cp": 3}),
    ("V31", SPARSE, {"tp": 3, "sp": False}, {"tp": 3}),
    ("V38", ODD_VOCAB, {"tp": 29}, {"tp": 2}),
    ("V64", "llama-3.1-8b", {"pp": 2, "vpp": 2}, {"vpp": 2}),
    ("V66", "llama-3.1-8b", {"pp": 8, "vpp": 2, "dp": 2}, {"pp": 3, "vpp": 2, "dp": 2}),
    ("V66", "llama-3.1-8b", {"pp": 3, "dp": 2}, {"pp": 64, "vpp": 2, "dp": 2}),
    # Ascend/MindSpeed docs/zh/features/dualpipev.md
    ("V76", SPARSE, {"pp": 30, "vpp": 2, **DUAL}, {"pp": 31, "vpp": 2, **DUAL}),
    ("V76", SPARSE, {"pp": 31}, {"pp": 2, "vpp": 2, "cp": 2, **DUAL}),
    ("V76", TIED, {"pp": 2, "vpp": 2}, {"pp": 2, "vpp": 2, **DUAL}),
    ("V76b", SPARSE, {"pp": 8, "vpp": 2, "dp": 4, **ZBV}, {"pp": 8, "vpp": 2, "dp": 8, **ZBV}),
    ("V80", SPARSE, {"pp": 15}, {"pp": 16}),
    ("V82", SPARSE, {"pp": 31, "vpp": 2}, {"pp": 21, "vpp": 3}),
    ("V86", SPARSE, {"pp": 32, "dp": 2}, {"pp": 64, "dp": 2}),
    ("V86", SPARSE, {"pp": 1, "dp": 64}, {"pp": 2, "dp": 64}),
    ("V90", SPARSE, {"dp": 16, "mbs": 4}, {"dp": 16, "mbs": 8}),
    ("V94", SPARSE, {"pp": 4, "vpp": 2, "dp": 8, **PAIR}, {"pp": 4, "vpp": 2, "dp": 16, **PAIR}),
    ("V94", SPARSE, {"pp": 4, "vpp": 2, "dp": 16}, {"pp": 8, "vpp": 2, "dp": 8, **PAIR}),
    ("V100", SPARSE, {"ep": 64}, {"ep": 48}),
    ("V100", "llama-3.1-8b", {"tp": 2}, {"ep": 2}),
    ("V101", SPARSE, {"tp": 4, "dp": 8, "cp": 2, "ep": 16}, {"tp": 4, "dp": 16, "ep": 32}),
    ("V101b", SPARSE, {"tp": 8, "dp": 4, "ep": 32}, {"tp": 1, "dp": 4, "cp": 8, "ep": 32}),
    ("V108", SPARSE, {"pp": 4, "vpp": 2, "ep": 8, **PAIR}, {"pp": 4, "ep": 8, **PAIR}),
    ("V108", SPARSE, {"ep": 8, **PAIR}, {"ep": 1, **PAIR}),
    ("V108", SPARSE, {"ep": 8, "recompute": "fit", **PAIR}, {"ep": 8, "recompute": "full", **PAIR}),
    ("V108", SPARSE, {"ep": 8, "recompute": "core_attn", **PAIR}, {"ep": 8, "recompute": "full:0.5", **PAIR}),
    ("V108", SPARSE, {"ep": 8, "recompute": "moe_act+mlp", **PAIR}, {"ep": 8, "recompute": "mlp+moe", **PAIR}),
    ("V108", TWO_MTP, {"ep": 8, "recompute": "full"}, {"ep": 8, **PAIR}),
    ("V112", SPARSE, {"pp": 4, "vpp": 2, "ep": 8, **PAIR}, {"pp": 4, "ep": 8, **PAIR}),
    ("V112", SPARSE, {"tp": 2, "ep": 8, "recompute": "full", **PAIR}, {"tp": 2, "ep": 8, "etp": 2, **PAIR}),
    ("V112", SPARSE, {"tp": 2, "ep": 8, "etp": 2}, {"ep": 1, **PAIR}),
    ("V117", SPARSE, {"tp": 4}, {"tp": 4, "etp": 4}),
    ("V118", SPARSE, {"ep": 32, **HIER}, {"ep": 4, **HIER}),
    ("V118", SPARSE, {"ep": 4}, {"ep": 12, **HIER}),
    ("V120", SPARSE, {"recompute": "full:0.5"}, {"recompute": "full+mlp"}),
    ("V121", SPARSE, {"recompute": "mla_up_proj+moe_act"}, {"recompute": "layernorm+mlp_act"}),
    ("V121", "qwen3-30b-a3b", {"recompute": "fit"}, {"recompute": "mla_up_proj"}),
    ("V121", "llama-3.1-8b", {"recompute": "layernorm+mlp+core_attn"}, {"recompute": "moe_act"}),
    ("V134", SPARSE, {"recompute": "layernorm+moe_act+mlp_act"}, {"recompute": "layernorm+moe"}),
    ("V134", SPARSE, {"recompute": "full"}, {"recompute": "shared_experts"}),
    ("V134", SPARSE, {"recompute": "none"}, {"recompute": "core_attn"}),
    ("V135", SPARSE, {"tp": 2, "recompute": "mla_up_proj"}, {"tp": 2, "sp": False, "recompute": "mla_up_proj"}),
    ("V135", "qwen3-30b-a3b", {"recompute": "layernorm"}, {"recompute": "mla_up_proj"}),
    ("T01", SPARSE, {}, PAIR),
    ("T02", SPARSE, DEDUP, HIER),
    ("T03", SPARSE, {"zero": 1}, {"zero": 2}),
    ("T03", SPARSE, {"zero": 0}, {"zero": 3}),
    ("T04", SPARSE, {"cp": 2}, {"cp": 2, **GATHER}),
    ("T04", SPARSE, {}, {"cp": 2, **ULYSSES}),
    ("T05", SPARSE, HIER, DEDUP),
    ("T13", SPARSE, FUSED, ALL_GATHER),
    ("T14", SPARSE, ALL_GATHER, FUSED),
    ("T06", SPARSE, {"dp": 4}, {"dp": 4, "replicas": 2}),
    ("T07", SPARSE, {"cp": 2, **ULYSSES}, {"cp": 2, **GATHER}),
    ("T08", SPARSE, {"recompute": "full"}, {"recompute": "full:0.5"}),
    ("T08", SPARSE, {"recompute": "mlp+moe"}, {"recompute": "full:1"}),
    ("T09", SPARSE, {"states": States.HOST}, {"states": States.REUSE}),
    ("T10", SPARSE, {"states": States.REUSE}, {"states": States.HOST}),
    ("T11", SPARSE, {"recompute": "layernorm"}, {"recompute": "layernorm+swap:attention"}),
    ("T12", SPARSE, {"recompute": "swap:attention"}, {"recompute": "swap:attention+swap:moe"}),
    ("T15", SPARSE, {"pp": 2, "vpp": 2}, {"pp": 2, **H1}),
    ("T16", SPARSE, {"pp": 2, "vpp": 2, **DUAL}, {"pp": 2, "vpp": 2, **ZBV}),
    ("T17", SPARSE, {"pp": 2, "vpp": 2, **ZBV}, {"pp": 2, **H1}),
    ("T18", SPARSE, {"pp": 2, **H1}, {"pp": 2, **H2}),
    ("T18", SPARSE, {"pp": 2, "vpp": 2, **DUAL}, {"pp": 2, "vpp": 2, **TWO_WAY}),
    ("T19", SPARSE, {"pp": 2, **H2}, {"pp": 2, "vpp": 2, **ZBV}),
    ("P01", SPARSE, {"pp": 2, "vpp": 2}, {"vpp": 2}),
    ("P02", SPARSE, {"ep": 2, **PAIR}, PAIR),
    ("P03", SPARSE, {"ep": 16, **HIER}, {"ep": 8, **HIER}),
    ("P04", SPARSE, {"vpp": 2}, {"vpp": 2, "schedule": Schedule.ONE_F_ONE_B}),
    ("P04", SPARSE, {"vpp": 1, **H2}, {"vpp": 2, **H2}),
    ("P04", SPARSE, {"vpp": 2, **ZBV}, {"vpp": 4, **ZBV}),
    ("P04", SPARSE, {"vpp": 2, **DUAL}, {"vpp": 1, **DUAL}),
    ("P10", SPARSE, {"pp": 2, **H1}, H1),
    ("P10", SPARSE, {"pp": 8, "dp": 4, **DUAL}, {"pp": 8, "dp": 8, **DUAL}),
    ("P12", SPARSE, {"pp": 2, "vpp": 2, "dp": 8, **TWO_WAY}, {"pp": 3, "vpp": 2, "dp": 8, **TWO_WAY}),
    ("P12", SPARSE, {"pp": 2, "vpp": 2, "dp": 32, **TWO_WAY}, {"pp": 2, "vpp": 2, "dp": 64, **TWO_WAY}),
    ("P11", SPARSE, {"pp": 2, "vpp": 2, "ep": 8, **DUAL, **PAIR}, {"pp": 2, "vpp": 2, "ep": 8, **ZBV, **PAIR}),
    ("P05", SPARSE, {"tp": 2}, {"sp": True}),
    ("P06", SPARSE, {"ep": 8, **DEDUP}, {"etp": 16, **DEDUP}),
    ("P06", SPARSE, {"ep": 2, **ALL_GATHER}, ALL_GATHER),
    ("P06", SPARSE, {"ep": 2, **FUSED}, FUSED),
    ("P07", SPARSE, {"cp": 2, **GATHER}, GATHER),
    ("P07", SPARSE, {"cp": 1}, ULYSSES),
    ("P08", with_heads(32, 8), {"tp": 8, "cp": 4, **ULYSSES}, {"tp": 8, "cp": 8, **ULYSSES}),
    ("P08", with_heads(32, 8), {"tp": 8, "cp": 8}, {"cp": 3, **ULYSSES}),
    ("P09", SPARSE, {"dp": 8, "replicas": 4}, {"dp": 8, "replicas": 3}),
    ("P09", SPARSE, {"dp": 4, "cp": 2, "replicas": 8}, {"dp": 4, "cp": 2, "replicas": 16}),
    ("P09", SPARSE, {"dp": 8, "zero": 0}, {"dp": 8, "replicas": 2, "zero": 0}),
    # NVIDIA/Megatron-LM core/parallel_state.py: expert data parallelism is cut into as many instances
    ("P09", SPARSE, {"dp": 16, "ep": 2, "replicas": 8}, {"dp": 24, "ep": 2, "replicas": 8}),
]
ABOUT_FACTS = {"V72", "N01", "N02", "N03"}
"""Rules that no plan can break or mend: the model, the job or the machine does."""


def verdict(rule: str, q: Question, plan: Plan) -> bool:
    """What a rule says of one plan; a plan and a table of it must agree."""
    holds = RULES[rule].holds
    assert holds is not None
    alone, row = holds(q, plan), holds(q, table_of([plan]))
    assert bool(alone) == bool(np.broadcast_to(row, (1,))[0])
    return bool(alone)


@pytest.mark.parametrize(("rule", "model", "good", "bad"), CASES)
def test_a_rule_accepts_and_refuses(rule: str, model: Model | str, good: Given, bad: Given) -> None:
    q = question(model, devices=64, gbs=64)
    assert verdict(rule, q, plan_of(**good))
    assert not verdict(rule, q, plan_of(**bad))


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("V72", question(SPARSE), question(LEARNED)),
        ("V72", question(LEARNED, mtp=False), question(LEARNED)),
        ("V82", question(SPARSE), question(TWO_MTP)),
        ("V82", question(TWO_MTP, mtp=False), question(TWO_MTP)),
        ("V101", question(SPARSE, devices=64), question(SPARSE, devices=66)),
        ("N01", question(SPARSE, devices=4), question(SPARSE, devices=12)),
        ("N02", question(SPARSE, gbs=32_000_000), question(SPARSE, gbs=32_000_016)),
    ],
)
def test_a_rule_about_the_model_or_the_machine(rule: str, good: Question, bad: Question) -> None:
    plan = plan_of(dp=16, ep=4)
    assert verdict(rule, good, plan)
    assert not verdict(rule, bad, plan)


def test_one_layer_a_stage_is_fine_where_none_is_dense() -> None:
    assert verdict("V80", question("qwen3-30b-a3b"), plan_of(pp=48))


def test_every_predicate_has_a_case() -> None:
    told = {rule for rule, *_ in CASES} | ABOUT_FACTS
    assert {id for id, rule in RULES.items() if rule.holds} == told


DEGREE = st.sampled_from((1, 2, 3, 4, 5, 8, 12, 16))
PLANS = st.builds(
    plan_of,
    **dict.fromkeys(("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs", "replicas"), DEGREE),
    sp=st.booleans(), overlap=st.sampled_from(Overlap), dispatch=st.sampled_from(Dispatch),
    zero=st.integers(0, 3), cp_comm=st.sampled_from(CpComm), states=st.sampled_from(States),
    recompute=st.sampled_from((
        "none", "fit", "full", "full:0.5", "core_attn", "layernorm+moe_act", "mla_up_proj", "mlp+moe", "mlp_act",
    )),
)  # fmt: skip
ASKED = st.sampled_from([
    question("deepseek-v3", devices=512, gbs=960),
    question("pangu-ultra-moe-718b", devices=6144, gbs=4608, cluster="atlas-800t-a2"),
    question("qwen3-235b-a22b", devices=96, gbs=96, mtp=False),
    question("llama-3.1-8b", devices=16, gbs=48),
    question("gpt3-175b", devices=1536, gbs=1536, seq_len=2048),
])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(ASKED, st.lists(PLANS, min_size=1, max_size=8))
def test_a_plan_and_its_row_in_a_table_agree_on_every_rule(q: Question, plans: list[Plan]) -> None:
    table = table_of(plans)
    for rule in RULES.values():
        if rule.holds is not None:
            rows = np.broadcast_to(rule.holds(q, table), (len(plans),))
            assert rows.dtype == bool, rule.id
            assert [bool(rule.holds(q, plan)) for plan in plans] == rows.tolist(), rule.id


def test_rules_say_what_they_ask_and_where_it_stands() -> None:
    for id, rule in RULES.items():
        assert rule.id == id
        assert rule.text
        assert rule.source
        assert rule.holds or rule.layout_holds or id == "L01"
    assert len({rule.text for rule in RULES.values()}) >= len(RULES) - 1, "V27 and V28 share their words"


def test_targets_list_known_rules_and_every_rule_is_in_one() -> None:
    listed = {rule for name in names(Target) for rule in load(Target, name).rules}
    assert listed == set(RULES)
