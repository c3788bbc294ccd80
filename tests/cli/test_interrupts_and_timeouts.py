"""A search that ends early: what was simulated is ranked and kept, and the answer says how far it may be off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autodeploy.search import exact
from tests.cli.asking import SMALL, ask, contents, edited, ranked, search

BUSY = edited(
    SMALL, ("[1, 2]\npp", "[1, 2, 4, 8]\npp"), ("[1, 2, 4]", "[1, 2, 4, 8]"), ("vpp = [1, 2]", "vpp = [1, 2, 4]")
)
"""A space of several shapes, so that one batch of simulations does not settle it."""


@pytest.fixture
def busy(folder: Path) -> Path:
    """The file of that space."""
    path = folder / "busy.toml"
    path.write_text(BUSY)
    return path


@pytest.fixture
def interrupt_after_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the second batch is simulated."""
    batches = []
    whole = exact._Ranking.simulate

    def simulate(ranking: Any, *batch: Any) -> None:
        if batches:
            raise KeyboardInterrupt
        batches.append(batch)
        whole(ranking, *batch)

    monkeypatch.setattr(exact._Ranking, "simulate", simulate)


def without_run(document: dict[str, Any]) -> dict[str, Any]:
    """A document less what differs from run to run."""
    return {key: value for key, value in document.items() if key != "run"}


def check_partial(partial: dict[str, Any], whole: dict[str, Any]) -> None:
    """What an early end leaves: ranked plans with the figures that the whole search gives them, and an honest gap."""
    assert partial["plans"]
    steps = [plan["step_time_s"] for plan in partial["plans"]]
    assert steps == sorted(steps)
    known = {plan["plan_id"]: plan for plan in whole["plans"]}
    for plan in partial["plans"]:
        assert plan["step_time_s"] == known[plan["plan_id"]]["step_time_s"]
    facts = partial["search"]
    assert 0 < facts["simulated"] < whole["search"]["fits"]
    assert 0.0 <= facts["gap_frac"] < 1.0
    best = whole["plans"][0]["step_time_s"]
    assert best >= (1.0 - facts["gap_frac"]) * steps[0] * (1 - 1e-12)
    for count in ("candidates", "legal", "fits", "refused"):
        assert facts[count] == whole["search"][count]


@pytest.mark.usefixtures("interrupt_after_one")
@pytest.mark.parametrize("out", [None, "mine.json"])
def test_an_interrupt_keeps_what_was_ranked(busy: Path, out: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    result = search(busy, *(("--out", out) if out else ()))
    assert result.exit_code == 130
    kept = Path(out or "plans.interrupted.json")
    assert f"kept in {kept}" in result.stderr
    assert "interrupted" in result.stderr.splitlines()[-1]
    assert set(contents(busy.parent)) == {"busy.toml", str(kept)}
    partial = json.loads(kept.read_text())
    assert partial["status"] == "interrupted"
    monkeypatch.undo()
    monkeypatch.chdir(busy.parent)
    check_partial(partial, ranked(busy, "--top", "1000"))
    assert ask("explain", kept).exit_code == 0


@pytest.mark.usefixtures("interrupt_after_one")
def test_an_interrupted_search_prints_what_it_keeps(busy: Path) -> None:
    result = search(busy, "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout) == json.loads(Path("plans.interrupted.json").read_text())


def test_an_interrupt_before_the_first_simulation_leaves_nothing(busy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def screen(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exact, "screen", screen)
    result = search(busy)
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr == "interrupted before there was anything to keep\n"
    assert set(contents(busy.parent)) == {"busy.toml"}


SIGNALLED = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background has it ignored
from autodeploy.search import exact
whole = exact._Ranking.simulate
def simulate(ranking, *batch):
    whole(ranking, *batch)
    os.kill(os.getpid(), signal.SIGINT)
exact._Ranking.simulate = simulate
from autodeploy.cli.app import main
main()
"""


def test_a_real_signal_ends_a_real_process_with_130(busy: Path) -> None:
    words = [sys.executable, "-c", SIGNALLED, "search", str(busy), "--out", "kept.json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(Path("kept.json").read_text())["status"] == "interrupted"


def test_no_time_still_gives_plans_and_the_gap(busy: Path) -> None:
    result = search(busy, "--timeout", "0", "--json")
    assert result.exit_code == 0
    partial = json.loads(result.stdout)
    assert partial["status"] in ("timeout", "optimal")
    assert (partial["status"] == "optimal") <= (partial["search"]["gap_frac"] == 0.0)
    check_partial(partial, ranked(busy, "--top", "1000"))


def test_no_rank_is_called_optimal_that_another_plan_would_take(busy: Path) -> None:
    busy.write_text(edited(BUSY, ("gbs = 128", "gbs = 256"), ("mbs = [1]", "mbs = [1, 2]")))
    partial = ranked(busy, "--timeout", "0", "--top", "20")
    whole = ranked(busy, "--top", "20")
    if partial["status"] == "optimal":
        assert [plan["plan_id"] for plan in partial["plans"]] == [plan["plan_id"] for plan in whole["plans"]]


def test_more_time_than_needed_changes_nothing(busy: Path) -> None:
    assert without_run(ranked(busy, "--timeout", "1000")) == without_run(ranked(busy))


def test_nothing_fits_however_little_time_there_is(too_big: Path) -> None:
    result = search(too_big, "--timeout", "0", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["status"] == "infeasible"
