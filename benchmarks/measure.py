"""What the benchmarks share: the arguments, the median after a warm-up, one JSON line as the answer."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from autodeploy.spec.space import Space, with_values

T = TypeVar("T")
SPACES = Path(__file__).parents[1] / "search_spaces"
PANGU_718B = SPACES / "pangu-ultra-moe-718b_atlas-800t-a2.toml"
LLAMA_405B = SPACES / "llama-3.1-405b_h100.toml"


def arguments(about: str, **sizes: tuple[int, str]) -> argparse.Namespace:
    """The sizes on the command line: name -> (default, help)."""
    parser = argparse.ArgumentParser(description=about)
    for name, (default, text) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default {default})")
    return parser.parse_args()


def narrowed(space: Space, values: int) -> Space:
    """A space with at most so many values of every degree, spread over what it lists; 0 leaves all."""
    degrees = {name: getattr(space.plan, name) for name in ("tp", "pp", "vpp", "ep", "etp", "mbs")}
    if values == 0:
        return space
    return with_values(
        space,
        **{name: each[:: -(-len(each) // values)] for name, each in degrees.items() if each != "divisors"},
    )


def median_s(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Median CPU seconds of some work after a warm-up, and what the last repeat gave."""
    result, seconds = work(), []
    for _ in range(repeats):
        started = time.process_time()
        result = work()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds), result


def answer(
    bench: str, work: Mapping[str, Any], seconds: Mapping[str, Any], ratios: Mapping[str, float], **checks: bool
) -> dict[str, Any]:
    """The answer of a benchmark: what was done, how long it took, ratios taken in this process, what held."""
    return {
        "bench": bench,
        "work": dict(work),
        "seconds": _rounded(seconds),
        "ratios": _rounded(ratios),
        "checks": checks,
    }


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Four digits: more would be noise."""
    return {
        name: _rounded(value) if isinstance(value, Mapping) else float(f"{value:.4g}") for name, value in values.items()
    }


def say(document: Mapping[str, Any]) -> None:
    """One JSON line; a check that fails ends the run with status 1."""
    sys.stdout.write(json.dumps(document) + "\n")
    failed = [name for name, held in document["checks"].items() if not held]
    if failed:
        sys.exit(f"{document['bench']}: {', '.join(failed)} does not hold")
