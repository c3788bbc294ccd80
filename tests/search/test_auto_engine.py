"""The `auto` engine: exact plans and every cut of the best shapes, each plan once, on the best of its layouts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from autodeploy.formats.document import plan_short
from autodeploy.formats.short import read_short
from autodeploy.search import exact
from autodeploy.search.choose import choose
from autodeploy.search.engine import Answer, Request, search
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.evaluate import evaluate
from autodeploy.search.outer import cut_plans
from autodeploy.spec.plan import LAYOUT_RULES, Plan
from autodeploy.spec.space import Space, with_values
from tests.search.little import little_spaces, outer_of, ranking_of, simulated

NAMES = ("dense", "sparse", "mtp")
EVERY_SPACE = pytest.mark.parametrize("name", NAMES)
SHAPES = 2
"""Shapes whose layers are cut; the others stay as the rules lay them out."""


@cache
def found(name: str, top: int = 20, engine: Any = "auto", shapes: int = SHAPES) -> Answer:
    """The answer of an engine on a little space."""
    return search(little_spaces()[name], Request(engine=engine, top=top, cut_shapes=shapes, solve=False))


@cache
def best_of_each(name: str) -> dict[Plan, float]:
    """Plan without its layout -> its best step, by simulating all plans by rule and all cuts of the best shapes."""
    space = little_spaces()[name]
    cuts = [plan for plan in cut_plans(outer_of(space, SHAPES)) if not broken_rules(space, plan)]
    every = [*ranking_of(name), *filter(None, (simulated(space, plan) for plan in cuts))]
    best: dict[Plan, float] = {}
    for each in every:
        bare = replace(each.plan, layout="")
        best[bare] = min(best.get(bare, float("inf")), each.step_s)
    return best


@EVERY_SPACE
@pytest.mark.slow
def test_every_rank_is_that_of_brute_force_over_rules_and_cuts(name: str) -> None:
    brute = best_of_each(name)
    for top in (4, 20):
        answer = found(name, top)
        assert (answer.status, answer.gap_frac) == ("optimal", 0.0)
        assert [result.step_time_s for result in answer.results] == sorted(brute.values())[:top]
        for result in answer.results:
            assert brute[replace(result.plan, layout="")] == result.step_time_s


@pytest.mark.slow
def test_cuts_bring_something_to_some_space() -> None:
    gains = [ranking_of(name)[0].step_s / found(name).results[0].step_time_s for name in NAMES]
    assert max(gains) > 1.001


@EVERY_SPACE
@pytest.mark.slow
def test_no_rank_is_worse_than_with_exact(name: str) -> None:
    auto, ruled = found(name), found(name, engine="exact")
    pairs = zip(auto.results, ruled.results, strict=True)
    assert all(one.step_time_s <= other.step_time_s for one, other in pairs)


@pytest.mark.slow
@EVERY_SPACE
def test_a_plan_has_one_row_whatever_its_layout(name: str) -> None:
    plans = [replace(result.plan, layout="") for result in found(name).results]
    assert len(set(plans)) == len(plans)


@EVERY_SPACE
def test_results_are_legal_fit_and_can_be_repeated(name: str) -> None:
    space = little_spaces()[name]
    for result in found(name).results:
        assert broken_rules(space, result.plan) == []
        assert result.fits
        assert result.peak_memory_bytes <= space.cluster.device.usable_bytes
        again = evaluate(space, result.plan)
        assert (again.plan_id, again.step_time_s) == (result.plan_id, result.step_time_s)
        alone = simulated(space, result.plan)
        assert alone is not None
        assert alone.step_s == result.step_time_s


def test_some_results_are_cut_beyond_the_rules() -> None:
    layouts = {result.plan.layout for name in NAMES for result in found(name).results}
    assert {layout for layout in layouts if "|" in layout}
    assert any("m" in layout for layout in layouts - {"auto"})


@EVERY_SPACE
def test_a_printed_form_read_back_names_the_same_plan(name: str) -> None:
    space = little_spaces()[name]
    for result in found(name).results[:8]:
        choice = choose(space, read_short(plan_short(space, result.plan)))
        assert choice.chosen == {}
        assert choice.plan == result.plan
        assert evaluate(space, choice.plan).plan_id == result.plan_id


@EVERY_SPACE
def test_without_cuts_it_is_the_exact_engine(name: str) -> None:
    assert found(name, shapes=0).results == found(name, engine="exact").results


@pytest.mark.parametrize("name", ["dense", "mtp"])
def test_a_layout_that_the_user_states_is_not_cut(name: str) -> None:
    space = with_values(little_spaces()[name], layout=("even",))
    answer = search(space, Request(top=3, solve=False))
    assert {result.plan.layout for result in answer.results} == {"even"}
    assert answer.results == search(space, Request(engine="exact", top=3)).results


def test_several_layouts_of_one_plan_are_several_plans() -> None:
    space = with_values(little_spaces()["sparse"], layout=LAYOUT_RULES)
    answer = search(space, Request(top=12))
    bare = {replace(result.plan, layout="") for result in answer.results}
    assert len({result.plan for result in answer.results}) == 12 > len(bare)


@EVERY_SPACE
def test_ties_go_to_the_layout_of_a_rule(name: str) -> None:
    by_rule = {replace(each.plan, layout=""): each.step_s for each in ranking_of(name)}
    for result in found(name).results:
        if result.plan.layout != "auto":
            assert result.step_time_s < by_rule.get(replace(result.plan, layout=""), float("inf"))


def interrupted_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan at a time, and Ctrl-C after so many of them."""
    whole, done = exact._Ranking.simulate, []

    def simulate(ranking: Any, *batch: Any) -> None:
        if len(done) == batches:
            raise KeyboardInterrupt
        done.append(batch)
        whole(ranking, *batch)

    monkeypatch.setattr(exact, "BATCH_ROWS", 1)
    monkeypatch.setattr(exact._Ranking, "simulate", simulate)


