"""Why a run stands out, as far as it is known: of time by source and model, else the largest term; of memory by run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autodeploy.fidelity.own import own_table
from autodeploy.fidelity.predict import Prediction
from autodeploy.fidelity.runs import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """A suspicion about the rows that a pattern finds."""

    match: str
    text: str
    aside: bool = False
    """It is something that is not modelled: no constant is fitted to these rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reasons:
    """A file of reasons."""

    reason: tuple[Reason, ...]


def reasons() -> tuple[Reason, ...]:
    """All reasons, in the order in which they are tried."""
    return own_table(Reasons, "reasons").reason


def memory_reason(run_id: str) -> str:
    """Why the memory of a run stands out, where that is known."""
    known = own_table(Reasons, "memory_reasons").reason
    return next((each.text for each in known if re.fullmatch(each.match, run_id)), "")


def _reason_of(run: Run) -> Reason | None:
    row = run.row
    text = "; ".join((row.id, row.source, row.model, run.space.cluster.name, row.flags, row.notes))
    return next((reason for reason in reasons() if re.search(reason.match, text, re.IGNORECASE)), None)


def set_aside(run: Run) -> bool:
    """Whether no constant is fitted to a run: something stands out in it that is not modelled."""
    reason = _reason_of(run)
    return reason is not None and reason.aside


def suspected(each: Prediction) -> str:
    """The suspected reason of a run's error."""
    reason = _reason_of(each.run)
    known = reason.text if reason else ""
    if known or each.result is None:
        return known
    terms = each.result.time_terms
    largest = max(terms, key=lambda name: terms[name])
    return f"not known; {largest} is {terms[largest] / each.result.step_time_s:.0%} of the predicted step"
