"""How well an input is known: the first word of its source."""

from __future__ import annotations

import re
from enum import IntEnum


class Evidence(IntEnum):
    """From best to worst; a result is as good as the worst input it rests on."""

    MEASURED = 0
    CALIBRATED = 1
    PUBLISHED = 2
    ASSUMED = 3


def evidence(source: str) -> Evidence:
    """`"measured: 18.5 GB/s ..."` -> MEASURED, `"calibrated (20 rows ..."` -> CALIBRATED; without such a word a source
    is a publication."""
    word = source.split(":", 1)[0].split(" (", 1)[0].strip().upper()
    return Evidence[word] if word in Evidence.__members__ else Evidence.PUBLISHED


def weakest(sources: dict[str, str], keys: tuple[str, ...]) -> tuple[Evidence, str]:
    """The worst evidence among the inputs, and the name of that input."""
    ranked = [(evidence(sources[key]), key) for key in keys if key in sources]
    return max(ranked, default=(Evidence.PUBLISHED, ""), key=lambda pair: pair[0])


def fit_text(source: str) -> str:
    """`calibrated (n rows, m models, median error)` of a source that says so, or nothing."""
    found = re.match(r"calibrated \([^)]*\)", source)
    return found[0] if found else ""
