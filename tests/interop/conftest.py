"""Tests of this folder need PyTorch; without it each one is skipped under its own name. No other test may need it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def torch_is_installed(request: pytest.FixtureRequest) -> None:
    """Test modules import torch inside functions only, so that the default suite can collect them without it."""
    skip_without(request, "torch")


def skip_without(request: pytest.FixtureRequest, module: str, package: str = "") -> None:
    """Skip a test under its own name where a module is not installed."""
    if find_spec(module) is None:
        named = package or module
        pytest.skip(f"{request.node.name} needs {named}: run `make interop`, which installs it in .venv-interop")
