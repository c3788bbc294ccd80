"""No file names a place that exists on one machine only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import ROOT

SUFFIXES = {"", ".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".cfg", ".ini", ".in", ".sh", ".lock"}
HIDDEN = {".ci", ".github"}
BUILT = {"build", "dist", "__pycache__", "node_modules"}
PLACES = ("work", "tmp", "home", "root", "Users", "mnt", "var")
LOCAL = re.compile(rf"(?<![\w.~)>-])/({'|'.join(PLACES)})\b|(?<![\w-])share" + r"d/")


def text_files(folder: Path) -> Iterator[Path]:
    """Files that people read, without what tools make."""
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".") and path.name not in {*HIDDEN, ".gitignore"}
        if path.is_symlink() or hidden or path.name in BUILT or path.suffix == ".egg-info":
            continue
        if path.is_dir():
            yield from text_files(path)
        elif path.suffix in SUFFIXES:
            yield path


def local_paths(text: str) -> list[str]:
    """Lines that name such a place."""
    return [line.strip() for line in text.splitlines() if LOCAL.search(line)]


def test_no_file_names_a_local_path() -> None:
    files = list(text_files(ROOT))
    assert ROOT / "Makefile" in files
    found = {path.relative_to(ROOT).as_posix(): local_paths(path.read_text(encoding="utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("place", [*PLACES])
def test_a_planted_path_is_found(place: str) -> None:
    assert local_paths(f"see /{place}/x for more") != []
    assert local_paths(f'path = "/{place}"') != []
    assert local_paths(f"a/{place}/b and https://x.org/{place}") == []
