"""`autodeploy schedules`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from autodeploy.cli.exits import DONE
from autodeploy.errors import Fault, SpecError, spec_error
from autodeploy.report.schedules import schedules_facts, schedules_table
from autodeploy.report.tables import console
from autodeploy.schedule.compare import StageTimes, check_shapes, compare
from autodeploy.units import parse_seconds

TIMES = "seconds, or with a unit: 0.01 10ms 900us"
MOST_S = 3e8
"""Ten years: the sums of longer times may be no finite number."""
DIGITS = 7
"""Longer numbers are no numbers of chunks."""


def run_schedules(
    pp: int, microbatches: int, vpps: Sequence[str], *, forward: str, backward: str, send: str, merged: str | None,
    weights: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Compare schedules; returns the exit code."""
    chunks = _chunks(vpps)
    check_shapes(pp, microbatches, chunks, split=weights is not None)  # before a time is repeated for every stage
    given = {"--forward": forward, "--backward": backward, "--send": send, "--merged": merged, "--weights": weights}
    times = _times(pp, {name: text for name, text in given.items() if text is not None})
    found = compare(pp, microbatches, chunks, times)
    if as_json:
        sys.stdout.write(json.dumps(schedules_facts(found), indent=1) + "\n")
        return DONE
    screen = console()
    screen.print(schedules_table(found))
    screen.print("bubble: the busiest stage waits; closed form: the same of equal stages whose messages take no time")
    screen.print("live: activations of so many microbatches of a whole stage; messages: of all stages")
    if merged is None:
        screen.print("pair: merged passes are assumed to hide nothing; --merged says how long one takes")
    screen.print(_about_split(pp, microbatches, weights))
    return DONE


def _about_split(pp: int, microbatches: int, weights: str | None) -> str:
    """What is said of the schedules that run weight gradients apart."""
    if weights is None:
        return "--weights TIME, the weight gradients of a backward pass, adds zero bubble and DualPipe"
    if pp == 1:
        return "zero bubble and DualPipe need two stages or more"
    missing = [] if microbatches >= 2 * pp else [f"dualpipev and dualpipe need {2 * pp} microbatches or more"]
    if not missing and (pp % 2 or microbatches % 2):
        missing = ["dualpipe needs an even number of stages and of microbatches"]
    return "; ".join(["zero bubble and DualPipe: a stage goes on to its next step when it is done itself", *missing])


def _times(pp: int, given: Mapping[str, str]) -> StageTimes:
    """All times, with every fault of them in one `SpecError`. Without --merged, merging hides nothing."""
    read: dict[str, tuple[float, ...]] = {}
    faults: list[Fault] = []
    for name, text in given.items():
        try:
            read[name] = _seconds(name, text, 1 if name == "--send" else pp)
        except SpecError as error:
            faults += error.faults
    if faults:
        raise SpecError(*faults)
    forward, backward = read["--forward"], read["--backward"]
    both = tuple(f + b for f, b in zip(forward, backward, strict=True))
    late = read.get("--weights", ())
    if any(part > whole for part, whole in zip(late, backward, strict=False)):
        raise spec_error("--weights", "longer than the backward pass that it is a part of", "up to --backward")
    return StageTimes(
        forward_s=forward, backward_s=backward, merged_s=read.get("--merged", both), send_s=read["--send"][0],
        weights_s=late,
    )  # fmt: skip


def _seconds(name: str, text: str, stages: int) -> tuple[float, ...]:
    """One time for all stages, or a comma list with one for each."""
    try:
        values = tuple(parse_seconds(word) for word in text.split(","))
    except ValueError as error:
        raise spec_error(name, str(error), TIMES) from error
    if max(values) > MOST_S:
        raise spec_error(name, f"{max(values):g} s is too long", f"up to {MOST_S:g} s")
    if len(values) not in (1, stages):
        one_each = f" or {stages} joined by commas" if stages > 1 else ""
        raise spec_error(name, f"{len(values)} times in {text!r}", f"one time{one_each}")
    return values if len(values) == stages else values * stages


def _chunks(words: Sequence[str]) -> list[int]:
    """Numbers of chunks, each once."""
    found = [word.strip() for each in words for word in each.split(",")]
    wrong = [word for word in found if not (word.isascii() and word.isdigit() and len(word) < DIGITS)]
    if wrong:
        raise spec_error("--vpp", f"{wrong[0]!r} is no number of chunks", "2 or more, repeated or joined by commas")
    return sorted({int(word) for word in found})
