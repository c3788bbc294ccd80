"""Each library of others has its place, and `import autodeploy` costs NumPy and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass

import pytest

from tests.house.source import ROOT, Source, imports, source_of, sources


@dataclass(frozen=True, slots=True)
class Fence:
    """Where a library may be imported, and whether only inside functions."""

    places: tuple[str, ...]
    late: bool = False


FENCES = {
    "optuna": Fence(("search.study",)),
    "scipy": Fence(("balance", "fidelity"), late=True),
    "typer": Fence(("cli",)),
    "rich": Fence(("cli", "report")),
    "pydantic": Fence(("spec.files",), late=True),
    "plotly": Fence(("report.scatter",), late=True),
    "click": Fence(()),  # typer brings its own copy
}
SLOW = ("scipy", "optuna", "pydantic", "rich", "typer")


def outside(source: Source) -> list[str]:
    """Imports of a fenced library beyond its fence."""
    faults = []
    for each in imports(source):
        fence = FENCES.get(each.name.split(".")[0])
        if fence is None:
            continue
        places = [f"autodeploy.{place}" for place in fence.places]
        inside = any(source.module == place or source.module.startswith(place + ".") for place in places)
        if not inside or (fence.late and not each.late):
            faults.append(f"{source.module}:{each.line} imports {each.name}")
    return faults


def loaded_by(code: str) -> list[str]:
    """Slow libraries that a fresh interpreter has loaded after some code."""
    code += f"\nimport sys\nprint(*(name for name in {SLOW!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_libraries_stay_within_their_fences() -> None:
    assert [fault for source in sources() for fault in outside(source)] == []


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["report"]]
    declared = {re.split(r"[^\w.-]", text)[0].replace("-", "_").split(".")[0] for text in texts}
    used = {each.name.split(".")[0] for source in sources() for each in imports(source)}
    assert used - set(sys.stdlib_module_names) - {"autodeploy", ""} <= declared


def test_the_package_and_all_that_computes_load_no_slow_library() -> None:
    assert loaded_by("import autodeploy") == []
    shown = ("cli", "report", "__main__")
    computing = [s.module for s in sources() if s.package not in shown and s.module != "autodeploy.search.study"]
    assert loaded_by("import " + ", ".join(computing)) == []
    assert loaded_by("import autodeploy.cli.app") == ["typer"]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("autodeploy.search.exact", "import optuna"),
        ("autodeploy.balance.fit", "from scipy.optimize import milp"),
        ("autodeploy.spec.model", "def f():\n    import pydantic"),
        ("autodeploy.search.exact", "from rich.table import Table"),
        ("autodeploy.cli.app", "import click"),
    ],
)
def test_a_planted_import_is_found(module: str, line: str) -> None:
    assert outside(source_of(module, line)) != []
    assert outside(source_of("autodeploy.balance.fit", "def f():\n    from scipy.optimize import milp")) == []
