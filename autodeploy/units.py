"""Every 1024, 1e9 and 1e12 of the project: human units at the border, SI inside.

A file writes `hbm_gb_per_s = 1600`; inside it is `hbm_bytes_per_s = 1.6e12`. GB is 10^9 and GiB is 2^30.
"""

import math
import re

KIB = 2.0**10
MIB = 2.0**20
GIB = 2.0**30
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
MILLI = 1e-3
MICRO = 1e-6

HUMAN_SUFFIXES = {
    "_tflop_per_s": ("_flop_per_s", TERA),
    "_gflop_per_s": ("_flop_per_s", GIGA),
    "_tb_per_s": ("_bytes_per_s", TERA),
    "_gb_per_s": ("_bytes_per_s", GIGA),
    "_gib": ("_bytes", GIB),
    "_mib": ("_bytes", MIB),
    "_kib": ("_bytes", KIB),
    "_gb": ("_bytes", GIGA),
    "_mb": ("_bytes", MEGA),
    "_ms": ("_s", MILLI),
    "_us": ("_s", MICRO),
}


_SECONDS = re.compile(r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(s|ms|us|)\s*")
_SECOND_UNITS = {"": 1.0, "s": 1.0, "ms": MILLI, "us": MICRO}


def human_suffix(key: str) -> str | None:
    """The human-unit suffix of a file key, longest match first, or None."""
    return next((suffix for suffix in HUMAN_SUFFIXES if key.endswith(suffix)), None)


def to_si(key: str, value: float) -> tuple[str, float]:
    """`("hbm_gib", 64)` -> `("hbm_bytes", 64 * 2**30)`; a key without a human suffix is unchanged."""
    suffix = human_suffix(key)
    if suffix is None:
        return key, value
    si_suffix, factor = HUMAN_SUFFIXES[suffix]
    return key.removesuffix(suffix) + si_suffix, value * factor


def gib(value: float) -> float:
    """Bytes -> GiB, for printing."""
    return value / GIB


def format_bytes(value: float) -> str:
    """Bytes as GiB with two digits: the unit of every memory figure in reports."""
    return f"{value / GIB:.2f} GiB"


def format_seconds(value: float) -> str:
    """Seconds with the unit that a reader expects of that size."""
    if abs(value) >= 1.0:
        return f"{value:.2f} s"
    if abs(value) >= MILLI:
        return f"{value / MILLI:.1f} ms"
    return f"{value / MICRO:.0f} us"


def parse_seconds(text: str) -> float:
    """`0.01`, `10ms` and `10000us` as seconds; raises `ValueError` for what is no finite time, also a negative one."""
    match = _SECONDS.fullmatch(text)
    seconds = float(match[1]) * _SECOND_UNITS[match[2]] if match else math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"not a time: {text!r}")
    return seconds


def format_count(value: float) -> str:
    """Parameters and FLOP as B (10^9), T (10^12) or M (10^6)."""
    for name, factor in (("T", TERA), ("B", GIGA), ("M", MEGA)):
        if abs(value) >= factor:
            return f"{value / factor:.2f} {name}"
    return f"{value:.0f}"
