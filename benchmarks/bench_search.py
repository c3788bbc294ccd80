"""The whole search: seconds by stage, and what the bounds save against simulating everything that fits."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from measure import LLAMA_405B, PANGU_718B, answer, arguments, narrowed, say

from autodeploy.catalog.lookup import load_space
from autodeploy.search.exact import Outcome, Progress, search_exact
from autodeploy.spec.space import Space

STAGES = ("enumerate", "screen", "simulate")
TOP = 20
ALL = 1 << 40
"""A last place that no space reaches: every plan that fits is simulated."""
SPACES = {"718b": PANGU_718B, "405b": LLAMA_405B}
SMALLER = "405b"


def timed(space: Space, top: int) -> tuple[Outcome, dict[str, float]]:
    """A search and its wall seconds by stage."""
    begun: dict[str, float] = {}

    def note(progress: Progress) -> None:
        begun.setdefault(progress.stage, time.perf_counter())

    outcome = search_exact(space, top=top, report=note)
    ends = [*(begun[stage] for stage in STAGES), time.perf_counter()]
    seconds = {stage: ends[i + 1] - ends[i] for i, stage in enumerate(STAGES)}
    return outcome, seconds | {"whole": ends[-1] - ends[0]}


def median_of(space: Space, top: int, repeats: int) -> tuple[Outcome, dict[str, float]]:
    """Median of the repeats, stage by stage, after a search that warms up."""
    outcome, _ = timed(space, top)
    runs = [timed(space, top)[1] for _ in range(repeats)]
    return outcome, {stage: statistics.median(run[stage] for run in runs) for stage in runs[0]}


def same_ranking(first: Outcome, second: Outcome) -> bool:
    """Whether the plans of the first are the best plans of the second, in order."""
    count = len(first.rows)
    return bool(np.array_equal(first.rows, second.rows[:count]) and (first.step_s == second.step_s[:count]).all())


def run(repeats: int, values: int, top: int) -> dict[str, Any]:
    """Both spaces, and the smaller one with everything simulated."""
    work: dict[str, Any] = {"repeats": repeats, "top": top}
    seconds: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name, path in SPACES.items():
        space = narrowed(load_space(path), values)
        outcome, seconds[name] = median_of(space, top, repeats)
        facts = outcome.facts()
        work[name] = {key: facts[key] for key in ("candidates", "legal", "fits", "simulated")}
        work[name] |= {"status": outcome.status, "legal_per_s": round(facts["legal"] / seconds[name]["whole"])}
        ratios[f"{name}_fits_over_simulated"] = facts["fits"] / max(facts["simulated"], 1)
        if name == SMALLER:
            everything, all_s = median_of(space, ALL, 1)
            seconds[f"{name}_simulate_all"] = all_s
            ratios[f"{name}_simulate_all_over_search"] = all_s["whole"] / seconds[name]["whole"]
            ratios[f"{name}_simulate_all_over_simulate"] = all_s["simulate"] / seconds[name]["simulate"]
            held = same_ranking(outcome, everything)
    return answer("search", work, seconds, ratios, same_ranking=held)


if __name__ == "__main__":
    asked = arguments(
        "The whole search of two spaces.",
        values=(0, "most values of every degree, 0 for all"),
        top=(TOP, "plans to rank"),
        repeats=(3, "timed repeats"),
    )
    say(run(asked.repeats, asked.values, asked.top))
