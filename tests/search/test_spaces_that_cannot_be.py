"""A space is refused with every fault in it: shapes that no model can have, words that mean nothing, values twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autodeploy.catalog.lookup import load_space
from autodeploy.errors import SpecError
from autodeploy.search.enumerate import check_space
from autodeploy.spec.space import Space, with_values

SPACE = load_space(Path(__file__).parents[2] / "search_spaces" / "pangu-ultra-moe-718b_atlas-800t-a2.toml")
DENSE = load_space(Path(__file__).parents[2] / "search_spaces" / "llama-3.1-405b_h100.toml")


def with_part(space: Space, part: str, **values: Any) -> Space:
    """The space with a part of its model changed."""
    changed = replace(getattr(space.model, part), **values)
    return replace(space, model=replace(space.model, **{part: changed}))


CASES = {
    "model.moe.top_k": with_part(SPACE, "moe", top_k=300),
    "model.attention.kv_heads": with_part(DENSE, "attention", kv_heads=5),
    "plan.cp": with_values(SPACE, cp=(2, 2)),
    "plan.mbs": with_values(SPACE, mbs=(2, 2)),
    "plan.tp": with_values(SPACE, tp=()),
    "plan.recompute": with_values(SPACE, recompute=("fit", "half")),
    "plan.layout": with_values(SPACE, layout=("auto", "evenly")),
    "devices": replace(SPACE, devices=6143),
    "job.seq_len": replace(SPACE, job=replace(SPACE.job, seq_len=10**6)),
    "etp>>1": replace(SPACE, ban=("etp>>1",)),
}


@pytest.mark.parametrize("path", CASES)
def test_a_fault_names_its_field(path: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_space(CASES[path])
    assert [fault.path for fault in caught.value.faults] == [path]


def test_all_faults_come_at_once() -> None:
    space = with_values(replace(SPACE, devices=6143), cp=(2, 2), recompute=("half",))
    with pytest.raises(SpecError) as caught:
        check_space(space)
    assert {fault.path for fault in caught.value.faults} == {"devices", "plan.cp", "plan.recompute"}


def test_the_shipped_spaces_have_none() -> None:
    check_space(SPACE)
    check_space(DENSE)
