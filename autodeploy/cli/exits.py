"""Exit codes, and how errors become one message on stderr (docs/cli.md)."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from autodeploy.errors import NoFeasiblePlan, SpecError

DONE, BUG, BAD_INPUT, NOTHING_FITS, GATE_FAILED, SOME_FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
P = ParamSpec("P")


def say(text: str) -> None:
    """A line for the user that is no part of the answer."""
    if sys.stderr is not None:
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
        except BrokenPipeError:
            _close_stdout()  # the reader has seen enough
            code = DONE
        except OSError as error:
            say(f"error: cannot write the answer: {error.strerror or error}")
            _close_stdout()
            code = BAD_INPUT
        except KeyboardInterrupt:
            say("interrupted before there was anything to keep")
            code = INTERRUPTED
        raise typer.Exit(code)

    return run


def _close_stdout() -> None:
    """Nothing more can be written there, also not when the interpreter ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
