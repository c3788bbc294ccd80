"""The benchmarks run at tiny size and give the agreed keys. How fast they are is not asked here."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.house.source import ROOT

FOLDER = ROOT / "benchmarks"
TINY: dict[str, dict[str, Any]] = {
    "bench_cli": {"repeats": 1},
    "bench_screen": {"plans": 50, "sample": 20, "repeats": 1, "values": 2},
    "bench_search": {"repeats": 1, "values": 3, "top": 5},
    "bench_study": {"shapes": 0, "dense_shapes": 1, "seeds": 1, "trials": 20, "values": 2, "budgets": 2},
    "bench_selection": {"plans": 2},
    "bench_simulate": {"pp": 2, "vpp": 2, "microbatches": 4, "repeats": 1, "batches": (1, 3)},
}
KEYS = ["bench", "work", "seconds", "ratios", "checks"]


def numbers(value: Any) -> list[float]:
    """All numbers in a nested answer."""
    return [n for each in value.values() for n in numbers(each)] if isinstance(value, dict) else [value]


def test_every_benchmark_is_run_here_and_explained() -> None:
    assert sorted(path.stem for path in FOLDER.glob("bench_*.py")) == sorted(TINY)
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in TINY if f"{name}.py" not in readme] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_runs_and_gives_the_agreed_keys(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    found = importlib.import_module(name).run(**TINY[name])
    importlib.import_module("measure").say(found)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    said = json.loads(lines[0])
    assert said == found
    assert list(said) == KEYS
    assert said["bench"] == name.removeprefix("bench_")
    assert said["work"]
    assert all(number >= 0.0 for part in ("seconds", "ratios") for number in numbers(said[part]))
    assert all(said["checks"].values())
    assert said["checks"]


def test_a_check_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    measure = importlib.import_module("measure")
    with pytest.raises(SystemExit, match="equal does not hold"):
        measure.say(measure.answer("x", {}, {}, {}, equal=False))
    assert Path(measure.__file__).parent == FOLDER
