"""Exit codes, and how errors become one message on stderr (docs/cli.md)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from autodeploy.errors import NoFeasiblePlan, SpecError

DONE, BUG, BAD_INPUT, NOTHING_FITS, GATE_FAILED, SOME_FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
P = ParamSpec("P")


def say(text: str) -> None:
    """A line for the user that is no part of the answer."""
    print(text, file=sys.stderr)


def guarded(command: Callable[P, int]) -> Callable[P, None]:
    """A command that returns its exit code; the errors of the user's input become a message and a code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except SpecError as error:
            say(f"error: {error}")
            code = BAD_INPUT
        except NoFeasiblePlan as error:
            say(f"nothing fits: {error}")
            code = NOTHING_FITS
        except KeyboardInterrupt:
            say("interrupted before there was anything to keep")
            code = INTERRUPTED
        raise typer.Exit(code)

    return run
