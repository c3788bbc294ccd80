"""Every term of a step and of a peak is documented where the results take their names from."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from autodeploy.balance.moments import MEMORY_TERMS
from autodeploy.catalog.lookup import load, names
from autodeploy.cost.terms import MEMORY, TIME, Term
from autodeploy.search.result import COMMUNICATION_TERMS, COMPUTE_TERMS, TIME_TERMS
from autodeploy.spec.cluster import Cluster, Device, Level
from autodeploy.spec.target import Profile, Target

PARTS: dict[str, Any] = {"device": Device, "node": Level, "fabric": Level, "profile": Profile}


def unsourced(term: Term, entry: Cluster | Target) -> list[str]:
    """Inputs of a term that the file which states them gives no source for, or that are no field of the machine."""
    faults = [f"{term.name}: no field {key}" for key in term.inputs if not is_field(key)]
    stated = [key for key in term.inputs if key.startswith("profile.") is isinstance(entry, Target)]
    return faults + [f"{entry.name}: {term.name} {key}" for key in stated if key not in entry.sources]


def is_field(key: str) -> bool:
    """Whether `device.hbm_bytes` names a field of a cluster or profile."""
    part, _, name = key.rpartition(".")
    return name in {f.name for f in fields(PARTS[part] if part else Cluster)}


def test_results_and_documentation_name_the_same_terms() -> None:
    assert tuple(term.name for term in TIME) == TIME_TERMS
    assert tuple(term.name for term in MEMORY) == MEMORY_TERMS
    assert set(COMPUTE_TERMS) | set(COMMUNICATION_TERMS) <= set(TIME_TERMS)
    assert not set(COMPUTE_TERMS) & set(COMMUNICATION_TERMS)


@pytest.mark.parametrize("term", [*TIME, *MEMORY], ids=lambda term: term.name)
def test_a_term_says_what_it_is_by_which_formula_and_from_where(term: Term) -> None:
    assert term.meaning
    assert term.formula
    assert term.source


@pytest.mark.parametrize("name", names(Cluster))
def test_inputs_of_terms_have_a_source_in_every_cluster(name: str) -> None:
    assert [fault for term in (*TIME, *MEMORY) for fault in unsourced(term, load(Cluster, name))] == []


@pytest.mark.parametrize("name", names(Target))
def test_inputs_of_terms_have_a_source_in_every_target(name: str) -> None:
    assert [fault for term in (*TIME, *MEMORY) for fault in unsourced(term, load(Target, name))] == []


def test_a_planted_input_is_found() -> None:
    term = Term(name="x", meaning="x", formula="x", source="x", inputs=("device.luck_frac", "fabric.latency_s"))
    assert any("device.luck_frac" in fault for fault in unsourced(term, load(Cluster, "h100-80g")))
    known = Term(name="x", meaning="x", formula="x", source="x", inputs=("profile.grad_buckets", "fabric.latency_s"))
    assert unsourced(known, replace(load(Target, "generic"), sources={})) == ["generic: x profile.grad_buckets"]
    assert unsourced(known, replace(load(Cluster, "h100-80g"), sources={})) == ["h100-80g: x fabric.latency_s"]
