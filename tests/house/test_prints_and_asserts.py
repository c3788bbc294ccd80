"""Only `report` and `cli` write to the user, and no `assert` guards what a caller passes: it is gone under -O."""

from __future__ import annotations

import ast

import pytest

from tests.house.source import Source, functions, parameters, source_of, sources

SPEAKING = ("report", "cli")
STREAMS = {"stdout", "stderr"}


def spoken(source: Source) -> list[str]:
    """Prints, and writes to a standard stream."""
    names = [node for node in ast.walk(source.tree) if isinstance(node, ast.Name) and node.id == "print"]
    streams = [node for node in ast.walk(source.tree) if isinstance(node, ast.Attribute) and node.attr in STREAMS]
    return [f"{source.module}:{node.lineno} {ast.unparse(node)}" for node in [*names, *streams]]


def asserted(source: Source) -> list[str]:
    """Asserts about an argument of a function that others may call. Narrowing a type in a private one is no check."""
    faults = []
    for function in functions(source):
        if function.name.startswith("_") and function.name != "__init__":
            continue
        given = {each.arg for each in parameters(function)}
        for node in (node for node in ast.walk(function) if isinstance(node, ast.Assert)):
            used = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
            faults += [f"{source.module}:{node.lineno} {ast.unparse(node)}"] if used & given else []
    return faults


def test_only_report_and_cli_speak() -> None:
    assert [place for source in sources() if source.package not in SPEAKING for place in spoken(source)] == []


def test_no_assert_checks_an_argument() -> None:
    assert [place for source in sources() for place in asserted(source)] == []


@pytest.mark.parametrize("line", ["print(1)", "sys.stdout.write('')", "log = print"])
def test_planted_speech_is_found(line: str) -> None:
    assert spoken(source_of("autodeploy.cost.x", line)) != []


def test_a_planted_assert_is_found() -> None:
    assert asserted(source_of("autodeploy.cost.x", "def f(a):\n    assert a > 0")) != []
    assert asserted(source_of("autodeploy.cost.x", "class A:\n    def __init__(self, a):\n        assert a.b")) != []
    assert asserted(source_of("autodeploy.cost.x", "def f(a):\n    b = a.b\n    assert b is not None")) == []
