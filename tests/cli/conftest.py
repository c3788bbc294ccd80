"""Every command of these tests runs in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.asking import SMALL, TOO_BIG


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small(folder: Path) -> Path:
    """A file of a space of a few dozen plans, most of which fit."""
    path = folder / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def too_big(folder: Path) -> Path:
    """A file of a space in which nothing fits."""
    path = folder / "too_big.toml"
    path.write_text(TOO_BIG)
    return path
