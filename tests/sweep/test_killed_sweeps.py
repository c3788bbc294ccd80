"""A sweep of two hundred cells killed in the middle, run on, and held against one that was left alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autodeploy.sweep.cells import cells_of, read_sweep
from autodeploy.sweep.lines import salvage
from tests.sweep.little import read, without_run, write_sweep

SWEEP = """\
name = "two hundred"
effort = "fast"

[base]
seq_len = 4096

[matrix]
model = ["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "llama-3.1-70b", "pangu-pro-moe-72b"]
cluster = ["h100-80g", "atlas-800t-a2"]
devices = [64, 128, 256, 512]
gbs = [256, 512, 768, 1024, 1536]
"""
CELLS = 200
PATIENCE_S = 300


def start(folder: Path, out: str, workers: int) -> subprocess.Popen[bytes]:
    """The sweep as a process with its own group."""
    words = [sys.executable, "-m", "autodeploy", "sweep", "sweep.toml", "--out", out, "--workers", str(workers)]
    return subprocess.Popen(
        words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and messages of a sweep that is left alone."""
    _, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said.decode()


def kill_after(process: subprocess.Popen[bytes], out: Path, lines: int) -> int:
    """Kill without warning as soon as so many lines are there; how many whole lines are left."""
    until = time.monotonic() + PATIENCE_S
    while len(salvage(out)) < lines:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    return len(salvage(out))


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a process and its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_results(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, SWEEP)
    assert len(cells_of(read_sweep(path))) == CELLS
    started = time.monotonic()
    code, said = finish(start(tmp_path, "whole.jsonl", workers=2))
    print(f"{CELLS} cells, two workers: {time.monotonic() - started:.1f} s")
    assert code == 0, said
    left = 0
    for lines in (40, 120):
        process = start(tmp_path, "killed.jsonl", workers=2)
        left = kill_after(process, tmp_path / "killed.jsonl", lines)
        end_group(process)
        assert lines <= left < CELLS
    before = salvage(tmp_path / "killed.jsonl")
    code, said = finish(start(tmp_path, "killed.jsonl", workers=2))
    assert code == 0, said
    assert f"{CELLS} cells, 0 failed" in said
    assert len(read(tmp_path / "killed.jsonl")) == CELLS
    assert without_run(tmp_path / "killed.jsonl") == without_run(tmp_path / "whole.jsonl")
    assert read(tmp_path / "killed.jsonl")[: len(before)] == before


def running(group: int) -> list[int]:
    """Processes of a group that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found += [int(entry.name)] if int(fields[2]) == group and fields[0] != "Z" else []
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")
def test_workers_end_with_a_sweep_that_is_killed(tmp_path: Path) -> None:
    write_sweep(tmp_path, SWEEP)
    process = start(tmp_path, "killed.jsonl", workers=2)
    try:
        kill_after(process, tmp_path / "killed.jsonl", 5)
        until = time.monotonic() + 20
        while running(process.pid) and time.monotonic() < until:
            time.sleep(0.2)
        assert running(process.pid) == []
    finally:
        end_group(process)
