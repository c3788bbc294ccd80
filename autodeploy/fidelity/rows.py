"""A table of runs as it is written: one `Row` per line, every fault of a line at once, the good lines kept.

The columns are those of docs/validate.md. Either of a pair of names may be used (`gpus` or `npus`); an empty cell says
that the source is silent.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from autodeploy.errors import spec_error

ALIASES = {
    "gpus": "devices", "npus": "devices", "gpus_per_node": "devices_per_node", "npus_per_node": "devices_per_node",
    "overlap_notes": "flags", "other_flags": "flags", "top_k": "topk",
}  # fmt: skip
UNITS = {
    "step_time_s": "step_time_s",
    "tokens_per_s_per_gpu": "tokens_per_s_per_device",
    "tokens_per_s_per_npu": "tokens_per_s_per_device",
    "tokens_per_s_per_device": "tokens_per_s_per_device",
    "samples_per_s": "samples_per_s",
    "tflops_per_gpu": "tflop_per_s_per_device",
    "tflops_per_npu": "tflop_per_s_per_device",
    "mfu": "mfu_percent",
    "peak_mem_gb": "peak_memory_gb",
}
"""What `metric` may say, and what we call it."""
REQUIRED = ("id", "source", "model", "devices", "metric", "value")
COUNTS = (
    "layers", "dense_layers", "hidden", "ffn_hidden", "moe_ffn_hidden", "heads", "kv_heads", "head_dim", "vocab",
    "experts", "topk", "shared_experts", "seq_len", "devices", "devices_per_node", "tp", "pp", "vpp", "cp", "ep", "etp",
    "dp", "mbs", "gbs", "zero1_group",
)  # fmt: skip
MAY_BE_ZERO = ("dense_layers", "experts", "topk", "shared_experts")
SWITCHES = ("mla", "sequence_parallel", "dist_optimizer", "fsdp", "oom")
NUMBERS = ("params_b", "value")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One published run. None: the source does not say."""

    id: str
    source: str
    source_ref: str = ""
    framework: str = ""
    framework_version: str = ""
    model: str = ""
    params_b: float | None = None
    layers: int | None = None
    dense_layers: int | None = None
    hidden: int | None = None
    ffn_hidden: int | None = None
    moe_ffn_hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    mla: bool | None = None
    vocab: int | None = None
    experts: int | None = None
    topk: int | None = None
    shared_experts: int | None = None
    seq_len: int | None = None
    hardware: str = ""
    npu_variant: str = ""
    devices: int | None = None
    devices_per_node: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    mbs: int | None = None
    gbs: int | None = None
    precision: str = ""
    recompute: str = ""
    sequence_parallel: bool | None = None
    dist_optimizer: bool | None = None
    fsdp: bool | None = None
    flags: str = ""
    metric: str = ""
    value: float | None = None
    flops_convention: str = ""
    oom: bool | None = None
    notes: str = ""
    use: str = ""
    zero1_group: int | None = None

    def says(self, *words: str) -> bool:
        """Whether flags or notes hold one of some words, in any case."""
        text = f"{self.flags}; {self.notes}".lower()
        return any(word.lower() in text for word in words)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """A line that could not be used, and why."""

    id: str
    source: str
    reason: str
    use: str = ""
    complete: bool = False
    """The source stated the whole configuration."""


FIELDS = tuple(f.name for f in fields(Row))


def is_complete(notes: str) -> bool:
    """Whether a source stated the whole configuration: `cfg=full`, or a script of the same commit (`trust=A`, `B`)."""
    return "cfg=full" in notes or "trust=A" in notes or "trust=B" in notes


def read_rows(path: Path) -> tuple[list[Row], list[Unread]]:
    """The rows of a CSV file, and the lines that are none. Raises `SpecError` where the file is no such table."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
        raise spec_error("", f"cannot read: {reason}", source=str(path)) from error
    rows: list[Row] = []
    unread: list[Unread] = []
    lines = _lines(text)
    names = [ALIASES.get(name.strip(), name.strip()) for name in next(lines, _Line(1, [])).cells]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        allowed = "the columns of docs/validate.md; gpus or npus for devices"
        raise spec_error("", f"has no column {' '.join(missing)}", allowed, source=str(path))
    used: set[str] = set()
    for line in lines:
        _sort_in(line, names, used, rows, unread)
    return rows, unread


class _Line(NamedTuple):
    """One line of a table: the number of its first physical line, its cells, and what is wrong with it as a whole."""

    number: int
    cells: list[str]
    fault: str = ""


def _lines(text: str) -> Iterator[_Line]:
    """All lines that are not blank. A quote that never closes swallows the rest: it is one faulty line."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    number = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            start = io.StringIO(text, newline=None).read().split("\n")[number - 1]
            reason = f"cannot be taken apart ({error}): this line and all below it are not read"
            yield _Line(number, [start.split(",")[0]], reason)
            return
        if any(cell.strip() for cell in cells):
            yield _Line(number, cells)
        number = reader.line_num + 1


def _sort_in(line: _Line, names: Sequence[str], used: set[str], rows: list[Row], unread: list[Unread]) -> None:
    cells: dict[str, str] = {}
    for name, cell in zip(names, line.cells, strict=False):
        cells[name] = cells.get(name) or cell.strip()  # of two names for one column, the one that is filled
    name = cells.get("id") or f"line {line.number}"
    values, faults = _values(cells)
    if len(line.cells) != len(names):
        faults = [f"{len(line.cells)} cells, the table has {len(names)} columns"]
    if line.fault:
        faults = [line.fault]
    if name in used:
        faults.append(f"id {name!r} is used twice")
    if not faults:
        used.add(name)
        rows.append(Row(**{**values, "id": name}))
        return
    complete = is_complete(cells.get("notes", ""))
    source, use = cells.get("source", ""), cells.get("use", "")
    unread.append(Unread(id=name, source=source, reason="; ".join(faults), use=use, complete=complete))


def _values(cells: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name in FIELDS:
        text = cells.get(name, "")
        try:
            values[name] = _value(name, text)
        except ValueError as error:
            faults.append(f"{name}: {error}")
    faults += _unit_faults(cells)
    return values, faults


def _unit_faults(cells: Mapping[str, str]) -> Iterator[str]:
    metric, has_value = cells.get("metric", ""), bool(cells.get("value"))
    if metric and metric not in UNITS:
        yield f"metric: unknown {metric!r} (allowed: {' '.join(UNITS)})"
    elif UNITS.get(metric) == "mfu_percent" and 0.0 < _share(cells.get("value", "")) < 1.0:
        yield f"value: mfu is in per cent, not {cells['value']!r}"
    elif has_value and not metric:
        yield f"metric: missing beside the value {cells['value']!r}"


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _value(name: str, text: str) -> Any:
    if name in COUNTS:
        return _count(text, 0 if name in MAY_BE_ZERO else 1) if text else None
    if name in SWITCHES:
        return _switch(text) if text else None
    if name in NUMBERS:
        return _measurement(text) if text else None
    return text


def _count(text: str, least: int) -> int:
    number = _number(text, least)
    if number != int(number):
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def _number(text: str, least: float = 0.0) -> float:
    """A number as a table has it: no separators, no unit; measurements are above 0."""
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a number")
    if number < least:
        raise ValueError(f"{text!r} must be at least {least:g}")
    return number


def _measurement(text: str) -> float:
    number = _number(text)
    if number == 0.0:
        raise ValueError(f"{text!r} must be above 0")
    return number


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"{text!r} is neither 0 nor 1")
    return text == "1"
