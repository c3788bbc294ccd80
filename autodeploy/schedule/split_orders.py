"""Orders with weight gradients apart: a backward pass (B) gives the gradient of its input, which the stage before waits
for; the gradients of its weights (W) wait for nothing and fill what would be bubble.

Sources: arXiv 2401.10241 (ZB-H1, ZB-H2); arXiv 2405.15362 and torch.distributed.pipelining (ZB-V);
deepseek-ai/DualPipe dualpipe/dualpipe.py, dualpipev.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from autodeploy.schedule.shapes import NONE, RankOrder, Shape
from autodeploy.spec.plan import Overlap, Schedule

Part = tuple[int, int]
"""(microbatch, chunk)."""
Op = tuple[Part | None, Part | None, Part | None]
"""Forward, backward and weight gradients that are one op."""


def split_order(shape: Shape, rank: int) -> RankOrder:
    """The order of a rank under a schedule with weight gradients apart."""
    ops = [op for op in _ORDERS[shape.schedule](shape, rank) if _is_run(op, shape.microbatches)]
    columns = [[part or (NONE, NONE) for part in column] for column in zip(*ops, strict=True)]
    pairs = [np.array(column) for column in columns]
    return RankOrder(*(pair[:, place] for pair in pairs for place in (0, 1)))


def _is_run(op: Op, microbatches: int) -> bool:
    """Orders are written for as many microbatches as fill the pipeline; with fewer, the last ones do not run."""
    return all(part is None or part[0] < microbatches for part in op)


class _Walk:
    """The ops of a rank as they are written down: counts what ran and remembers whose weight gradients wait."""

    def __init__(self, overlap: Overlap) -> None:
        self.ops: list[Op] = []
        self.merges = overlap == Overlap.PAIR
        self.begun, self.ended = [0, 0], [0, 0]
        self.waiting: deque[Part] = deque()

    def _next(self, counts: list[int], chunk: int) -> Part:
        counts[chunk] += 1
        return counts[chunk] - 1, chunk

    def forward(self, chunk: int = 0) -> None:
        """The next microbatch forward through a chunk."""
        self.ops.append((self._next(self.begun, chunk), None, None))

    def backward(self, chunk: int = 0) -> None:
        """The next microbatch back through a chunk, weight gradients with it."""
        part = self._next(self.ended, chunk)
        self.ops.append((None, part, part))

    def inputs(self, chunk: int = 0) -> None:
        """The same with its weight gradients left for later."""
        part = self._next(self.ended, chunk)
        self.waiting.append(part)
        self.ops.append((None, part, None))

    def weights(self, chunk: int | None = None) -> None:
        """The weight gradients that wait longest, of a chunk or of any."""
        part = next(part for part in self.waiting if chunk in (None, part[1]))
        self.waiting.remove(part)
        self.ops.append((None, None, part))

    def both(self, forward: int, backward: int) -> None:
        """A forward beside a whole backward, merged where passes merge."""
        if not self.merges:
            self.forward(forward)
            self.backward(backward)
            return
        part = self._next(self.ended, backward)
        self.ops.append((self._next(self.begun, forward), part, part))


def _zero_bubble(shape: Shape, warm: int, delay: int) -> list[Op]:
    """`warm` forwards, then backward, weight gradients of `delay` microbatches earlier, and forward in turn."""
    walk, many = _Walk(shape.overlap), shape.microbatches
    for _ in range(min(warm, many)):
        walk.forward()
    for done in range(many):
        walk.inputs()
        if done >= delay:
            walk.weights()
        if walk.begun[0] < many:
            walk.forward()
    while walk.waiting:
        walk.weights()
    return walk.ops


def _zb_h1(shape: Shape, rank: int) -> list[Op]:
    """No stage holds more than pp microbatches."""
    return _zero_bubble(shape, shape.pp - rank, rank)


def _zb_h2(shape: Shape, rank: int) -> list[Op]:
    """Up to 2 pp - 1 microbatches, so that no stage waits for another where forward, B and W take the same."""
    return _zero_bubble(shape, 2 * (shape.pp - 1 - rank) + 1, 2 * rank)


def _zb_v(shape: Shape, rank: int) -> list[Op]:
    """Two chunks on a V: as much memory as 1F1B's fullest stage, on every one."""
    walk, many, ahead = _Walk(shape.overlap), max(shape.microbatches, 2 * shape.pp - 1), shape.pp - rank
    for _ in range(2 * ahead - 1):
        walk.forward(0)
    for _ in range(rank):
        walk.forward(1)
        walk.forward(0)
    for _ in range(ahead):
        walk.forward(1)
        walk.inputs(1)
        walk.weights(1)
    while walk.begun[1] < walk.begun[0] or walk.begun[0] < many:
        if walk.begun[0] < many:
            walk.forward(0)
        walk.inputs(0)
        walk.weights(0)
        walk.forward(1)
        walk.inputs(1)
        walk.weights(1)
    for _ in range(rank):
        walk.inputs(0)
        walk.inputs(1)
    for _ in range(ahead):
        walk.inputs(0)
        walk.weights(0)
    for chunk in (1, 0):
        while any(part[1] == chunk for part in walk.waiting):
            walk.weights(chunk)
    return walk.ops


