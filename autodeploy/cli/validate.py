"""`autodeploy validate`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.status import Status

from autodeploy.cli.exits import DONE, say
from autodeploy.errors import spec_error
from autodeploy.fidelity.document import Validation, validation_document
from autodeploy.fidelity.predict import Prediction, predict_all
from autodeploy.fidelity.rank_errors import RankErrors, rank_errors
from autodeploy.fidelity.ranks import read_ranks
from autodeploy.fidelity.runs import read_runs
from autodeploy.formats.document import check_writable, write_text
from autodeploy.report.accuracy import accuracy_report
from autodeploy.report.accuracy_page import accuracy_page
from autodeploy.report.scatter import scatter_page
from autodeploy.report.tables import console

OWN_RUNS = Path(__file__).parents[2] / "benchmarks" / "fidelity"
RUNS, MEMORY = "_runs.csv", "_memory.csv"
FEW = 400
"""Below so many runs more processes do not pay."""


def form_of(**asked: bool) -> str:
    """The one form that is asked for. Raises `SpecError` for two."""
    forms = [name for name, wanted in asked.items() if wanted]
    if len(forms) > 1:
        raise spec_error(f"--{forms[1]}", f"stands beside --{forms[0]}", "one of them")
    return forms[0] if forms else "text"


def run_validate(files: Sequence[Path], form: str, out: Path | None) -> int:
    """Read, predict, score and show; returns the exit code."""
    if out is not None:
        _check_target(out, files)
    found = _validated(_asked(files))
    if form == "text" and out is None:
        console().print(accuracy_report(found))
    else:
        deliver(_as_text(found, form), out)
    unread = len(found.unread)
    say(f"{len(found.predictions)} rows read, {unread} not" + (" (reasons in the answer)" if unread else ""))
    return DONE


def _check_target(out: Path, files: Sequence[Path]) -> None:
    """Refuse a file that cannot be written, or that is one of the tables."""
    check_writable(out)
    if out.resolve() in {path.resolve() for path in files}:
        raise spec_error("--out", f"{out} is the table that is read", "another file")


def _asked(files: Sequence[Path]) -> Sequence[Path]:
    if files:
        return files
    own = sorted(OWN_RUNS.glob("*_runs.csv"))
    if not own:
        allowed = "a table of runs (docs/validate.md); the repository's are in benchmarks/fidelity"
        raise spec_error("RUNS.csv", "none given", allowed)
    return own


def _validated(files: Sequence[Path]) -> Validation:
    read = [read_runs(path) for path in files]
    runs = [run for found, _ in read for run in found]
    unread = [line for _, lines in read for line in lines]
    twice = sorted(name for name, count in Counter(run.row.id for run in runs).items() if count > 1)
    if twice:
        where = " ".join(map(str, files))
        raise spec_error("id", f"{' '.join(twice[:5])} in more than one table", "one row a run", source=where)
    if not runs:
        reasons = "; ".join(f"{line.id}: {line.reason}" for line in unread[:3]) or "it holds no rows"
        raise spec_error("", f"no row can be read: {reasons}", source=" ".join(map(str, files)))
    with Status(f"{len(runs)} runs", console=console(stderr=True)):
        workers = (os.cpu_count() or 1) if len(runs) > FEW else 1
        predictions = tuple(predict_all(runs, workers))
    return Validation(predictions=predictions, unread=tuple(unread), ranks=_ranks(files, predictions))


def _ranks(files: Sequence[Path], predictions: Sequence[Prediction]) -> tuple[RankErrors, ...]:
    """Memory of single ranks: of the table NAME_runs.csv in NAME_memory.csv beside it, where that is."""
    beside = [path.with_name(path.name.removesuffix(RUNS) + MEMORY) for path in files if path.name.endswith(RUNS)]
    found = [(path, read_ranks(path)) for path in beside if path.is_file()]
    return tuple(each for path, ranks in found for each in rank_errors(predictions, ranks, str(path)))


def _as_text(found: Validation, form: str) -> str:
    if form == "json":
        return json.dumps(validation_document(found), indent=1) + "\n"
    if form == "html":
        return scatter_page(found)
    return accuracy_page(found)


def deliver(text: str, out: Path | None) -> None:
    """Write an answer to a file, or to stdout."""
    if out is None:
        print(text, end="")
    else:
        write_text(out, text)
        say(f"written to {out}")
