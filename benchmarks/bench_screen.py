"""The screen: a million plans in columns against the scalar path, one plan at a time, over the same formulas."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from measure import PANGU_718B, answer, arguments, median_s, narrowed, say

from autodeploy.catalog.lookup import load_space
from autodeploy.search.arranged import Arranged
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.search.evaluate import arranged
from autodeploy.search.screen import Screened, screen
from autodeploy.spec.plan import PlanTable
from autodeploy.spec.space import Space, with_values

WIDER: dict[str, Any] = {
    "tp": (1, 2, 4, 8, 16, 32),
    "vpp": tuple(range(1, 17)),
    "etp": (1, 2, 4, 8, 16, 32, 64),
    "mbs": (1, 2, 3, 4, 6, 8, 9, 12, 16),
    "sp": (False, True),
    "zero": (0, 1),
}
"""Values beside those of the space file: a million legal plans and more."""
COMPARED = ("screen_s", "bound_s", "needed_bytes", "fits")


def wide_space() -> Space:
    """The 718B space, widened."""
    return with_values(load_space(PANGU_718B), **WIDER)


def some_rows(size: int, count: int, seed: int) -> np.ndarray:
    """Distinct random rows in ascending order."""
    return np.sort(np.random.default_rng(seed).choice(size, min(count, size), replace=False))


def same(screened: Screened, rows: np.ndarray, singles: list[Arranged]) -> bool:
    """Whether columns and single plans agree bit for bit."""
    return all(
        float(getattr(screened, name)[row]) == float(getattr(single, name))
        for row, single in zip(rows, singles, strict=True)
        for name in COMPARED
    )


def one_by_one(space: Space, plans: PlanTable, rows: np.ndarray) -> tuple[float, list[Arranged]]:
    """CPU seconds of the scalar path over some rows, and what it finds. Layers that plans share stay cached."""
    chosen = [plans.row(int(row)) for row in rows]
    started = time.process_time()
    found = [arranged(space, plan) for plan in chosen]
    return time.process_time() - started, found


def shipped_one_by_one(sample: int, values: int) -> tuple[float, int]:
    """CPU seconds of the scalar path over some plans of the 718B space as it is shipped, and how many: there, many
    plans share each layer; in the wide space hardly any two do."""
    space = narrowed(load_space(PANGU_718B), values)
    legal = enumerate_plans(space).legal
    one_by_one(space, legal, some_rows(len(legal), sample, seed=4))  # warm-up
    rows = some_rows(len(legal), sample, seed=5)
    return one_by_one(space, legal, rows)[0], len(rows)


def run(plans: int, sample: int, repeats: int, values: int = 0) -> dict[str, Any]:
    """Plans per CPU second of both paths, and their ratio."""
    space = narrowed(wide_space(), values)
    started = time.process_time()
    enumeration = enumerate_plans(space)
    enumerate_s = time.process_time() - started
    legal = enumeration.legal
    table = legal.rows(some_rows(len(legal), plans, seed=1))
    columns_s, screened = median_s(lambda: screen(space, table), repeats)
    one_by_one(space, table, some_rows(len(table), max(sample // 4, 1), seed=2))  # warm-up
    rows = some_rows(len(table), sample, seed=3)
    scalar_s, singles = one_by_one(space, table, rows)
    shipped_s, shipped = shipped_one_by_one(sample, values)
    columns_rate, scalar_rate = len(table) / columns_s, len(rows) / scalar_s
    work = {
        "candidates": enumeration.candidates, "legal": len(legal), "screened": len(table), "sample": len(rows),
        "cases": len(screened.cases), "repeats": repeats,
        "candidates_per_cpu_s": round(enumeration.candidates / enumerate_s),
        "columns_plans_per_cpu_s": round(columns_rate), "scalar_plans_per_cpu_s": round(scalar_rate),
        "scalar_shipped_plans_per_cpu_s": round(shipped / shipped_s),
    }  # fmt: skip
    seconds = {
        "enumerate_cpu": enumerate_s, "columns_cpu": columns_s, "scalar_cpu": scalar_s, "scalar_shipped_cpu": shipped_s,
    }  # fmt: skip
    ratios = {"columns_over_scalar": columns_rate / scalar_rate}
    return answer("screen", work, seconds, ratios, bit_for_bit=same(screened, rows, singles))


if __name__ == "__main__":
    asked = arguments(
        "Plans screened per CPU second.",
        plans=(1_000_000, "legal plans to screen"),
        sample=(2000, "plans of the scalar path"),
        repeats=(3, "timed repeats"),
        values=(0, "most values of every degree, 0 for all"),
    )
    say(run(asked.plans, asked.sample, asked.repeats, asked.values))
