"""Memory of a role of stages: never below that of any of its members on its own live microbatches."""

from __future__ import annotations

from pathlib import Path

import pytest

from autodeploy.balance.fit import live_layers
from autodeploy.balance.recompute import Ladder
from autodeploy.schedule.shapes import Shape
from autodeploy.search.arrange import arrange
from autodeploy.search.arranged import Arranged
from autodeploy.search.enumerate import enumerate_plans
from autodeploy.search.evaluate import layers_of
from autodeploy.search.screen import cases_of
from autodeploy.spec.layout import Role
from autodeploy.spec.model import KINDS
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space
from tests.builders import SPACE_IDS, SPACES, some_rows, space_of
from tests.schedule.oracle import live_vectors

ENOUGH = 16
"""Groups of microbatches after which an order has long settled."""


def random_plans(path: Path, count: int, seed: int) -> tuple[Space, list[Plan]]:
    space = space_of(path)
    legal = enumerate_plans(space).legal
    return space, [legal.row(int(i)) for i in some_rows(len(legal), count, seed)]


def arrangements(space: Space, plan: Plan) -> list[tuple[Arranged, Ladder]]:
    """A plan on each of its layouts."""
    costs, rungs = layers_of(space, plan)
    return [(arrange(space, case, plan, costs, rungs), rungs) for case in cases_of(space, plan)]


def walked_shape(found: Arranged) -> Shape:
    """The pipeline with fewer microbatches, to be walked op by op."""
    pp, microbatches = found.case.layout.pp, int(found.microbatches)
    return found.case.shape(min(microbatches, max(ENOUGH // pp, 4) * pp))


def peak_rows(shape: Shape, role: Role, stage: int, rungs: Ladder, rung: int) -> float:
    """Rows that a stage keeps at its worst moment, over every op of its order."""
    each = [sum(chunk[k] * rungs.kept_bytes[k][rung] for k in KINDS if chunk[k]) for chunk in role.chunks]
    return max(sum(n * size for n, size in zip(live, each, strict=True)) for live in live_vectors(shape, stage))


def stated_rows(found: Arranged, role: Role, rungs: Ladder, rung: int) -> float:
    """Rows that the arrangement counts for a role."""
    moments = live_layers(found.case.shape(found.case.live_microbatches), role, found.microbatches)
    return max(sum(count * rungs.kept_bytes[kind][rung] for kind, count, _ in moment) for moment in moments)


@pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)
def test_a_role_needs_what_its_fullest_member_needs(path: Path) -> None:
    space, plans = random_plans(path, 25, seed=21)
    for plan in plans:
        for found, rungs in arrangements(space, plan):
            shape = walked_shape(found)
            for cost in found.stages:
                rung = int(cost.memory.rung)
                stated = stated_rows(found, cost.role, rungs, rung)
                members = [peak_rows(shape, cost.role, stage, rungs, rung) for stage in cost.role.stages]
                assert max(members) == pytest.approx(stated, rel=1e-12)


@pytest.mark.parametrize("rung", [0, 3])
@pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)
def test_the_first_member_is_the_fullest_whatever_is_rebuilt(path: Path, rung: int) -> None:
    space, plans = random_plans(path, 12, seed=22)
    for plan in plans:
        for found, rungs in arrangements(space, plan):
            shape = walked_shape(found)
            for cost in found.stages:
                members = [peak_rows(shape, cost.role, stage, rungs, rung) for stage in cost.role.stages]
                assert members[0] >= max(members) * (1 - 1e-12)


@pytest.mark.parametrize("path", SPACES, ids=SPACE_IDS)
def test_the_worst_stage_decides_whether_a_plan_fits(path: Path) -> None:
    space, plans = random_plans(path, 40, seed=23)
    lost = 1.0 - space.cluster.fragmentation_frac
    for plan in plans:
        for found, _ in arrangements(space, plan):
            worst = max(cost.memory.allocated_bytes for cost in found.stages)
            assert found.peak_bytes == worst
            assert found.needed_bytes == worst / lost + found.limits.communicators
            assert bool(found.fits) == (found.needed_bytes <= space.cluster.device.usable_bytes * (1 + 1e-15))
