"""Results of a sweep as JSON Lines: one line a cell, in the order of the cells, appended as they are done."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from autodeploy.errors import spec_error
from autodeploy.search.exact import Status

FIELDS = (
    "cell", "inputs", "status", "plan_id", "plan_short", "tokens_per_s_per_device", "step_time_s",
    "peak_memory_bytes", "fits", "gap_frac", "error", "run",
)  # fmt: skip
FIGURES = ("tokens_per_s_per_device", "step_time_s", "peak_memory_bytes")
FAILED = "failed"
STATUSES = (*get_args(Status), FAILED)
WHOLE = "JSON with cell, status and the figures of its plan"
HEAD = b'{"cell": "'
"""How a file of results begins."""
Line = dict[str, Any]


def to_text(line: Mapping[str, Any]) -> str:
    """One line."""
    return json.dumps({name: line.get(name) for name in FIELDS}, ensure_ascii=False) + "\n"


def read_lines(path: Path) -> list[Line]:
    """All lines of a file. Raises `SpecError` naming the line that is not a result."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise spec_error("", f"cannot read: {error}", "a file of sweep results", source=str(path)) from error
    lines: dict[str, Line] = {}
    for number, each in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        line = _read(each)
        if line is None:
            raise spec_error(f"line {number}", "not a sweep result", WHOLE, source=str(path))
        if line["cell"] in lines:
            raise spec_error(f"line {number}", f"cell {line['cell']} for the second time", source=str(path))
        lines[line["cell"]] = line
    return list(lines.values())


def salvage(path: Path) -> list[Line]:
    """The whole lines of a file that a killed sweep left; a torn end is left out. Empty if there is no file."""
    if not path.is_file():
        return []
    found = []
    for each in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
        line = _read(each)
        if line is None:
            break
        found.append(line)
    return found


def check_replaceable(path: Path) -> None:
    """Raises `SpecError` for a file that holds something else than results, whole or torn: it is not written over."""
    if not path.is_file():
        return
    head = path.read_bytes()[: len(HEAD)]
    if not HEAD.startswith(head):
        raise spec_error("--out", f"{path} holds something else", "a file of sweep results, or a new one")


def _read(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and _is_whole(line) else None


def _is_whole(line: Line) -> bool:
    """Whether everything that a gate reads is there and of its type."""
    fits = line.get("fits")
    figures = [line.get(name) for name in FIGURES]
    return (
        isinstance(line.get("cell"), str)
        and line.get("status") in STATUSES
        and (fits is None or isinstance(fits, bool))
        and all(_is_number(figure) if fits else figure is None or _is_number(figure) for figure in figures)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
