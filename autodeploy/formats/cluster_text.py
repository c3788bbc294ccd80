"""A cluster file with some numbers changed: every comment, unit and other line stays as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from autodeploy.errors import spec_error
from autodeploy.units import HUMAN_SUFFIXES

_SECTION = re.compile(r"\s*\[([^\]]+)\]\s*(#.*)?")
_ENTRY = re.compile(r"(\s*)([A-Za-z0-9_]+)(\s*=\s*)([-+0-9.eE_]+)(.*)")


def changed_text(text: str, values: Mapping[str, float], sources: Mapping[str, str], name: str) -> str:
    """The text with fields (`device.issue_s`, in SI) at new values, each with its source, and under another name.

    Raises `SpecError` where the file does not state a field.
    """
    left, out, section = dict(values), [], ""
    for line in text.splitlines():
        header = _SECTION.fullmatch(line)
        if header:
            section = header[1].strip()
        out.append(line if header else _changed(line, section, left))
    if left:
        raise spec_error(
            next(iter(left)), "is not a number of this file, so it cannot be changed", "a TOML cluster file"
        )
    place = next((n for n, line in enumerate(out) if line.startswith("name =")), None)
    named = [f"name = {_quoted(name)}" if n == place else line for n, line in enumerate(out)]
    return "\n".join(_with_sources(named, sources)) + "\n"


def _changed(line: str, section: str, left: dict[str, float]) -> str:
    entry = _ENTRY.fullmatch(line)
    if not entry:
        return line
    field, factor = _si(f"{section}.{entry[2]}".lstrip("."))
    if field not in left:
        return line
    return f"{entry[1]}{entry[2]}{entry[3]}{left.pop(field) / factor:.6g}{entry[5]}"


def _si(key: str) -> tuple[str, float]:
    """A key of a file as a field in SI, and what its unit is worth."""
    for human, (plain, factor) in HUMAN_SUFFIXES.items():
        if key.endswith(human):
            return key.removesuffix(human) + plain, factor
    return key, 1.0


def _quoted(text: str) -> str:
    """A TOML basic string: the same escapes as JSON's."""
    return json.dumps(text, ensure_ascii=False)


def _with_sources(lines: list[str], sources: Mapping[str, str]) -> list[str]:
    """Source lines of changed fields replaced, or added at the end of their section."""
    left, out = dict(sources), []
    for line in lines:
        key = re.match(r'\s*"([^"]+)"\s*=', line)
        field = _si(key[1])[0] if key else ""
        out.append(f'"{key[1]}" = {_quoted(left.pop(field))}' if key and field in left else line)
    if not any(line.strip() == "[sources]" for line in out) and left:
        out += ["", "[sources]"]
    return out + [f'"{field}" = {_quoted(source)}' for field, source in left.items()]
