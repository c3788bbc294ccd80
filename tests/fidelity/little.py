"""What tests of published runs share: one small row of each class, tables of them, and a run predicted once."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from autodeploy.fidelity.predict import Prediction, predict
from autodeploy.fidelity.rows import Row, Unread, read_rows
from autodeploy.fidelity.runs import Run, read_runs, run_of

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "benchmarks" / "fidelity").glob("*_runs.csv"))
GPT: dict[str, Any] = {
    "id": "run-1", "source": "our own machine room", "model": "megatron-gpt little", "layers": 8, "hidden": 1024,
    "ffn_hidden": 4096, "heads": 16, "vocab": 51200, "seq_len": 2048, "hardware": "a100-80g-sxm", "gpus": 8,
    "gpus_per_node": 8, "tp": 1, "pp": 1, "cp": 1, "mbs": 1, "gbs": 64, "precision": "bf16", "recompute": "none",
    "overlap_notes": "", "metric": "step_time_s", "value": 2.0, "flops_convention": "", "oom": 0, "notes": "",
    "use": "validate",
}  # fmt: skip
"""A dense model that every figure can be worked out for by hand: plain matrices, 4 h wide, one head a query."""
SPARSE = GPT | {
    "model": "Mixtral little", "kv_heads": 8, "moe_ffn_hidden": 2048, "experts": 8, "topk": 2, "ep": 8,
}  # fmt: skip
ASCEND = {"hardware": "atlas-900-a2-pod", "source": "readme-table"}
BY_CLASS: dict[str, dict[str, Any]] = {
    "dense, A100 and H100": GPT,
    "dense, other NVIDIA": GPT | {"hardware": "b200"},
    "MoE, NVIDIA": SPARSE | {"hardware": "h100-80g-sxm"},
    "Ascend, without CI": GPT | ASCEND,
    "Ascend MoE, without CI": SPARSE | ASCEND,
    "Ascend CI (cropped)": GPT | ASCEND | {"source": "ci-baseline"},
}
COLUMN_OF = {"gpus": "devices", "overlap_notes": "flags"}


def csv_text(*rows: dict[str, Any]) -> str:
    """Rows as CSV, columns in the order in which they first occur; None is an empty cell."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def numbered(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The same rows under ids of their own."""
    return [row | {"id": f"run-{i}"} for i, row in enumerate(rows, 1)]


def table(folder: Path, *rows: dict[str, Any], name: str = "runs.csv") -> Path:
    """A file of rows."""
    path = folder / name
    path.write_text(csv_text(*rows), encoding="utf-8")
    return path


def read_text(folder: Path, text: str) -> tuple[list[Row], list[Unread]]:
    """What is read of a text."""
    path = folder / "text.csv"
    path.write_text(text, encoding="utf-8")
    return read_rows(path)


def read(folder: Path, *rows: dict[str, Any]) -> tuple[list[Run], list[Unread]]:
    """What is read of some rows written to a file."""
    return read_runs(table(folder, *rows))


def run_in(folder: Path, **changed: Any) -> Run:
    """The small dense row with some cells changed, written to a file and read; it must be readable."""
    runs, unread = read(folder, GPT | changed)
    assert unread == []
    return runs[0]


def reason_in(folder: Path, **changed: Any) -> str:
    """Why the small dense row is not read with some cells changed, beside a good row that must count."""
    good = GPT | {"id": "good"}
    runs, unread = read(folder, good, GPT | changed)
    assert [run.row.id for run in runs] == ["good"]
    assert [line.id for line in unread] == ["run-1"]
    return unread[0].reason


def row(base: dict[str, Any] | None = None, **changed: Any) -> Row:
    """The small dense row (or another one), some cells changed, without a file."""
    values = {COLUMN_OF.get(name, name): value for name, value in ((base or GPT) | changed).items()}
    kept = {name: value for name, value in values.items() if name != "gpus_per_node"}
    return Row(**kept)


@cache
def predicted() -> Prediction:
    """The small dense row, predicted once: the ground on which tests of scores stand."""
    return predict(run_of(row()))


def said(predicted_s: float, measured_s: float | None, **changed: Any) -> Prediction:
    """A prediction with given times; other arguments change fields of its row, `plan` those of its plan."""
    base = predicted()
    assert base.result is not None
    plan = replace(base.run.plan, **changed.pop("plan", {}))
    space = replace(base.run.space, **changed.pop("space", {}))
    run = replace(base.run, row=replace(base.run.row, **changed), plan=plan, space=space, step_s=measured_s)
    return Prediction(run=run, result=replace(base.result, step_time_s=predicted_s, plan=plan))
