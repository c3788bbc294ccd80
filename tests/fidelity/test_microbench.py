"""Logs of collectives and products: read as their tools write them, and the constants behind them found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autodeploy.cost.collectives import gather_rates, span
from autodeploy.cost.compute import ELEMENT_BYTES, product_s
from autodeploy.errors import SpecError
from autodeploy.fidelity.microbench import fit_level, fit_products, read_collective, read_products
from tests.builders import cluster_of

BASE = cluster_of("h100-80g")
SIZES = [2.0**power for power in range(16, 33, 2)]
TRUE_LATENCY_S = 9e-6


def nccl_log(hosts: int, frac: float, latency_s: float) -> str:
    """As nccl-tests 2.13 prints an all_gather: size, count, type, redop, root, time (us), algbw, busbw, #wrong, ..."""
    level = replace(BASE.fabric if hosts > 1 else BASE.node, link_max_frac=frac, latency_s=latency_s)
    cluster = replace(BASE, fabric=level) if hosts > 1 else replace(BASE, node=level)
    rates = gather_rates(cluster, span(cluster, 8 * hosts, 1))
    lines = ["# nThread 1 nGpus 1 minBytes 65536 maxBytes 4294967296 step: 4(factor)", "#", "# Using devices"]
    lines += [f"#  Rank {r:2} Group  0 Pid {r} on host{r // 8} device {r % 8} [0x1b] H100" for r in range(8 * hosts)]
    lines += ["# all_gather_perf", "#       size  count  type  redop  root  time  algbw  busbw #wrong"]
    for size in SIZES:
        lanes = rates.lanes(np.array([size]))
        both = np.maximum(lanes.inner, lanes.outer) if cluster.pipelined_collectives else lanes.inner + lanes.outer
        time_us = float(both[0]) * 1e6
        lines.append(
            f"{int(size):12d} {int(size) // 4:12d} float none -1 {time_us:8.2f} 1.0 1.0 0 {time_us:8.2f} 1 1 0"
        )
    return "\n".join(lines) + "\n# Avg bus bandwidth : 100\n"


@pytest.mark.parametrize(("hosts", "frac"), [(1, 0.61), (4, 0.25)])
def test_a_level_is_found_again(tmp_path: Path, hosts: int, frac: float) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(nccl_log(hosts, frac, TRUE_LATENCY_S))
    log = read_collective(path)
    assert (log.collective, log.ranks, log.hosts, len(log.points)) == ("all_gather", 8 * hosts, hosts, len(SIZES))
    fitted, found, error = fit_level(BASE, log)
    name = "fabric" if hosts > 1 else "node"
    assert found[f"{name}.link_max_frac"] == pytest.approx(frac, rel=0.03)
    assert error < 0.02
    assert getattr(fitted, name).link_max_frac == found[f"{name}.link_max_frac"]


def test_a_log_that_another_level_binds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(nccl_log(4, 0.9, TRUE_LATENCY_S))
    with pytest.raises(SpecError, match="32 ranks on 4 hosts is not bound by the fabric"):
        fit_level(BASE, read_collective(path))


def test_an_hccl_table_needs_what_it_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "hccl.log"
    rows = "".join(f"{int(size)}  {100 + size / 1e5:.2f}  1.0  success\n" for size in SIZES)
    path.write_text("data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n" + rows)
    with pytest.raises(SpecError, match="collective unknown, 0 ranks on 0 hosts"):
        read_collective(path)
    log = read_collective(path, "allreduce", 16, 2)
    assert log.points[0] == (SIZES[0], pytest.approx((100 + SIZES[0] / 1e5) * 1e-6, rel=1e-3))


def test_a_short_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.log"
    path.write_text("# all_gather_perf\n" + "1024 256 float none -1 10.0 1 1 0\n" * 2)
    with pytest.raises(SpecError, match="2 sizes with a time"):
        read_collective(path, ranks=8, hosts=1)


def test_products_give_the_share_of_the_peak(tmp_path: Path) -> None:
    device = replace(BASE.device, matmul_max_frac=0.71)
    shapes = [(4096, n, k) for n in (1024, 4096, 16384) for k in (512, 4096, 16384)]
    times = [
        float(product_s(device, m, n, k, 1.0, ELEMENT_BYTES * (m * k + k * n + m * n))) * 1e6 for m, n, k in shapes
    ]
    path = tmp_path / "sweep.csv"
    lines = [f"{m},{n},{k},{time:.4f}" for (m, n, k), time in zip(shapes, times, strict=True)]
    path.write_text("m,n,k,time_us\n" + "\n".join(lines) + "\n")
    _, found, error = fit_products(BASE, read_products(path))
    assert found["device.matmul_max_frac"] == pytest.approx(0.71, rel=0.03)
    assert error < 0.01


def test_a_product_without_a_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text("m,n,k\n1,2,3\n")
    with pytest.raises(SpecError, match="holds no product"):
        read_products(path)
