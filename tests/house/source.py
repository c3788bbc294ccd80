"""The source as the rules of the house look at it: every module of the package, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One module."""

    module: str
    """`autodeploy.cost.load`; a package by its own name."""
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The name below `autodeploy`: a package, or a module at the top (`units`); empty for the top itself."""
        return [*self.module.split("."), ""][1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """One imported module, and whether importing the file imports it."""

    name: str
    line: int
    late: bool
    """Inside a function."""


def source_of(module: str, text: str) -> Source:
    """A module from its text: real ones, and planted ones that a rule must find."""
    return Source(module=module, text=text, tree=ast.parse(text))


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the package."""
    found = []
    for path in sorted((ROOT / "autodeploy").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(source_of(name, path.read_text(encoding="utf-8")))
    return tuple(found)


def imports(source: Source) -> Iterator[Import]:
    """Imports with the full name of what each brings in (`from a import b` is `a.b`, a module or a name in one)."""
    late = {id(inner) for node in ast.walk(source.tree) if isinstance(node, FUNCTIONS) for inner in ast.walk(node)}
    for node in ast.walk(source.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names = [f"{base}.{alias.name}" for alias in node.names]
        for name in names:
            yield Import(name=name, line=node.lineno, late=id(node) in late)


def functions(source: Source) -> Iterator[AnyFunction]:
    """Every function and method, nested ones too."""
    return (node for node in ast.walk(source.tree) if isinstance(node, FUNCTIONS))


def parameters(function: AnyFunction) -> list[ast.arg]:
    """All parameters but `self` and `cls`."""
    a = function.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(each for each in (a.vararg, a.kwarg) if each)]
    return [each for each in every if each.arg not in ("self", "cls")]
