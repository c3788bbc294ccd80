"""Measured memory of single ranks: the table `id, rank, allocated_mib, max_allocated_mib`, and the stage of a rank.

`allocated` is what lives after the first step, when the optimizer's moments exist; `max_allocated` the peak of the
first iteration, whose forward and backward passes run before they do.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.spec.plan import RANK_ORDER, Plan
from autodeploy.units import MIB

COLUMNS = ("id", "rank", "allocated_mib", "max_allocated_mib")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """What one rank of a run reported."""

    rank: int
    allocated_bytes: float
    peak_bytes: float


def read_ranks(path: Path) -> dict[str, tuple[RankMemory, ...]]:
    """Measured ranks of every run of a CSV file, in the order of the ranks. Raises `SpecError` naming every faulty
    line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
        raise spec_error("", f"cannot read: {reason}", source=str(path)) from error
    lines = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    missing = [name for name in COLUMNS if name not in (lines.fieldnames or ())]
    if missing:
        raise spec_error("", f"has no column {' '.join(missing)}", ", ".join(COLUMNS), source=str(path))
    try:
        return _sorted(list(lines), str(path))
    except csv.Error as error:
        raise spec_error("", f"cannot be taken apart ({error})", source=str(path)) from error


def _sorted(lines: Iterable[Mapping[str, str | None]], source: str) -> dict[str, tuple[RankMemory, ...]]:
    found: dict[str, dict[int, RankMemory]] = {}
    faults: list[Fault] = []
    for number, line in enumerate(lines, 1):
        name = (line["id"] or "").strip()
        where = f"row {number} ({name})" if name else f"row {number}"
        try:
            each = _rank(line)
        except ValueError as error:
            faults.append(Fault(path=where, problem=str(error)))
            continue
        ranks = found.setdefault(name, {})
        if not name or each.rank in ranks:
            faults.append(Fault(path=where, problem=f"rank {each.rank} stands twice" if name else "has no id"))
        ranks[each.rank] = each
    if faults:
        raise SpecError(*faults, source=source)
    return {name: tuple(ranks[rank] for rank in sorted(ranks)) for name, ranks in found.items()}


def _rank(line: Mapping[str, str | None]) -> RankMemory:
    """One line. Raises `ValueError` for what is no rank or no memory."""
    if None in line or None in line.values():
        raise ValueError(f"does not have {len(COLUMNS)} cells")
    rank = (line["rank"] or "").strip()
    if not rank.isascii() or not rank.isdigit():
        raise ValueError(f"rank {rank!r} is not a whole number from 0")
    held, peak = (_mib(name, line[name] or "") for name in COLUMNS[2:])
    if peak < held:
        raise ValueError(f"max_allocated_mib {peak:g} is below allocated_mib {held:g}")
    return RankMemory(rank=int(rank), allocated_bytes=held * MIB, peak_bytes=peak * MIB)


def _mib(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} {text!r} is not a number above 0")
    return number


def stage_of_rank(plan: Plan, rank: int) -> int:
    """The pipeline stage of a rank: pipeline parallelism is outermost (`RANK_ORDER`). Raises `SpecError` for a rank
    that the plan does not have."""
    inside = plan.tp * plan.cp * plan.dp
    if not 0 <= rank < inside * plan.pp:
        problem = f"{rank} is none of {RANK_ORDER.partition(';')[0]} = {inside * plan.pp} ranks"
        raise spec_error("rank", problem, f"0 to {inside * plan.pp - 1}")
    return rank // inside
