"""One formula for one plan and for a million: helpers that take a number or a column.

A number stays a plain Python number (fast, exact), a column is a NumPy array; the IEEE operations are the
same, so both paths agree bit for bit. Plan-dependent choices go through `where` and `pick`, never `if`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

Num = Any
"""A number, or a column of numbers (float64 array), one per plan."""


def is_column(value: Num) -> bool:
    """True for an array, False for a plain number."""
    return isinstance(value, np.ndarray)


def where(condition: Num, yes: Num, no: Num) -> Num:
    """`yes` where the condition holds, else `no`. Both sides are evaluated: both must be finite."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def maximum(a: Num, b: Num) -> Num:
    """The larger of the two, element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a >= b else b


def minimum(a: Num, b: Num) -> Num:
    """The smaller of the two, element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a <= b else b


def ceil(value: Num) -> Num:
    """Smallest whole number not below the value, as a float."""
    return np.ceil(value) if isinstance(value, np.ndarray) else float(math.ceil(value))


def floor(value: Num) -> Num:
    """Largest whole number not above the value, as a float."""
    return np.floor(value) if isinstance(value, np.ndarray) else float(math.floor(value))


def doublings(count: Num) -> Num:
    """How often 1 must be doubled to reach `count` (ceil of log2, exact): steps of a tree over `count` ranks."""
    mantissa, exponent = np.frexp(count) if is_column(count) else math.frexp(count)
    return 1.0 * (exponent - (mantissa == 0.5))


def sqrt(value: Num) -> Num:
    """Square root; IEEE rounds it correctly, so both paths agree."""
    return np.sqrt(value) if isinstance(value, np.ndarray) else math.sqrt(value)


def pick(index: Num, choices: Sequence[Num]) -> Num:
    """`choices[index]`, element by element where the index is a column."""
    if not isinstance(index, np.ndarray):
        return choices[int(index)]
    stacked = np.stack([np.broadcast_to(choice, index.shape) for choice in choices])
    return np.take_along_axis(stacked, index[None].astype(np.intp), axis=0)[0]


def order_of(keys: Sequence[Num]) -> list[Num]:
    """Positions that sort the keys upwards (stable), one entry per place: `order_of([3, 1])` is `[1, 0]`."""
    if any(isinstance(key, np.ndarray) for key in keys):
        stacked = np.stack(np.broadcast_arrays(*keys))
        return list(np.argsort(stacked, axis=0, kind="stable"))
    return sorted(range(len(keys)), key=lambda place: keys[place])


def total(values: Sequence[Num]) -> Num:
    """Sum from left to right, the same order for numbers and columns; 0.0 of nothing."""
    if not values:
        return 0.0
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def largest(values: Sequence[Num]) -> Num:
    """The largest of some values, element by element; 0.0 of nothing."""
    if not values:
        return 0.0
    result = values[0]
    for value in values[1:]:
        result = maximum(result, value)
    return result


def gather(tree: Any, index: np.ndarray, done: dict[int, Any] | None = None) -> Any:
    """The same structure (dicts, tuples, dataclasses) with every column replaced by the entries at `index`; a column
    that stands in several places is picked once."""
    done = {} if done is None else done
    if isinstance(tree, np.ndarray):
        if id(tree) not in done:
            done[id(tree)] = tree.take(index)
        return done[id(tree)]
    if isinstance(tree, dict):
        return {key: gather(value, index, done) for key, value in tree.items()}
    if isinstance(tree, tuple):
        items = [gather(item, index, done) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: gather(getattr(tree, f.name), index, done) for f in fields(tree)})
    return tree
