"""Layouts: the notation loses nothing, and every rule puts each layer in one slot, in order.

Notation: NVIDIA/Megatron-LM:megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.analysis.inventory import kind_counts
from autodeploy.balance.layouts import candidates, layer_units, resolve, spread
from autodeploy.errors import SpecError
from autodeploy.spec.layout import Layout, compress, expand, make_layout
from autodeploy.spec.model import KINDS, Kind
from autodeploy.spec.plan import LAYOUT_RULES
from tests.builders import job_of, model_of

MODELS = ("pangu-ultra-moe-718b", "deepseek-v3", "llama-3.1-405b", "gpt3-175b")
SHAPES = ((1, 1), (2, 1), (3, 1), (4, 2), (6, 1), (8, 4), (16, 2), (9, 7), (20, 3), (63, 1))
RESOLVED = [
    (name, rule, pp, vpp)
    for name in MODELS
    for rule in LAYOUT_RULES
    for pp, vpp in SHAPES
    if resolve(model_of(name), job_of(), pp, vpp, rule)
]
SLOTS = st.lists(st.text("EtmL", max_size=6), min_size=1, max_size=40)
BAD = ("Ex", "E(t", "Et)*2|L", "Et*", "Et*|L", "*2", "E t(*3)", "e", "E,t", "Et*-1|L", "((t)", "t*2)")


def layout_of(name: str, rule: str, pp: int, vpp: int) -> Layout:
    layout = resolve(model_of(name), job_of(), pp, vpp, rule)
    assert layout is not None
    return layout


@given(slots=SLOTS)
def test_what_is_compressed_expands_to_the_same(slots: list[str]) -> None:
    assert expand(compress(slots)) == slots


@pytest.mark.parametrize(
    ("slots", "notation"),
    [
        (["ttt"] * 5, "(t*3|)*4t*3"),
        (["Et", "tt", "tt", "L"], "Et|(tt|)*2L"),
        (["EtL"], "EtL"),
        (["E", "tttt", "m", "L"], "E|t*4|m|L"),
    ],
)
def test_runs_are_written_once(slots: list[str], notation: str) -> None:
    assert compress(slots) == notation


@pytest.mark.parametrize(
    ("notation", "slots"),
    [
        ("E|t*3|mL", ["E", "ttt", "mL"]),
        ("Et*2|(tt|)*2mL", ["Ett", "tt", "tt", "mL"]),
        ("E((t|)*2m|)*2L", ["Et", "t", "m", "t", "t", "m", "L"]),
        (" E t | L ", ["Et", "L"]),
        ("(Et)*1L", ["EtL"]),
    ],
)
def test_notation_is_read_as_megatron_reads_it(notation: str, slots: list[str]) -> None:
    assert expand(notation) == slots


@pytest.mark.parametrize("notation", BAD)
def test_what_is_not_notation_is_refused(notation: str) -> None:
    with pytest.raises(SpecError, match="layout"):
        expand(notation)


@pytest.mark.parametrize(
    ("notation", "fault"),
    [
        ("Et*60|mL", "60 decoder layers"),
        ("Et*61L", "1 slots"),
        ("Et*61|L", "0 MTP modules"),
        ("t*61|mL", "one E and one L"),
        ("Et*61|m", "one E and one L"),
        ("Emt*61|L", "order"),
        ("t*61E|mL", "order"),
        ("Et*61|Lm", "order"),
        ("Et*61mL|", "slot 1 is empty"),
    ],
)
def test_a_layout_that_is_not_the_model_is_refused(notation: str, fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        make_layout(model_of("pangu-ultra-moe-718b"), True, 2, 1, notation)


def test_every_fault_of_a_layout_is_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        make_layout(model_of("pangu-ultra-moe-718b"), True, 2, 1, "Et*60|m||")
    assert len(caught.value.faults) >= 4


def test_the_published_layout_of_718b_is_the_rule_apart() -> None:
    # Pangu Ultra MoE on 16 stages of 2 chunks: arXiv 2505.04519
    assert layout_of("pangu-ultra-moe-718b", "apart", 16, 2).notation == "Et*3|(tt|)*29m|L"


@pytest.mark.parametrize(("name", "rule", "pp", "vpp"), RESOLVED)
def test_a_rule_places_every_layer_once_and_in_order(name: str, rule: str, pp: int, vpp: int) -> None:
    model, layout = model_of(name), layout_of(name, rule, pp, vpp)
    joined = "".join(expand(layout.notation))
    assert joined == "E" + "t" * model.layers + "m" * model.mtp_depth + "L"
    assert len(layout.slots) == pp * vpp == len(expand(layout.notation))


@pytest.mark.parametrize(("name", "rule", "pp", "vpp"), RESOLVED)
def test_slots_hold_the_kinds_in_the_order_of_the_model(name: str, rule: str, pp: int, vpp: int) -> None:
    layout, counts = layout_of(name, rule, pp, vpp), kind_counts(model_of(name), mtp=True)
    held = {kind: [slot[kind] for slot in layout.slots] for kind in KINDS}
    assert {kind: sum(column) for kind, column in held.items()} == {kind: counts.get(kind, 0) for kind in KINDS}
    used = [kind for kind in KINDS if counts.get(kind)]
    for lower, upper in pairwise(used):
        begun = next(i for i, n in enumerate(held[upper]) if n)
        done = [i for i, n in enumerate(held[lower]) if n][-1]
        assert done <= begun


@pytest.mark.parametrize(("name", "rule", "pp", "vpp"), RESOLVED)
def test_roles_are_the_stages_with_equal_contents(name: str, rule: str, pp: int, vpp: int) -> None:
    layout = layout_of(name, rule, pp, vpp)
    slots = expand(layout.notation)
    assert sorted(stage for role in layout.roles for stage in role.stages) == list(range(pp))
    for stage in range(pp):
        role = layout.roles[layout.role_of_stage[stage]]
        assert stage in role.stages
        assert role.chunks == tuple(layout.slots[stage::pp])
        letters = "".join(slots[stage::pp])
        assert letters.count("t") == role.count(Kind.DENSE) + role.count(Kind.SPARSE)
    assert len({role.chunks for role in layout.roles}) == len(layout.roles)
    assert all(role.stages == tuple(sorted(role.stages)) for role in layout.roles)


@pytest.mark.parametrize(("pp", "vpp"), SHAPES)
@pytest.mark.parametrize("name", MODELS)
def test_even_counts_differ_by_one_with_the_extra_ones_first(name: str, pp: int, vpp: int) -> None:
    layout = resolve(model_of(name), job_of(), pp, vpp, "even")
    if layout is None:
        assert pp * vpp > model_of(name).layers
        return
    counts = [slot.count("t") for slot in expand(layout.notation)]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@given(items=st.integers(0, 500), slots=st.integers(1, 100))
def test_spreading_loses_nothing(items: int, slots: int) -> None:
    counts = spread(items, slots)
    assert (len(counts), sum(counts)) == (slots, items)
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(("pp", "vpp"), [(4, 2), (8, 2), (16, 2)])
@pytest.mark.parametrize("name", ["pangu-ultra-moe-718b", "deepseek-v3", "llama-3.1-405b"])
def test_light_ends_weigh_no_more_than_a_layer_above_the_rest(name: str, pp: int, vpp: int) -> None:
    model, layout = model_of(name), layout_of(name, "light", pp, vpp)
    units = layer_units(model, job_of()) | {Kind.DENSE: 1.0, Kind.SPARSE: 1.0}
    weights = [
        sum(count * units.get(kind, 0.0) for kind, count in zip(KINDS, slot, strict=True)) for slot in layout.slots
    ]
    middle = max(weights[1:-1])
    assert weights[0] <= middle + 1.0
    assert weights[-1] <= middle + 1.0 or expand(layout.notation)[-1].count("t") == 0


@pytest.mark.parametrize(("name", "rule", "pp", "vpp"), [row for row in RESOLVED if row[1] == "apart"])
def test_apart_gives_mtp_and_head_slots_of_their_own(name: str, rule: str, pp: int, vpp: int) -> None:
    slots = expand(layout_of(name, rule, pp, vpp).notation)
    assert slots[-1] == "L"
    assert not model_of(name).mtp_depth or slots[-2] == "m"


@pytest.mark.parametrize(("pp", "vpp"), SHAPES)
def test_auto_offers_each_layout_once_in_the_stated_order(pp: int, vpp: int) -> None:
    model = model_of("pangu-ultra-moe-718b")
    offered = candidates(model, job_of(), pp, vpp, "auto")
    places = [LAYOUT_RULES.index(rule) for rule, _ in offered]
    assert places == sorted(places)
    assert len({layout.notation for _, layout in offered}) == len(offered)
    alone = [resolve(model, job_of(), pp, vpp, rule) for rule in LAYOUT_RULES]
    assert {layout.notation for _, layout in offered} == {layout.notation for layout in alone if layout}


@pytest.mark.parametrize(("pp", "vpp"), [(64, 1), (32, 2), (128, 1)])
def test_no_rule_leaves_a_slot_empty(pp: int, vpp: int) -> None:
    for _, layout in candidates(model_of("pangu-ultra-moe-718b"), job_of(), pp, vpp, "auto"):
        assert all(expand(layout.notation))


def test_a_given_layout_is_taken_as_it_is() -> None:
    model, notation = model_of("pangu-ultra-moe-718b"), "Et*10|t*20|t*31|mL"
    [(rule, layout)] = candidates(model, job_of(), 4, 1, notation)
    assert (rule, layout.notation) == (notation, notation)
    assert [slot.count("t") for slot in expand(layout.notation)] == [10, 20, 31, 0]
    assert candidates(model, job_of(), 5, 1, notation) == []


@pytest.mark.parametrize("first", [0, 3, 10])
def test_dense_layers_lie_where_the_model_has_them(first: int) -> None:
    model = model_of("pangu-ultra-moe-718b")
    layout = make_layout(model, True, 2, 1, f"Et*{first}|t*{61 - first}mL" if first else "E|t*61mL")
    assert [slot[Kind.DENSE] for slot in layout.slots] == [min(first, 3), 3 - min(first, 3)]
    assert list(accumulate(slot[Kind.SPARSE] for slot in layout.slots))[-1] == 58
