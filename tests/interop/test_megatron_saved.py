"""What layers of Megatron-Core (0.16.1) keep for the backward pass, row by row against the inventory, and what is left
of it where modules are rebuilt (--recompute-modules). Places and differences: test_saved_tensors; in plain words:
docs/memory.md."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from autodeploy.analysis.ops import Module
from autodeploy.analysis.readings import PLAIN
from autodeploy.formats.megatron import COVERS
from autodeploy.spec.model import GQA, Kind, Model
from tests.builders import job_of, ops_of, plan_of
from tests.interop import hf_layers
from tests.interop.conftest import skip_without
from tests.interop.hf_layers import Sizes, model_like
from tests.interop.megatron_cases import CASES, Case
from tests.interop.megatron_cpu import storages
from tests.interop.places import Place, bytes_by_place, bytes_by_row, names

# its import warns of accelerator libraries that are not there
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

# the fused soft-max takes sequences and heads in fours
ONE = replace(hf_layers.ONE, s=20)
OTHER = replace(hf_layers.OTHER, s=24, a=12, g=4)


def model_of(case: Case, z: Sizes) -> Model:
    """The layer of a case."""
    model = replace(model_like(case.layer, z, case.dense), norm=case.norm)
    a = model.attention
    return replace(model, attention=replace(a, kv_heads=a.heads)) if case.whole and isinstance(a, GQA) else model


def policy(case: Case) -> dict[str, Any]:
    """Options that have modules rebuilt."""
    if case.rebuilt == ("full",):
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if not case.rebuilt:
        return {}
    return {"recompute_granularity": "selective", "recompute_modules": list(case.rebuilt)}


@cache
def counted(name: str, z: Sizes) -> dict[Place | None, int]:
    """Bytes of every place, that of none included."""
    case = CASES[name]
    return bytes_by_place(storages(model_of(case, z), case.options | policy(case), z), case.places, z)


def every_row(case: Case, z: Sizes) -> dict[str, tuple[Module, float]]:
    """Rows of the inventory that are not empty, and what they belong to."""
    given = {"attention": "unfused", "combine_saved": False, "fused": case.fused, **case.profile}
    model = model_of(case, z)
    ops = ops_of(model, plan_of(mbs=z.b), job_of(z.s), replace(PLAIN, **given))
    rows = [row for op in ops[Kind.SPARSE if model.moe else Kind.DENSE] for row in op.rows]
    return {row.name: (row.module, float(row.bytes)) for row in rows if row.bytes}


def ours(case: Case, z: Sizes) -> dict[str, float]:
    """The rows that are left."""
    gone = {each for name in case.rebuilt for each in COVERS.get(name, ())}
    rows = every_row(case, z)
    if case.rebuilt == ("full",):
        return {name: size for name, (module, size) in rows.items() if module is Module.KEPT}
    left = {name: size for name, (module, size) in rows.items() if module.name.lower() not in gone}
    return {name: size for name, size in left.items() if name not in case.beyond}


@pytest.fixture(autouse=True)
def megatron_is_installed(request: pytest.FixtureRequest) -> None:
    """As for torch: each test is skipped under its own name."""
    skip_without(request, "megatron", "megatron-core")


EVERY = pytest.mark.parametrize("name", CASES)
SIZES = pytest.mark.parametrize("z", [ONE, OTHER], ids=["one size", "another size"])


@EVERY
@SIZES
def test_every_storage_has_a_place_and_every_place_a_storage(name: str, z: Sizes) -> None:
    assert set(counted(name, z)) == set(CASES[name].places)


@EVERY
@SIZES
def test_of_our_rows_those_are_kept_that_we_say(name: str, z: Sizes) -> None:
    case = CASES[name]
    kept = {each for place in case.places for each in names(place.row)}
    assert kept & set(every_row(case, z)) == set(ours(case, z))


@EVERY
@SIZES
def test_rows_are_ours_and_the_differences_exactly(name: str, z: Sizes) -> None:
    case = CASES[name]
    seen, expected = bytes_by_row(counted(name, z), ours(case, z), case.places, z)
    assert seen == expected
