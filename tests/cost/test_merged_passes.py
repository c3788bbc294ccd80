"""A forward beside a backward pass: closed forms against ops laid on an engine and a lane, one by one.

Order of the four all-to-alls and the four blocks of compute: arXiv 2412.19437 figure 4.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.cost.load import Load
from autodeploy.cost.pairing import UNITS, paired_s, pass_s, unit_s
from autodeploy.search.exchanges import exchanges, unit_of
from autodeploy.spec.plan import Overlap

SECONDS = st.floats(0.0, 1.0)
ENGINE = {
    "layer": ("a_f", "e_b", "e_f", "a_b"),
    "attention": ("a_f.1", "e_b", "a_f.2", "a_b.1", "e_f", "a_b.2"),
    "experts": ("e_b.1", "a_f", "e_b.2", "e_f.1", "a_b", "e_f.2"),
}
"""Blocks of compute of one layer of each pass, in the order in which the engine takes them."""
LANE = {
    "layer": ("C'", "D", "D'", "C"),
    "attention": ("C'", "D'", "D", "C"),
    "experts": ("C", "D", "D'", "C'"),
}
"""The all-to-alls in the order in which the lane takes them: dispatch and combine, primed of the backward pass."""
CHAINS = (("a_f", "D", "e_f", "C"), ("C'", "e_b", "D'", "a_b"))
"""What must follow what within a layer, and from layer to layer."""


@st.composite
def halves(draw: st.DrawFn, aside: bool = False) -> Load:
    """A pass of some compute and some all-to-all."""
    chain, experts, loose, exchange = (draw(SECONDS) for _ in range(4))
    loose *= aside
    return Load(busy=chain + experts + loose, experts=experts, aside=loose, exchange=exchange)


def blocks(f: Load, b: Load) -> dict[str, float]:
    """Seconds of every block of one layer."""
    return {
        "a_f": f.chain, "e_f": f.experts, "D": f.exchange / 2, "C": f.exchange / 2,
        "a_b": b.chain, "e_b": b.experts, "D'": b.exchange / 2, "C'": b.exchange / 2,
    }  # fmt: skip


def laid_out_s(unit: str, seconds: dict[str, float], layers: int) -> float:
    """When the last op of so many layers ends: every op as soon as its resource and its predecessor in the chain are
    free. A block cut in two is cut in halves; its chain goes on after the second."""
    ends: dict[tuple[str, int], float] = {}
    queues = [[(op, layer) for layer in range(layers) for op in ops] for ops in (ENGINE[unit], LANE[unit])]
    clock = [0.0, 0.0]
    while any(queues):
        moved = False
        for place, queue in enumerate(queues):
            while queue and (ready := ready_s(unit, queue[0], ends)) is not None:
                op, layer = queue.pop(0)
                share = 0.5 if "." in op else 1.0
                clock[place] = max(clock[place], ready) + share * seconds[op.split(".")[0]]
                ends[op, layer] = clock[place]
                moved = True
        assert moved, "deadlock"
    return max(clock)


def ready_s(unit: str, op: tuple[str, int], ends: dict[tuple[str, int], float]) -> float | None:
    """When the chain before an op has ended; None while it has not been laid."""
    name, layer = op[0].split(".")[0], op[1]
    chain = next(chain for chain in CHAINS if name in chain)
    place = chain.index(name)
    before = (chain[place - 1], layer if place else layer - 1)
    if unit == "experts" and name == "C":  # the combine of a layer lies beside the next layer's experts
        before = ("e_f", layer - 1)
    if unit == "experts" and name == "a_f":
        before = ("C", layer)
    if unit == "experts" and name == "e_b":
        before = ("C'", layer - 1)
    if unit == "experts" and name == "C'":
        before = ("a_b", layer)
    last = f"{before[0]}.2" if f"{before[0]}.2" in ENGINE[unit] else before[0]
    return 0.0 if before[1] < 0 else ends.get((last, before[1]))


@pytest.mark.parametrize("unit", list(UNITS))
@given(f=halves(), b=halves())
def test_every_unit_takes_what_its_ops_take_when_laid_out(unit: str, f: Load, b: Load) -> None:
    # the steady state of equal layers: ten more of them
    seconds = blocks(f, b)
    one = (laid_out_s(unit, seconds, 30) - laid_out_s(unit, seconds, 20)) / 10
    assert unit_s(UNITS[unit], f, b, 0.0) == pytest.approx(one, rel=1e-9, abs=1e-12)


@given(f=halves(aside=True), b=halves(aside=True), send=SECONDS)
def test_a_merged_pass_lies_between_its_bounds(f: Load, b: Load, send: float) -> None:
    # engine, the chain of either pass, the lane; and everything in turn
    merged = paired_s(f, b, send)
    chains = [load.chain + load.experts + load.exchange for load in (f, b)]
    assert merged >= max(f.busy + b.busy, f.exchange + b.exchange, *chains) * (1 - 1e-12)
    assert merged <= (f.alone + b.alone) * (1 + 1e-12)


@given(f=halves(), b=halves(), aside=SECONDS)
def test_weight_gradients_fill_gaps_before_they_cost(f: Load, b: Load, aside: float) -> None:
    gap = paired_s(f, b) - f.busy - b.busy
    more = b._replace(busy=b.busy + aside, aside=aside)
    assert paired_s(f, more) == pytest.approx(paired_s(f, b) + max(aside - gap, 0.0), abs=1e-12)


def test_attention_is_cut_where_it_must_hide_all_four() -> None:
    # little expert work: beside whole blocks half of the traffic is exposed, beside halves of attention nothing
    half = Load(busy=10.0, experts=0.0, exchange=8.0)
    layer, attention = (unit_s(UNITS[name], half, half, 0.0) for name in ("layer", "attention"))
    assert unit_of(half, half, 0.0) == "attention"
    assert (layer, attention, paired_s(half, half)) == (28.0, 20.0, 20.0)


def test_messages_of_other_stages_wait_on_the_same_port() -> None:
    # 1.5 s of messages leave first; the first all-to-all then outlasts its block of compute
    f, b = (Load(busy=2.0, experts=1.0, exchange=2.0, outer=2.0) for _ in range(2))
    assert paired_s(f, b, 0.0) == pytest.approx(4.0)
    assert paired_s(f, b, 1.5) == pytest.approx(5.5)
    inside = [load._replace(inner=2.0, outer=0.0) for load in (f, b)]
    assert paired_s(*inside, 1.5) == pytest.approx(4.0)  # nothing of it on the port


@given(load=halves(aside=True))
def test_a_pass_alone_hides_its_exchange_behind_what_nobody_waits_for(load: Load) -> None:
    assert pass_s(load, Overlap.NONE, 0.0) == load.busy + load.exchange
    hidden = load.alone - pass_s(load, Overlap.PAIR, 0.0)
    assert hidden == pytest.approx(min(load.exchange, load.aside), abs=1e-12)


@given(f=halves(), b=halves(), send=SECONDS)
def test_the_all_to_alls_of_a_merged_pass_lie_in_it_one_after_the_other(f: Load, b: Load, send: float) -> None:
    whole = unit_s(UNITS[unit_of(f, b, send)], f, b, 0.0)
    found = exchanges(f, b, send) if whole > 1e-6 else []
    ends = [each.start_frac * whole + each.duration_s for each in found]
    begins = [each.start_frac * whole for each in found]
    assert all(end <= begin + 1e-9 for end, begin in zip(ends, begins[1:], strict=False))
    assert all(end <= whole + 1e-9 for end in ends)
    for backward, load in ((False, f), (True, b)):
        mine = [each.duration_s for each in found if each.is_backward is backward]
        assert not found or sum(mine) == pytest.approx(load.exchange, abs=1e-12)


@given(f=halves(), b=halves(), taken=st.floats(0.0, 0.5))
def test_cores_that_copy_are_gone_while_they_copy(f: Load, b: Load, taken: float) -> None:
    # a block beside a shorter all-to-all works at 1 - taken while that lasts: it ends `taken` of it later
    merged, slowed = paired_s(f, b), paired_s(f, b, taken_frac=taken)
    assert slowed >= merged * (1 - 1e-12)
    assert slowed <= merged + taken * (f.exchange + b.exchange) + 1e-12
    idle = [load._replace(exchange=0.0) for load in (f, b)]
    assert paired_s(*idle, taken_frac=taken) == paired_s(*idle)


def test_twenty_of_132_cores_slow_compute_by_less_than_a_fifth() -> None:
    # arXiv 2603.07685: about 20 %; 132/112 - 1 where the all-to-all lasts as long as the compute at the slower rate
    taken, engine = 20 / 132, 1.0
    lasting = engine / (1 - taken)
    f = b = Load(busy=2 * engine, experts=engine, exchange=2 * lasting)
    assert paired_s(f, b, taken_frac=taken) == pytest.approx(4 * engine * 132 / 112)
