"""The command line: `autodeploy --help` as a whole process against an interpreter that does nothing."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from measure import answer, arguments, say

COMMANDS = {
    "pass": ("-c", "pass"),
    "numpy": ("-c", "import numpy"),
    "help": ("-m", "autodeploy", "--help"),
    "models": ("-m", "autodeploy", "models"),
}


def once(command: tuple[str, ...]) -> tuple[float, float, bool]:
    """Wall and CPU seconds of one process, and whether it ended well."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run((sys.executable, *command), capture_output=True, check=False)
    wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, done.returncode == 0


def run(repeats: int) -> dict[str, Any]:
    """Medians of every command; runs take turns, so that a busy machine slows all alike."""
    runs: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in COMMANDS}
    for _ in range(repeats + 1):
        for name, command in COMMANDS.items():
            runs[name].append(once(command))
    timed = {name: each[1:] for name, each in runs.items()}  # the first is the warm-up
    wall = {name: statistics.median(wall_s for wall_s, _, _ in each) for name, each in timed.items()}
    cpu = {name: statistics.median(cpu_s for _, cpu_s, _ in each) for name, each in timed.items()}
    ratios = {f"{name}_over_pass": cpu[name] / cpu["pass"] for name in COMMANDS if name != "pass"}
    ended_well = all(held for each in runs.values() for _, _, held in each)
    work = {"commands": [" ".join(command) for command in COMMANDS.values()], "repeats": repeats}
    return answer("cli", work, {"wall": wall, "cpu": cpu}, ratios, exit_status_0=ended_well)


if __name__ == "__main__":
    asked = arguments("Start of the command line.", repeats=(9, "timed runs of every command"))
    say(run(asked.repeats))
