"""What is assumed where a source is silent: one table, per source and never per row, every entry with its ground."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from autodeploy.balance.recompute import parse_policy
from autodeploy.catalog.lookup import names
from autodeploy.errors import SpecError
from autodeploy.fidelity import history, reasons, shapes
from autodeploy.fidelity.machines import HARDWARE, VARIANTS, cluster_of
from autodeploy.fidelity.own import FOLDER
from autodeploy.fidelity.predict import predict
from autodeploy.fidelity.reasons import suspected
from autodeploy.fidelity.rows import Row, read_rows
from autodeploy.fidelity.shapes import families, family_of
from autodeploy.fidelity.stacks import Assumptions, Policy, Stack, assumptions, stack_of, stacks
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.files import parse, read_mapping
from autodeploy.spec.target import Target
from tests.fidelity.little import BY_CLASS, SHIPPED, numbered, predicted, read, row

LAST_RESORT = ("ascend", "other")
"""Stacks of sources that are not known, Ascend ones first."""


@cache
def shipped_rows() -> tuple[Row, ...]:
    """Every good line of the shipped tables."""
    return tuple(row for path in SHIPPED for row in read_rows(path)[0])


def test_no_source_that_we_ship_is_read_under_the_last_resort() -> None:
    """Rows of NVIDIA machines never, and every source by a stack of its own."""
    assert len(shipped_rows()) > 1900
    assert {row.source for row in shipped_rows() if stack_of(row).name == "other"} == set()


def test_ascend_sources_have_a_stack_of_their_own() -> None:
    found = Counter(row.source for row in shipped_rows() if stack_of(row).name == "ascend")
    assert found == {}, found


def test_the_last_stack_takes_everything() -> None:
    assert stacks()[-1].match == ""
    assert [each.name for each in stacks() if each.name in LAST_RESORT] == list(LAST_RESORT)
    assert [each.name for each in stacks()][-len(LAST_RESORT) :] == list(LAST_RESORT)


def test_every_stack_is_named_once() -> None:
    assert [name for name, count in Counter(each.name for each in stacks()).items() if count > 1] == []


@pytest.mark.parametrize("stack", stacks(), ids=lambda stack: stack.name)
def test_a_stack_is_made_of_what_the_catalog_holds(stack: Stack) -> None:
    assert stack.target in names(Target)
    assert stack.cluster == "" or stack.cluster in names(Cluster)
    assert len(stack.reason) > 20
    parse_policy(stack.recompute)
    re.compile(stack.match)


@pytest.mark.parametrize("policy", assumptions().policy, ids=lambda policy: policy.word)
def test_a_policy_of_a_source_has_its_ground_and_a_row(policy: Policy) -> None:
    assert len(policy.reason) > 20
    parse_policy(policy.means)
    assert any(each.recompute.lower() == policy.word for each in shipped_rows())


def test_every_stack_is_reached_by_a_row_that_we_ship() -> None:
    used = {stack_of(row).name for row in shipped_rows()}
    assert [each.name for each in stacks() if each.name not in used and each.name not in LAST_RESORT] == []


def test_stacks_are_told_by_source_framework_and_model_alone() -> None:
    """Two rows that agree in these, the document included, have the same stack, whatever else they say: nothing is
    assumed for one row. What a row states by a flag that some stack excludes is no assumption."""
    found: dict[tuple[str, ...], set[str]] = {}
    excluded = [each.unless for each in stacks() if each.unless]
    for each in shipped_rows():
        stated = (str(bool(re.search(flag, each.flags))) for flag in excluded)
        key = (each.source, each.framework, each.framework_version, each.model, each.source_ref, *stated)
        found.setdefault(key, set()).add(stack_of(each).name)
    assert [key for key, stack in found.items() if len(stack) > 1] == []


def test_no_pattern_names_a_row() -> None:
    """An id in a pattern would be an assumption for one row."""
    ids = {each.id for each in shipped_rows()}
    texts = [each.match for each in stacks()] + [each.match for each in families()]
    assert [(text, i) for text in texts for i in ids if text and i in text] == []
    assert "id" not in {f.name for f in fields(Stack)}


@pytest.mark.parametrize("family", families(), ids=lambda family: family.match or "unknown")
def test_a_family_says_where_it_is_from(family: shapes.Family) -> None:
    first = family.source.split()[0].rstrip(":")
    assert first in ("measured", "published", "calibrated", "assumed")
    assert len(family.source) > 20
    re.compile(family.match)


def test_the_last_family_takes_every_name() -> None:
    assert [each.match for each in families()].index("") == len(families()) - 1


@pytest.mark.parametrize(
    ("name", "norm", "gated"),
    [
        ("Llama-3-70B", "rmsnorm", True),
        ("Mixtral-8x7B", "rmsnorm", True),
        ("GPT3-175B", "layernorm", False),
        ("Nemotron-4-340B", "layernorm", False),
        ("BLOOM-176B", "layernorm", False),
        ("qwen2-72b", "rmsnorm", True),
    ],
)
def test_a_name_tells_the_published_block(name: str, norm: str, gated: bool) -> None:
    family = family_of(name)
    assert (family.norm, family.gated) == (norm, gated)


def test_an_unknown_model_is_gated_where_its_parameters_say_so() -> None:
    """8 layers of 12 h^2, or of 4 h^2 + 3 h 4h, and two tables of 51200 rows."""
    plain = (8 * 12 * 1024**2 + 2 * 51200 * 1024) / 1e9
    gated = (8 * 16 * 1024**2 + 2 * 51200 * 1024) / 1e9
    assert shapes.model_of(row(model="nobody knows", params_b=plain)).gated is False
    assert shapes.model_of(row(model="nobody knows", params_b=gated)).gated is True


def test_hardware_names_lead_to_the_catalog() -> None:
    assert set(HARDWARE.values()) <= set(names(Cluster))
    assert {cluster for cluster in VARIANTS.values() if cluster} <= set(names(Cluster))


def test_all_hardware_that_we_ship_is_known() -> None:
    for each in shipped_rows():
        if each.hardware:
            assert cluster_of(each, stack_of(each)).name in names(Cluster)


@pytest.mark.parametrize(
    ("variant", "wanted"),
    [("910A", "atlas-800"), ("910B2", "atlas-800t-a2-910b2"), ("910B3", "atlas-800t-a2"), ("910 32GB", "atlas-800")],
)
def test_a_variant_of_the_device_tells_the_machine(variant: str, wanted: str) -> None:
    """Of the 910 family only the first generation, the 910A of the Atlas 800, has 32 GB."""
    each = row(hardware="", npu_variant=variant, source="readme-table")
    assert cluster_of(each, stack_of(each)).name == wanted


def test_removing_a_row_changes_no_other(tmp_path: Path) -> None:
    rows = numbered(*BY_CLASS.values())
    runs, _ = read(tmp_path, *rows)
    whole = {run.row.id: (run.plan, run.space, predict(run).result) for run in runs}
    for left_out in rows:
        fewer, _ = read(tmp_path, *(each for each in rows if each is not left_out))
        assert {run.row.id for run in fewer} == set(whole) - {left_out["id"]}
        for run in fewer:
            assert (run.plan, run.space, predict(run).result) == whole[run.row.id]


def test_rows_may_stand_in_any_order(tmp_path: Path) -> None:
    rows = numbered(*BY_CLASS.values())
    first, second = (read(tmp_path, *each)[0] for each in (rows, rows[::-1]))
    assert [(run.row, run.plan) for run in first] == [(run.row, run.plan) for run in reversed(second)]


def test_what_is_measured_is_not_seen_by_the_prediction(tmp_path: Path) -> None:
    rows = numbered(*BY_CLASS.values())
    first, _ = read(tmp_path, *rows)
    second, _ = read(tmp_path, *(each | {"value": 7.0} for each in rows))
    assert [predict(run).result for run in first] == [predict(run).result for run in second]


def test_a_suspicion_is_a_text_or_the_largest_term() -> None:
    assert all(len(each.text) > 20 and re.compile(each.match) for each in reasons.reasons())
    assert suspected(predicted()).startswith("not known; ")


def test_readings_are_told_in_order() -> None:
    found = history.readings()
    assert len(found) >= 1
    days = [each.date.split(",")[0] for each in found]
    assert days == sorted(days)
    assert all(all(getattr(each, f.name) for f in fields(history.Reading)) for each in found)


def test_the_files_hold_nothing_but_their_tables(tmp_path: Path) -> None:
    """A key that nobody reads would be an assumption that does not hold."""
    path = tmp_path / "assumptions.toml"
    shipped = (FOLDER / "assumptions.toml").read_text(encoding="utf-8")
    path.write_text(shipped.replace('name = "other"', 'name = "other"\nfit = 1.1'))
    with pytest.raises(SpecError, match="fit"):
        parse(Assumptions, read_mapping(path), source=str(path))


def test_ids_are_unique_in_what_we_ship() -> None:
    texts = [path.read_text(encoding="utf-8-sig") for path in SHIPPED]
    found = Counter(line["id"] for text in texts for line in csv.DictReader(io.StringIO(text)))
    assert [name for name, count in found.items() if count > 1] == []
