"""The memory that an allocator loses, from runs that fitted and runs that ran out of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autodeploy.fidelity.own_machine import on_machine
from autodeploy.fidelity.predict import predict
from autodeploy.fidelity.runs import Run
from autodeploy.spec.cluster import Cluster

LEAST_EACH = 5
"""Runs of each outcome; fewer do not tell the reserve."""
SHARES = tuple(n / 100.0 for n in range(21))


def fit_reserve(runs: Sequence[Run], cluster: Cluster) -> float | None:
    """The smallest lost share that makes missed and refused runs fewest, each as a share of its kind; None where the
    runs do not tell it."""
    known = [run for run in runs if run.fits is not None]
    ran = sum(bool(run.fits) for run in known)
    if min(ran, len(known) - ran) < LEAST_EACH:
        return None
    wrong = {share: _wrong(known, replace(cluster, fragmentation_frac=share), ran) for share in SHARES}
    return min(SHARES, key=lambda share: (wrong[share], share))


def _wrong(runs: Sequence[Run], cluster: Cluster, ran: int) -> float:
    weight = {True: 1.0 / ran, False: 1.0 / (len(runs) - ran)}
    found = [(bool(run.fits), predict(on_machine(run, cluster, None)).result) for run in runs]
    return sum(weight[fits] for fits, result in found if result is not None and result.fits != fits)
