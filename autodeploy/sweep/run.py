"""Run the cells of a sweep in processes; the lines come out in the order of the cells whatever the number of them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autodeploy.catalog.lookup import load
from autodeploy.errors import AutodeployError
from autodeploy.formats.document import plan_short, write_text
from autodeploy.formats.huggingface import load_model
from autodeploy.processes import map_in_order
from autodeploy.search.choose import hold
from autodeploy.search.defaults import default_values
from autodeploy.search.engine import CUT_SHAPES, SOLVE_PLANS, Request, search
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.conditions import parse_list
from autodeploy.spec.job import Job
from autodeploy.spec.space import Space
from autodeploy.spec.sweep import Sweep
from autodeploy.spec.target import Target
from autodeploy.sweep.cells import Cell, own_fields, with_own_fields
from autodeploy.sweep.lines import FAILED, Line, check_replaceable, salvage, to_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a sweep has come."""

    done: int
    cells: int
    failed: int
    reused: int


def cell_hash(sweep: Sweep, cell: Cell) -> str:
    """12 hex digits over all that a cell's answer depends on: settings, values and the files that they name."""
    settings = asdict(replace(sweep, matrix={}, base={}, thresholds=()))
    named = {key: _file_text(str(cell.values[key])) for key in ("model", "cluster", "target") if key in cell.values}
    text = json.dumps([settings, dict(cell.values), named, version("autodeploy")], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _file_text(name: str) -> str:
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else name


def run_sweep(
    sweep: Sweep, cells: Sequence[Cell], out: Path, workers: int, report: Callable[[Progress], None]
) -> list[Line]:
    """Run what `out` does not already hold for the same inputs, and append line by line. All lines, in order."""
    check_replaceable(out)
    hashes = [cell_hash(sweep, cell) for cell in cells]
    kept = _reusable(out, cells, hashes)
    write_text(out, "".join(map(to_text, kept)))
    lines = list(kept)
    tasks = [(sweep, cell, content) for cell, content in zip(cells[len(kept) :], hashes[len(kept) :], strict=True)]
    with out.open("a", encoding="utf-8") as file:
        for line in map_in_order(run_cell, tasks, workers):
            lines.append(line)
            file.write(to_text(line))
            file.flush()
            failed = sum(each["status"] == FAILED for each in lines)
            report(Progress(done=len(lines), cells=len(cells), failed=failed, reused=len(kept)))
    return lines


def _reusable(out: Path, cells: Sequence[Cell], hashes: Sequence[str]) -> list[Line]:
    """The lines at the head of a file that are those of the first cells with the same inputs."""
    kept = []
    for line, cell, content in zip(salvage(out), cells, hashes, strict=False):
        inputs = line.get("inputs")
        if line["cell"] != cell.name or not isinstance(inputs, dict) or inputs.get("content_hash") != content:
            break
        kept.append(line)
    return kept


def run_cell(task: tuple[Sweep, Cell, str]) -> Line:
    """The line of one cell; what is wrong with its input becomes a failed line, not an exception."""
    sweep, cell, content = task
    started = time.monotonic()
    line: Line = {"cell": cell.name, "inputs": {**cell.values, "content_hash": content}}
    try:
        line |= _search(sweep, cell)
    except AutodeployError as error:
        line |= {"status": FAILED, "fits": None, "error": str(error)}
    return line | {"run": {"wall_s": time.monotonic() - started}}


def _search(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    request = Request(
        engine=sweep.engine,
        top=1,
        seed=sweep.seed,
        trials=sweep.trials,
        cut_shapes=CUT_SHAPES[sweep.effort],
        solve_plans=SOLVE_PLANS[sweep.effort],
    )
    space = cell_space(sweep, cell)
    answer = search(space, request)
    if not answer.legal:
        refused = answer.facts()["refused"]
        return {"status": FAILED, "fits": None, "error": f"no legal plan: refused by {refused}"}
    if not answer.results:
        return {"status": answer.status, "fits": False, "gap_frac": answer.gap_frac}
    best = answer.results[0]
    return {
        "status": answer.status,
        "plan_id": best.plan_id,
        "plan_short": plan_short(space, best.plan),
        "tokens_per_s_per_device": best.tokens_per_s_per_device,
        "step_time_s": best.step_time_s,
        "peak_memory_bytes": best.peak_memory_bytes,
        "fits": best.fits,
        "gap_frac": answer.gap_frac,
    }


def cell_space(sweep: Sweep, cell: Cell) -> Space:
    """The space of a cell."""
    values: dict[str, Any] = dict(cell.values)
    model = with_own_fields(load_model(values["model"]).model, own_fields(cell))
    cluster = load(Cluster, values["cluster"])
    devices = int(values["devices"])
    space = Space(
        name=cell.name,
        model=model,
        cluster=cluster,
        target=load(Target, values.get("target", "generic")),
        devices=devices,
        job=Job(gbs=int(values["gbs"]), seq_len=int(values["seq_len"])),
        plan=default_values(model, cluster, devices, sweep.effort),
        only=sweep.only,
        ban=sweep.ban,
    )
    return hold(space, parse_list(sweep.fix))
