"""Every module, and every public class and function, says what it is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autodeploy.legality.rules import RULES
from tests.house.source import FUNCTIONS, Source, source_of, sources

RULE_NAMES = {rule_id.lower() for rule_id in RULES}


def public(body: list[ast.stmt], path: str) -> Iterator[tuple[str, ast.AST]]:
    """Public classes, functions and methods; what sits inside a function or a private class is nobody else's."""
    for node in body:
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) or node.name.startswith("_"):
            continue
        yield f"{path}.{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from public(node.body, f"{path}.{node.name}")


def is_a_rule(name: str) -> bool:
    """A predicate named by its rule, which says in words what it asks."""
    return name.startswith("autodeploy.legality.") and name.rpartition(".")[2].partition("_")[0] in RULE_NAMES


def silent(source: Source) -> list[str]:
    """What has no docstring."""
    every = [(source.module, source.tree), *public(source.tree.body, source.module)]
    return [name for name, node in every if not (ast.get_docstring(node) or "").strip() and not is_a_rule(name)]


def test_everything_public_has_a_docstring() -> None:
    assert [name for source in sources() for name in silent(source)] == []


def test_planted_silence_is_found() -> None:
    text = '"""M."""\nclass A:\n    def f(self): pass\n    def _g(self): pass\nclass _B:\n    def h(self): pass\n'
    assert silent(source_of("autodeploy.x", text)) == ["autodeploy.x.A", "autodeploy.x.A.f"]
    assert silent(source_of("autodeploy.x", "")) == ["autodeploy.x"]
