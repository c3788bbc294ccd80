"""The JSON document of an answer: complete, adding up, the same every time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autodeploy.analysis.readings import flop_per_token
from autodeploy.catalog.lookup import load
from autodeploy.cost.terms import MEMORY
from autodeploy.formats.document import tool_version
from autodeploy.search.result import TIME_TERMS
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Model
from tests.cli.asking import SMALL, answer, edited, ranked, search

TOP = {"schema_version", "tool_version", "status", "inputs", "search", "run", "plans"}
SEARCH = {"candidates", "legal", "fits", "simulated", "refused", "gap_frac", "ideal_step_time_s", "seed"}
INPUTS = {"space", "devices", "job", "plan", "model", "cluster", "target"}
RUN = {"wall_s", "workers", "host"}
PLAN = {
    "rank", "plan_id", "plan_short", "plan", "arrangement", "microbatches", "tokens_per_s_per_device", "step_time_s",
    "mfu_frac", "mfu_peak_flop_per_s", "flop_convention", "peak_memory_bytes", "needed_memory_bytes",
    "usable_memory_bytes", "fits",
    "limited_by", "interval", "extrapolated", "stages", "time_terms", "time_split", "exchange_hidden_frac",
    "alternating_by",
}  # fmt: skip
ARRANGEMENT = {"layout", "recompute", "swap", "rank_order"}
FIELDS = {
    "tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs", "sp", "schedule", "overlap", "dispatch", "zero", "cp_comm",
    "replicas", "states", "layout", "recompute",
}  # fmt: skip
GBS, SEQ_LEN, DEVICES = 128, 4096, 64
MIXED = edited(
    SMALL, ("mbs = [1]", 'mbs = [1, 2]\noverlap = ["none", "pair"]\nzero = [0, 1]\nrecompute = ["fit", "full"]')
)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answer to a mixed space."""
    path = tmp_path_factory.mktemp("answers") / "mixed.toml"
    path.write_text(MIXED)
    return ranked(path, "--top", "200", "--seed", "7")


def test_every_agreed_key_is_there(document: dict[str, Any]) -> None:
    assert document.keys() >= TOP
    assert document["search"].keys() >= SEARCH
    assert document["inputs"].keys() >= INPUTS
    assert document["run"].keys() >= RUN
    for plan in document["plans"]:
        assert plan.keys() >= PLAN
        assert plan["plan"].keys() == FIELDS
        assert plan["arrangement"].keys() >= ARRANGEMENT


def test_the_head_says_what_was_asked(document: dict[str, Any]) -> None:
    assert document["schema_version"].split(".")[0] == "1"
    assert document["tool_version"] == tool_version()
    assert document["status"] == "optimal"
    assert document["search"]["gap_frac"] == 0.0
    assert document["search"]["seed"] == 7
    inputs = document["inputs"]
    assert inputs["space"] == "mixed"
    assert inputs["devices"] == DEVICES
    assert inputs["job"]["gbs"] == GBS
    assert inputs["model"]["layers"] == 32
    assert inputs["cluster"]["device"]["peak_flop_per_s"] == 989.4e12
    assert "V90" in inputs["target"]["rules"]


def test_every_candidate_is_legal_or_refused_once(document: dict[str, Any]) -> None:
    facts = document["search"]
    assert facts["candidates"] == 2 * 3 * 2 * 2 * 2 * 2 * 2 * 2  # the lengths of the lists in MIXED
    assert facts["candidates"] == facts["legal"] + sum(facts["refused"].values())
    assert facts["legal"] >= facts["fits"] >= facts["simulated"] > 0
    assert facts["fits"] >= len(document["plans"])
    assert all(count > 0 for count in facts["refused"].values())


@pytest.mark.slow
def test_the_default_engine_counts_and_adds_up_the_same_way(small: Path) -> None:
    exact, found = ranked(small, "--top", "5"), answer("search", small, "--top", "5")
    facts = found["search"]
    assert facts["candidates"] == facts["legal"] + sum(facts["refused"].values())
    assert facts["candidates"] >= exact["search"]["candidates"]
    assert found["plans"][0]["step_time_s"] <= exact["plans"][0]["step_time_s"]
    for plan in found["plans"]:
        assert math.isclose(sum(plan["time_terms"].values()), plan["step_time_s"], rel_tol=1e-9)
        assert plan["fits"] is True


def test_ranks_go_from_fast_to_slow(document: dict[str, Any]) -> None:
    plans = document["plans"]
    assert [plan["rank"] for plan in plans] == list(range(1, len(plans) + 1))
    steps = [plan["step_time_s"] for plan in plans]
    assert steps == sorted(steps)
    assert len({plan["plan_id"] for plan in plans}) == len(plans)
    assert len({plan["plan_short"] for plan in plans}) == len(plans)


def test_degrees_multiply_to_the_devices(document: dict[str, Any]) -> None:
    for plan in (each["plan"] for each in document["plans"]):
        assert plan["tp"] * plan["pp"] * plan["cp"] * plan["dp"] == DEVICES
        assert DEVICES % (plan["etp"] * plan["ep"] * plan["pp"]) == 0
        assert plan["sp"] == (plan["tp"] > 1)
        assert plan["schedule"] == ("interleaved" if plan["vpp"] > 1 else "1f1b")


