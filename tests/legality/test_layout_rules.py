"""Rules that look at where the layers lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.balance.layouts import candidates
from autodeploy.legality.rules import LAYOUT_FIELDS, RULES, Question, allowed_layouts
from autodeploy.spec.layout import make_layout
from autodeploy.spec.plan import PLAN_FIELDS, Overlap, Plan
from tests.builders import model_of, plan_of
from tests.legality.asked import broken, question

DEEPSEEK = question("deepseek-v3", devices=1024)
V3_PP16 = "Et*3|(tt|)*29m|L"
"""DeepSeek-V3 on pp 16, vpp 2: Megatron-LM d98e8a64 docs/user-guide/features/pipeline_parallel_layout.md."""
V3_OFFSETS = "Et*4|(t*4|)*14tmL"
"""DeepSeek-V3 on pp 16: offsets of 1 on all stages but the last, -1 there (MindFormers r1.5.0 research/deepseek3)."""


def lies_well(rule: str, q: Question, plan: Plan) -> bool:
    """What a rule says of the layout string that a plan states."""
    holds = RULES[rule].layout_holds
    assert holds is not None
    return holds(q, plan, make_layout(q.model, q.job.mtp, plan.pp, plan.vpp, plan.layout))


@pytest.mark.parametrize(
    ("rule", "pp", "vpp", "layout", "holds"),
    [
        ("V71", 16, 2, V3_PP16, True),
        ("V71", 16, 1, V3_OFFSETS, True),
        ("V71", 2, 2, "Et*20|t*20|t*21|mL", True),
        ("V71", 2, 2, "Et*20|t*20|t*21m|L", False),  # the last chunk, but of the first stage
        ("V71", 1, 3, "Et*61|m|L", False),  # not the last chunk
        ("V71", 1, 1, "Et*61mL", True),
        ("V85", 16, 1, V3_OFFSETS, True),
        ("V85", 16, 2, V3_PP16, False),
        ("V85b", 16, 1, V3_OFFSETS, True),
        ("V85b", 4, 1, "E|t*30|t*30|tmL", True),
        ("V85b", 4, 1, "Et*21|t*20|t*20|mL", False),  # no decoder layer beside MTP
        ("V85b", 16, 2, V3_PP16, False),
    ],
)
def test_mtp_lies_where_a_version_can_have_it(rule: str, pp: int, vpp: int, layout: str, holds: bool) -> None:
    assert lies_well(rule, DEEPSEEK, plan_of(pp=pp, vpp=vpp, layout=layout)) is holds


def test_mtp_in_two_slots_is_refused() -> None:
    two = question(replace(model_of("deepseek-v3"), mtp_depth=2))
    assert lies_well("V71", two, plan_of(pp=4, layout="Et*20|t*20|t*21|mmL"))
    assert not lies_well("V71", two, plan_of(pp=4, layout="Et*30|t*31|m|mL"))


def test_without_mtp_nothing_has_to_lie_anywhere() -> None:
    bare = question("deepseek-v3", mtp=False)
    plan = plan_of(pp=4, layout="Et*21|t*20|t*20|L")
    assert all(lies_well(rule, bare, plan) for rule in ("V71", "V85", "V85b"))


@pytest.mark.parametrize(
    ("overlap", "pp", "vpp", "layout", "holds"),
    [
        (Overlap.NONE, 16, 2, V3_PP16, True),
        (Overlap.PAIR, 16, 2, V3_PP16, False),  # slots with MTP or the head alone
        (Overlap.PAIR, 4, 2, "Et*7|(t*8|)*6t*6mL", True),
        (Overlap.PAIR, 1, 1, "Et*61mL", True),
    ],
)
def test_merged_passes_need_a_decoder_layer_in_every_slot(
    overlap: Overlap, pp: int, vpp: int, layout: str, holds: bool
) -> None:
    """MindSpeed 028de58c features_manager/moe/fb_overlap.py."""
    plan = plan_of(pp=pp, vpp=vpp, layout=layout, overlap=overlap)
    assert lies_well("V112", DEEPSEEK, plan) is holds


def test_layouts_that_a_rule_refuses_are_not_used() -> None:
    plan = plan_of(pp=8, vpp=2, overlap=Overlap.PAIR)
    found = candidates(DEEPSEEK.model, DEEPSEEK.job, 8, 2, "auto")
    kept = [rule for rule, _ in allowed_layouts([RULES["V112"]], DEEPSEEK, plan, found)]
    assert [rule for rule, _ in found] == ["even", "light", "apart", "late"]
    assert kept == ["even", "late"], "the ends of the model outweigh the layers of a slot, so light leaves them alone"
    alone = allowed_layouts([RULES["V112"]], DEEPSEEK, replace(plan, overlap=Overlap.NONE), found)
    assert alone == found
    assert allowed_layouts([RULES["V01"], RULES["L01"]], DEEPSEEK, plan, found) == found


def test_a_plan_without_a_layout_left_breaks_the_rule() -> None:
    plan = plan_of(pp=16, vpp=2, dp=64, ep=64, mbs=1, layout=V3_PP16, overlap=Overlap.PAIR)
    q = question("deepseek-v3", devices=1024, gbs=8192)
    assert broken("megatron-core", q, plan) == []
    assert broken("mindspeed-llm", q, plan) == ["V80", "V112"]
    assert "V85" in broken("mindformers-1.5", q, plan)


def test_the_fields_that_layouts_depend_on_are_those_of_a_plan() -> None:
    assert set(LAYOUT_FIELDS) < set(PLAN_FIELDS)
