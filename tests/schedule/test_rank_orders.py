"""Orders of ops on every rank: complete, free of deadlock, and with the published number of live chunks.

In-flight counts: NVIDIA/Megatron-LM:megatron/core/pipeline_parallel/schedules.py; arXiv 2104.04473 section 2.2;
Ascend/MindSpeed moe-fb-overlap (one more where passes are merged).
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from autodeploy.schedule.live import live_chunks, steady_microbatches
from autodeploy.schedule.orders import op_counts, rank_order, warm_up
from autodeploy.schedule.program import compile_program
from autodeploy.search.arrange import live_cap
from autodeploy.spec.plan import Schedule
from tests.schedule.oracle import Op, largest_vectors, live_vectors, order_of, shape_of, written

PLAIN = [(pp, 1, m) for pp in (1, 2, 3, 4, 8) for m in (1, 2, 3, 7, 16)]
INTERLEAVED = [(pp, vpp, k * pp) for pp in (2, 3, 4, 8) for vpp in (2, 3, 5) for k in (1, 2, 5)]
SIZES = PLAIN + INTERLEAVED
PAIRS = pytest.mark.parametrize("pair", [False, True], ids=["plain", "pair"])
ALL_SIZES = pytest.mark.parametrize(("pp", "vpp", "microbatches"), SIZES)


def halves(ops: list[Op], side: int) -> list[tuple[int, int]]:
    """Forward (0) or backward (1) halves in order."""
    return [op[side] for op in ops if op[side] is not None]  # type: ignore[misc]


@PAIRS
@ALL_SIZES
def test_orders_are_those_of_the_papers(pp: int, vpp: int, microbatches: int, pair: bool) -> None:
    shape = shape_of(pp, vpp, microbatches, pair)
    for rank in range(pp):
        assert written(rank_order(shape, rank)) == order_of(shape, rank)


@PAIRS
@ALL_SIZES
def test_every_pass_occurs_once_and_forward_comes_first(pp: int, vpp: int, microbatches: int, pair: bool) -> None:
    shape = shape_of(pp, vpp, microbatches, pair)
    every = {(m, c) for m in range(microbatches) for c in range(vpp)}
    for rank in range(pp):
        ops = written(rank_order(shape, rank))
        began = {op[0]: place for place, op in enumerate(ops) if op[0] is not None}
        ended = {op[1]: place for place, op in enumerate(ops) if op[1] is not None}
        assert began.keys() == ended.keys() == every
        assert len(halves(ops, 0)) == len(halves(ops, 1)) == len(every)
        assert all(began[half] < ended[half] for half in every)


@PAIRS
@ALL_SIZES
def test_every_op_becomes_ready(pp: int, vpp: int, microbatches: int, pair: bool) -> None:
    shape = shape_of(pp, vpp, microbatches, pair)
    program = compile_program(shape)
    assert len(program.ops.rank) == sum(len(order_of(shape, rank)) for rank in range(pp))
    places = np.arange(1, len(program.ops.rank) + 1)
    for first, stop in program.levels:  # everything that a level waits for lies before it
        for producers in (program.before, *program.producers):
            assert (producers[first:stop] < places[first]).all()


def contents_of(vpp: int) -> list[tuple[int, ...]]:
    """Chunks all different, all equal, and the first one different from the rest."""
    return [tuple(range(vpp)), (0,) * vpp, (0, *(1,) * (vpp - 1))]


@PAIRS
@ALL_SIZES
def test_op_counts_are_those_of_the_order(pp: int, vpp: int, microbatches: int, pair: bool) -> None:
    shape = shape_of(pp, vpp, microbatches, pair)
    for rank, content in product(range(pp), contents_of(vpp)):
        places = range(max(content) + 1)
        seen = Counter((f and content[f[1]], b and content[b[1]]) for f, b in order_of(shape, rank))
        counts = op_counts(shape, rank, content)
        assert counts.forward.tolist() == [seen[i, None] for i in places]
        assert counts.backward.tolist() == [seen[None, i] for i in places]
        assert counts.merged.tolist() == [[seen[i, j] for j in places] for i in places]


@PAIRS
@ALL_SIZES
def test_live_chunks_are_those_met_on_a_walk(pp: int, vpp: int, microbatches: int, pair: bool) -> None:
    shape = shape_of(pp, vpp, microbatches, pair)
    for rank in range(pp):
        assert set(live_chunks(shape, rank)) == largest_vectors(live_vectors(shape, rank))


@pytest.mark.parametrize(("pp", "microbatches"), [(pp, m) for pp, _, m in PLAIN])
def test_1f1b_keeps_p_minus_r_microbatches(pp: int, microbatches: int) -> None:
    for rank in range(pp):
        assert live_chunks(shape_of(pp, 1, microbatches), rank) == ((min(pp - rank, microbatches),),)
        pair = live_chunks(shape_of(pp, 1, microbatches, pair=True), rank)
        assert pair == ((min(2 * (pp - rank) - 1, microbatches),),)  # of which a merged op is one, half done twice


@PAIRS
@pytest.mark.parametrize(("pp", "vpp", "microbatches"), INTERLEAVED)
def test_interleaving_keeps_the_published_number_of_chunks(pp: int, vpp: int, microbatches: int, pair: bool) -> None:
    for rank in range(pp):
        most = max(sum(vector) for vector in live_chunks(shape_of(pp, vpp, microbatches, pair), rank))
        assert most == min(2 * (pp - rank - 1) + (vpp - 1) * pp + 1, microbatches * vpp)


def test_rank_0_of_four_by_four_keeps_seven_and_four_and_four_and_four() -> None:
    assert (7, 4, 4, 4) in live_chunks(shape_of(4, 4, 64), 0)


@pytest.mark.parametrize(("rank", "layers"), [(0, 76), (1, 68), (2, 60), (3, 52)])
def test_live_layers_of_four_by_four_with_four_layers_a_chunk(rank: int, layers: int) -> None:
    # the exact count of the PP4 VPP4 run of arXiv 2603.07685 with 16 layers a rank; its table takes 60
    assert max(4 * sum(vector) for vector in live_chunks(shape_of(4, 4, 64), rank)) == layers


@PAIRS
@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (2, 3), (2, 8), (3, 2), (3, 7), (4, 4), (5, 3), (8, 2), (8, 6)])
def test_more_microbatches_than_the_cap_change_no_live_chunk(pp: int, vpp: int, pair: bool) -> None:
    many = 12 * pp
    for rank in range(pp):
        walked = largest_vectors(live_vectors(shape_of(pp, vpp, many, pair), rank))
        assert set(live_chunks(shape_of(pp, vpp, many, pair), rank)) == walked
        assert set(live_chunks(shape_of(pp, vpp, live_cap(Schedule.INTERLEAVED, pp, many), pair), rank)) == walked


@PAIRS
@pytest.mark.parametrize("pp", [1, 2, 3, 8])
def test_the_cap_holds_without_interleaving(pp: int, pair: bool) -> None:
    many = shape_of(pp, 1, 20 * pp + 5, pair)
    assert steady_microbatches(many).microbatches < many.microbatches
    for rank in range(pp):
        assert set(live_chunks(many, rank)) == largest_vectors(live_vectors(many, rank))


@pytest.mark.parametrize(("pp", "vpp", "microbatches"), INTERLEAVED)
def test_the_cap_keeps_whole_groups_and_never_adds(pp: int, vpp: int, microbatches: int) -> None:
    capped = steady_microbatches(shape_of(pp, vpp, microbatches)).microbatches
    assert capped % pp == 0
    assert capped <= microbatches
    assert live_cap(Schedule.INTERLEAVED, pp, microbatches) <= microbatches


@PAIRS
@ALL_SIZES
def test_earlier_ranks_warm_up_longer(pp: int, vpp: int, microbatches: int, pair: bool) -> None:
    shape = shape_of(pp, vpp, microbatches, pair)
    warm = [warm_up(shape, rank) for rank in range(pp)]
    assert warm == sorted(warm, reverse=True)
    assert warm[0] <= shape.chunk_passes
