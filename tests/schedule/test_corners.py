"""Vectors that can be the peak of a weighted sum: those between two others are left out, and nothing is lost."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.schedule.live import corners

VECTORS = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.tuples(*[st.integers(0, 6)] * size), min_size=1, max_size=9, unique=True)
)


def between(one: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether one = a + t (b - a) for some t strictly between 0 and 1."""
    fixed = {x == p for x, p, q in zip(one, a, b, strict=True) if p == q}
    moving = {Fraction(x - p, q - p) for x, p, q in zip(one, a, b, strict=True) if p != q}
    return False not in fixed and len(moving) == 1 and 0 < moving.pop() < 1


@given(vectors=VECTORS)
def test_exactly_those_between_two_others_go(vectors: list[tuple[int, ...]]) -> None:
    gone = {one for one in vectors if any(between(one, a, b) for a in vectors for b in vectors if a != b)}
    assert set(corners(tuple(vectors))) == set(vectors) - gone


@given(vectors=VECTORS, seed=st.integers(0, 2**32 - 1))
def test_no_weighted_sum_gets_smaller(vectors: list[tuple[int, ...]], seed: int) -> None:
    weights = np.random.default_rng(seed).uniform(0.0, 3.0, len(vectors[0]))
    whole = max(float(np.dot(weights, vector)) for vector in vectors)
    assert np.isclose(max(float(np.dot(weights, vector)) for vector in corners(tuple(vectors))), whole)
