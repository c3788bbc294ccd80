"""How many simulations each way of searching needs until it is within 1 % of a known optimum.

The space: the most promising shapes of the 718B space, their codes and layer cuts; its optimum is enumerated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from measure import PANGU_718B, answer, arguments, narrowed, say

from autodeploy.catalog.lookup import load_space
from autodeploy.search.anneal import anneal
from autodeploy.search.evaluate import arranged
from autodeploy.search.exact import search_exact
from autodeploy.search.judge import Judge, Judged
from autodeploy.search.outer import Outer, Point, shortlist
from autodeploy.search.study import Settings, run_study
from autodeploy.spec.plan import Plan

NEAR = 1.01
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


def best_estimate_first(outer: Outer, known: dict[Plan, Judged], near_s: float) -> int:
    """Screen everything, simulate in that order: deterministic."""
    feasible = [plan for plan, judged in known.items() if judged.feasible]
    order = sorted(feasible, key=lambda plan: float(arranged(outer.space, plan).screen_s))
    return next(n for n, plan in enumerate(order, 1) if known[plan].step_s <= near_s)


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


def run(shapes: int, seeds: int, trials: int, values: int = 0) -> dict[str, Any]:
    """Median simulations of every method over the seeds, and how many seeds got there."""
    space = narrowed(load_space(PANGU_718B), values)
    outer = shortlist(space, search_exact(space, top=1).screened, shapes)
    started = time.process_time()
    known = enumerate_all(outer)
    best = min(judged.step_s for judged in known.values() if judged.feasible)
    medians = {"best_estimate_first": float(best_estimate_first(outer, known, NEAR * best))}
    reached = {"best_estimate_first": seeds}
    for name, method in METHODS.items():
        counts = [
            simulations_until(method(Judge(outer, library=known), trials, seed), NEAR * best) for seed in range(seeds)
        ]
        medians[name] = statistics.median(counts)
        reached[name] = sum(np.isfinite(counts).tolist())
    work = {
        "shapes": len(outer.shapes), "points": int(np.prod(outer.sizes)), "plans": len(known), "optimum_s": best,
        "feasible": sum(judged.feasible for judged in known.values()), "seeds": seeds, "trials": trials,
        "simulations": {name: count if np.isfinite(count) else None for name, count in medians.items()},
        "reached": reached,
    }  # fmt: skip
    first = medians["best_estimate_first"]
    ratios = {f"{name}_over_best_estimate_first": n / first for name, n in medians.items() if np.isfinite(n)}
    return answer("study", work, {"cpu": time.process_time() - started}, ratios, best_estimate_reaches=first < np.inf)


if __name__ == "__main__":
    asked = arguments(
        "Simulations until within 1 % of an enumerated optimum.",
        shapes=(8, "shapes of the shortlist"),
        seeds=(5, "seeds of every method"),
        trials=(600, "trials of a run"),
    )
    say(run(**vars(asked)))
