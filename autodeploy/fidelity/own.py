"""The package's own tables about runs: families, assumptions, reasons, readings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

from autodeploy.spec.files import parse, read_mapping

T = TypeVar("T")
FOLDER = Path(__file__).parent


@cache
def own_table(cls: type[T], name: str) -> T:
    """A table by its name, read once."""
    path = FOLDER / f"{name}.toml"
    return parse(cls, read_mapping(path), source=str(path))