def _dualpipe_v(shape: Shape, rank: int) -> list[Op]:
    """Two chunks on a V, a forward through one beside a backward through the other."""
    return _dual(shape, shape.pp, rank)


def _dualpipe(shape: Shape, rank: int) -> list[Op]:
    """Two pipelines head to tail. The ranks of the second half do as those opposite, with the two exchanged."""
    opposite = shape.pp - 1 - rank
    ops = _dual(shape, shape.pp // 2, min(rank, opposite))
    return ops if rank < opposite else [_exchanged(op) for op in ops]


def _exchanged(op: Op) -> Op:
    forward, backward, weights = (None if part is None else (part[0], 1 - part[1]) for part in op)
    return forward, backward, weights


def _dual(shape: Shape, ranks: int, rank: int) -> list[Op]:
    """A rank's order, counted from where microbatches enter to where `ranks` of them meet; weight gradients apart where
    the pipeline fills and drains."""
    walk, ahead = _Walk(shape.overlap), ranks - rank - 1
    _dual_fill(walk, ahead, rank)
    for step in range(max(shape.microbatches - 2 * ranks, 0) + rank + 1):
        if step == 0 and ahead == 0:  # the first microbatch comes back at once: nothing to merge with
            walk.forward(0)
            walk.backward(1)
        else:
            walk.both(0, 1)
        walk.both(1, 0)
    _dual_drain(walk, ahead, rank, whole=shape.whole_drain)
    return walk.ops


def _dual_fill(walk: _Walk, ahead: int, rank: int) -> None:
    for _ in range(2 * ahead):
        walk.forward(0)
    for _ in range(rank + 1):
        walk.forward(0)
        walk.forward(1)
    for _ in range(ahead):
        walk.inputs(1)
        walk.weights()
        walk.forward(1)


def _dual_drain(walk: _Walk, ahead: int, rank: int, *, whole: bool) -> None:
    for _ in range(ahead):
        walk.backward(1)
        walk.both(1, 0)
    ends = [chunk for _ in range(rank + 1) for chunk in (1, 0)] + [0] * (ahead if whole else 0)
    for place, chunk in enumerate(ends):  # of the second half, the weight gradients wait
        (walk.inputs if place > rank and not whole else walk.backward)(chunk)
    for _ in range(0 if whole else ahead):
        walk.weights()
        walk.inputs(0)
    while walk.waiting:
        walk.weights()


_ORDERS: dict[Schedule, Callable[[Shape, int], list[Op]]] = {
    Schedule.ZB_H1: _zb_h1,
    Schedule.ZB_H2: _zb_h2,
    Schedule.ZB_V: _zb_v,
    Schedule.DUALPIPE_V: _dualpipe_v,
    Schedule.DUALPIPE: _dualpipe,
}
