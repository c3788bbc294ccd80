"""The part of the accuracy page about memory: peaks by source, single ranks, what stands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autodeploy.fidelity.document import FAR_FRAC, NEAR_FRAC, Validation
from autodeploy.fidelity.rank_errors import RankErrors
from autodeploy.fidelity.reasons import memory_reason
from autodeploy.report.markdown import table
from autodeploy.units import GIB, MIB

COLUMNS = (
    "rows", "median error", "90 % within", "bias", "within 18 %", "without known reason", "median error", "90 % within",
)  # fmt: skip

FITS_TEXT = "Sources of which some run is called wrongly."


def memory_parts(found: Validation, figures: Mapping[str, Any]) -> list[str]:
    """Headings and tables."""
    parts = [
        "## Peak memory by source",
        "Predicted over measured less one. Each source's figure is compared with ours of the same sort: what the "
        "framework's allocator has handed out, what it has reserved, or what the device has in use.",
        table(("", *COLUMNS), ((name, *_cells(errors)) for name, errors in figures["memory_sources"].items())),
        _far_peaks(found),
    ]
    parts += ["## Fits or not", FITS_TEXT, _fits(figures["fits_sources"])]
    if not found.ranks:
        return parts
    return [*parts, "## Memory of single ranks", _ranks_text(figures["ranks"]), _outliers(found.ranks)]


def _cells(errors: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(errors["runs"]), f"{errors['median_abs_frac']:.1%}", f"{errors['p90_abs_frac']:.1%}",
        f"{errors['bias_frac']:+.1%}", f"{errors['within_18_percent_frac']:.0%}",
        *_plain_cells(errors["without_known_reason"]),
    )  # fmt: skip


def _plain_cells(errors: Mapping[str, Any] | None) -> tuple[str, ...]:
    if errors is None:
        return ("0", "", "")
    return str(errors["runs"]), f"{errors['median_abs_frac']:.1%}", f"{errors['p90_abs_frac']:.1%}"


def _far_peaks(found: Validation) -> str:
    """Peaks that are far off, each with its reason."""
    errors = [(each, each.memory_error_frac) for each in found.predictions]
    rows = (
        (
            each.run.row.id, each.run.row.source, f"{(each.run.peak_bytes or 0.0) / GIB:.1f}", f"{error:+.1%}",
            memory_reason(each.run.row.id) or "not known",
        )
        for each, error in errors if error is not None and abs(error) > FAR_FRAC
    )  # fmt: skip
    return "Peaks beyond 18 %:\n\n" + table(("row", "source", "GiB", "error", "reason"), rows)


def _fits(figures: Mapping[str, Mapping[str, int]]) -> str:
    wrong = ("ran_but_refused", "ran_out_but_called_fitting")
    rows = (
        (name, str(each["right"]), *(str(each[key]) for key in wrong))
        for name, each in figures.items()
        if any(each[key] for key in wrong)
    )
    return table(("source", "right", "ran, refused", "ran out, called fitting"), rows)


def _ranks_text(figures: Mapping[str, Any]) -> str:
    rows = [(name.replace("_", " "), *_rank_cells(each)) for name, each in figures.items() if each["peak"]]
    names = ("ranks", "count", "allocated: median", "within 2 %", "first peak: median", "90 % within", "within 18 %")
    return (
        "Tests of MindSpeed-LLM log what a rank has allocated after the first step and the most it had in that step, "
        "whose passes run before the optimizer has its moments. Ranks of a stage that agree to a MiB are one.\n\n"
        + table(names, rows)
    )


def _rank_cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(each["peak"]["runs"]), f"{each['allocated']['median_abs_frac']:.2%}",
        f"{each['allocated_within_2_percent_frac']:.0%}", f"{each['peak']['median_abs_frac']:.2%}",
        f"{each['peak']['p90_abs_frac']:.1%}", f"{each['peak_within_18_percent_frac']:.0%}",
    )  # fmt: skip


def _outliers(ranks: Sequence[RankErrors]) -> str:
    far = [e for e in ranks if abs(e.allocated_error_frac) > NEAR_FRAC or abs(e.peak_error_frac) > FAR_FRAC]
    rows = (
        (
            each.id, str(each.stage), f"{each.measured_allocated_bytes / MIB:,.0f}",
            f"{each.allocated_error_frac:+.1%}",
            f"{each.measured_peak_bytes / MIB:,.0f}", f"{each.peak_error_frac:+.1%}", each.reason or "not known",
        )
        for each in far
    )  # fmt: skip
    names = ("row", "stage", "allocated MiB", "error", "first peak MiB", "error", "reason")
    return "Ranks beyond 2 % or 18 %:\n\n" + table(names, rows)
