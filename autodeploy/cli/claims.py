"""`autodeploy claims`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.status import Status

from autodeploy.cli.exits import DONE, say
from autodeploy.cli.validate import OWN_RUNS, deliver
from autodeploy.fidelity.claims import outcomes
from autodeploy.fidelity.predict import Prediction, predict_all
from autodeploy.fidelity.runs import read_runs
from autodeploy.formats.document import check_writable, to_json
from autodeploy.report.claims import claims_document, claims_page, claims_table, summary_line
from autodeploy.report.tables import console


def run_claims(form: str, out: Path | None) -> int:
    """Compute every claim and show it; returns the exit code."""
    if out is not None:
        check_writable(out)
    with Status("claims", console=console(stderr=True)):
        found = list(outcomes(_ascend()))
    if form == "text" and out is None:
        console().print(claims_table(found))
        console().print(summary_line(found))
        return DONE
    deliver(to_json(claims_document(found)) if form == "json" else claims_page(found), out)
    return DONE


def _ascend() -> Sequence[Prediction]:
    """The published Ascend runs that come with the repository, predicted."""
    path = OWN_RUNS / "ascend_runs.csv"
    if not path.is_file():
        say(f"no accuracy: {path} is not there")
        return ()
    return predict_all(read_runs(path)[0])
