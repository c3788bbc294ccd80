"""Results of a sweep as JSON Lines: one line a cell, in the order of the cells, appended as they are done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autodeploy.errors import spec_error

FIELDS = (
    "cell", "inputs", "status", "plan_id", "plan_short", "tokens_per_s_per_device", "step_time_s",
    "peak_memory_bytes", "fits", "gap_frac", "error", "run",
)  # fmt: skip
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
    lines = []
    for number, each in enumerate(text.splitlines(), 1):
        line = _read(each)
        if line is None:
            raise spec_error(f"line {number}", "not a sweep result", "JSON with a cell and a status", source=str(path))
        lines.append(line)
    return lines


def salvage(path: Path) -> list[Line]:
    """The whole lines of a file that a killed sweep left; a torn end is left out. Empty if there is no file."""
    if not path.is_file():
        return []
    found = []
    for each in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        line = _read(each) if each.endswith("\n") else None
        if line is None:
            break
        found.append(line)
    return found


def _read(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        return None
    return line if isinstance(line, dict) and {"cell", "status"} <= line.keys() else None
