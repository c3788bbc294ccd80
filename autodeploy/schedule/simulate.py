"""The one simulator: longest path through a program, for many plans of one shape at once (model.md 5.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autodeploy.schedule.program import Program


def simulate(
    program: Program,
    forward_s: np.ndarray,
    backward_s: np.ndarray,
    merged_s: np.ndarray | None,
    send_s: np.ndarray,
    split_s: np.ndarray | None = None,
) -> np.ndarray:
    """[pp, K] when every rank ends its last op.

    Axes: forward_s, backward_s [slots, K], at chunk * pp + stage; merged_s [pp, vpp, vpp, K] forward of
    chunk i merged with backward of chunk j (needed for overlapped shapes only); send_s [K] of one message
    between neighbouring stages; split_s [2, slots, K] a backward without its weight gradients, and these (needed for
    schedules that run them apart). With a program of `each_microbatch`: forward_s, backward_s [slots, M, K], and
    merged_s [pp, vpp, M, K] by the forward half.
    """
    return run(program, forward_s, backward_s, merged_s, send_s, split_s).end[program.last]


class Moments(NamedTuple):
    """[ops + 1, K] of every op of a program, the moment zero first."""

    end: np.ndarray
    arrived: tuple[np.ndarray, ...]
    """When the op's output is where it goes to: of its forward and of its backward half, where it may have both."""


def run(
    program: Program,
    forward_s: np.ndarray,
    backward_s: np.ndarray,
    merged_s: np.ndarray | None,
    send_s: np.ndarray,
    split_s: np.ndarray | None = None,
) -> Moments:
    """When every op ends and its outputs arrive; axes as in `simulate`.

    A rank runs one op at a time, and its port sends one message at a time, in the order of its ops. So an op starts
    at max(end of the op before, arrivals of what it consumes), and a message leaves at max(end of its op, port free).
    """
    durations = duration_table(forward_s, backward_s, merged_s, split_s)
    end = np.zeros((len(program.ops.rank) + 1, len(send_s)))
    arrived = tuple(np.zeros_like(end) for _ in program.producers)
    port = arrived[-1]  # an op's last message is what the next one waits behind
    for first, stop in program.levels:
        before = program.before[first:stop]
        ready = end.take(before, axis=0)
        for source, came in zip(program.producers, arrived, strict=True):
            np.maximum(ready, came.take(source[first:stop], axis=0), out=ready)
        ready += durations.take(program.duration[first:stop], axis=0)
        end[first + 1 : stop + 1] = ready
        leaves = np.maximum(ready, port.take(before, axis=0))
        for sent, came in zip(program.sends, arrived, strict=True):
            leaves += sent[first:stop] * send_s
            came[first + 1 : stop + 1] = leaves
    return Moments(end, arrived)


def duration_table(
    forward_s: np.ndarray, backward_s: np.ndarray, merged_s: np.ndarray | None, split_s: np.ndarray | None = None
) -> np.ndarray:
    """[rows, K] seconds of every kind of op, in the rows that `Program.duration` names."""
    parts = [part for part in (forward_s, backward_s, merged_s, split_s) if part is not None]
    return np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])
