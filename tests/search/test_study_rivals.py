"""A study against honest rivals on a space small enough to enumerate: the optimum itself, and random search."""

from __future__ import annotations

from functools import cache
from itertools import count
from statistics import median

import numpy as np
import pytest

from autodeploy.search.anneal import anneal, cost
from autodeploy.search.judge import Judge, Judged
from autodeploy.search.outer import Outer, rule_points
from autodeploy.search.study import Settings, run_study
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import with_values
from tests.search.little import little_spaces, outer_of

pytestmark = pytest.mark.slow

TRIALS = 200
SEEDS = range(8)


@cache
def enumerated() -> tuple[Outer, dict[Plan, Judged]]:
    """Two shapes with their codes and cuts, and every plan of them judged."""
    space = with_values(little_spaces()["tight"], tp=(2, 4), pp=(4,), vpp=(2,), ep=(8,))
    judge = Judge(outer_of(space, 2))
    for point in judge.outer.points():
        judge(point)
    return judge.outer, judge.known


def fresh() -> Judge:
    """A judge that has seen nothing yet, and looks its judgements up."""
    outer, known = enumerated()
    return Judge(outer, library=known)


def best_of(judge: Judge) -> float:
    """The least step that a judge has seen."""
    return min((each.step_s for each in judge.known.values() if each.feasible), default=float("inf"))


def studied(seed: int) -> Judge:
    """A study of so many trials."""
    judge = fresh()
    run_study(judge, Settings(trials=TRIALS, seed=seed), seed)
    return judge


def drawn(seed: int, simulations: int) -> Judge:
    """Random points until so many plans are simulated."""
    judge, rng = fresh(), np.random.default_rng(seed)
    for _ in count():
        if judge.simulated >= simulations:
            return judge
        judge(tuple(int(rng.integers(size)) for size in judge.outer.sizes))
    raise AssertionError


def optimum() -> float:
    """The least step of all."""
    return min(each.step_s for each in enumerated()[1].values() if each.feasible)


def test_the_space_is_worth_searching() -> None:
    outer, known = enumerated()
    steps = sorted(each.step_s for each in known.values() if each.feasible)
    assert len(steps) > 150
    assert len(known) > len(steps) + 150  # many plans do not fit
    assert steps[len(steps) // 2] > 1.05 * steps[0]
    assert np.prod(outer.sizes) > 2 * len(known)  # points that name no plan, or the plan of another point


def test_a_study_reaches_the_optimum_with_one_of_three_seeds() -> None:
    judges = [studied(seed) for seed in range(3)]
    assert optimum() in [best_of(judge) for judge in judges]
    assert all(judge.simulated < len(enumerated()[1]) / 2 for judge in judges)


def test_a_study_is_no_worse_than_random_with_as_many_simulations() -> None:
    judges = [studied(seed) for seed in SEEDS]
    rivals = [drawn(seed, judge.simulated) for seed, judge in zip(SEEDS, judges, strict=True)]
    assert [rival.simulated for rival in rivals] == [judge.simulated for judge in judges]
    assert median(map(best_of, judges)) <= median(map(best_of, rivals))


def test_the_sampler_learns_what_fits() -> None:
    first, last = 0, 0
    for seed in SEEDS:
        sampled = run_study(fresh(), Settings(trials=TRIALS, seed=seed), seed)[: TRIALS // 2]
        first += sum(judged.feasible for _, judged in sampled[:20])  # the first generation is drawn at random
        last += sum(judged.feasible for _, judged in sampled[-20:])
    assert last > 1.25 * first


@pytest.mark.parametrize("sampler", ["nsga2", "tpe", "random"])
def test_every_sampler_spends_its_trials_and_repeats_itself(sampler: str) -> None:
    settings = Settings(trials=40, seed=5, sampler=sampler)  # type: ignore[arg-type]
    one, again = (run_study(fresh(), settings, 5) for _ in (1, 2))
    assert len(one) == 40
    assert one == again


def test_seeds_are_looked_at_first() -> None:
    judge = fresh()
    visited = run_study(judge, Settings(trials=40, seed=1, seeded=True), 1)
    assert [point for point, _ in visited[:4]] == rule_points(judge.outer)


def test_the_polish_walks_from_the_best_that_was_sampled() -> None:
    judge = fresh()
    visited = run_study(judge, Settings(trials=60, seed=2), 2)
    sampled, polished = visited[:30], visited[30:]
    start = min(sampled, key=lambda pair: cost(pair[1]))[0]
    again = list(anneal(fresh(), start, 30, np.random.default_rng(2)))
    assert polished == again


def test_annealing_begins_with_one_move_and_stays_within_the_space() -> None:
    outer, _ = enumerated()
    start = rule_points(outer)[0]
    for seed in SEEDS:
        points = [point for point, _ in anneal(fresh(), start, 50, np.random.default_rng(seed))]
        assert sum(a != b for a, b in zip(start, points[0], strict=True)) <= 1
        assert all(0 <= place < size for point in points for place, size in zip(point, outer.sizes, strict=True))


def test_annealing_without_a_step_visits_nothing() -> None:
    assert list(anneal(fresh(), rule_points(enumerated()[0])[0], 0, np.random.default_rng(0))) == []


def test_what_is_infeasible_costs_more_than_anything_feasible() -> None:
    _, known = enumerated()
    worst = max(cost(each) for each in known.values() if each.feasible)
    others = [cost(each) for each in known.values() if not each.feasible]
    assert others
    assert min(others) > worst
