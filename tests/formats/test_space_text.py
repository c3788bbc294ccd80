"""A space as text: read back it is the same space, and every value of it is explained."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autodeploy.catalog.lookup import load_space
from autodeploy.formats.space_text import COMMENTS, space_text
from autodeploy.search.defaults import EFFORTS, default_values
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.spec.job import Job
from autodeploy.spec.plan import CP_COMM_WORDS, DISPATCH_WORDS
from autodeploy.spec.space import PlanValues, Space, with_values
from tests.builders import SPACE_IDS, SPACES, cluster_of, model_of, space_of


def asked(model: str = "mixtral-8x7b", cluster: str = "h100-80g", devices: int = 64, **job: Any) -> Space:
    """A space as a search without a file makes it."""
    names = {"model": model, "cluster": cluster, "target": "generic"}
    return Space(
        name=f"{model}_{cluster}_{devices}",
        model=model_of(model),
        cluster=cluster_of(cluster),
        target=space_of(SPACES[0]).target,
        devices=devices,
        job=Job(**{"gbs": 128, "seq_len": 4096, **job}),
        plan=default_values(model_of(model), cluster_of(cluster), devices, "fast"),
        inputs=names,
    )


def again(space: Space, folder: Path) -> Space:
    """The space that its text gives."""
    path = folder / "again.toml"
    path.write_text(space_text(space), encoding="utf-8")
    return load_space(path)


@pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)
def test_a_shipped_space_is_read_back(path: Path, tmp_path: Path) -> None:
    assert again(space_of(path), tmp_path) == space_of(path)


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize(
    ("model", "cluster", "devices"),
    [
        ("llama-3.1-8b", "h100-80g", 8),
        ("mixtral-8x7b", "atlas-800t-a2", 64),
        ("deepseek-v3", "h800", 2048),
        ("pangu-ultra-moe-718b", "atlas-800t-a2", 6144),
        ("kimi-k2", "gb200-nvl72", 1152),
    ],
)
def test_default_values_are_read_back(model: str, cluster: str, devices: int, effort: Any, tmp_path: Path) -> None:
    space = asked(model, cluster, devices)
    space = replace(space, plan=default_values(space.model, space.cluster, devices, effort))
    assert again(space, tmp_path) == space


WORDS = st.lists(
    st.sampled_from(["even", "light", "apart", "late", "auto", "Et*3|(tt|)*29m|L"]), min_size=1, unique=True
)
COUNTS = st.lists(st.integers(1, 4096), min_size=1, max_size=6, unique=True)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    degrees=st.fixed_dictionaries({name: COUNTS | st.just("divisors") for name in ("tp", "pp", "ep", "etp")}),
    counts=st.fixed_dictionaries(dict.fromkeys(("vpp", "mbs"), COUNTS)),
    layout=WORDS,
    sp=st.sampled_from([None, (True,), (False, True)]),
    zero=st.sampled_from([(0,), (1,), (1, 0), (2, 3)]),
    cp=COUNTS | st.just("divisors"),
    cp_comm=st.lists(st.sampled_from(CP_COMM_WORDS), min_size=1, unique=True),
    dispatch=st.lists(st.sampled_from(DISPATCH_WORDS), min_size=1, unique=True),
    replicas=COUNTS,
    recompute=st.sampled_from([("fit",), ("none", "full"), ("layernorm+moe_act", "full:0.5")]),
    only=st.lists(st.sampled_from(["tp=8", "recompute!=full", "layout=Et*3|(tt|)*29m|L"]), unique=True),
    ban=st.lists(st.sampled_from(["etp>1", "schedule=1f1b"]), unique=True),
)
def test_any_values_are_read_back(tmp_path: Path, only: list[str], ban: list[str], **drawn: Any) -> None:
    degrees, counts = drawn["degrees"], drawn["counts"]
    values = {name: value if value == "divisors" else tuple(value) for name, value in (degrees | counts).items()}
    codes = {name: drawn[name] for name in ("sp", "zero", "recompute")}
    codes |= {name: tuple(drawn[name]) for name in ("cp_comm", "dispatch", "replicas")}
    codes |= {"cp": drawn["cp"] if drawn["cp"] == "divisors" else tuple(drawn["cp"])}
    space = with_values(asked(), **values, **codes, layout=tuple(drawn["layout"]))
    space = replace(space, only=tuple(only), ban=tuple(ban))
    assert again(space, tmp_path) == space


JOBS: dict[str, dict[str, Any]] = {
    "grad_precision": {"grad_precision": "bf16"},
    "moment_precision": {"moment_precision": "bf16"},
    "no_mtp": {"mtp": False},
    "imbalance": {"expert_imbalance": 1.0},
    "odd_imbalance": {"expert_imbalance": 1.0 + 2**-40},
    "large_imbalance": {"expert_imbalance": 1e22},
    "batch": {"gbs": 10**9},
    "fp8": {"precision": "fp8"},
    "packed": {"document_len": 512},
    "adapters": {"lora_rank": 16},
}


@pytest.mark.parametrize("case", JOBS)
def test_a_job_is_read_back(case: str, tmp_path: Path) -> None:
    space = asked(**JOBS[case])
    assert again(space, tmp_path).job == space.job


@pytest.mark.parametrize("name", ['with "quotes"', "back\\slash", "h\u00e4lt \u00d7 #", "tab\there", "one\ntwo"])
def test_a_name_with_any_characters_is_read_back(name: str, tmp_path: Path) -> None:
    space = replace(asked(), name=name)
    assert again(space, tmp_path).name == name


def test_characters_that_toml_does_not_take_are_written_otherwise(tmp_path: Path) -> None:
    space = replace(asked(), name="a\x7fb")
    titled = replace(space, model=replace(space.model, title="A model\nhidden = 1"))
    assert again(titled, tmp_path).devices == space.devices


def test_every_plan_field_is_explained() -> None:
    assert set(COMMENTS) == {field.name for field in fields(PlanValues)}
    lines = space_text(with_values(asked(), sp=(True,), schedule=("1f1b",))).split("[plan]\n")[1].splitlines()
    assert [line.split(" = ")[0] for line in lines] == list(COMMENTS)
    assert all(line.endswith("  # " + COMMENTS[line.split(" = ")[0]]) for line in lines)


def test_every_job_field_is_written() -> None:
    written = tomllib.loads(space_text(asked()))
    assert set(written["job"]) == {field.name for field in fields(Job)}


def test_an_unset_switch_is_left_out_and_no_condition_is_no_line() -> None:
    written = tomllib.loads(space_text(asked()))
    assert "sp" not in written["plan"]
    assert written.keys() & {"only", "ban"} == set()


def test_what_is_read_back_has_the_same_plans(tmp_path: Path) -> None:
    space = replace(asked(), only=("tp<=2",), ban=("etp>1", "schedule=1f1b"))
    one, other = enumerate_plans(space), enumerate_plans(again(space, tmp_path))
    assert one.refused == other.refused
    assert [one.legal.row(i) for i in range(len(one.legal))] == [other.legal.row(i) for i in range(len(other.legal))]


def test_the_text_does_not_depend_on_the_order_of_the_names() -> None:
    space = asked()
    turned = replace(space, inputs=dict(reversed(space.inputs.items())))
    assert space_text(space) == space_text(turned)
