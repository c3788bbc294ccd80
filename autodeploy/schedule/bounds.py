"""Lower bounds on a step that belong to a schedule, from given slot times.

A stage cannot begin before the first microbatch has come down to it (fill), has all its own ops to run (work), and
after its last backward that microbatch still has to travel back (drain). Weight gradients that run apart may come after
that backward: the stage ends with them, or the first stage with the drain.
"""

from __future__ import annotations

from collections.abc import Sequence

from autodeploy.numeric import Num, largest, maximum, total
from autodeploy.schedule.shapes import OpCounts


def stage_work_s(
    counts: OpCounts,
    forward_s: Sequence[Num],
    backward_s: Sequence[Num],
    merged_s: Sequence[Sequence[Num]] | None,
    split_s: tuple[Sequence[Num], Sequence[Num]] | None = None,
) -> Num:
    """Seconds of all ops of one rank: forwards and backwards of each content, merged ops [i][j], and (backwards without
    their weight gradients, weight gradients) where they run apart."""
    terms = [count * time for count, time in zip(counts.forward, forward_s, strict=True)]
    terms += [count * time for count, time in zip(counts.backward, backward_s, strict=True)]
    if merged_s is not None:
        terms += [
            count * time
            for row, times in zip(counts.merged, merged_s, strict=True)
            for count, time in zip(row, times, strict=True)
        ]
    if split_s is not None:
        for counted, times in zip((counts.inputs, counts.weights), split_s, strict=True):
            terms += [count * time for count, time in zip(counted, times, strict=True)]
    return total(terms)


def step_bound_s(
    stages: Sequence[int],
    role_of_stage: tuple[int, ...],
    first_forward_s: Sequence[Num],
    first_backward_s: Sequence[Num],
    work_s: Sequence[Num],
    tail_s: Sequence[Num],
    send_s: Num,
    delayed_s: Sequence[Num] | None = None,
) -> Num:
    """Never above the simulation, plus what follows it on each stage (`tail_s`, per role).

    `stages` are the ones looked at (one per role, `work_s` and `delayed_s` in the same order); the first chunk's times
    are per role (of a backward what the stage before waits for). `delayed_s` is the part of the work that may follow a
    stage's last backward. Formula: max over stages s of
    fill_s + max(work_s + tail_s, work_s - delayed_s + drain_s + tail_0).
    """
    ends = []
    for place, (stage, work) in enumerate(zip(stages, work_s, strict=True)):
        above = role_of_stage[:stage]
        share = {role: above.count(role) for role in dict.fromkeys(above)}
        fill = total([count * first_forward_s[role] for role, count in share.items()]) + stage * send_s
        drain = total([count * first_backward_s[role] for role, count in share.items()]) + stage * send_s
        if delayed_s is not None:
            drain = drain - delayed_s[place]
        after = maximum(tail_s[role_of_stage[stage]], drain + tail_s[role_of_stage[0]])
        ends.append(fill + work + after)
    return largest(ends)
