"""The closed forms of the screen against the simulation that they stand for: bound, and messages in the open."""

from __future__ import annotations

from pathlib import Path

import pytest

from autodeploy.search.arrange import stage_work_s_of
from autodeploy.search.arranged import Arranged
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.search.evaluate import arranged
from autodeploy.spec.plan import Overlap
from tests.builders import SPACE_IDS, SPACES, some_rows, space_of
from tests.schedule.oracle import equal_times, finish_s, shape_of

EVERY_SPACE = pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)


def found_plans(path: Path, count: int, seed: int, *, pair: bool = False) -> list[Arranged]:
    """Random legal plans with or without merged passes, arranged."""
    space = space_of(path)
    legal = enumerate_plans(space).legal
    chosen = legal.rows(legal.overlap == (Overlap.PAIR if pair else Overlap.NONE))
    return [arranged(space, chosen.row(int(i))) for i in some_rows(len(chosen), count, seed)]


def stage_bounds(found: Arranged) -> list[float]:
    """Per stage, by the definition: first microbatch down, own work, first chunk's gradients up, tails."""
    layout, out = found.case.layout, []
    roles = [found.stages[layout.role_of_stage[stage]] for stage in range(layout.pp)]
    for stage, cost in enumerate(roles):
        down = sum(found.case.pass_s(above.forward[0]) + found.send_s for above in roles[:stage])
        up = sum(found.case.pass_s(above.backward[0]) + found.send_s for above in roles[:stage])
        after = max(cost.tail.seconds, up + roles[0].tail.seconds)
        out.append(down + stage_work_s_of(found, cost, stage) + after)
    return out


@EVERY_SPACE
def test_the_bound_is_the_largest_over_all_stages(path: Path) -> None:
    for found in found_plans(path, 40, seed=41):
        assert found.bound_s == pytest.approx(max(stage_bounds(found)), rel=1e-12)


@EVERY_SPACE
def test_the_bound_of_merged_passes_is_that_of_some_stage(path: Path) -> None:
    for found in found_plans(path, 25, seed=42, pair=True):
        bounds = stage_bounds(found)
        assert found.bound_s <= max(bounds) * (1 + 1e-12)
        assert any(found.bound_s == pytest.approx(bound, rel=1e-12) for bound in bounds)


@EVERY_SPACE
def test_one_stage_has_no_message_in_the_open(path: Path) -> None:
    for found in found_plans(path, 200, seed=43):
        if found.case.layout.pp == 1:
            assert found.screen_s == found.bound_s


def exposed_messages(pp: int, vpp: int, microbatches: int) -> float:
    """Messages in the open on a balanced pipeline, beyond the way down and up that the bound holds."""
    shape = shape_of(pp, vpp, microbatches)
    silent, sending = (max(finish_s(shape, equal_times(shape, 1.0, 2.0, send))) for send in (0.0, 1e-4))
    return (sending - silent) / 1e-4 - 2 * (pp - 1)


@EVERY_SPACE
def test_the_screen_adds_the_messages_that_a_simulation_exposes(path: Path) -> None:
    seen = set()
    for found in found_plans(path, 40, seed=44):
        shape = (found.case.layout.pp, found.case.layout.vpp, int(found.microbatches))
        if shape in seen or shape[0] == 1 or shape[0] * shape[1] * shape[2] > 1500:
            continue
        seen.add(shape)
        added = (found.screen_s - found.bound_s) / found.send_s
        whole_cycle = 2 * (shape[0] - 1) if shape[1] == 1 else 0  # of 1F1B, whose last cycle may be cut short
        assert added == pytest.approx(exposed_messages(*shape), abs=whole_cycle + 1e-3)
    assert len(seen) > 10
