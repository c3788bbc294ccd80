"""Why a run stands out, as far as it is known: of time by source and model, else the largest term; of memory by run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autodeploy.fidelity.own import own_table
from autodeploy.fidelity.predict import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """A suspicion about the rows that a pattern finds."""

    match: str
    text: str


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


def suspected(each: Prediction) -> str:
    """The suspected reason of a run's error."""
    row = each.run.row
    text = "; ".join((row.id, row.source, row.model, each.run.space.cluster.name, row.flags, row.notes))
    known = next((reason.text for reason in reasons() if re.search(reason.match, text, re.IGNORECASE)), "")
    if known or each.result is None:
        return known
    terms = each.result.time_terms
    largest = max(terms, key=lambda name: terms[name])
    return f"not known; {largest} is {terms[largest] / each.result.step_time_s:.0%} of the predicted step"
