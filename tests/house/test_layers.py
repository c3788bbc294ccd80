"""A package imports only from those before it, and the analysis never sees a machine."""

from __future__ import annotations

import pytest

from tests.house.source import Source, imports, source_of, sources

LEAVES = ("units", "errors", "numeric", "processes")
ORDER = (
    *LEAVES, "spec", "catalog", "analysis", "legality", "cost", "schedule", "balance", "search", "rl", "formats",
    "fidelity", "sweep", "report", "cli",
)  # fmt: skip
APART = {("schedule", "cost"), ("analysis", "catalog")}
"""Pairs that the order would allow: a schedule takes durations, and the catalog holds machines."""
MACHINE = {"autodeploy.spec.cluster", "autodeploy.spec.machine"}


def upward(source: Source) -> list[str]:
    """Imports against the direction, as `module:line imports what`."""
    here = source.package
    faults = []
    for each in imports(source):
        parts = [*each.name.split("."), ""]
        if parts[0] and parts[0] != "autodeploy":
            continue
        there = parts[1]
        allowed = there == here if here in LEAVES else there in ORDER[: ORDER.index(here) + 1]
        if not parts[0] or not allowed or (here, there) in APART:
            faults.append(f"{source.module}:{each.line} imports {each.name}")
    return faults


def reached(start: str, modules: dict[str, Source]) -> dict[str, str]:
    """Every module that importing one brings in, with the module that imports it."""
    found, waiting = {start: ""}, [start]
    while waiting:
        source = modules[waiting.pop()]
        for each in imports(source):
            name = each.name if each.name in modules else each.name.rpartition(".")[0]
            if name in modules and name not in found:
                found[name] = source.module
                waiting.append(name)
    return found


def test_every_package_has_a_place() -> None:
    assert {source.package for source in sources()} - {"", "__main__"} <= set(ORDER)


def test_imports_point_to_what_comes_before() -> None:
    assert [fault for source in sources() if source.package in ORDER for fault in upward(source)] == []


def test_the_analysis_never_sees_a_machine() -> None:
    modules = {source.module: source for source in sources()}
    seen = {
        f"{module} via {via}"
        for source in sources()
        if source.package == "analysis"
        for module, via in reached(source.module, modules).items()
        if module in MACHINE
    }
    assert seen == set()


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("autodeploy.spec.plan", "from autodeploy.cost import load"),
        ("autodeploy.spec.plan", "import autodeploy.cost.load"),
        ("autodeploy.units", "from autodeploy.errors import SpecError"),
        ("autodeploy.schedule.bounds", "def f():\n    from autodeploy.cost.load import Load"),
        ("autodeploy.report.tables", "from ..cli import app"),
    ],
)
def test_a_planted_import_is_found(module: str, line: str) -> None:
    assert upward(source_of(module, line)) != []
    assert upward(source_of("autodeploy.cli.app", "from autodeploy.cost.load import Load\nimport numpy")) == []
