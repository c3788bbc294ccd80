"""Every rank runs its ops in the order in which torch.distributed.pipelining (2.13.0) runs them.

1F1B and interleaved 1F1B agree op by op. Around that, three things differ, each asserted below:

- `Schedule1F1B` refuses fewer microbatches than stages. Our order stands for them too (it is then all warm-up on
  the early ranks); there is nothing to compare it with.
- `Schedule1F1B` counts one warm-up forward more than `warm_up` does, for it enters its steady part with a backward
  ("1B1F") where ours and Megatron-LM's enters with a forward. The ops come in the same order.
- `Schedule1F1B.pipeline_order`, which is for drawing and is not what runs, numbers the forwards of the last rank
  1 .. m instead of 0 .. m - 1: its counter stands at the last warm-up forward, and that rank has none.

Interleaving with microbatches that are no multiple of pp is out of reach of `Shape`, so only multiples are compared.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from autodeploy.schedule.orders import warm_up
from autodeploy.schedule.shapes import Shape
from tests.interop.pipelines import Op, ops_of
from tests.schedule.oracle import shape_of

pytestmark = pytest.mark.interop

STAGES = (2, 3, 4, 5, 6, 7, 8, 16)
PLAIN = [(pp, 1, m) for pp in STAGES for m in (pp, pp + 1, 2 * pp - 1, 5 * pp + 2)]
INTERLEAVED = [(pp, vpp, k * pp) for pp in STAGES for vpp in (2, 3, 4) for k in (1, 2, 3, 5)]
PLAIN_SIZES = pytest.mark.parametrize(("pp", "vpp", "microbatches"), PLAIN)
INTERLEAVED_SIZES = pytest.mark.parametrize(("pp", "vpp", "microbatches"), INTERLEAVED)


def mocked_stage(shape: Shape, index: int) -> MagicMock:
    """A stage that notes its calls, and has nothing to send or to receive."""
    stage = MagicMock(
        group_size=shape.pp, group_rank=index % shape.pp, num_stages=shape.pp * shape.vpp, stage_index=index,
        is_last=False,  # the last stage would want a loss, which is no op of its own
    )  # fmt: skip
    for ops in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, ops).return_value = []
    return stage


def ops_run_by_1f1b(shape: Shape, rank: int) -> list[Op]:
    """What the runtime of `Schedule1F1B` calls on the stage in a step; it follows no table that could be read."""
    from torch.distributed.pipelining import Schedule1F1B

    stage = mocked_stage(shape, rank)
    schedule = Schedule1F1B(stage, shape.microbatches)
    schedule._initialize_stage = MagicMock()
    schedule._step_microbatches()
    names = {"forward_one_chunk": "F", "backward_one_chunk": "B"}
    return [(names[name], rank, args[0]) for name, args, _ in stage.method_calls if name in names]


def compute_ops(actions: list[Any]) -> list[Op]:
    """Forwards and backwards among the actions of torch, without its idle steps."""
    names = {"FORWARD": "F", "FULL_BACKWARD": "B"}
    return [
        (names[x.computation_type.name], x.stage_index, x.microbatch_index)
        for x in actions
        if x is not None and x.computation_type.name in names
    ]


def drawn_by_1f1b(shape: Shape, rank: int) -> list[Op]:
    """`Schedule1F1B.pipeline_order`."""
    from torch.distributed.pipelining import Schedule1F1B

    return compute_ops(Schedule1F1B(mocked_stage(shape, rank), shape.microbatches).pipeline_order[rank])


@PLAIN_SIZES
def test_1f1b_runs_in_our_order(pp: int, vpp: int, microbatches: int) -> None:
    shape = shape_of(pp, vpp, microbatches)
    for rank in range(pp):
        assert ops_of(shape, rank) == ops_run_by_1f1b(shape, rank)


@INTERLEAVED_SIZES
def test_interleaved_1f1b_runs_in_our_order(pp: int, vpp: int, microbatches: int) -> None:
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    shape = shape_of(pp, vpp, microbatches)
    schedule = ScheduleInterleaved1F1B([mocked_stage(shape, chunk * pp) for chunk in range(vpp)], microbatches)
    for rank in range(pp):
        assert ops_of(shape, rank) == compute_ops(schedule.pipeline_order_with_comms[rank])  # the table that is run


@pytest.mark.parametrize("pp", STAGES)
def test_torch_refuses_1f1b_with_fewer_microbatches_than_stages(pp: int) -> None:
    shape = shape_of(pp, 1, pp - 1)
    with pytest.raises(ValueError, match="Number of microbatches"):
        ops_run_by_1f1b(shape, 0)
    assert ops_of(shape, 0) == [(name, 0, m) for name in "FB" for m in range(pp - 1)]


@PLAIN_SIZES
def test_the_warm_up_of_torch_is_ours_and_the_first_forward_of_the_steady_part(
    pp: int, vpp: int, microbatches: int
) -> None:
    shape = shape_of(pp, vpp, microbatches)
    for rank in range(pp):
        before_backward = [name for name, _, _ in ops_run_by_1f1b(shape, rank)].index("B")
        assert before_backward == pp - rank == warm_up(shape, rank) + 1


@PLAIN_SIZES
def test_the_drawing_of_1f1b_numbers_the_forwards_of_the_last_rank_from_one(
    pp: int, vpp: int, microbatches: int
) -> None:
    shape = shape_of(pp, vpp, microbatches)
    for rank in range(pp):
        late = int(rank == pp - 1)
        shifted = [(name, slot, m + late * (name == "F")) for name, slot, m in ops_of(shape, rank)]
        assert drawn_by_1f1b(shape, rank) == shifted
