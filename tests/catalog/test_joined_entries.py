"""Models by their published sizes, machines by their published shape, targets by the version that they describe."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from autodeploy.analysis.readings import model_size
from autodeploy.catalog.lookup import ROOT, load
from autodeploy.legality.rules import RULES
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import Kind, Model, decoder_kinds
from autodeploy.spec.target import Target
from autodeploy.units import GIB, GIGA, TERA

CLUSTERS = ("atlas-900-a3", "cloudmatrix384", "h800", "b200", "gb200-nvl72", "gb300")
TARGETS = ("megatron-core", "mindspeed-llm", "mindformers-1.5", "mindformers-2026")
FIRST_WORDS = ("measured", "published", "assumed")
FITTED = re.compile(r"calibrated \(\d+ rows, \d+ models, median error [\d.]+%\)(, x[\d.]+; before: (not stated)?)?")


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("pangu-ultra-135b", 135.0, 0.01),  # arXiv 2504.07866
        ("pangu-pro-moe-72b", 71.99, 0.001),  # arXiv 2505.21411
        ("kimi-k2", 1040.0, 0.014),  # arXiv 2507.20534 says 1.04 T; the shapes of its configuration sum to 1.026 T
        ("qwen3-235b-a22b", 235.0, 0.001),  # arXiv 2505.09388
        ("mixtral-8x22b", 141.0, 0.005),  # mistral.ai, 17 April 2024
        ("llama-3.1-8b", 8.03, 0.001),  # meta-llama/Llama-3.1-8B model card
    ],
)
def test_a_model_has_its_published_size(name: str, billions: float, tolerance: float) -> None:
    assert model_size(load(Model, name)).total / GIGA == pytest.approx(billions, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("pangu-pro-moe-72b", 16.50), ("kimi-k2", 32.6), ("qwen3-235b-a22b", 22.0), ("mixtral-8x22b", 39.0)],
)
def test_a_sparse_model_has_its_published_active_size(name: str, billions: float) -> None:
    """All of them count the input embedding as active."""
    size = model_size(load(Model, name))
    assert (size.active + size.embedding) / GIGA == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("name", "layers", "dense"),
    [
        ("pangu-ultra-135b", 94, 94), ("pangu-pro-moe-72b", 48, 0), ("kimi-k2", 61, 1), ("qwen3-235b-a22b", 94, 0),
        ("mixtral-8x22b", 56, 0), ("llama-3.1-8b", 32, 32),
    ],
)  # fmt: skip
def test_layers_are_of_the_published_kinds(name: str, layers: int, dense: int) -> None:
    kinds = decoder_kinds(load(Model, name))
    assert (len(kinds), kinds.count(Kind.DENSE)) == (layers, dense)


@pytest.mark.parametrize(
    ("name", "tflop_per_s", "gib", "tb_per_s", "node", "link_gb_per_s", "domain"),
    [
        ("atlas-900-a3", 376.0, 64.0, 1.6, 16, 196.0, 384),
        ("cloudmatrix384", 376.0, 64.0, 1.6, 16, 196.0, 2 * 384),  # two dies a module
        ("h800", 989.4, 80.0, 3.35, 8, 200.0, 8),
        ("b200", 2250.0, 180.0, 8.0, 8, 900.0, 8),
        ("gb200-nvl72", 2500.0, 186.0, 8.0, 4, 900.0, 72),
        ("gb300", 2500.0, 279.0, 8.0, 4, 900.0, 72),
    ],
)
def test_a_machine_has_the_published_shape(
    name: str, tflop_per_s: float, gib: float, tb_per_s: float, node: int, link_gb_per_s: float, domain: int
) -> None:
    cluster = load(Cluster, name)
    assert cluster.device.peak_flop_per_s == pytest.approx(tflop_per_s * TERA)
    assert 0.95 * gib * GIB < cluster.device.hbm_bytes <= gib * GIB, "what the runtime reports is a little less"
    assert cluster.device.hbm_bytes_per_s == pytest.approx(tb_per_s * TERA)
    assert cluster.node.size == node
    assert cluster.node.link_bytes_per_s == pytest.approx(link_gb_per_s * GIGA)
    assert cluster.inner.size == domain


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_supernode_holds_whole_nodes_and_is_no_faster(name: str) -> None:
    cluster = load(Cluster, name)
    if cluster.supernode is None:
        assert cluster.inner is cluster.node
        return
    assert cluster.supernode.size % cluster.node.size == 0
    assert cluster.supernode.effective_bytes_per_s <= cluster.node.effective_bytes_per_s
    assert cluster.supernode.effective_bytes_per_s > cluster.fabric.effective_bytes_per_s
    data = tomllib.loads((ROOT / "clusters" / f"{name}.toml").read_text())
    assert {f"supernode.{key}" for key in data["supernode"] if key != "name"} <= set(data["sources"])


@pytest.mark.parametrize("name", CLUSTERS + TARGETS)
def test_a_source_begins_with_how_well_a_number_is_known(name: str) -> None:
    entry: Any = load(Cluster, name) if name in CLUSTERS else load(Target, name)
    stated = [FITTED.sub("", text) for text in entry.sources.values()]
    assert {text.split(":")[0] for text in stated if text} <= set(FIRST_WORDS)
    assert all("assumed: " not in text or len(text) > len("assumed: as") for text in entry.sources.values())


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_names_its_version_and_known_rules(name: str) -> None:
    target = load(Target, name)
    assert re.search(r"\b([0-9a-f]{8}|r\d+\.\d+\.\d+)\b", target.title)
    assert set(target.rules) <= set(RULES)
    profile = tomllib.loads((ROOT / "targets" / f"{name}.toml").read_text())["profile"]
    assert {f"profile.{key}" for key in profile} == set(target.sources) - {"profile.pace"}


@pytest.mark.parametrize("name", TARGETS)
def test_rules_that_only_layouts_decide_follow_l01(name: str) -> None:
    rules = load(Target, name).rules
    first = rules.index("L01")
    assert [id for id in rules[:first] if RULES[id].holds is None] == []
