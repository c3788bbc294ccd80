"""How many simulations each way of searching needs until it is within 1 % of a known optimum.

The space: the most promising shapes of the 718B space, their codes and layer cuts; its optimum is enumerated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from autodeploy.catalog.lookup import load_space
from autodeploy.search.anneal import anneal
from autodeploy.search.evaluate import arranged
from autodeploy.search.exact import search_exact
from autodeploy.search.judge import Judge, Judged
from autodeploy.search.outer import Outer, Point, shortlist
from autodeploy.search.study import Settings, run_study
from autodeploy.spec.plan import Plan

SPACE = Path(__file__).parent.parent / "search_spaces" / "pangu-ultra-moe-718b_atlas-800t-a2.toml"
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
    "optuna nsga2, unseeded": optuna("nsga2", False),
    "optuna nsga2, seeded": optuna("nsga2", True),
    "optuna tpe, unseeded": optuna("tpe", False),
    "optuna tpe, seeded": optuna("tpe", True),
    "annealing": annealing,
    "random": random_search,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=1000)
    args = parser.parse_args()
    space = load_space(SPACE)
    outer = shortlist(space, search_exact(space, top=1).screened, args.shapes)
    started = time.process_time()
    known = enumerate_all(outer)
    best = min(judged.step_s for judged in known.values() if judged.feasible)
    rows = {"best-estimate-first": {"median": best_estimate_first(outer, known, NEAR * best), "reached": args.seeds}}
    for name, method in METHODS.items():
        counts = [
            simulations_until(method(Judge(outer, library=known), args.trials, seed), NEAR * best)
            for seed in range(args.seeds)
        ]
        rows[name] = {"median": statistics.median(counts), "reached": sum(np.isfinite(counts).tolist())}
    print(json.dumps({
        "benchmark": "study", "shapes": args.shapes, "points": int(np.prod(outer.sizes)), "plans": len(known),
        "feasible": sum(judged.feasible for judged in known.values()), "optimum_s": best, "seeds": args.seeds,
        "trials": args.trials, "seconds": time.process_time() - started, "simulations_until_1_percent": rows,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
