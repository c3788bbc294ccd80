"""`autodeploy export`: what is written where, and when nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from autodeploy.cli.exits import BAD_INPUT, DONE, NOTHING_FITS
from autodeploy.cli.export import run_export
from autodeploy.errors import SpecError
from autodeploy.formats.document import search_document, to_json
from autodeploy.formats.export import export
from autodeploy.search.evaluate import evaluate
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space
from tests.builders import SPACES, plan_of, space_of

LLAMA = SPACES[0]
LOSSLESS = "tp8/pp16/vpp1/dp8/mbs1"
LOSSY = "tp8/pp16/vpp5/dp8/mbs1"


@pytest.fixture
def lossless(tmp_path: Path) -> Path:
    """The Llama space with recompute `none`, whose plans Megatron can state whole, on memory enough for it."""
    text = LLAMA.read_text(encoding="utf-8").replace('recompute = ["fit"]', 'recompute = ["none"]')
    text = text.replace('target = "generic"', 'target = "megatron-core"').replace(
        'cluster = "h100-80g"', 'cluster = "b200"'
    )
    path = tmp_path / "space.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_without_losses_goes_to_stdout(lossless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_export(LOSSLESS, target="megatron-core", space_file=lossless, out=None, allow_loss=False)
    said = capsys.readouterr()
    assert code == DONE
    assert said.err == ""
    assert "\n--tensor-model-parallel-size 8 \\\n--pipeline-model-parallel-size 16 \\\n" in said.out


def test_or_to_a_file_whole(lossless: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "flags.sh"
    assert run_export(LOSSLESS, target="megatron-core", space_file=lossless, out=out, allow_loss=False) == DONE
    said = capsys.readouterr()
    assert said.out == ""
    assert all(line.startswith("note: ") for line in said.err.splitlines())
    assert out.read_text(encoding="utf-8").endswith("--overlap-param-gather\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flags.sh", "space.toml"]


def test_losses_are_all_listed_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "flags.sh"
    code = run_export(LOSSY, target="megatron-core", space_file=LLAMA, out=out, allow_loss=False)
    said = capsys.readouterr()
    assert code == BAD_INPUT
    assert said.out == ""
    assert not out.exists()
    assert "--allow-loss" in said.err
    assert "recompute mlp_act on stages 0-14" in said.err
    assert "recompute layernorm on stages 0-15" in said.err


def test_unless_they_are_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "flags.sh"
    assert run_export(LOSSY, target="megatron-core", space_file=LLAMA, out=out, allow_loss=True) == DONE
    said = capsys.readouterr()
    assert "loss: recompute mlp_act" in said.err
    assert "# loss: recompute mlp_act" in out.read_text(encoding="utf-8")


def document(path: Path, space: Space, *plans: Plan) -> Path:
    """A plan document."""
    found = search_document(space, [evaluate(space, plan) for plan in plans], "optimal", {}, {})
    path.write_text(to_json(found), encoding="utf-8")
    return path


def test_a_plan_of_a_document_by_its_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = space_of(LLAMA)
    plans = [plan_of(tp=8, pp=16, vpp=vpp, dp=8, recompute="fit") for vpp in (5, 4)]
    kept = document(tmp_path / "plans.json", space, *plans)
    for rank, plan in enumerate(plans, 1):
        code = run_export(f"{kept}#{rank}", target="mindformers-2026", space_file=None, out=None, allow_loss=False)
        assert code == DONE
        assert capsys.readouterr().out == export(space, evaluate(space, plan), "mindformers-2026").text


def test_a_plan_that_does_not_fit_is_written_and_said_to_be_too_large(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = document(tmp_path / "plans.json", space_of(LLAMA), plan_of(tp=8, pp=2, dp=64, recompute="full"))
    code = run_export(str(kept), target="megatron-core", space_file=None, out=None, allow_loss=True)
    said = capsys.readouterr()
    assert code == NOTHING_FITS
    assert "# note: does not fit in memory" in said.out
    assert "does not fit: " in said.err


@pytest.mark.parametrize(
    ("argument", "given", "message"),
    [
        (LOSSY, {"target": "torchtitan"}, "no export for 'torchtitan'"),
        (LOSSY, {"space_file": None}, "--space: missing"),
        ("plans.json", {}, "--space: not with a plan file"),
        ("tp7/pp16", {}, "breaks"),
        (LOSSY, {"out": Path("missing") / "flags.sh"}, "--out: the folder missing does not exist"),
    ],
)
def test_bad_input_is_refused_before_any_work(argument: str, given: dict, message: str) -> None:
    options = {"target": "megatron-core", "space_file": LLAMA, "out": None, "allow_loss": True} | given
    with pytest.raises(SpecError, match=message):
        run_export(argument, **options)
