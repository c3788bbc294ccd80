"""How long files and functions may be. `pytest -s tests/house/test_sizes.py` prints where the package stands."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from tests.house.source import AnyFunction, Source, functions, parameters, source_of, sources

MOST = {"code lines": 50, "parameters": 9, "nesting": 4, "file lines": 400}
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)


@dataclass(frozen=True, slots=True)
class Size:
    """One figure of one function or file."""

    place: str
    figure: str
    value: int


def code_lines(text: str) -> set[int]:
    """Lines that hold more than blanks and comments."""
    tokens = (token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in SILENT)
    return {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}


def docstring_lines(function: AnyFunction) -> set[int]:
    """Lines of a function's docstring."""
    first = function.body[0]
    if ast.get_docstring(function) is None:
        return set()
    return set(range(first.lineno, (first.end_lineno or first.lineno) + 1))


def nesting(node: ast.AST) -> int:
    """Depth of blocks in each other; `elif` is no deeper than its `if`, a nested function begins anew."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        own = isinstance(child, BLOCKS) and not is_elif
        deepest = max(deepest, own + nesting(child))
    return deepest


def sizes(source: Source) -> Iterator[Size]:
    """Every figure of a module."""
    yield Size(source.module, "file lines", len(source.text.splitlines()))
    counted = code_lines(source.text)
    for function in functions(source):
        place = f"{source.module}:{function.lineno} {function.name}"
        lines = counted & set(range(function.lineno, (function.end_lineno or 0) + 1)) - docstring_lines(function)
        yield Size(place, "code lines", len(lines))
        yield Size(place, "parameters", len(parameters(function)))
        yield Size(place, "nesting", nesting(function))


def is_a_command(size: Size) -> bool:
    """A command's parameters are its flags, which typer reads off the function: as many as users need."""
    return size.figure == "parameters" and size.place.startswith("autodeploy.cli.app:")


@cache
def measured() -> tuple[Size, ...]:
    """Every figure of the package."""
    return tuple(size for source in sources() for size in sizes(source))


def test_nothing_is_larger_than_the_house_allows() -> None:
    for figure, most in MOST.items():
        values = [size.value for size in measured() if size.figure == figure]
        p50, p90 = np.percentile(values, [50, 90])
        largest = max((size for size in measured() if size.figure == figure), key=lambda size: size.value)
        print(f"{figure}: {len(values)}, median {p50:g}, p90 {p90:g}, most {largest.value} of {most} ({largest.place})")
    print("package:", sum(size.value for size in measured() if size.figure == "file lines"), "lines")
    assert [size for size in measured() if size.value > MOST[size.figure] and not is_a_command(size)] == []


def test_figures_are_counted_as_stated() -> None:
    text = '''
def f(a, *, b=1, **c):
    """Two lines
    of docstring."""

    # a comment
    if a:
        for x in b:
            pass
    elif b:
        while c:
            if a: return [
                1,
            ]
'''
    found = {size.figure: size.value for size in sizes(source_of("autodeploy.x", text))}
    assert found == {"file lines": 14, "code lines": 9, "parameters": 3, "nesting": 3}
