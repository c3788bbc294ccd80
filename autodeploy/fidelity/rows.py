"""A table of runs as it is written: one `Row` per line, every fault of a line at once, the good lines kept.

The columns are those of docs/validate.md. Either of a pair of names may be used (`gpus` or `npus`); an empty cell says
that the source is silent.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

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
    reader = csv.DictReader(io.StringIO(text))
    names = {ALIASES.get(name, name) for name in reader.fieldnames or () if name}
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        allowed = "the columns of docs/validate.md; gpus or npus for devices"
        raise spec_error("", f"has no column {' '.join(missing)}", allowed, source=str(path))
    rows: list[Row] = []
    unread: list[Unread] = []
    for line in reader:
        _sort_in(line, reader.line_num, rows, unread)
    return rows, unread


def _sort_in(line: Mapping[str, Any], number: int, rows: list[Row], unread: list[Unread]) -> None:
    cells = {ALIASES.get(name, name): (text or "").strip() for name, text in line.items() if isinstance(name, str)}
    name = cells.get("id") or f"line {number}"
    values, faults = _values(cells)
    if None in line:
        faults.append("more cells than columns")
    if name in {row.id for row in rows}:
        faults.append(f"id {name!r} is used twice")
    if faults:
        complete = is_complete(cells.get("notes", ""))
        unread.append(
            Unread(
                id=name,
                source=cells.get("source", ""),
                reason="; ".join(faults),
                use=cells.get("use", ""),
                complete=complete,
            )
        )
    else:
        rows.append(Row(**{**values, "id": name}))


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
    elif has_value and not metric:
        yield f"metric: missing beside the value {cells['value']!r}"


def _value(name: str, text: str) -> Any:
    if name in COUNTS:
        return _count(text, 0 if name in MAY_BE_ZERO else 1) if text else None
    if name in SWITCHES:
        return _switch(text) if text else None
    if name in NUMBERS:
        return _number(text) if text else None
    return text


def _count(text: str, least: int) -> int:
    number = _number(text, least)
    if number != int(number):
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def _number(text: str, least: float = 0.0) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(number) or number < least or (least == 0.0 and number == 0.0 and "." in text):
        raise ValueError(f"{text!r} must be at least {least:g}" if number < least else f"{text!r} is no measurement")
    return number


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"{text!r} is neither 0 nor 1")
    return text == "1"
