"""Human units in keys become SI; figures are printed in the unit that a reader expects."""

from __future__ import annotations

import pytest

from autodeploy.units import HUMAN_SUFFIXES, format_bytes, format_count, format_seconds, gib, to_si

KEYS = {
    "hbm_gib": ("hbm_bytes", 2.0**30),
    "hbm_mib": ("hbm_bytes", 2.0**20),
    "buffer_kib": ("buffer_bytes", 2.0**10),
    "hbm_gb": ("hbm_bytes", 1e9),
    "communicator_mb": ("communicator_bytes", 1e6),
    "link_gb_per_s": ("link_bytes_per_s", 1e9),
    "hbm_tb_per_s": ("hbm_bytes_per_s", 1e12),
    "peak_tflop_per_s": ("peak_flop_per_s", 1e12),
    "peak_gflop_per_s": ("peak_flop_per_s", 1e9),
    "latency_us": ("latency_s", 1e-6),
    "step_ms": ("step_s", 1e-3),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_human_key_becomes_its_si_key(key: str) -> None:
    si, factor = KEYS[key]
    assert to_si(key, 3.0) == (si, 3.0 * factor)


@pytest.mark.parametrize("key", ["layers", "hbm_bytes", "latency_s", "peak_flop_per_s", "items", "frac", "gib"])
def test_other_keys_stay(key: str) -> None:
    assert to_si(key, 3) == (key, 3)


def test_every_suffix_is_tried() -> None:
    assert {key[key.index("_") :] for key in KEYS} == set(HUMAN_SUFFIXES)


@pytest.mark.parametrize("suffix", HUMAN_SUFFIXES)
def test_no_suffix_is_hidden_by_a_shorter_one(suffix: str) -> None:
    si, factor = HUMAN_SUFFIXES[suffix]
    assert to_si(f"x{suffix}", 1.0) == (f"x{si}", factor)


def test_bytes_are_printed_in_gib() -> None:
    assert format_bytes(59.47 * 2**30) == "59.47 GiB"
    assert gib(2.0**31) == 2.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(17.168, "17.17 s"), (1.0, "1.00 s"), (0.9, "900.0 ms"), (0.0021, "2.1 ms"), (45e-6, "45 us")]
)
def test_seconds_take_the_unit_of_their_size(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(6.7e11, "670.00 B"), (1.2e12, "1.20 T"), (5e6, "5.00 M"), (12, "12")])
def test_counts_take_the_unit_of_their_size(count: float, text: str) -> None:
    assert format_count(count) == text
