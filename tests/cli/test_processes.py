"""The command as a process: streams kept apart, pipes, widths, encodings, and a start that does not drag."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.asking import SMALL, contents, edited, ranked, search


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "autodeploy", *map(str, words)], capture_output=True, text=True, timeout=120,
        check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_the_answer_is_on_stdout_and_the_rest_on_stderr(small: Path) -> None:
    done = run("search", "--engine", "exact", small, "--json", "--out", "plans.json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == json.loads(Path("plans.json").read_text())
    assert "kept in plans.json" in done.stderr
    assert set(contents(small.parent)) == {"small.toml", "plans.json"}


def test_bad_input_ends_a_process_with_2(small: Path) -> None:
    small.write_text(edited(SMALL, ("gbs = 128", "gbs = 0")))
    done = run("search", "--engine", "exact", small, "--out", "plans.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert set(contents(small.parent)) == {"small.toml"}


def test_nothing_that_fits_ends_a_process_with_3(too_big: Path) -> None:
    done = run("search", "--engine", "exact", too_big)
    assert done.returncode == 3
    assert "nothing fits" in done.stderr
    assert "nothing fits" not in done.stdout


def test_a_reader_that_goes_away_gets_no_traceback(small: Path) -> None:
    command = f"{sys.executable} -m autodeploy explain tp2/pp2 --space {small} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_box_characters_gets_plain_tables(small: Path, encoding: str) -> None:
    done = run("search", "--engine", "exact", small, "--top", "2", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert "+---" in done.stdout


def test_a_table_in_a_file_is_not_squeezed(small: Path) -> None:
    shorts = [plan["plan_short"] for plan in ranked(small, "--top", "3")["plans"]]
    table = run("search", "--engine", "exact", small, "--top", "3").stdout
    assert "\x1b" not in table
    for short in shorts:
        assert short in table


def test_figures_of_the_table_are_those_of_the_document(small: Path) -> None:
    table = search(small, "--top", "3").stdout
    for plan in ranked(small, "--top", "3")["plans"]:
        row = next(line for line in table.splitlines() if plan["plan_short"] in line)
        assert f"{plan['tokens_per_s_per_device']:.1f}" in row
        assert f"{plan['mfu_frac']:.1%}" in row


def test_the_version_is_that_of_the_package() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"autodeploy \d+\.\d+\.\d+\S*\n", done.stdout)


@pytest.mark.parametrize("command", [[], ["search"], ["explain"], ["models"], ["clusters"], ["schema"]])
def test_help_is_there_without_the_libraries_of_the_search(command: list[str]) -> None:
    script = (
        "import sys\n"
        "from autodeploy.cli.app import app\n"
        f"try: app({[*command, '--help']!r})\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'numpy', 'scipy', 'optuna'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
