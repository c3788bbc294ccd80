"""How many simulations each way of searching needs until it is within 1 % of a known optimum.

The spaces: the most promising shapes of the 718B space and of the 405B space, their codes, budgets and layer cuts; the
optimum of each is enumerated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import LLAMA_405B, PANGU_718B, answer, arguments, narrowed, say

from autodeploy.catalog.lookup import load_space
from autodeploy.search.anneal import anneal
from autodeploy.search.evaluate import arranged
from autodeploy.search.exact import search_exact
from autodeploy.search.judge import Judge, Judged
from autodeploy.search.outer import BUDGETS, FIT, Outer, Point, shortlist
from autodeploy.search.study import Settings, run_study
from autodeploy.spec.plan import Plan

NEAR = 1.01
FINALISTS = 20
"""As many as `search` solves."""
Visits = Iterator[tuple[Point, Judged]]


def enumerate_all(outer: Outer) -> dict[Plan, Judged]:
    """Every distinct plan of the space, judged."""
    judge = Judge(outer)
    for point in outer.points():
        judge(point)
    return judge.known


def random_search(judge: Judge, trials: int, seed: int) -> Visits:
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        point = tuple(int(rng.integers(size)) for size in judge.outer.sizes)
        yield point, judge(point)


def annealing(judge: Judge, trials: int, seed: int) -> Visits:
    rng = np.random.default_rng(seed)
    start = next(point for point, judged in random_search(judge, trials, seed) if judged.feasible)
    yield from anneal(judge, start, trials, rng)


def optuna(sampler: str, seeded: bool) -> Callable[[Judge, int, int], Visits]:
    def run(judge: Judge, trials: int, seed: int) -> Visits:
        settings = Settings(trials=trials, seed=seed, sampler=sampler, seeded=seeded)  # type: ignore[arg-type]
        yield from run_study(judge, settings, seed)

    return run


def best_estimate_first(outer: Outer, known: dict[Plan, Judged], near_s: float) -> float:
    """Screen everything as the ladder fills it in; in that order try the freest budget. Deterministic. Infinite where
    none of these comes near."""
    order = sorted((plan for plan in known if legal(known, plan)), key=lambda plan: screened(outer, plan))
    done = 0
    for plan in order:
        freest = replace(plan, recompute=outer.budgets[-1]) if plan.recompute == FIT else plan
        judged = known.get(freest, known[plan])
        done += judged.feasible
        if judged.feasible and judged.step_s <= near_s:
            return done
    return float("inf")


def legal(known: dict[Plan, Judged], plan: Plan) -> bool:
    """Whether a plan is one of the screen's: legal, with nothing solved."""
    return known[plan].broken_rules == 0 and plan.recompute not in BUDGETS[1:]


def screened(outer: Outer, plan: Plan) -> tuple[bool, float]:
    """What the screen orders plans by: those that fit, then the time."""
    found = arranged(outer.space, plan)
    return not found.fits, float(found.screen_s)


def finalists_s(outer: Outer, known: dict[Plan, Judged], count: int) -> dict[str, float]:
    """The best step after the best so many plans of the ladder have been given another budget, per budget."""
    ruled = [plan for plan in known if legal(known, plan) and known[plan].feasible]
    first = sorted(ruled, key=lambda plan: known[plan].step_s)[:count]
    steps = {}
    for budget in outer.budgets:
        tried = [known.get(replace(plan, recompute=budget), known[plan]) for plan in first]
        steps[budget] = min(judged.step_s for judged in tried if judged.feasible)
    return steps


def simulations_until(visits: Visits, near_s: float) -> float:
    """Distinct plans simulated until one is near; infinite if none is."""
    seen: set[Plan] = set()
    for _, judged in visits:
        if judged.feasible and judged.plan is not None:
            seen.add(judged.plan)
            if judged.step_s <= near_s:
                return len(seen)
    return float("inf")


METHODS: dict[str, Callable[[Judge, int, int], Visits]] = {
    "nsga2_unseeded": optuna("nsga2", False),
    "nsga2_seeded": optuna("nsga2", True),
    "tpe_unseeded": optuna("tpe", False),
    "tpe_seeded": optuna("tpe", True),
    "annealing": annealing,
    "random": random_search,
}


def study(space_file: Path, shapes: int, values: int, budgets: int) -> tuple[Outer, dict[Plan, Judged]]:
    """The most promising shapes of a space, and every plan of them judged."""
    space = narrowed(load_space(space_file), values)
    outer = shortlist(space, search_exact(space, top=1).screened, shapes)
    outer = replace(outer, budgets=outer.budgets[:budgets])
    return outer, enumerate_all(outer)


def compared(outer: Outer, known: dict[Plan, Judged], seeds: int, trials: int) -> dict[str, Any]:
    """Median simulations of every method over the seeds, and how many seeds got there."""
    best = min(judged.step_s for judged in known.values() if judged.feasible)
    first = best_estimate_first(outer, known, NEAR * best)
    medians, reached = {"best_estimate_first": first}, {"best_estimate_first": seeds * (first < np.inf)}
    for name, method in METHODS.items():
        counts = [
            simulations_until(method(Judge(outer, library=known), trials, seed), NEAR * best) for seed in range(seeds)
        ]
        medians[name] = statistics.median(counts)
        reached[name] = sum(np.isfinite(counts).tolist())
    per_budget = {
        budget: min(judged.step_s for plan, judged in known.items() if plan.recompute == budget and judged.feasible)
        for budget in outer.budgets
    }
    return {
        "shapes": len(outer.shapes), "points": int(np.prod(outer.sizes)), "plans": len(known), "optimum_s": best,
        "feasible": sum(judged.feasible for judged in known.values()), "seeds": seeds, "trials": trials,
        "optimum_of_budget_s": per_budget, "finalists_s": finalists_s(outer, known, FINALISTS),
        "simulations": {name: count if np.isfinite(count) else None for name, count in medians.items()},
        "reached": reached,
    }  # fmt: skip


def run(
    shapes: int, dense_shapes: int, seeds: int, trials: int, values: int = 0, budgets: int = len(BUDGETS)
) -> dict[str, Any]:
    """Both spaces, every method."""
    work, ratios, seconds, rates = {}, {}, {}, {}
    for name, path, count in (("718b", PANGU_718B, shapes), ("405b", LLAMA_405B, dense_shapes)):
        if not count:
            continue
        started = time.process_time()
        outer, known = study(path, count, values, budgets)
        seconds[f"{name}_enumerated"] = time.process_time() - started
        rates[name] = sum(judged.broken_rules == 0 for judged in known.values()) / seconds[f"{name}_enumerated"]
        found = compared(outer, known, seeds, trials)
        work[name] = found | {"judged_per_cpu_s": rates[name]}
        first = found["simulations"]["best_estimate_first"]
        ratios |= {
            f"{name}_{method}_over_best_estimate_first": number / first
            for method, number in found["simulations"].items()
            if number and first
        }
    reaches = [part["simulations"]["best_estimate_first"] is not None for part in work.values()]
    return answer("study", work, seconds, ratios, best_estimate_reaches=all(reaches))


if __name__ == "__main__":
    asked = arguments(
        "Simulations until within 1 % of an enumerated optimum.",
        shapes=(1, "shapes of the 718B space"),
        dense_shapes=(2, "shapes of the 405B space"),
        seeds=(5, "seeds of every method"),
        trials=(600, "trials of a run"),
    )
    say(run(**vars(asked)))
