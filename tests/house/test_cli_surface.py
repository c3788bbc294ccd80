"""The commands and their flags are a promise: what is here may be relied upon, and a change must be meant."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from autodeploy.cli.app import app
from tests.house.source import ROOT

SURFACE = {
    "": {"--version"},
    "search": {
        "[SPACE]", "--model", "--cluster", "--target", "--devices", "--seq-len", "--gbs", "--fix", "--only", "--ban",
        "--baseline", "--write-space", "--effort", "--top", "--out", "--engine", "--trials", "--workers", "--storage",
        "--seed", "--timeout", "--json",
    },
    "explain": {"PLAN", "--space", "--gbs", "--json"},
    "export": {"PLAN", "--target", "--space", "--out", "--allow-loss"},
    "memory": {"PLAN", "--space", "--gbs", "--json"},
    "trace": {"PLAN", "--space", "--gbs", "--out", "--ascii"},
    "layout": {"PLAN", "--space", "--gbs", "--json"},
    "schedules": {
        "--pp", "--microbatches", "--forward", "--backward", "--vpp", "--send", "--merged", "--weights", "--json",
    },
    "sweep": {"SWEEP", "--out", "--workers"},
    "gate": {"RESULTS", "--baseline", "--max-regress", "--sweep"},
    "calibrate": {
        "[RUNS.csv]", "--cluster", "--out", "--target", "--pace", "--collective-log", "--matmul-log", "--collective",
        "--ranks", "--hosts", "--catalog",
    },
    "claims": {"--json", "--markdown", "--out"},
    "dispatch": {"--model", "--cluster", "--tokens", "--imbalance", "--json", "--markdown", "--out"},
    "validate": {"[RUNS.csv]", "--json", "--html", "--markdown", "--out"},
    "models": {"[NAME]", "--import", "--expect-params", "--json"},
    "clusters": {"[NAME]", "--json"},
    "schema": {"KIND"},
}  # fmt: skip
ROOT_COMMAND: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = {"": ROOT_COMMAND, **ROOT_COMMAND.commands}


def surface(command: Any) -> set[str]:
    """Arguments as usage prints them, and every spelling of every flag."""
    found: set[str] = set()
    for each in command.params:
        is_flag = each.param_type_name == "option"
        name = (each.metavar or each.name.upper()).strip("[]")
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
    usage = described.split(f"    autodeploy {name} ", 1)[1].split("    autodeploy ", 1)[0]
    assert [flag for flag in surface(COMMANDS[name]) if flag.startswith("--") and flag not in usage] == []
