"""A space file with a mistake is refused before anything is done, in words that name the place and the value."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.asking import SMALL, edited, refused, search

MODELS = "deepseek-v3"
"""A name that must stand in a list of the models of the catalog."""


def wrong(old: str, new: str) -> str:
    """The small space with one passage replaced."""
    return edited(SMALL, (old, new))


def in_plan(line: str) -> str:
    """The small space with one more line in [plan]."""
    return SMALL + line + "\n"


FORMS = {
    "not_toml": ("tp: [1, 2]\n", "TOML"),
    "truncated": (SMALL[: SMALL.index("job]")], "TOML"),
    "key_twice": (wrong("gbs = 128", "gbs = 128\ngbs = 256"), "TOML"),
    "empty": ("", "model: missing", "cluster: missing", "devices: missing", "job: missing", "plan: missing"),
}
KEYS = {
    "unknown_at_the_top": (wrong("devices = 64", "devices = 64\ndevces = 8"), "devces", "did you mean 'devices'"),
    "unknown_in_job": (wrong("gbs = 128", "gbs = 128\nseqlen = 1"), "job.seqlen", "did you mean 'seq_len'"),
    "unknown_in_plan": (in_plan("dispach = ['flat']"), "plan.dispach", "did you mean 'dispatch'", "overlap"),
    "missing_at_the_top": (wrong("devices = 64\n", ""), "devices: missing"),
    "missing_in_job": (wrong("seq_len = 4096\n", ""), "job.seq_len: missing"),
    "missing_in_plan": (wrong("tp = [1, 2]\n", ""), "plan.tp: missing"),
    "unit_where_there_is_none": (wrong("seq_len = 4096", "seq_len_gib = 4096"), "job.seq_len_gib", "seq_len: missing"),
    "number_for_a_table": (wrong(SMALL[SMALL.index("[plan]") :], "[plan.tp]\na = 1\n"), "plan.tp", "plan.pp: missing"),
}
TYPES = {
    "text_for_a_count": (wrong("devices = 64", 'devices = "64"'), "devices", "'64'", "integer"),
    "fraction_for_a_count": (wrong("devices = 64", "devices = 64.5"), "devices", "64.5", "integer"),
    "float_for_a_count": (wrong("gbs = 128", "gbs = 128.0"), "job.gbs", "128.0", "integer"),
    "boolean_for_a_count": (wrong("gbs = 128", "gbs = true"), "job.gbs", "True", "integer"),
    "date_for_a_count": (wrong("gbs = 128", "gbs = 2025-01-01"), "job.gbs", "2025-01-01", "integer"),
    "texts_for_degrees": (wrong("tp = [1, 2]", 'tp = ["1", "2"]'), "plan.tp[0]", "'1'", "integer"),
    "number_for_a_list": (wrong("mbs = [1]", "mbs = 1"), "plan.mbs", "array", "1"),
    "boolean_in_a_list": (wrong("mbs = [1]", "mbs = [true]"), "plan.mbs[0]", "True", "integer"),
    "number_for_a_name": (wrong('"mixtral-8x7b"', "8"), "model", "8", "string"),
    "text_for_a_number": (wrong("gbs = 128", 'gbs = 128\nexpert_imbalance = "1.2"'), "job.expert_imbalance", "'1.2'"),
    "number_for_a_boolean": (wrong("gbs = 128", "gbs = 128\nmtp = 1"), "job.mtp", "1", "boolean"),
}
RANGES = {
    "no_device": (wrong("devices = 64", "devices = 0"), "devices", "greater than 0", "not 0"),
    "negative_batch": (wrong("gbs = 128", "gbs = -128"), "job.gbs", "greater than 0", "-128"),
    "zero_degree": (wrong("mbs = [1]", "mbs = [1, 0]"), "plan.mbs[1]", "greater than 0", "not 0"),
    "negative_degree": (wrong("tp = [1, 2]", "tp = [1, -2]"), "plan.tp[1]", "greater than 0", "-2"),
    "half_a_degree": (wrong("tp = [1, 2]", "tp = [1.5]"), "plan.tp[0]", "1.5", "integer"),
    "not_a_number": (wrong("gbs = 128", "gbs = 128\nexpert_imbalance = nan"), "job.expert_imbalance", "nan", "finite"),
    "infinite": (wrong("gbs = 128", "gbs = 128\nexpert_imbalance = inf"), "job.expert_imbalance", "inf", "finite"),
    "below_the_mean": (wrong("gbs = 128", "gbs = 128\nexpert_imbalance = 0.9"), "job.expert_imbalance", "0.9", "1"),
    "no_value": (wrong("mbs = [1]", "mbs = []"), "plan.mbs", "no value"),
    "no_value_of_sp": (in_plan("sp = []"), "plan.sp", "no value"),
    "value_twice": (wrong("tp = [1, 2]", "tp = [1, 2, 1]"), "plan.tp", "1 twice"),
    "word_twice": (in_plan('overlap = ["pair", "pair"]'), "plan.overlap", "twice"),
}
WORDS = {
    "model": (wrong("mixtral-8x7b", "mixtral-8x7"), "model", "'mixtral-8x7'", "'mixtral-8x7b'", MODELS),
    "cluster": (wrong("h100-80g", "h10-80g"), "cluster", "'h10-80g'", "'h100-80g'", "atlas-800t-a2"),
    "target": (wrong("devices", 'target = "genric"\ndevices'), "target", "'genric'", "'generic'"),
    "name_like_nothing": (wrong("mixtral-8x7b", "zzz"), "model", "'zzz'", MODELS),
    "precision": (wrong("gbs = 128", 'gbs = 128\nprecision = "fp4"'), "job.precision", "'fp4'", "'bf16'", "'nvfp4'"),
    "overlap": (in_plan('overlap = ["pairs"]'), "plan.overlap[0]", "'pairs'", "'none'", "'pair'"),
    "dispatch": (in_plan('dispatch = ["tree"]'), "plan.dispatch[0]", "'tree'", "'flat'", "'hier'"),
    "zero": (in_plan("zero = [4]"), "plan.zero[0]", "4", "2 or 3"),
    "layout": (in_plan('layout = ["evn"]'), "plan.layout", "evn", "even", "light", "apart"),
    "recompute": (in_plan('recompute = ["ful"]'), "plan.recompute", "ful", "none", "fit", "full", "moe_act"),
    "degrees": (wrong("tp = [1, 2]", 'tp = "all"'), "plan.tp", "'all'", "'divisors'"),
}
MACHINE = {
    "not_whole_nodes": (wrong("devices = 64", "devices = 60"), "devices", "60", "nodes of 8", "56", "64", "N01"),
    "sequence_too_long": (wrong("= 4096", "= 65536"), "job.seq_len", "65536", "mixtral-8x7b", "32768"),
}
CASES = FORMS | KEYS | TYPES | RANGES | WORDS | MACHINE


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(folder: Path, case: str) -> None:
    text, *parts = CASES[case]
    path = folder / "space.toml"
    path.write_text(text)
    said = refused(folder, "search", path, "--out", folder / "plans.json")
    for part in parts:
        assert part in said


ONE_MISTAKE = {
    "count": wrong("devices = 64", "devices = -8"),
    "word": in_plan('overlap = ["pairs"]'),
    "list_of_counts": wrong("mbs = [1]", "mbs = [0]"),
}
ONE_MISTAKE_IN_A_DEGREE = {
    "number_for_a_list": wrong("tp = [1, 2]", "tp = 8"),
    "zero": wrong("tp = [1, 2]", "tp = [1, 0]"),
    "word": wrong("tp = [1, 2]", 'tp = "all"'),
}


@pytest.mark.parametrize("case", ONE_MISTAKE)
def test_one_mistake_is_one_fault(folder: Path, case: str) -> None:
    path = folder / "space.toml"
    path.write_text(ONE_MISTAKE[case])
    assert len(refused(folder, "search", path).splitlines()) == 1


@pytest.mark.parametrize("case", ONE_MISTAKE_IN_A_DEGREE)
def test_one_mistake_in_a_degree_is_one_fault(folder: Path, case: str) -> None:
    path = folder / "space.toml"
    path.write_text(ONE_MISTAKE_IN_A_DEGREE[case])
    assert len(refused(folder, "search", path).splitlines()) == 1


def test_all_mistakes_of_a_file_are_named_at_once(folder: Path) -> None:
    path = folder / "space.toml"
    path.write_text(
        edited(
            SMALL,
            ("devices = 64", "devices = 0\nextra = 1"),
            ("gbs = 128", 'gbs = "many"'),
            ("seq_len = 4096\n", ""),
            ("mbs = [1]", 'mbs = [1]\noverlap = ["all"]'),
        )
    )
    said = refused(folder, "search", path)
    assert str(path) in said
    for place in ("devices", "extra", "job.gbs", "job.seq_len", "plan.overlap[0]"):
        assert f"  {place}:" in said


def test_all_unknown_names_are_named_at_once(folder: Path) -> None:
    path = folder / "space.toml"
    path.write_text(edited(SMALL, ("mixtral-8x7b", "mixtral"), ("h100-80g", "h10"), ("devices", 'target="x"\ndevices')))
    said = refused(folder, "search", path)
    for place in ("model", "cluster", "target"):
        assert f"  {place}: unknown" in said


def test_values_that_no_plan_can_have_are_named_at_once(folder: Path) -> None:
    path = folder / "space.toml"
    path.write_text(edited(SMALL, ("devices = 64", "devices = 60"), ("= 4096", "= 65536"), ("[1, 2]\npp", "[]\npp")))
    said = refused(folder, "search", path)
    for place in ("devices", "job.seq_len", "plan.tp"):
        assert f"  {place}: " in said


@pytest.mark.parametrize("suffix", ["", ".txt", ".tml", ".ini"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(folder: Path, suffix: str) -> None:
    path = folder / f"space{suffix}"
    path.write_text(SMALL)
    said = refused(folder, "search", path)
    assert str(path) in said
    for known in (".toml", ".yaml", ".json"):
        assert known in said


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    assert "absent.toml" in refused(folder, "search", "absent.toml")


def test_a_folder_is_no_space_file(folder: Path) -> None:
    (folder / "space.toml").mkdir()
    assert "space.toml" in refused(folder, "search", "space.toml")


def test_bytes_that_are_no_text_are_refused(folder: Path) -> None:
    (folder / "space.toml").write_bytes(b"\xff\xfe\x00model")
    assert "UTF-8" in refused(folder, "search", "space.toml")


@pytest.mark.parametrize(("suffix", "text"), [(".json", '{"model": '), (".json", "[1, 2]"), (".json", "")])
def test_bad_json_is_refused(folder: Path, suffix: str, text: str) -> None:
    path = folder / f"space{suffix}"
    path.write_text(text)
    assert str(path) in refused(folder, "search", path)


NO_LEGAL_PLAN = {
    "batch_that_cannot_be_divided": (("gbs = 128", "gbs = 7"), ("[1, 2, 4]", "[1]"), ("vpp = [1, 2]", "vpp = [1]")),
    "heads_that_do_not_divide": (("tp = [1, 2]", "tp = [3]"),),
    "experts_that_do_not_divide": (("ep = [1, 8]", "ep = [16]"),),
}
RULE_OF = {
    "batch_that_cannot_be_divided": "V90",
    "heads_that_do_not_divide": "V01",
    "experts_that_do_not_divide": "V100",
}


@pytest.mark.parametrize("case", NO_LEGAL_PLAN)
def test_a_space_without_a_legal_plan_gets_one_message(folder: Path, case: str) -> None:
    path = folder / "space.toml"
    path.write_text(edited(SMALL, *NO_LEGAL_PLAN[case]))
    assert RULE_OF[case] in refused(folder, "search", path, "--out", folder / "plans.json")


def test_a_space_without_a_legal_plan_counts_the_rules_and_writes_nothing(folder: Path) -> None:
    path = folder / "space.toml"
    path.write_text(edited(SMALL, *NO_LEGAL_PLAN["batch_that_cannot_be_divided"]))
    result = search(path, "--out", folder / "plans.json")
    assert result.exit_code == 2
    assert result.stdout == ""
    said = result.stderr.splitlines()[-1]
    assert said.startswith("error: ")
    assert "4 by V90: gbs must be a multiple of mbs x dp" in said  # tp 1 and 2, ep 1 and 8
    assert [path.name for path in folder.iterdir()] == ["space.toml"]


FILES_OF_A_SPACE = {
    "absent": ("model.toml", None, "model.toml"),
    "empty": ("model.toml", "", "hidden: missing"),
    "cluster": ("cluster.toml", "name = 1", "name"),
}


@pytest.mark.parametrize("case", FILES_OF_A_SPACE)
def test_a_mistake_in_a_file_that_the_space_names_is_reported_under_that_file(folder: Path, case: str) -> None:
    name, text, part = FILES_OF_A_SPACE[case]
    if text is not None:
        (folder / name).write_text(text)
    path = folder / "space.toml"
    path.write_text(wrong("h100-80g" if name == "cluster.toml" else "mixtral-8x7b", name))
    said = refused(folder, "search", path)
    assert name in said
    assert part in said
