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
    plans = forward_s.shape[1]
    parts = [forward_s, backward_s]
    if merged_s is not None:
        parts.append(merged_s.reshape(-1, plans))
    durations = np.concatenate(parts)
    end = np.zeros((len(program.rank) + 1, plans))
    for first, stop in program.levels:
        ready = end[program.before[first:stop]]
        for source, sent in ((program.f_from, program.f_sent), (program.b_from, program.b_sent)):
            arrival = end[source[first:stop]] + sent[first:stop, None] * send_s
            np.maximum(ready, arrival, out=ready)
        ready += durations[program.duration[first:stop]]
        end[first + 1 : stop + 1] = ready
    return end[program.last]