@pytest.mark.parametrize("more", [0, 5])
@pytest.mark.parametrize("name", ["sparse", "mtp"])
@pytest.mark.slow
def test_an_interrupt_among_the_cuts_keeps_the_plans_by_rule(
    name: str, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, ruled = min(best_of_each(name).values()), found(name, engine="exact")
    monkeypatch.setattr(exact, "BATCH_ROWS", 1)
    before = search(little_spaces()[name], Request(engine="exact")).outcomes[0].simulated
    interrupted_after(before + more, monkeypatch)
    answer = search(little_spaces()[name], Request(cut_shapes=SHAPES))
    assert answer.status == "interrupted"
    assert len(answer.results) == len(ruled.results)
    assert answer.results[0].step_time_s <= ruled.results[0].step_time_s
    assert best >= (1.0 - answer.gap_frac) * answer.results[0].step_time_s * (1 - 1e-12)


def test_counts_of_both_parts_add_up() -> None:
    for name in NAMES:
        answer = found(name)
        facts, parts = answer.facts(), [outcome.facts() for outcome in answer.outcomes]
        assert len(parts) == 2
        for key in ("candidates", "legal", "fits", "simulated"):
            assert facts[key] == sum(part[key] for part in parts)
        assert facts["candidates"] == facts["legal"] + sum(facts["refused"].values())
        assert facts["simulated"] <= facts["fits"]


@pytest.mark.slow
def test_a_space_that_lists_every_shape_once_is_searched_whole() -> None:
    space: Space = with_values(little_spaces()["mtp"], tp=(2,), pp=(4,), vpp=(2,), ep=(32,))
    answer = search(space, Request(top=1))
    plans = [*cut_plans(outer_of(space, 1))]
    steps = [each.step_s for plan in plans if (each := simulated(space, plan))]
    ruled = search(space, Request(engine="exact", top=1)).results[0].step_time_s
    assert answer.results[0].step_time_s == min([*steps, ruled])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparse", "mtp"])
def test_solved_finalists_are_never_slower_and_do_not_depend_on_how_many_are_asked_for(name: str) -> None:
    space = little_spaces()[name]
    ruled, solved = (search(space, Request(top=20, cut_shapes=2, solve_plans=40, solve=each)) for each in (False, True))
    few = search(space, Request(top=5, cut_shapes=2, solve_plans=40))
    assert few.results == solved.results[:5]
    steps = [result.step_time_s for result in solved.results]
    assert steps == sorted(steps)
    assert all(after <= before.step_time_s for after, before in zip(steps, ruled.results, strict=True))
    assert {result.plan.recompute for result in solved.results} <= {"fit", "solve+swap"}
