"""The catalog's fitted factors as their file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autodeploy.catalog.calibration import FittedFactor

HEAD = """# Fitted on published runs (benchmarks/fidelity, use = calibrate) by `make fidelity`; not by hand.
# owner: a chip generation or a family of targets (generations.toml); name: a constant or the pace; factor: on what the
# files state (pace: of time). rows, models: that see it; error_frac: median error of those rows, fitted.
"""


def calibration_text(found: Sequence[FittedFactor]) -> str:
    """All factors, as `autodeploy.catalog.calibration` reads them."""
    return HEAD + "".join(_entry(each) for each in found)


def _entry(each: FittedFactor) -> str:
    cells: Mapping[str, str] = {
        "owner": f'"{each.owner}"', "name": f'"{each.name}"', "factor": f"{each.factor:.4f}", "rows": str(each.rows),
        "models": str(each.models), "error_frac": f"{each.error_frac:.4f}",
    }  # fmt: skip
    return "\n[[factor]]\n" + "".join(f"{key} = {value}\n" for key, value in cells.items())
