"""Tests of this folder need PyTorch; without it each one is skipped under its own name. No other test may need it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def torch_is_installed(request: pytest.FixtureRequest) -> None:
    """Test modules import torch inside functions only, so that the default suite can collect them without it."""
    if find_spec("torch") is None:
        pytest.skip(f"{request.node.name} needs torch: run `make interop`, which installs it in .venv-interop")
