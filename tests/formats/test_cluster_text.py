"""A cluster file with new numbers keeps everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from autodeploy.catalog.lookup import ROOT, names
from autodeploy.errors import SpecError
from autodeploy.formats.cluster_text import changed_text
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.constants import CONSTANTS, changed_fields, factor_bounds, scaled, stated
from autodeploy.spec.files import parse, read_mapping

NOTE = 'calibrated: a "test" of C:\\logs'


@pytest.mark.parametrize("name", names(Cluster))
def test_the_file_reads_as_the_changed_cluster(name: str, tmp_path: Path) -> None:
    path = ROOT / "clusters" / f"{name}.toml"
    before = parse(Cluster, read_mapping(path), source=name)
    after = scaled(before, {each.name: min(0.9, factor_bounds(before, each)[1]) for each in CONSTANTS})
    values = changed_fields(before, after)
    assert set(values) == {field for each in CONSTANTS for field in stated(before, each)}
    out = tmp_path / "mine.toml"
    out.write_text(changed_text(path.read_text(), values, dict.fromkeys(values, NOTE), "mine"))
    read = parse(Cluster, read_mapping(out), source="mine")
    assert {field: changed_fields(before, read)[field] for field in values} == pytest.approx(values, rel=1e-5)
    assert NOTE in read.sources.values()
    assert read.name == "mine"
    assert read.node.name == before.node.name
    old, new = path.read_text().splitlines(), out.read_text().splitlines()
    assert [line for line in old if line.startswith("#")] == [line for line in new if line.startswith("#")]


def test_a_number_that_the_file_does_not_state_is_refused() -> None:
    with pytest.raises(SpecError, match=r"device\.missing_frac: is not a number of this file"):
        changed_text('name = "x"\n', {"device.missing_frac": 0.5}, {}, "x")
