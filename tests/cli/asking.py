"""What tests of the command line share: a small space, a run of a command, and what every refusal must keep to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from autodeploy.cli.app import app

SMALL = """\
model = "mixtral-8x7b"
cluster = "h100-80g"
devices = 64

[job]
gbs = 128
seq_len = 4096

[plan]
tp = [1, 2]
pp = [1, 2, 4]
vpp = [1, 2]
ep = [1, 8]
mbs = [1]
"""
TOO_BIG = SMALL.replace("devices = 64", "devices = 8").replace("gbs = 128", "gbs = 64")
"""Every plan of it needs more memory than there is: 47 B parameters on 8 devices."""


def edited(text: str, *changes: tuple[str, str]) -> str:
    """A text with some passages replaced; each must be there."""
    for old, new in changes:
        assert old in text, f"{old!r} is not in the text"
        text = text.replace(old, new)
    return text


def ask(*words: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words: object) -> dict[str, Any]:
    """The JSON document that a command answers with."""
    result = ask(*words, "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    return json.loads(result.stdout)


def search(*words: object) -> Result:
    """Search by the exact engine, the quickest."""
    return ask("search", *words, "--engine", "exact")


def ranked(*words: object) -> dict[str, Any]:
    """The JSON document of such a search."""
    return answer("search", *words, "--engine", "exact")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder: Path, *words: object) -> str:
    """Run a command that must be refused as bad input, by the contract of every refusal; returns the message.

    Exit code 2, one message on stderr whose further lines are indented faults, nothing on stdout, no file touched.
    """
    before = contents(folder)
    result = ask(*words)
    assert result.exit_code == 2, (result.exit_code, result.stderr, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    first, *others = result.stderr.splitlines()
    assert first.startswith("error: "), result.stderr
    assert all(line.startswith("  ") for line in others), result.stderr
    assert contents(folder) == before
    return result.stderr
