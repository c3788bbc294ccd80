"""Layouts in the words of the frameworks: what each means slot by slot, and what each must keep to.

Rules: Megatron-LM d98e8a64 transformer_config.py and transformer_block.py (V60, V68, V69), MindSpeed-LLM c77308a1
num_layer_list.py (V77), MindSpeed 028de58c noop_layers.py and unaligned_pineline_feature.py (V78, V79), mindformers
r1.5.0 models/utils.py LayerSetting (V85).
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.errors import Fault, SpecError
from autodeploy.formats.mindformers import offsets
from autodeploy.spec.layout import expand, layout_faults
from autodeploy.spec.layout_words import check_writing, is_word, notation_of
from autodeploy.spec.model import Model
from tests.builders import model_of

DENSE = model_of("llama-3.1-8b")
DEEPSEEK = model_of("deepseek-v3")
"""61 layers and one MTP module."""


def dense(layers: int, modules: int = 0) -> Model:
    return replace(DENSE, layers=layers, mtp_depth=modules)


def slots(text: str, layers: int, pp: int, vpp: int = 1, modules: int = 0) -> list[str]:
    return expand(notation_of(dense(layers, modules), True, pp, vpp, text))


def counts(text: str, layers: int, pp: int, vpp: int = 1, modules: int = 0) -> list[int]:
    """Decoder layers of every slot."""
    return [slot.count("t") for slot in slots(text, layers, pp, vpp, modules)]


MEANT = [
    # Megatron: the given stages, the others even; with chunks, a stage's layers are spread over them
    ("first:7,last:7", 32, 4, 1, [7, 9, 9, 7]),
    ("first:5", 32, 4, 1, [5, 9, 9, 9]),
    ("last:2", 32, 4, 1, [10, 10, 10, 2]),
    ("first:20,last:12", 32, 2, 1, [20, 12]),
    ("first:32", 32, 1, 1, [32]),
    ("first:6,last:6", 32, 4, 2, [3, 5, 5, 3, 3, 5, 5, 3]),
    # Megatron: Llama 3.1 405B, 126 layers on 16 x 8 chunks with embedding and loss counted (arXiv 2407.21783)
    ("account:embedding,loss", 126, 16, 8, [0, *[1] * 126, 0]),
    ("account:embedding", 31, 4, 1, [7, 8, 8, 8]),
    ("account:loss", 31, 4, 2, [4, 4, 4, 4, 4, 4, 4, 3]),
    ("account:embedding,loss", 32, 1, 1, [32]),
    # MindSpeed-LLM examples/mcore/llama31/pretrain_llama31_70b_8k_ptd.sh@216b3cee
    ("list:17,20,22,21", 80, 4, 1, [17, 20, 22, 21]),
    ("list:0,8", 8, 2, 1, [0, 8]),
    # MindSpeed docs, unaligned pipeline: [[0,1],[1,1]*4,[1,0]], by stage and chunk
    ("list:0,1;1,1;1,1;1,1;1,1;1,0", 10, 6, 2, [0, *[1] * 10, 0]),
    ("list:3,1;2,4", 10, 2, 2, [3, 2, 1, 4]),
    ("list:11;13;13;11", 48, 4, 1, [11, 13, 13, 11]),
    # MindSpeed: 46 layers padded to 48
    ("noop:0,47", 46, 4, 1, [11, 12, 12, 11]),
    ("noop:0,47", 46, 4, 2, [5, 6, 6, 6, 6, 6, 6, 5]),
    ("noop:5", 7, 2, 1, [4, 3]),
    # MindFormers configs/glm4/finetune_glm4_9b.yaml@2388c729; research/yi/finetune_yi_34b.yaml@c03cc9f2
    ("offset:-1,0,1,0", 40, 4, 1, [9, 10, 11, 10]),
    ("offset:-1,1,1,-1", 60, 4, 1, [14, 16, 16, 14]),
    ("offset:0,1;0,2", 15, 2, 2, [3, 4, 3, 5]),
    ("offset:0", 32, 1, 1, [32]),
]


@pytest.mark.parametrize(("text", "layers", "pp", "vpp", "wanted"), MEANT)
def test_a_word_means_the_layers_that_its_framework_builds(
    text: str, layers: int, pp: int, vpp: int, wanted: list[int]
) -> None:
    assert counts(text, layers, pp, vpp) == wanted
    found = slots(text, layers, pp, vpp)
    assert found[0].startswith("E")
    assert found[-1].endswith("L")


def test_mtp_follows_the_last_layer() -> None:
    """Megatron multi_token_prediction.py: without a layout, all MTP layers sit on the last stage (V72)."""
    words = ("first:2,last:2", "account:embedding,loss", "list:3,3,2,2", "noop:0,11", "offset:0,1,1,0")
    for text in words:
        assert slots(text, 10, 4, modules=1)[-1].endswith("tmL")
        assert slots(text, 10, 4)[-1].endswith("tL")


def test_noops_of_deepseek_v3_may_leave_the_last_slot_to_mtp_and_head() -> None:
    """61 layers padded to 64, no-ops 47, 62 and 63 on 16 stages of 2 chunks."""
    found = expand(notation_of(DEEPSEEK, True, 16, 2, "noop:47,62,63"))
    assert found == ["Ett", *["tt"] * 22, "t", *["tt"] * 7, "mL"]


def test_offsets_of_deepseek_v3_count_mtp_or_not_by_their_sum() -> None:
    """r1.5.0 research/deepseek3: offsets of 1 on all stages but the last, -1 there; 62 = 61 + MTP on 16 stages. The
    newer generation leaves MTP out: 61 layers leave 13."""
    older = "offset:" + ",".join(["1"] * 15 + ["-1"])
    newer = "offset:" + ",".join(["1"] * 15 + ["-2"])
    wanted = "Et*4|(t*4|)*14tmL"
    assert notation_of(DEEPSEEK, True, 16, 1, newer) == wanted
    assert expand(notation_of(DEEPSEEK, True, 16, 1, older))[-1] == "tmL"
    assert notation_of(DEEPSEEK, True, 16, 1, older) == wanted
    with pytest.raises(SpecError, match=r"V85.*13, or 14 with MTP counted"):
        notation_of(DEEPSEEK, True, 16, 1, "offset:" + ",".join(["1"] * 16))


REFUSED = [
    ("first:0", 32, 4, 1, "V68"),
    ("first:-2,last:4", 32, 4, 1, "first is -2"),
    ("last:0", 32, 4, 1, "last is 0"),
    ("first:20,last:13", 32, 4, 1, "more than the 32 layers"),
    ("first:16,last:16", 32, 4, 1, "0 layers are left for 2"),
    ("first:10,last:10", 32, 2, 1, "12 layers are left for 0"),
    ("first:7,last:6", 32, 4, 1, "19 layers are left for 2"),
    ("first:7,last:7", 32, 4, 2, "7 layers of a stage do not divide by vpp 2"),
    ("first:4,last:4", 30, 4, 2, "11 layers of a stage"),
    ("last:32", 32, 1, 1, "V69"),
    ("first:16,last:16", 32, 1, 1, "V69"),
    ("first:16", 32, 1, 1, "V68"),
    ("account:embedding", 32, 4, 1, "V60"),
    ("account:embedding,loss", 30, 4, 3, "V60"),
    ("list:8,8,8", 32, 4, 1, "sums to 24"),
    ("list:8,8,8,9", 32, 4, 1, "sums to 33"),
    ("list:8,8,16", 32, 4, 1, "lists 3 stages, but pp is 4 .rule V77"),
    ("list:8,8,8,-8", 32, 4, 1, "lists -8 layers"),
    ("list:16,0,8,8", 32, 4, 1, "stage 1 holds no layer"),
    ("list:16,16", 32, 2, 2, "V77"),
    ("list:32", 32, 1, 1, "V77"),
    ("list:8,8;8,8", 32, 4, 2, "lists 2 stages, but pp is 4 .rule V79"),
    ("list:8,8;8,8", 32, 2, 1, "stage 0 lists 2 chunks, but vpp is 1 .rule V79"),
    ("list:8,8;16", 32, 2, 2, "stage 1 lists 1 chunks"),
    ("list:16,16;0,0", 32, 2, 2, "stage 1 chunk 0 holds no layer"),
    ("noop:0,34", 32, 2, 1, "layer 34 is none of 32 . 2"),
    ("noop:-1,0", 32, 2, 1, "V78"),
    ("noop:3,3", 32, 2, 1, "twice"),
    ("noop:0,1", 32, 4, 1, "34 do not divide"),
    ("noop:2,3", 6, 4, 1, "stage 1 holds only no-ops"),
    ("noop:4,5", 6, 2, 2, "stage 0 chunk 1 holds only no-ops"),
    ("offset:0,1,0,0", 32, 4, 1, "sums to 1"),
    ("offset:0,0,0,0", 33, 4, 1, "leave 1"),
    ("offset:0,0,0", 32, 4, 1, "lists 3 stages, but pp is 4"),
    ("offset:0,0,0,0", 32, 4, 2, "1 lists of stages, but vpp is 2"),
    ("offset:0,9,-9,0", 32, 4, 1, "leaves -1 layers to stage 2"),
    ("offset:0,8,-8,0", 32, 4, 1, "stage 2 holds no layer"),
]


@pytest.mark.parametrize(("text", "layers", "pp", "vpp", "said"), REFUSED)
def test_a_word_that_does_not_cut_the_model_is_refused_by_one_fault(
    text: str, layers: int, pp: int, vpp: int, said: str
) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        notation_of(dense(layers), True, pp, vpp, text)
    assert len(caught.value.faults) == 1


MALFORMED = (
    "first:", "first:a", "first:1.5", "first:1,2", "last:1,first:1", "first:1,last:", "first:01", "account:",
    "account:head", "account:loss,embedding", "list:", "list:4,", "list:,4", "list:4,,4", "list:4;", "list:4, 4",
    "list:[4,4]", "list:4-4", "list:+4", "list:-0", "list:999999", "noop:", "noop:1;2", "offset:", "offset:1,a",
    "offset:--1",
)  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_word_is_refused_with_its_form(text: str) -> None:
    assert is_word(text)
    with pytest.raises(SpecError) as caught:
        check_writing(text)
    (fault,) = caught.value.faults
    assert repr(text) in fault.problem
    assert text.partition(":")[0] + ":" in fault.allowed


@pytest.mark.parametrize("text", ["auto", "even", "light", "apart", "late", "Et*3|(tt|)*29m|L"])
def test_rules_and_strings_are_no_words(text: str) -> None:
    assert not is_word(text)
    check_writing(text)


@pytest.mark.parametrize("text", ["evn", "list", "lists:4,4", "first=4", "", "Et|t", "even|"])
def test_what_is_none_of_them_is_refused_with_all_that_is_allowed(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_writing(text)
    (fault,) = caught.value.faults
    for word in ("auto", "even", "Et*3|(tt|)*29m|L", "first:", "account:", "list:", "noop:", "offset:"):
        assert word in fault.allowed


def test_a_layout_string_is_given_back_as_it_is() -> None:
    assert notation_of(DEEPSEEK, True, 16, 2, "Et*3|(tt|)*29m|L") == "Et*3|(tt|)*29m|L"
    with pytest.raises(SpecError, match="30 slots"):
        notation_of(dense(32), True, 2, 1, "Et*3|(t|)*28tL")
    with pytest.raises(SpecError) as caught:
        notation_of(dense(32), True, 2, 1, "Et*30|m||")
    assert len(caught.value.faults) == 1, "all that is wrong with one layout is one fault"


NUMBER = st.integers(-2, 12)
PP, VPP, MODULES = st.integers(1, 6), st.integers(1, 3), st.integers(0, 2)


def joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


@st.composite
def words(draw: st.DrawFn, pp: int, vpp: int) -> str:
    """A word of the right size for a pipeline, whose numbers may be any."""
    by_stage, by_chunk = (
        ";".join(joined(draw(st.lists(NUMBER, min_size=inner, max_size=inner))) for _ in range(outer))
        for outer, inner in ((pp, vpp), (vpp, pp))
    )
    numbers = joined(draw(st.lists(st.integers(0, 30), min_size=1, max_size=6)))
    ends = f"first:{draw(NUMBER)}", f"last:{draw(NUMBER)}"
    accounts = tuple(f"account:{each}" for each in ("embedding", "loss", "embedding,loss"))
    lists = f"list:{by_stage}", f"list:{by_chunk}", f"offset:{by_chunk}", f"noop:{numbers}"
    return draw(st.sampled_from([*ends, ",".join(ends), *accounts, *lists]))


@given(st.data())
def test_every_word_is_a_legal_layout_or_one_fault(data: st.DataObject) -> None:
    pp, vpp, modules = (data.draw(each) for each in (PP, VPP, MODULES))
    text = data.draw(words(pp, vpp))
    listed = sum(int(number) for number in re.findall(r"-?\d+", text))
    model = dense(data.draw(st.sampled_from([max(listed, 1), pp * vpp * 4, 31])), modules)
    faults: tuple[Fault, ...] = ()
    try:
        found = expand(notation_of(model, True, pp, vpp, text))
    except SpecError as error:
        faults = error.faults
    if faults:
        assert len(faults) == 1
    else:
        assert layout_faults(model, True, pp, vpp, found) == []


SOME = st.integers(1, 9)


@given(st.lists(st.lists(SOME, min_size=2, max_size=2), min_size=2, max_size=6), MODULES)
def test_a_list_by_stage_and_chunk_holds_what_it_lists(listed: list[list[int]], modules: int) -> None:
    layers = sum(map(sum, listed))
    found = counts("list:" + ";".join(map(joined, listed)), layers, len(listed), 2, modules)
    assert [found[stage :: len(listed)] for stage in range(len(listed))] == listed


@given(st.lists(SOME, min_size=2, max_size=9), MODULES)
def test_a_list_by_stage_holds_what_it_lists(listed: list[int], modules: int) -> None:
    assert counts("list:" + joined(listed), sum(listed), len(listed), 1, modules) == listed
    assert counts("list:" + ";".join(map(str, listed)), sum(listed), len(listed), 1, modules) == listed


@given(SOME, SOME, SOME, st.integers(3, 6), VPP)
def test_first_and_last_hold_their_counts_and_the_others_are_equal(
    first: int, last: int, each: int, pp: int, vpp: int
) -> None:
    layers = vpp * (first + last + each * (pp - 2))
    found = counts(f"first:{first * vpp},last:{last * vpp}", layers, pp, vpp)
    assert found == [first, *[each] * (pp - 2), last] * vpp


@given(st.integers(2, 9), PP, VPP, st.booleans(), st.booleans())
def test_ends_that_count_as_layers_make_slots_equal(each: int, pp: int, vpp: int, embedding: bool, loss: bool) -> None:
    if not embedding and not loss:
        return
    text = "account:" + ",".join(name for name, on in (("embedding", embedding), ("loss", loss)) if on)
    found = slots(text, each * pp * vpp - embedding - loss, pp, vpp)
    assert {slot.count("t") + embedding * slot.count("E") + loss * slot.count("L") for slot in found} == {each}


@given(st.integers(1, 6), st.integers(1, 5), VPP, st.data())
def test_noops_are_left_out_of_the_padded_layers_where_they_stand(
    each: int, pp: int, vpp: int, data: st.DataObject
) -> None:
    padded = ["t"] * (each * pp * vpp)
    numbers = data.draw(st.sets(st.integers(0, len(padded) - 1), min_size=1, max_size=len(padded)))
    for number in numbers:
        padded[number] = ""
    wanted = ["".join(padded[i : i + each]) for i in range(0, len(padded), each)]
    layers = len("".join(wanted))
    inner = wanted[1:-1]
    text = "noop:" + joined(sorted(numbers))
    if layers and all(inner):
        assert counts(text, layers, pp, vpp) == list(map(len, wanted))
    elif layers:
        with pytest.raises(SpecError, match="holds only no-ops"):
            counts(text, layers, pp, vpp)


@given(st.lists(SOME, min_size=6, max_size=6), st.sampled_from([(6, 1), (3, 2), (2, 3)]), st.booleans())
def test_offsets_that_are_exported_are_read_back(layers: list[int], shape: tuple[int, int], with_mtp: bool) -> None:
    """Both generations: MTP counted in the last slot, or left out."""
    pp, vpp = shape
    held = [*layers[:-1], layers[-1] + with_mtp]
    written = offsets([held[chunk * pp : (chunk + 1) * pp] for chunk in range(vpp)])
    text = "offset:" + ";".join(map(joined, written))
    assert counts(text, sum(layers), pp, vpp, modules=1) == layers
