"""The solved selection of a plan: what it takes beside arranging the plan, and what it gains over the ladder."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from measure import LLAMA_405B, PANGU_718B, answer, arguments, say

from autodeploy.balance.selection import greedy
from autodeploy.catalog.lookup import load_space
from autodeploy.search.arrange import common_of, lay_out
from autodeploy.search.arranged import Arranged, Common
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.search.evaluate import best_arrangement
from autodeploy.search.layers import layers_of
from autodeploy.search.screen import cases_of
from autodeploy.search.selecting import _selected, solved
from autodeploy.search.steps import step_s_of
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space


def pressed(space: Space, count: int) -> list[Plan]:
    """Random plans that fit with something rebuilt."""
    legal = enumerate_plans(space).legal
    found = []
    for row in np.random.default_rng(1).permutation(len(legal)):
        plan = legal.row(int(row))
        ruled = ruled_of(space, plan)[1]
        if ruled.fits and any(stage.memory.rung for stage in ruled.stages):
            found.append(plan)
        if len(found) == count:
            break
    return found


def ruled_of(space: Space, plan: Plan) -> tuple[Common, Arranged]:
    """The plan by the ladder."""
    costs, rungs = layers_of(space, plan)
    common = common_of(space, plan.pp, plan, costs, rungs)
    return common, best_arrangement([lay_out(common, case) for case in cases_of(space, plan)])


def measured(space: Space, plans: list[Plan], policy: str) -> tuple[list[float], list[float], bool]:
    """(CPU seconds of each solved plan, its step over that of the ladder, no stage adds more than the greedy one)."""
    times, ratios, never_worse = [], [], True
    for plan in plans:
        common, ruled = ruled_of(space, replace(plan, recompute=policy))
        solved(common, ruled)
        _selected.cache_clear()
        start = process_time()
        found = solved(common, ruled)
        times.append(process_time() - start)
        if found is None:
            continue
        ratios.append(step_s_of(ruled) / step_s_of(found))
        for stage in found.stages:
            assert stage.chosen is not None
            rival = greedy(stage.chosen.need)
            never_worse &= rival is None or stage.chosen.selection.added_s <= rival.added_s * (1 + 1e-3) + 1e-3
    return times, ratios, never_worse


def run(plans: int) -> dict[str, Any]:
    """Both shipped spaces, without and with swap."""
    work: dict[str, Any] = {}
    seconds: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    holds = True
    for word, path in (("718b", PANGU_718B), ("405b", LLAMA_405B)):
        space = load_space(path)
        asked = pressed(space, plans)
        for policy in ("solve", "solve+swap"):
            name = f"{word}_{policy.replace('+', '_')}"
            times, gains, each = measured(space, asked, policy)
            work[name], holds = len(times), holds and each
            seconds[name] = {"median_cpu": median(times), "worst_cpu": max(times)}
            ratios[f"{name}_ladder_over_solved"] = median(gains)
            ratios[f"{name}_ladder_over_solved_best"] = max(gains)
    return answer("selection", work, seconds, ratios, never_worse_than_greedy=holds)


if __name__ == "__main__":
    asked = arguments("Seconds of a solved selection, and what it gains.", plans=(40, "plans of each space"))
    say(run(asked.plans))
