"""Microbenchmark logs read and fitted: collectives (nccl-tests, HCCL test) and a sweep of matrix products."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autodeploy.cost.collectives import gather_rates, span
from autodeploy.cost.compute import ELEMENT_BYTES, product_s
from autodeploy.errors import spec_error
from autodeploy.fidelity.fit import ROBUST
from autodeploy.spec.cluster import Cluster, Level
from autodeploy.spec.constants import LEVEL_FIELDS, MOST_FRAC
from autodeploy.units import MICRO, TERA

GATHERS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "allgather": 1, "reducescatter": 1, "allreduce": 2}
"""All-gathers that a collective is worth (model.md 6.1)."""
LEAST_POINTS = 4
FRAC_STARTS = (0.1, 0.3, 0.6, 0.9)
"""Where another level binds the share has no slope: one start is not enough."""
QUICKER, SEEN = 1.1, 1.02
"""Links at 1.1 of their rate must make the largest size so much quicker, or the log says nothing of them."""
LATENCY_BOUNDS, RAMP_BOUNDS, FRAC_BOUNDS, TILE_BOUNDS = (1e-7, 1e-2), (1e-12, 1e-5), (0.02, MOST_FRAC), (1e-8, 1e-4)
_RANK = re.compile(r"#\s+Rank\s+\d+.*?\bon\s+(\S+)")
_NAME = re.compile(r"(" + "|".join(GATHERS) + r")(?:_perf|_test)?", re.IGNORECASE)
_ROW = re.compile(r"^\s*(\d+)\s+(.*)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveLog:
    """A log of one collective."""

    collective: str
    ranks: int
    hosts: int
    points: tuple[tuple[float, float], ...]
    """(bytes of the whole tensor, seconds)."""


def read_collective(path: Path, collective: str = "", ranks: int = 0, hosts: int = 0) -> CollectiveLog:
    """A log of nccl-tests or HCCL test; what it does not say must be given. Raises `SpecError`."""
    text = _text(path)
    named = collective or (found[1].lower() if (found := _NAME.search(text)) else "")
    places = _RANK.findall(text)
    size, machines = ranks or len(places), hosts or len(set(places))
    if named not in GATHERS or size < 2 or not machines:
        problem = f"collective {named or 'unknown'}, {size} ranks on {machines} hosts"
        raise spec_error("", problem, f"--collective {' '.join(sorted(GATHERS))}, --ranks, --hosts", source=str(path))
    points = tuple(point for line in text.splitlines() if (point := _point(line)))
    if len(points) < LEAST_POINTS:
        raise spec_error("", f"{len(points)} sizes with a time", f"at least {LEAST_POINTS}", source=str(path))
    return CollectiveLog(collective=named, ranks=size, hosts=machines, points=points)


def _point(line: str) -> tuple[float, float] | None:
    """Bytes and seconds of a line: nccl-tests has the time in column 6 (us), HCCL test (`data_size aveg_time ...`) in
    column 2."""
    found = _ROW.match(line)
    if not found:
        return None
    cells = found[2].split()
    place = 4 if len(cells) >= 7 and not _number(cells[1]) else 0
    time = _number(cells[place]) if len(cells) > place else None
    return (float(found[1]), time * MICRO) if time and float(found[1]) else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
        raise spec_error("", f"cannot read: {reason}", source=str(path)) from error


def fit_level(cluster: Cluster, log: CollectiveLog) -> tuple[Cluster, dict[str, float], float]:
    """The level that the log's ranks talk over, fitted: (cluster, changed fields, median relative error).

    Formula: t = gathers x (c sqrt(S) + (m-1)/m S / B + latency per doubling), model.md 6.1, by relative least squares.
    """
    name = "fabric" if log.hosts > 1 else "node"
    level: Level = getattr(cluster, name)
    group = span(cluster, log.ranks, 1)
    sizes, seconds = (np.array(column) for column in zip(*log.points, strict=True))

    def predicted(values: np.ndarray) -> np.ndarray:
        changed = _level(level, np.exp(values))
        lanes = gather_rates(_with_level(cluster, name, changed), group).lanes(sizes)
        both = np.maximum(lanes.inner, lanes.outer) if cluster.pipelined_collectives else lanes.inner + lanes.outer
        return np.asarray(GATHERS[log.collective] * both)

    bounds = [FRAC_BOUNDS, LATENCY_BOUNDS, RAMP_BOUNDS]
    start = [getattr(level, field) or low for field, (low, _) in zip(LEVEL_FIELDS, bounds, strict=True)]
    values, error = _least(predicted, seconds, start, bounds)
    if predicted(values + np.array([np.log(QUICKER), 0.0, 0.0]))[-1] * SEEN > predicted(values)[-1]:
        told = f"{log.collective} of {log.ranks} ranks on {log.hosts} hosts is not bound by the {name}"
        raise spec_error("--collective-log", told, "a log in which its links are the slowest, of larger sizes")
    found = dict(zip(LEVEL_FIELDS, (float(value) for value in np.exp(values)), strict=True))
    fitted = _with_level(cluster, name, _level(level, np.exp(values)))
    return fitted, {f"{name}.{field}": value for field, value in found.items()}, error


def _level(level: Level, values: np.ndarray) -> Level:
    frac, latency, ramp = map(float, values)
    return replace(level, link_max_frac=frac, latency_s=latency, ramp_s_per_sqrt_byte=ramp)


def _with_level(cluster: Cluster, name: str, level: Level) -> Cluster:
    return replace(cluster, fabric=level) if name == "fabric" else replace(cluster, node=level)


def read_products(path: Path) -> list[tuple[float, float, float, float]]:
    """(m, n, k, seconds) of a CSV with the columns m, n, k and either time_us or tflops."""
    found: list[tuple[float, float, float, float]] = []
    for place, row in enumerate(csv.DictReader(_text(path).splitlines()), 2):
        cells = {name.strip().lower(): _number(value or "") for name, value in row.items() if name}
        m, n, k = (cells.get(name) for name in ("m", "n", "k"))
        time, rate = cells.get("time_us"), cells.get("tflops")
        if not (m and n and k and (time or rate)):
            raise spec_error(f"line {place}", "holds no product", "columns m, n, k and time_us or tflops", str(path))
        found.append((m, n, k, time * MICRO if time else 2.0 * m * n * k / ((rate or 1.0) * TERA)))
    if len(found) < LEAST_POINTS:
        raise spec_error("", f"{len(found)} products", f"at least {LEAST_POINTS}", source=str(path))
    return found


def fit_products(cluster: Cluster, points: Sequence[tuple[float, float, float, float]]) -> tuple[
    Cluster, dict[str, float], float
]:  # fmt: skip
    """Share of the peak and price of a tile, fitted in the same way."""
    device = cluster.device
    m, n, k, seconds = (np.array(column) for column in zip(*points, strict=True))
    moved = ELEMENT_BYTES * (m * k + k * n + m * n)

    def predicted(values: np.ndarray) -> np.ndarray:
        frac, tile = np.exp(values)
        changed = replace(device, matmul_max_frac=float(frac), tile_overhead_s=float(tile))
        return np.asarray(product_s(changed, m, n, k, 1.0, moved))

    start = [device.matmul_max_frac, device.tile_overhead_s]
    values, error = _least(predicted, seconds, start, [FRAC_BOUNDS, TILE_BOUNDS])
    frac, tile = (float(value) for value in np.exp(values))
    fitted = replace(cluster, device=replace(device, matmul_max_frac=frac, tile_overhead_s=tile))
    return fitted, {"device.matmul_max_frac": frac, "device.tile_overhead_s": tile}, error


def _least(
    predicted: Callable[[np.ndarray], np.ndarray],
    seconds: np.ndarray,
    start: Sequence[float],
    bounds: Sequence[tuple[float, float]],
) -> tuple[np.ndarray, float]:
    """Robust least squares of logarithms within bounds, from several values of the first, which is a share."""
    from scipy.optimize import least_squares

    low, high = (np.log([pair[side] for pair in bounds]) for side in (0, 1))
    firsts = [np.clip(np.log([frac, *start[1:]]), low + 1e-6, high - 1e-6) for frac in FRAC_STARTS]
    tried = [
        least_squares(
            lambda x: np.log(predicted(x) / seconds), first, bounds=(low, high), loss="soft_l1", f_scale=ROBUST
        )
        for first in firsts
    ]
    found = min(tried, key=lambda each: float(each.cost))
    return found.x, float(np.median(np.abs(predicted(found.x) / seconds - 1.0)))
