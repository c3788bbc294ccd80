"""Small sweeps of a small model, and what is compared of their results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autodeploy.sweep.cells import cells_of, read_sweep
from autodeploy.sweep.run import Progress, run_sweep

MODEL = """\
name = "little"
title = "A little model"
hidden = 1024
layers = 4
vocab = 32000
ffn_width = 4096
max_seq_len = 8192

[attention]
kind = "gqa"
heads = 16
kv_heads = 16
head_dim = 64
"""
SWEEP = """\
name = "little"

[base]
cluster = "h100-80g"
seq_len = 2048
model = "MODEL"

[matrix]
devices = [4, 8]
gbs = [8, 16, 32]
"""
Line = dict[str, Any]


def write_model(folder: Path, text: str = MODEL) -> Path:
    """The little model in a file of its own (read once in a process: another content needs another name)."""
    path = folder / "model.toml"
    path.write_text(text)
    return path


def write_sweep(folder: Path, text: str = SWEEP, name: str = "sweep.toml") -> Path:
    """A sweep file whose MODEL is the little model."""
    model = folder / "model.toml"
    if not model.exists():
        write_model(folder)
    path = folder / name
    path.write_text(text.replace("MODEL", str(model)))
    return path


def silent(progress: Progress) -> None:
    """The report of a sweep that nobody watches."""
    del progress


def swept(path: Path, out: Path, workers: int = 1) -> list[Line]:
    """Run a sweep file; the lines of its results."""
    sweep = read_sweep(path)
    return run_sweep(sweep, cells_of(sweep), out, workers, silent)


def read(path: Path) -> list[Line]:
    """The lines of a file of results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def without_run(path: Path) -> bytes:
    """The bytes of a file of results, `run` apart."""
    return "".join(json.dumps({**line, "run": None}, ensure_ascii=False) + "\n" for line in read(path)).encode()


def write_lines(path: Path, lines: Sequence[Line]) -> Path:
    """Lines as a file of results."""
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path
