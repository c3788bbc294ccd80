"""Small spaces of different kinds, and their answers by simulating every plan that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from autodeploy.catalog.lookup import load
from autodeploy.search.arrange import arrange
from autodeploy.search.arranged import Arranged
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.evaluate import evaluate
from autodeploy.search.layers import layers_of
from autodeploy.search.outer import Outer, Point, shortlist
from autodeploy.search.screen import cases_of, screen
from autodeploy.search.steps import step_s_of
from autodeploy.spec.model import Model
from autodeploy.spec.plan import DISPATCH_WORDS, OVERLAP_WORDS, Dispatch, Overlap, Plan, PlanTable, table_of
from autodeploy.spec.space import PlanValues, Space
from autodeploy.spec.target import Target
from tests.builders import cluster_of, job_of, model_of, plan_of


def space_of_values(model: Model | str, cluster: str, devices: int, gbs: int, seq_len: int, **values: Any) -> Space:
    """A space of some values under the generic target."""
    return Space(
        name="little",
        model=model_of(model) if isinstance(model, str) else model,
        cluster=cluster_of(cluster),
        target=load(Target, "generic"),
        devices=devices,
        job=job_of(seq_len, gbs=gbs, expert_imbalance=1.2),
        plan=PlanValues(**values),
    )


@cache
def little_spaces() -> dict[str, Space]:
    """Dense and sparse models, one with an MTP module, and one that is short of memory."""
    both: dict[str, Any] = {"overlap": ("none", "pair"), "dispatch": ("flat", "hier")}
    short_v3 = replace(model_of("deepseek-v3"), layers=14)
    return {
        "dense": space_of_values(
            "llama-3.1-70b", "h100-80g", 64, 64, 4096, tp=(4, 8), pp=(2, 4, 8), vpp=(1, 2, 5), mbs=(1, 2),
            sp=(True, False),
        ),
        "sparse": space_of_values(
            "mixtral-8x7b", "h100-80g", 64, 128, 4096, tp=(1, 2), pp=(1, 2, 4), vpp=(1, 2, 4), ep=(1, 8), mbs=(1, 2),
            overlap=("none", "pair"),
        ),
        "mtp": space_of_values(
            short_v3, "atlas-800t-a2", 128, 128, 4096, tp=(1, 2), pp=(2, 4), vpp=(1, 2, 3), ep=(8, 16, 32), **both
        ),
        "tight": space_of_values(
            "mixtral-8x7b", "h100-80g", 32, 64, 16384, tp=(1, 2, 4), pp=(1, 2, 4), vpp=(1, 2), ep=(1, 2, 4, 8),
            recompute=("none", "fit"),
        ),
    }  # fmt: skip


def shrunk(name: str, frac: float) -> Space:
    """A little space on devices with a share of their memory, so that more is missing."""
    space = little_spaces()[name]
    return on_devices(space, hbm_bytes=frac * space.cluster.device.hbm_bytes)


def on_devices(space: Space, **changed: Any) -> Space:
    """A space on devices of which some fields are other ones."""
    cluster = space.cluster
    return replace(space, cluster=replace(cluster, device=replace(cluster.device, **changed)))


NAMES = ("dense", "sparse", "mtp", "tight")


def every_plan(space: Space) -> Iterator[Plan]:
    """Every combination of the values of a space, legal or not."""
    p = space.plan
    codes = ([OVERLAP_WORDS.index(word) for word in p.overlap], [DISPATCH_WORDS.index(word) for word in p.dispatch])
    for tp, pp, vpp, ep, etp, mbs, overlap, dispatch, zero, layout, recompute in product(
        p.tp, p.pp, p.vpp, p.ep, p.etp, p.mbs, *codes, p.zero, p.layout, p.recompute
    ):
        for sp in p.sp or (tp > 1,):
            yield plan_of(
                tp=tp, pp=pp, vpp=vpp, ep=ep, etp=etp, mbs=mbs, sp=sp, overlap=Overlap(overlap), zero=zero,
                dispatch=Dispatch(dispatch), layout=layout, recompute=recompute, dp=max(space.devices // (tp * pp), 1),
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Simulated:
    """A plan on its best layout, with its step."""

    plan: Plan
    step_s: float
    found: Arranged


def simulated(space: Space, plan: Plan) -> Simulated | None:
    """A legal plan simulated on the layout with the least screen time; None where none fits."""
    costs, rungs = layers_of(space, plan)
    options = [arrange(space, case, plan, costs, rungs) for case in cases_of(space, plan)]
    fitting = [option for option in options if option.fits]
    if not fitting:
        return None
    best = min(fitting, key=lambda option: option.screen_s)
    return Simulated(plan, step_s_of(best), best)


@cache
def legal_plans_of(name: str) -> tuple[Plan, ...]:
    """The legal plans of a little space, asked one by one."""
    space = little_spaces()[name]
    return tuple(plan for plan in every_plan(space) if not broken_rules(space, plan))


@cache
def ranking_of(name: str) -> tuple[Simulated, ...]:
    """Every plan of a little space that fits, best first: step, then headroom, then degrees."""
    space = little_spaces()[name]
    found = [each for plan in legal_plans_of(name) if (each := simulated(space, plan))]
    return tuple(sorted(found, key=order_of))


def order_of(each: Simulated) -> tuple[float, float, int]:
    """What a rank goes by."""
    p = each.plan
    return each.step_s, each.found.needed_bytes, p.tp * p.pp * p.vpp * p.ep * p.etp


def outer_of(space: Space, shapes: int) -> Outer:
    """The best shapes of a space, with all that a study may vary."""
    legal = [plan for plan in every_plan(space) if not broken_rules(space, plan)]
    return shortlist(space, screen(space, table_of(legal)), shapes)


def some_points(outer: Outer, count: int) -> list[Point]:
    """Random points of a study, the same every time."""
    rng = np.random.default_rng(17)
    return [tuple(int(rng.integers(size)) for size in outer.sizes) for _ in range(count)]


def assert_screened_alike(space: Space, sample: PlanTable) -> None:
    """Every plan alone is, bit for bit, what the screen says of its row."""
    screened = screen(space, sample)
    for i in range(len(sample)):
        alone = evaluate(space, sample.row(i))
        assert alone.screen_s == screened.screen_s[i]
        assert alone.bound_s == screened.bound_s[i]
        assert alone.needed_memory_bytes == screened.needed_bytes[i]
        assert alone.fits == screened.fits[i]
        assert alone.arrangement.layout == screened.cases[screened.case[i]].layout.notation
