"""Wrong usage, said like any other bad input: one message on stderr that begins with `error:`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from autodeploy.cli.exits import BAD_INPUT, say


class OneMessage(TyperGroup):
    """The commands, without the framed usage text of typer's own errors."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and end the process with its exit code."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.TyperException as error:
            if not standalone_mode or not hasattr(error, "format_message"):
                raise
            say(f"error: {error.format_message()}")
            code = BAD_INPUT
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def at_least(least: int) -> Callable[[Any], Any]:
    """A check of an option: `--top 0` is refused with the value and what is allowed."""

    def check(value: Any) -> Any:
        if value is not None and not value >= least:
            raise typer.BadParameter(f"{value:g} is not allowed (allowed: {least} or more)")
        return value

    return check
