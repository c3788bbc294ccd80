"""One formula for one plan and for a million: every helper gives of a column what it gives of each number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.numeric import (
    ceil,
    doublings,
    floor,
    gather,
    is_column,
    largest,
    maximum,
    minimum,
    order_of,
    pick,
    total,
    where,
)  # fmt: skip

NUMBERS = st.floats(-1e12, 1e12)
QUICK = settings(max_examples=40)


def columns(count: int, elements: st.SearchStrategy = NUMBERS) -> st.SearchStrategy:
    """So many columns of one length."""
    row = st.tuples(*[elements] * count)
    return st.lists(row, min_size=1, max_size=8).map(lambda rows: [np.array(c) for c in zip(*rows, strict=True)])


@QUICK
@given(columns(2))
@pytest.mark.parametrize("choose", [maximum, minimum])
def test_extremes_agree(choose: Any, pair: list[np.ndarray]) -> None:
    a, b = pair
    assert choose(a, b).tolist() == [choose(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert choose(a, 1.5).tolist() == [choose(x, 1.5) for x in a.tolist()]
    assert choose(-2.5, a).tolist() == [choose(-2.5, x) for x in a.tolist()]


@given(a=NUMBERS, b=NUMBERS)
def test_extremes_are_the_larger_and_the_smaller(a: float, b: float) -> None:
    assert (maximum(a, b), minimum(a, b)) == (max(a, b), min(a, b))


@QUICK
@given(columns(3))
def test_where_agrees(rows: list[np.ndarray]) -> None:
    a, b, c = rows
    each = [where(x > 0.0, y, z) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    assert where(a > 0.0, b, c).tolist() == each
    assert where(a > 0.0, 1.0, c).tolist() == [1.0 if x > 0.0 else z for x, z in zip(a, c, strict=True)]


@QUICK
@given(columns(1))
@pytest.mark.parametrize(("helper", "truth"), [(ceil, math.ceil), (floor, math.floor)])
def test_rounding_agrees(helper: Any, truth: Any, rows: list[np.ndarray]) -> None:
    [a] = rows
    assert helper(a).tolist() == [helper(x) for x in a.tolist()] == [float(truth(x)) for x in a.tolist()]


@given(count=st.integers(1, 2**50))
def test_doublings_reach_the_count_and_no_sooner(count: int) -> None:
    steps = doublings(float(count))
    assert 2**steps >= count
    assert steps == 0 or 2 ** (steps - 1) < count


@QUICK
@given(columns(1, st.integers(1, 2**50).map(float)))
def test_doublings_agree(rows: list[np.ndarray]) -> None:
    [a] = rows
    assert doublings(a).tolist() == [doublings(x) for x in a.tolist()]


@QUICK
@given(columns(3), st.data())
def test_pick_agrees(choices: list[np.ndarray], data: st.DataObject) -> None:
    length = len(choices[0])
    index = data.draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
    mixed = [*choices, 7.0]
    each = [pick(i, [*(c[row] for c in choices), 7.0]) for row, i in enumerate(index)]
    assert pick(np.array(index), mixed).tolist() == each
    assert pick(np.array(index, dtype=float), mixed).tolist() == each


@QUICK
@given(columns(4, st.sampled_from([0.0, 1.0, 2.0, float("inf")])))
def test_order_agrees_and_is_stable(keys: list[np.ndarray]) -> None:
    together = order_of(keys)
    for row in range(len(keys[0])):
        alone = order_of([float(key[row]) for key in keys])
        assert [int(place[row]) for place in together] == alone
        values = [(float(keys[place][row]), place) for place in alone]
        assert values == sorted(values)


@QUICK
@given(columns(3), NUMBERS)
@pytest.mark.parametrize("reduce", [total, largest])
def test_reductions_agree(reduce: Any, rows: list[np.ndarray], number: float) -> None:
    each = [reduce([*values, number]) for values in zip(*(row.tolist() for row in rows), strict=True)]
    assert reduce([*rows, number]).tolist() == each


@given(st.lists(NUMBERS, min_size=1))
def test_reductions_are_the_sum_and_the_largest(values: list[float]) -> None:
    assert largest(values) == max(values)
    assert total(values) == pytest.approx(math.fsum(values), rel=1e-9, abs=1e-2)
    assert (total([]), largest([])) == (0.0, 0.0)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Tree:
    column: Any
    number: float
    inside: dict[str, Any]


def test_gather_takes_entries_wherever_columns_are() -> None:
    column, index = np.array([10.0, 20.0, 30.0]), np.array([2, 0, 2])
    taken = gather(Tree(column, 5.0, {"pair": Pair(column, 1.0), "plain": (column, "word")}), index)
    assert type(taken) is Tree
    assert type(taken.inside["pair"]) is Pair
    for found in (taken.column, taken.inside["pair"].left, taken.inside["plain"][0]):
        assert found.tolist() == [30.0, 10.0, 30.0]
    assert (taken.number, taken.inside["pair"].right, taken.inside["plain"][1]) == (5.0, 1.0, "word")


@pytest.mark.parametrize(("value", "column"), [(np.zeros(3), True), (1.0, False), (np.float64(1.0), False), (3, False)])
def test_a_column_is_an_array(value: Any, column: bool) -> None:
    assert is_column(value) is column
