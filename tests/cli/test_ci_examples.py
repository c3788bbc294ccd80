"""The examples of docs/ci.md: commands are run as they stand, in a copy with fewer cells; workflows hold the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from autodeploy.sweep.cells import cells_of, read_sweep
from autodeploy.sweep.gate import matches
from autodeploy.sweep.lines import FIELDS, read_lines
from tests.cli.asking import edited
from tests.house.source import ROOT

TEXT = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(<!-- run by a test -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
EXAMPLE = Path("search_spaces") / "sweeps" / "example.toml"
FEWER = (("devices = [64, 128]", "devices = [64]"),)
"""The copy has half of the cells."""


def blocks(language: str, *, run: bool = False) -> list[str]:
    """Fenced blocks of a language; those only that are marked as run."""
    return [text for mark, name, text in BLOCK.findall(TEXT) if name == language and (mark or not run)]


def commands() -> list[str]:
    """Every `autodeploy` command of the shell blocks."""
    lines = (line.strip() for text in blocks("sh") for line in text.splitlines())
    return [line for line in lines if line.startswith("autodeploy ")]


def shell(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """A block run by a shell that stops at the first command that fails, as CI does."""
    command = shutil.which("autodeploy", path=str(Path(sys.executable).parent))
    assert command, "the command is installed beside the interpreter"
    path = os.pathsep.join([str(Path(command).parent), os.environ["PATH"]])
    return subprocess.run(
        ["sh", "-e", "-c", text], cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PATH": path},
    )  # fmt: skip


def test_every_shell_block_is_marked_as_run() -> None:
    assert blocks("sh") == blocks("sh", run=True)
    assert len(blocks("sh")) >= 2
    assert [line.split()[1] for line in commands()].count("sweep") >= 2
    assert [line.split()[1] for line in commands()].count("gate") >= 2


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user's checkout, with a smaller sweep, in which all blocks have run one after the other."""
    folder = tmp_path_factory.mktemp("checkout")
    path = folder / EXAMPLE
    path.parent.mkdir(parents=True)
    path.write_text(edited((ROOT / EXAMPLE).read_text(encoding="utf-8"), *FEWER), encoding="utf-8")
    for text in blocks("sh", run=True):
        done = shell(folder, text)
        assert done.returncode == 0, done.stderr
        assert "gate passed: 4 cells" in done.stdout
    return folder


@pytest.mark.slow
def test_the_blocks_leave_results_and_a_baseline(ran: Path) -> None:
    lines = read_lines(ran / "results.jsonl")
    assert [line["cell"] for line in lines] == [cell.name for cell in cells_of(read_sweep(ran / EXAMPLE))]
    assert (ran / "baseline.jsonl").read_bytes() == (ran / "results.jsonl").read_bytes()


@pytest.mark.slow
def test_a_block_stops_where_its_gate_fails(ran: Path, tmp_path: Path) -> None:
    shutil.copytree(ran, tmp_path, dirs_exist_ok=True)
    path = tmp_path / EXAMPLE
    path.write_text(path.read_text(encoding="utf-8") + "\n[[thresholds]]\nmax_memory_gib = 1\n", encoding="utf-8")
    done = shell(tmp_path, blocks("sh", run=True)[0] + "echo not reached\n")
    assert done.returncode == 4
    assert "gate failed: 4 violations in 4 cells" in done.stderr
    assert "not reached" not in done.stdout


def workflows() -> list[dict[str, Any]]:
    """The YAML of the page."""
    return [YAML(typ="safe", pure=True).load(text) for text in blocks("yaml")]


def github() -> dict[str, Any]:
    """The workflow for GitHub Actions."""
    (found,) = [each for each in workflows() if "jobs" in each]
    return found


def gitlab() -> dict[str, Any]:
    """The jobs for GitLab CI."""
    (found,) = [each for each in workflows() if "jobs" not in each]
    return found


def test_the_github_workflow_holds_the_commands() -> None:
    workflow = github()
    assert {"name", "on", "jobs"} <= workflow.keys()
    for job in workflow["jobs"].values():
        assert isinstance(job["runs-on"], str)
        steps = job["steps"]
        assert all(("uses" in step) != ("run" in step) for step in steps)
        runs = [line.strip() for step in steps if "run" in step for line in step["run"].splitlines()]
        check_runs(runs)
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
        uploads = [step for step in steps if "upload-artifact" in step.get("uses", "")]
        assert [step["with"]["path"] for step in uploads] == ["results.jsonl"]
        assert [step["if"] for step in uploads] == ["always()"]  # also where the gate fails


def test_the_gitlab_jobs_hold_the_commands() -> None:
    for job in gitlab().values():
        check_runs(job["script"])
        assert job["artifacts"] == {"when": "always", "paths": ["results.jsonl"]}


def check_runs(runs: list[str]) -> None:
    """Installed first, then every command as the page has it, the sweep before its gate."""
    ours = [line for line in runs if line.startswith("autodeploy ")]
    assert runs[0].startswith("pip install ")
    assert runs[1:] == ours
    assert [line.split()[1] for line in ours] == ["sweep", "gate"]
    assert set(ours) <= set(commands())
    out = ours[0].split("--out ")[1].split()[0]
    assert ours[1].split()[2] == out


def test_the_python_of_the_workflows_is_one_that_we_support() -> None:
    needed = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert needed
    found = re.findall(r"python(?:-version: \"|:)3\.(\d+)", TEXT)
    assert len(found) >= 2
    assert all(int(minor) >= int(needed[1]) for minor in found)


def test_files_and_constraints_that_the_page_names_are_there() -> None:
    for name in re.findall(r"search_spaces/[\w./-]+\.toml|constraints\.txt", TEXT):
        assert (ROOT / name).is_file(), name


def test_thresholds_of_the_example_have_cells() -> None:
    sweep = read_sweep(ROOT / EXAMPLE)
    names = [cell.name for cell in cells_of(sweep)]
    assert sweep.thresholds
    for threshold in sweep.thresholds:
        assert any(matches(threshold.cell, name) for name in names)


def test_the_page_lists_the_fields_of_a_line() -> None:
    listed = re.search(r"A line: `([^`]+)`", TEXT)
    assert listed
    assert tuple(listed[1].split(", ")) == FIELDS
