"""Chunks that are alike choose alike: few classes are left, what is chosen fits, and it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.balance.selection import greedy, select
from autodeploy.balance.selection_values import LayerClass, Part, StageNeed, evaluate, fits
from autodeploy.search.alike import MOST_CLASSES, apart, groups_of, joined, select_within

PARTS = (
    Part(name="norm", kept_bytes=3.0, rebuild_s=1.0, swap=False, in_full=True),
    Part(name="act", kept_bytes=8.0, rebuild_s=5.0, swap=True, in_full=True),
    Part(name="rest", kept_bytes=20.0, rebuild_s=None, swap=False, in_full=True),
)


@st.composite
def stages(draw: st.DrawFn) -> StageNeed:
    """Stages of one to seven chunks of few kinds."""
    number = draw(st.integers(1, 7))
    classes = tuple(
        LayerClass(
            label=str(at), count=draw(st.integers(1, 2)), live=(float(draw(st.integers(1, 6))), 2.0), parts=PARTS,
            full_s=40.0, link_bytes=draw(st.sampled_from((0.0, 20.0))),
        )
        for at in range(number)
    )  # fmt: skip
    need = float(draw(st.integers(-5, 600)))
    return StageNeed(classes=classes, need_bytes=(need, need / 2.0), host_bytes=1e9, swap_s_per_byte=0.125)


@settings(deadline=None, max_examples=60)
@given(stage=stages(), most=st.integers(1, 7))
def test_groups_hold_every_class_once_and_only_like_ones(stage: StageNeed, most: int) -> None:
    groups = groups_of(stage, most)
    assert sorted(place for group in groups for place in group) == list(range(len(stage.classes)))
    for group in groups:
        assert len({(stage.classes[place].count, stage.classes[place].link_bytes) for place in group}) == 1
    families = {(each.count, each.link_bytes) for each in stage.classes}
    assert len(groups) <= max(most, len(families))


@settings(deadline=None, max_examples=60)
@given(stage=stages(), most=st.integers(1, 4))
def test_a_joined_stage_saves_and_costs_what_its_classes_do(stage: StageNeed, most: int) -> None:
    groups = groups_of(stage, most)
    small = joined(stage, groups)
    found = select(small)
    if found is None:
        return
    whole = apart(stage, groups, found)
    assert whole.added_s == pytest.approx(found.added_s)
    assert whole.short_bytes == pytest.approx(found.short_bytes)
    assert [each.label for each in whole.counts] == [each.label for each in stage.classes]


@settings(deadline=None, max_examples=60)
@given(stage=stages())
def test_what_is_chosen_fits_and_lies_between_the_least_and_the_greedy(stage: StageNeed) -> None:
    found, quick, least = select_within(stage, 0.0), greedy(stage), select(stage)
    if quick is not None:
        assert found is not None
        assert found.added_s <= quick.added_s * (1 + 1e-9)
    if found is not None:
        assert fits(stage, found)
        assert least is not None
        assert found.added_s >= least.added_s * (1 - 1e-9)
        if len(stage.classes) <= MOST_CLASSES:
            assert found.added_s == least.added_s


@pytest.mark.slow
def test_many_chunks_that_differ_in_what_is_live_end_soon() -> None:
    parts = tuple(
        Part(name=str(at), kept_bytes=1e6 * (17 + 13 * at), rebuild_s=1e-4 * (3 + 7 * at % 11 + 0.37 * at), swap=True,
             in_full=True)
        for at in range(8)
    )  # fmt: skip
    one = LayerClass(label="", count=3, live=(0.0,), parts=parts, full_s=0.02, link_bytes=2e8)
    classes = tuple(
        replace(one, label=str(at), live=tuple(float(max(1, 12 - abs(moment - at))) for moment in range(8)))
        for at in range(8)
    )
    everything = sum(each.count * each.live[0] * sum(part.kept_bytes for part in parts) for each in classes)
    stage = StageNeed(classes=classes, need_bytes=(0.7 * everything,) * 8, host_bytes=1e12, swap_s_per_byte=1e-12)
    found, quick = select_within(stage, 1e-4), greedy(stage)
    assert found is not None
    assert quick is not None
    assert fits(stage, evaluate(stage, found.counts))
    assert found.added_s < quick.added_s