def test_microbatches_make_up_the_batch(document: dict[str, Any]) -> None:
    for each in document["plans"]:
        assert each["microbatches"] * each["plan"]["mbs"] * each["plan"]["dp"] == GBS


def test_time_terms_add_up_to_the_step(document: dict[str, Any]) -> None:
    for plan in document["plans"]:
        assert set(plan["time_terms"]) == set(TIME_TERMS)
        assert math.isclose(sum(plan["time_terms"].values()), plan["step_time_s"], rel_tol=1e-9)
        least = min(plan["time_terms"].values())
        assert least >= -1e-9 * plan["step_time_s"]


def test_memory_terms_add_up_to_the_peak_of_their_stage(document: dict[str, Any]) -> None:
    names = {term.name for term in MEMORY}
    for plan in document["plans"]:
        assert len(plan["stages"]) == plan["plan"]["pp"]
        for stage in plan["stages"]:
            assert set(stage["memory_terms"]) == names
            assert math.isclose(sum(stage["memory_terms"].values()), stage["needed_bytes"], rel_tol=1e-9)
            assert min(stage["memory_terms"].values()) >= 0.0
        most = max(stage["needed_bytes"] for stage in plan["stages"])
        assert math.isclose(plan["needed_memory_bytes"], most, rel_tol=1e-12)


def test_what_is_ranked_fits(document: dict[str, Any]) -> None:
    device = load(Cluster, "h100-80g").device
    for plan in document["plans"]:
        assert plan["fits"] is True
        assert plan["usable_memory_bytes"] == device.hbm_bytes - device.context_bytes
        assert plan["peak_memory_bytes"] <= plan["needed_memory_bytes"] <= plan["usable_memory_bytes"]
        assert plan["limited_by"] in plan["time_terms"]


def test_throughput_and_utilisation_follow_from_the_step(document: dict[str, Any]) -> None:
    flop = flop_per_token(load(Model, "mixtral-8x7b"), SEQ_LEN, mtp=True)
    for plan in document["plans"]:
        tokens = GBS * SEQ_LEN / plan["step_time_s"] / DEVICES
        assert math.isclose(plan["tokens_per_s_per_device"], tokens, rel_tol=1e-12)
        assert math.isclose(plan["mfu_frac"], tokens * flop / plan["mfu_peak_flop_per_s"], rel_tol=1e-12)
        assert 0.0 < plan["mfu_frac"] < 1.0


def test_utilisation_follows_from_active_parameters(document: dict[str, Any]) -> None:
    plan = document["plans"][0]
    active = 12.9e9 - 0.13e9  # arXiv 2401.04088: 13 B active, of them 0.13 B embedding
    attention = 3 * 2 * 32 * SEQ_LEN * 32 * 128  # two causal products a layer, forward and twice that backward
    flop = 6 * active + attention
    mfu = plan["tokens_per_s_per_device"] * flop / 989.4e12
    assert math.isclose(plan["mfu_frac"], mfu, rel_tol=0.01)


def test_the_step_is_never_below_the_ideal(document: dict[str, Any]) -> None:
    assert document["search"]["ideal_step_time_s"] <= document["plans"][0]["step_time_s"]


def test_layouts_hold_every_layer_once(document: dict[str, Any]) -> None:
    for plan in document["plans"]:
        chunks = [chunk for stage in plan["stages"] for chunk in stage["layers"]]
        assert len(chunks) == plan["plan"]["pp"] * plan["plan"]["vpp"]
        letters = "".join(chunks)
        counts = {letter: letters.count(letter) for letter in "EtmL"}
        counts["t"] += sum(int(part.split("*")[1]) - 1 for part in _repeats(letters))
        assert counts == {"E": 1, "t": 32, "m": 0, "L": 1}
        assert plan["stages"][0]["layers"][0].startswith("E")
        assert plan["stages"][-1]["layers"][-1].endswith("L")


def _repeats(letters: str) -> list[str]:
    """`t*16` in a run of layout letters; none where the letters are written out."""
    return [f"t*{number}" for number in letters.split("t*")[1:] if number.isdigit()]


def test_the_document_is_strict_json(document: dict[str, Any]) -> None:
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text) == document


def comparable(path: Path) -> str:
    """The text of a document less `run`, which is the only part that may differ."""
    data = json.loads(path.read_text())
    data.pop("run")
    return json.dumps(data)


def test_the_same_question_gets_the_same_bytes(folder: Path) -> None:
    path = folder / "space.toml"
    path.write_text(MIXED)
    texts = []
    for name in ("one.json", "two.json"):
        assert search(path, "--out", name, "--seed", "3").exit_code == 0
        texts.append(comparable(Path(name)))
    assert texts[0] == texts[1]


def test_what_is_kept_is_what_is_printed(small: Path) -> None:
    result = search(small, "--json", "--out", "plans.json")
    assert result.stdout == Path("plans.json").read_text()


def test_top_cuts_the_list_and_nothing_else(small: Path) -> None:
    few, many = ranked(small, "--top", "3"), ranked(small, "--top", "30")
    assert few["plans"] == many["plans"][:3]
    assert few["status"] == many["status"] == "optimal"


def test_another_batch_is_the_same_as_a_file_with_it(small: Path) -> None:
    other = small.with_name("other.toml")
    other.write_text('name = "small"\n' + SMALL.replace("gbs = 128", "gbs = 256"))
    assert ranked(small, "--gbs", "256")["plans"] == ranked(other)["plans"]
