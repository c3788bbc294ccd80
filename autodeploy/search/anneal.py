"""Simulated annealing over the points of a study: the polish that follows a sampler, and a rival to it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from autodeploy.search.judge import Judge, Judged
from autodeploy.search.outer import Point, neighbours

HOTTEST_FRAC, COLDEST_FRAC = 0.02, 0.0005
"""Temperatures at the start and the end, as shares of the starting step."""
JUMP_SHARE = 0.2
"""Moves that redraw one variable instead of stepping it."""


def cost(judged: Judged) -> float:
    """What annealing minimises: the step, with what is infeasible above all that is feasible."""
    if judged.feasible:
        return judged.step_s
    over = judged.over_memory_frac + judged.over_host_frac
    return judged.step_s * (2.0 + over) + 1e6 * judged.broken_rules


def anneal(judge: Judge, start: Point, steps: int, rng: np.random.Generator) -> Iterator[tuple[Point, Judged]]:
    """Visit `steps` points from a start, yielding each with its judgement."""
    here, now = start, cost(judge(start))
    scale = now
    for step in range(steps):
        point = _move(judge, here, rng)
        judged = judge(point)
        yield point, judged
        heat = scale * HOTTEST_FRAC * (COLDEST_FRAC / HOTTEST_FRAC) ** (step / max(steps - 1, 1))
        there = cost(judged)
        if there <= now or rng.random() < math.exp(-(there - now) / heat):
            here, now = point, there


def _move(judge: Judge, here: Point, rng: np.random.Generator) -> Point:
    near = neighbours(judge.outer, here)
    if not near or rng.random() < JUMP_SHARE:
        place = int(rng.integers(len(here)))
        return (*here[:place], int(rng.integers(judge.outer.sizes[place])), *here[place + 1 :])
    return near[int(rng.integers(len(near)))]
