"""The error tree. What a user did wrong is a `SpecError`; what cannot be had is an outcome with its own class."""

from __future__ import annotations

from dataclasses import dataclass


class AutodeployError(Exception):
    """Root of every error that the command line turns into one message and an exit code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing wrong in the input: where, what stands there, and what is allowed."""

    path: str
    problem: str
    allowed: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return where + self.problem + (f" (allowed: {self.allowed})" if self.allowed else "")


class SpecError(AutodeployError, ValueError):
    """Bad input. Carries every fault found in it, each with path, value and what is allowed."""

    def __init__(self, *faults: Fault, source: str = "") -> None:
        self.faults = faults
        self.source = source
        super().__init__(self._message())

    def _message(self) -> str:
        head = f"{self.source}: " if self.source else ""
        if len(self.faults) == 1:
            return head + str(self.faults[0])
        return head + f"{len(self.faults)} faults\n" + "\n".join(f"  {fault}" for fault in self.faults)


def spec_error(path: str, problem: str, allowed: str = "", source: str = "") -> SpecError:
    """A `SpecError` of one fault."""
    return SpecError(Fault(path=path, problem=problem, allowed=allowed), source=source)


class NoFeasiblePlan(AutodeployError):  # noqa: N818 - an outcome, not a mistake
    """Everything asked for is legal but nothing fits in memory: the counts and the nearest miss."""

    def __init__(self, message: str, refused: dict[str, int]) -> None:
        self.refused = refused
        super().__init__(message)


class ScheduleDeadlock(AutodeployError):  # noqa: N818 - the field's word
    """An order of operations in which some operation waits for ever: a bug in a schedule."""
