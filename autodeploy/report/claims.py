"""Published claims beside ours, as a table, a page or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from autodeploy.fidelity.claims import Outcome
from autodeploy.formats.document import SCHEMA_VERSION, tool_version
from autodeploy.report.markdown import table

COLUMNS = ("claim", "published", "ours", "ratio", "kind", "scenario", "verdict")
SHARES = ("share", "gain")
PAGE = (
    "Written by `make claims`. What was published about Pangu Ultra MoE 718B, its stack and its planner, beside what "
    "this model says of the same run. `ours` is the nominal, with the range over what the source leaves open; `ratio` "
    "is the nominal over the published figure. Kinds: `input` (the published factor went in), `identity` (arithmetic "
    "of the claim itself), `predicted`. A gain is compared as a gain: 0.14 against 0.15 is a ratio of 0.93. The part "
    "is ambiguous (313 or 376 TF): both are shown. Nothing is fitted to these rows."
)


def format_figure(value: float, unit: str) -> str:
    """A value in the unit of its claim."""
    if unit in SHARES:
        return f"{value:+.1%}" if unit == "gain" else f"{value:.1%}"
    return f"{value:.3g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _ours(each: Outcome) -> str:
    low, nominal, high = (format_figure(v, each.claim.unit) for v in (each.ours.low, each.ours.nominal, each.ours.high))
    return nominal if low == high else f"{nominal} ({low} to {high})"


def _cells(each: Outcome) -> tuple[str, ...]:
    claim = each.claim
    unit = "" if claim.unit in (*SHARES, "ratio") else f" {claim.unit}"
    bound = {"about": "", "at_least": ">= ", "at_most": "<= "}[claim.sense]
    published = f"{bound}{format_figure(claim.published, claim.unit)}{unit}"
    return claim.claim, published, _ours(each), f"{each.over_published:.2f}", claim.kind, each.scenario, each.verdict


def claims_table(found: Sequence[Outcome]) -> Table:
    """For the terminal."""
    shown = Table(title="Published claims beside ours", title_justify="left")
    for name in COLUMNS:
        shown.add_column(name, justify="right" if name in ("published", "ours", "ratio") else "left", overflow="fold")
    for each in found:
        shown.add_row(*_cells(each))
    return shown


def summary_line(found: Sequence[Outcome]) -> str:
    """How many predictions agree."""
    predicted = [each for each in found if each.claim.kind == "predicted"]
    names = {each.claim.id for each in predicted if each.agrees}
    return (
        f"{sum(each.agrees for each in predicted)} of {len(predicted)} predicted rows within 25 %, "
        f"of {len(names)} claims; the others: see their verdict"
    )


def claims_page(found: Sequence[Outcome]) -> str:
    """As Markdown."""
    rows = ((*_cells(each)[:-1], each.claim.inputs, each.claim.source, each.verdict) for each in found)
    names = (*COLUMNS[:-1], "inputs", "source", "verdict")
    return "\n\n".join(("# Claims", PAGE, summary_line(found) + ".", table(names, rows))) + "\n"


def claims_document(found: Sequence[Outcome]) -> dict[str, Any]:
    """For machines."""
    return {"schema_version": SCHEMA_VERSION, "tool_version": tool_version(), "rows": [_row(each) for each in found]}


def _row(each: Outcome) -> dict[str, Any]:
    claim, ours = each.claim, each.ours
    return {
        "id": claim.id,
        "claim": claim.claim,
        "source": claim.source,
        "published": claim.published,
        "unit": claim.unit,
        "sense": claim.sense,
        "ours": {"low": ours.low, "nominal": ours.nominal, "high": ours.high},
        "ratio": each.over_published,
        "kind": claim.kind,
        "inputs": claim.inputs,
        "scenario": each.scenario,
        "verdict": each.verdict,
    }
