"""`autodeploy calibrate`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.status import Status

from autodeploy.catalog.calibration import PATH as FACTORS
from autodeploy.catalog.calibration import source_key, stated_cluster
from autodeploy.catalog.lookup import FOLDERS, ROOT, load, names
from autodeploy.catalog.measured import PATH as MEASURED
from autodeploy.catalog.measured import measured_text
from autodeploy.cli.exits import DONE, say
from autodeploy.cli.validate import OWN_RUNS, RUNS
from autodeploy.errors import spec_error
from autodeploy.fidelity.calibration import calibrate, measured_rows
from autodeploy.fidelity.microbench import fit_level, fit_products, read_collective, read_products
from autodeploy.fidelity.own_machine import OwnFit, fit_machine, fit_pace, on_machine
from autodeploy.fidelity.reserve import fit_reserve
from autodeploy.fidelity.runs import Run, read_runs
from autodeploy.fidelity.sensitivity import sensitivities
from autodeploy.formats.calibration_text import calibration_text
from autodeploy.formats.cluster_text import changed_text
from autodeploy.formats.document import check_writable, write_text
from autodeploy.report.calibration import calibration_report, fit_report
from autodeploy.report.tables import console
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.constants import changed_fields
from autodeploy.spec.target import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What to calibrate from."""

    runs: Sequence[Path]
    collectives: Sequence[Path] = ()
    products: Path | None = None
    target: str | None = None
    pace: bool = False
    collective: str = ""
    ranks: int = 0
    hosts: int = 0


def run_calibrate(cluster_name: str, asked: Asked, out: Path | None) -> int:
    """Fit a cluster on a user's measurements and write it; returns the exit code."""
    if not cluster_name or out is None:
        raise spec_error("--out" if cluster_name else "--cluster", "not given", "--cluster NAME --out FILE.toml")
    check_writable(out)
    text, base = _file_of(cluster_name), load(Cluster, cluster_name)
    if not (asked.runs or asked.collectives or asked.products):
        raise spec_error("RUNS.csv", "nothing to fit on", "runs, --collective-log or --matmul-log")
    cluster, sources = _from_logs(base, asked)
    fitted = None
    if asked.runs:
        runs = _runs(cluster, asked)
        fitted = _fitted(runs, cluster, asked)
        sources |= _sources(cluster, fitted)
        cluster, told = _reserved(runs, fitted.cluster)
        sources |= told
    values = changed_fields(stated_cluster(base) if cluster_name in names(Cluster) else base, cluster)
    known = dict(base.sources) | sources
    write_text(out, changed_text(text, values, {name: known[source_key(known, name)] for name in values}, out.stem))
    if fitted:
        console().print(fit_report(fitted))
    say(f"written to {out}: {', '.join(values) or 'nothing changed'}")
    return DONE


def _file_of(name: str) -> str:
    path = Path(name) if "/" in name or name.endswith(".toml") else ROOT / FOLDERS[Cluster] / f"{name}.toml"
    if path.suffix != ".toml" or not path.is_file():
        raise spec_error("--cluster", f"no TOML cluster file {name!r}", " ".join(names(Cluster)) + ", or a TOML file")
    return path.read_text(encoding="utf-8")


def _from_logs(cluster: Cluster, asked: Asked) -> tuple[Cluster, dict[str, str]]:
    sources: dict[str, str] = {}
    for path in asked.collectives:
        log = read_collective(path, asked.collective, asked.ranks, asked.hosts)
        cluster, found, error = fit_level(cluster, log)
        note = f"calibrated: {log.collective} of {log.ranks} ranks on {log.hosts} hosts, {len(log.points)} sizes"
        sources |= dict.fromkeys(found, f"{note}, median error {error:.1%} ({path.name})")
        say(f"{note}, median error {error:.1%}")
    if asked.products:
        points = read_products(asked.products)
        cluster, found, error = fit_products(cluster, points)
        note = f"calibrated: {len(points)} products, median error {error:.1%} ({asked.products.name})"
        sources |= dict.fromkeys(found, note)
        say(note)
    return cluster, sources


def _runs(cluster: Cluster, asked: Asked) -> list[Run]:
    """All runs that can be read, on the machine that is fitted."""
    read = [read_runs(path) for path in asked.runs]
    for line in (line for _, unread in read for line in unread):
        say(f"{line.id} is not read: {line.reason}")
    target = load(Target, asked.target) if asked.target else None
    return [on_machine(run, cluster, target) for found, _ in read for run in found]


def _fitted(runs: Sequence[Run], cluster: Cluster, asked: Asked) -> OwnFit:
    timed = [run for run in runs if run.step_s]
    with Status(f"{len(timed)} runs", console=console(stderr=True)):
        return fit_pace(timed, cluster) if asked.pace else fit_machine(timed, cluster)


def _reserved(runs: Sequence[Run], cluster: Cluster) -> tuple[Cluster, dict[str, str]]:
    """The memory reserve, where the runs tell it."""
    share = fit_reserve(runs, cluster)
    if share is None:
        say("memory reserve kept: it takes five runs that fitted and five that ran out of memory (oom = 1)")
        return cluster, {}
    note = f"calibrated: {len(runs)} runs, those that ran out of memory among them"
    return replace(cluster, fragmentation_frac=share), {"fragmentation_frac": note}


def _sources(before: Cluster, fitted: OwnFit) -> Mapping[str, str]:
    rows, models = fitted.parameters[0].rows, fitted.parameters[0].models
    note = f"calibrated ({rows} rows, {models} models, median error {fitted.after_frac[0]:.1%})"
    return dict.fromkeys(changed_fields(before, fitted.cluster), note)


def run_recalibrate(asked: Asked, cluster_name: str, out: Path | None) -> int:
    """Fit the catalog's own factors on the published runs that may be fitted, and write them into it."""
    if asked != Asked(runs=()) or cluster_name or out is not None:
        raise spec_error("--catalog", "stands beside other arguments", "--catalog alone: it fits the repository's runs")
    tables = sorted(OWN_RUNS.glob(f"*{RUNS}"))
    if not tables:
        raise spec_error("--catalog", "the published runs are not there", "a checkout of the repository")
    runs = [run for path in tables for run in read_runs(path)[0] if run.step_s and run.row.use == "calibrate"]
    with Status(f"{len(runs)} runs", console=console(stderr=True)):
        rows = sensitivities(runs, os.cpu_count() or 1)
        found = calibrate(rows)
    write_text(FACTORS, calibration_text(found.factors()))
    write_text(MEASURED, measured_text(measured_rows(rows, found)))
    console().print(calibration_report(found))
    return DONE
