"""Factors between units occur in `units.py` alone: 1024, 10^9, 10^12, and powers of two that stand for them."""

from __future__ import annotations

import ast

import pytest

from tests.house.source import Source, source_of, sources

FACTORS = {float(2**power) for power in (10, 20, 30, 40)} | {1e9, 1e12}
HOME = "autodeploy.units"


def _number(node: ast.expr) -> float | None:
    """The value of a literal, or of a power or shift of literals."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Pow):
        return left**right
    return left * 2.0**right if isinstance(node.op, ast.LShift) else None


def factors(source: Source) -> list[str]:
    """Places where a unit factor is written out."""
    nodes = [node for node in ast.walk(source.tree) if isinstance(node, ast.expr)]
    return [f"{source.module}:{node.lineno} {ast.unparse(node)}" for node in nodes if _number(node) in FACTORS]


def test_unit_factors_live_in_units() -> None:
    assert [place for source in sources() if source.module != HOME for place in factors(source)] == []
    assert [source.module for source in sources() if source.module == HOME and factors(source)] == [HOME]


@pytest.mark.parametrize("text", ["1024", "x / 1e12", "2**30 * x", "2.0**30", "10**9", "1 << 20", "1_000_000_000"])
def test_a_planted_factor_is_found(text: str) -> None:
    assert factors(source_of("autodeploy.report.tables", f"y = {text}")) != []
    assert factors(source_of("autodeploy.report.tables", "y = 16384 + 30_000_000 + 2**5 + True")) == []
