"""The simulation against a clock: PyTorch's pipeline runtime over gloo, one process per rank, stages that sleep.

Sleeping needs no core, so eight ranks run side by side on two. The simulator gets the sleeps and the measured time
of a message between two processes; what the runtime itself takes between two ops is not given to it.

`Schedule1F1B` waits for its sends too, which the simulator does not know. It costs nothing here: in the steady part a
rank sends together with the receive that it needs next, and its neighbour does both at the same moment.
"""

from __future__ import annotations

import json
import os
from functools import cache
from multiprocessing import set_forkserver_preload
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest

from tests.interop.pipelines import Pipeline, Seen, ops_of, simulated_s

pytestmark = pytest.mark.interop

WARM_UPS, STEPS = 3, 5
WITHIN = 0.05
SEED = 35
"""Sleeps for which simpler formulas are further off than that; `test_simpler_formulas_are_too_far_off` holds it."""
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
CASES = pytest.mark.parametrize(("pp", "vpp"), [(4, 1), (4, 2), (8, 1), (8, 2)])


def pipeline_of(pp: int, vpp: int) -> Pipeline:
    """Eight microbatches through unequal stages that sleep 50 ms and more."""
    rng = np.random.default_rng(SEED)
    forward, backward = (rng.uniform(0.05, longest, pp * vpp).round(3).tolist() for longest in (0.09, 0.13))
    return Pipeline(pp=pp, vpp=vpp, microbatches=8, forward_s=tuple(forward), backward_s=tuple(backward))


@cache
def seen_with(pp: int) -> dict[int, list[Seen]]:
    """What every rank saw, by vpp: one set of processes runs both pipelines."""
    from torch.multiprocessing import start_processes

    from tests.interop.worker import run

    pipelines = [pipeline_of(pp, vpp) for vpp in (1, 2)]
    with TemporaryDirectory() as folder, patch.dict(os.environ, QUIET):
        set_forkserver_preload([run.__module__])  # torch is then imported once, not once a rank
        start_processes(run, (pipelines, WARM_UPS + STEPS, folder), nprocs=pp, start_method="forkserver")
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(pp)]
    return {pipeline.vpp: [Seen(**rank[i]) for rank in ranks] for i, pipeline in enumerate(pipelines)}


def measured_s(seen: list[Seen]) -> np.ndarray:
    """[pp] when every rank ended its last op, counted from the start of rank 0: the median step after the warm-ups."""
    ends = np.array([[ops[-1][2] for ops in rank.ops] for rank in seen])
    return np.median((ends - np.array(seen[0].starts_s))[:, WARM_UPS:], axis=1)


@CASES
def test_every_rank_ends_when_the_simulation_says(pp: int, vpp: int) -> None:
    seen, pipeline = seen_with(pp)[vpp], pipeline_of(pp, vpp)
    measured, simulated = measured_s(seen), simulated_s(pipeline, seen[0].send_s)
    off = measured / simulated - 1
    print(
        f"\npp {pp} vpp {vpp}: step measured {measured.max():.3f} s, simulated {simulated.max():.3f} s, "
        f"off by {measured.max() / simulated.max() - 1:+.2%}; ranks by {off.min():+.2%} to {off.max():+.2%}; "
        f"a message takes {1e6 * seen[0].send_s:.0f} us"
    )
    assert measured.max() == pytest.approx(simulated.max(), rel=WITHIN)
    assert measured == pytest.approx(simulated, rel=WITHIN)


@CASES
def test_every_step_ran_in_our_order(pp: int, vpp: int) -> None:
    shape = pipeline_of(pp, vpp).shape
    for rank, seen in enumerate(seen_with(pp)[vpp]):
        order = [(name, slot) for name, slot, _ in ops_of(shape, rank)]
        assert len(seen.ops) == WARM_UPS + STEPS
        assert all([(name, slot) for name, slot, _ in ops] == order for ops in seen.ops)


@CASES
def test_simpler_formulas_are_too_far_off(pp: int, vpp: int) -> None:
    pipeline = pipeline_of(pp, vpp)
    work = (np.array(pipeline.forward_s) + np.array(pipeline.backward_s)).reshape(vpp, pp).sum(axis=0)
    step, m = simulated_s(pipeline, 0.0).max(), pipeline.microbatches
    assert work.max() * m < (1 - WITHIN) * step  # no bubble
    assert work.max() * (m + (pp - 1) / vpp) > (1 + WITHIN) * step  # the slowest stage sets the pace of all
