"""The one simulator: longest path through a program, for many plans of one shape at once (model.md 5.2)."""

from __future__ import annotations

import numpy as np

from autodeploy.schedule.program import Program


def simulate(
    program: Program,
    forward_s: np.ndarray,
    backward_s: np.ndarray,
    merged_s: np.ndarray | None,
    send_s: np.ndarray,
) -> np.ndarray:
    """[pp, K] when every rank ends its last op.

    Axes: forward_s, backward_s [slots, K], slot = chunk * pp + stage; merged_s [pp, vpp, vpp, K] forward of
    chunk i merged with backward of chunk j (needed for overlapped shapes only); send_s [K] of one message
    between neighbouring stages.
    """
    return simulate_ends(program, forward_s, backward_s, merged_s, send_s)[program.last]


def simulate_ends(
    program: Program,
    forward_s: np.ndarray,
    backward_s: np.ndarray,
    merged_s: np.ndarray | None,
    send_s: np.ndarray,
) -> np.ndarray:
    """[1 + ops, K] when every op ends, the moment zero before them. Arguments as of `simulate`."""
    durations = duration_table(forward_s, backward_s, merged_s)
    end = np.zeros((len(program.rank) + 1, forward_s.shape[1]))
    for first, stop in program.levels:
        ready = end.take(program.before[first:stop], axis=0)
        for source, sent in program.producers:
            arrival = end.take(source[first:stop], axis=0)
            arrival += sent[first:stop] * send_s
            np.maximum(ready, arrival, out=ready)
        ready += durations.take(program.duration[first:stop], axis=0)
        end[first + 1 : stop + 1] = ready
    return end


def duration_table(forward_s: np.ndarray, backward_s: np.ndarray, merged_s: np.ndarray | None) -> np.ndarray:
    """[rows, K] seconds of every kind of op, in the rows that `Program.duration` names."""
    parts = [forward_s, backward_s]
    if merged_s is not None:
        parts.append(merged_s.reshape(-1, forward_s.shape[1]))
    return np.concatenate(parts)
