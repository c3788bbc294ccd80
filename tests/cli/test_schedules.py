"""`autodeploy schedules`: the table, its JSON, and numbers that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.asking import ask, refused

WORDS = {"pp": "4", "microbatches": "8", "forward": "10ms", "backward": "20ms"}


def words(**changed: str | None) -> list[str]:
    """A question, some of it changed, added or (None) left out."""
    given = {**WORDS, **changed}
    return ["schedules", *(word for name, value in given.items() if value is not None for word in (f"--{name}", value))]


def rows(*more: str, **changed: str | None) -> list[dict]:
    """The JSON of an answer."""
    result = ask(*words(**changed), *more, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_every_schedule_is_a_row_of_the_table() -> None:
    result = ask(*words(vpp="2,4"))
    assert result.exit_code == 0
    table = [line.split() for line in result.stdout.splitlines() if line.startswith("│")]
    assert [(row[1], row[3], row[5]) for row in table] == [
        (name, v, overlap)
        for name, v in (("1f1b", "1"), ("interleaved", "2"), ("interleaved", "4"))
        for overlap in ("none", "pair")
    ]
    assert "hide nothing" in result.stdout
    assert "hide nothing" not in ask(*words(merged="25ms")).stdout


def test_the_closed_form_stands_beside_the_bubble() -> None:
    plain = [row for row in rows(vpp="2") if row["overlap"] == "none"]
    assert [row["closed_form_bubble_s"] for row in plain] == [pytest.approx(0.09), pytest.approx(0.045)]
    assert [row["bubble_s"] for row in plain] == [pytest.approx(row["closed_form_bubble_s"]) for row in plain]
    assert [row["step_s"] for row in plain] == [pytest.approx(0.33), pytest.approx(0.285)]


def test_vpp_may_be_repeated_or_listed() -> None:
    assert rows("--vpp", "2", "--vpp", "4") == rows(vpp="4,2,2")


def test_times_have_units_and_may_differ_by_stage() -> None:
    assert rows(forward="0.01") == rows(forward="10000us") == rows(forward="10ms,10ms, 10ms,0.01s")
    slow = rows(forward="10ms,30ms,10ms,10ms")[0]
    assert slow["closed_form_bubble_s"] is None
    assert slow["step_s"] > rows()[0]["step_s"]
    assert rows(send="1ms")[0]["step_s"] > rows()[0]["step_s"]


def test_times_of_nothing_are_answered() -> None:
    for row in rows(forward="0", backward="0", vpp="2"):
        assert (row["step_s"], row["bubble_frac"]) == (0.0, 0.0)


REFUSED = {
    "no_pp": (words(pp=None), "--pp"),
    "pp_0": (words(pp="0"), "--pp"),
    "microbatches_0": (words(microbatches="0"), "--microbatches"),
    "too_few": (words(microbatches="3", vpp="2"), "no multiple of pp 4"),
    "no_multiple": (words(microbatches="10", vpp="2"), "8 or 12"),
    "too_many": (words(microbatches="1000000000"), "too much"),
    "too_many_stages": (words(pp="5000", microbatches="1"), "--pp: 5000 stages"),
    "no_index": (words(pp="9" * 23, microbatches="1"), "too many to simulate"),
    "too_long": (words(forward="1e308"), "--forward: 1e+308 s"),
    "one_stage": (words(pp="1", vpp="2"), "--pp: 1 stage"),
    "one_chunk": (words(vpp="1"), "--vpp: 1"),
    "no_chunk": (words(vpp="two"), "'two'"),
    "negative_chunk": ([*words(), "--vpp=-2"], "'-2'"),
    "nan": (words(forward="nan"), "--forward: not a time: 'nan'"),
    "endless": (words(backward="1e999"), "--backward"),
    "negative": ([*words(backward=None), "--backward=-1ms"], "'-1ms'"),
    "unit": (words(send="1min"), "--send: not a time"),
    "empty": (words(merged=""), "--merged"),
    "list_too_short": (words(forward="1,2,3"), "3 times"),
    "list_too_long": (words(merged="1,2,3,4,5"), "4 joined by commas"),
    "list_of_messages": (words(send="1ms,2ms,3ms,4ms"), "allowed: one time)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_numbers_that_cannot_be_are_refused(folder: Path, case: str) -> None:
    asked, part = REFUSED[case]
    assert part in refused(folder, *asked)


def test_all_faults_of_the_times_are_said_at_once(folder: Path) -> None:
    said = refused(folder, *words(forward="nan", backward="1,2", send="x"))
    assert all(flag in said for flag in ("--forward", "--backward", "--send"))
