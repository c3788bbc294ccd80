"""The commands and their flags are a promise: what is here may be relied upon, and a change must be meant."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from autodeploy.cli.app import app
from tests.house.source import ROOT

SURFACE = {
    "": {"--version"},
    "search": {"SPACE", "--top", "--out", "--gbs", "--engine", "--seed", "--timeout", "--json"},
    "explain": {"PLAN", "--space", "--gbs", "--json"},
    "models": {"[NAME]", "--json"},
    "clusters": {"[NAME]", "--json"},
    "schema": {"KIND"},
}
ROOT_COMMAND: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = {"": ROOT_COMMAND, **ROOT_COMMAND.commands}


def surface(command: Any) -> set[str]:
    """Arguments as usage prints them, and every spelling of every flag."""
    found: set[str] = set()
    for each in command.params:
        is_flag = each.param_type_name == "option"
        name = each.metavar or each.name.upper()
        found |= {*each.opts, *each.secondary_opts} if is_flag else {name if each.required else f"[{name}]"}
    return found


def test_commands_and_flags_are_those_promised() -> None:
    assert {name: surface(command) for name, command in COMMANDS.items()} == SURFACE


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_flags_have_help(name: str) -> None:
    assert COMMANDS[name].help
    assert [each.name for each in COMMANDS[name].params if not each.help] == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name])
def test_a_command_is_shown_to_users(name: str) -> None:
    assert f"autodeploy {name}" in (ROOT / "README.md").read_text(encoding="utf-8")
    described = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    line = next(line for line in described.splitlines() if line.strip().startswith(f"autodeploy {name}"))
    assert [flag for flag in surface(COMMANDS[name]) if flag.startswith("--") and flag not in line] == []
