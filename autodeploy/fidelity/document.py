"""A validation as JSON: every row, every group, the summary (docs/validate.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from autodeploy.fidelity.predict import Prediction
from autodeploy.fidelity.rank_errors import RankErrors
from autodeploy.fidelity.reasons import memory_reason
from autodeploy.fidelity.rows import Unread
from autodeploy.fidelity.score import (
    Errors,
    Group,
    errors_by,
    errors_of,
    fits_of,
    groups_of,
    median_of_sources,
)  # fmt: skip

SCHEMA_VERSION = "1.0"
NEAR_FRAC, FAR_FRAC = 0.02, 0.18
"""Errors that what is allocated, and what peaks, should stay within."""
GPUS = ("a100-80g", "a100-40g", "h100-80g")


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Runs predicted, and lines that are no run."""

    predictions: tuple[Prediction, ...]
    unread: tuple[Unread, ...]
    ranks: tuple[RankErrors, ...] = ()
    """Memory of single ranks, where a table beside the runs has it."""

    @property
    def known(self) -> tuple[Prediction, ...]:
        """Predictions of runs whose step was measured."""
        return tuple(each for each in self.predictions if each.error_frac is not None)


def is_ascend(each: Prediction) -> bool:
    """On a Huawei machine."""
    return "Ascend" in each.run.space.cluster.device.name


def is_ci(each: Prediction) -> bool:
    """A cropped model of a continuous-integration run."""
    return "ci-" in each.run.row.source


CLASSES: dict[str, Callable[[Prediction], bool]] = {
    "dense, A100 and H100": lambda p: p.run.kind == "dense" and p.run.space.cluster.name in GPUS,
    "dense, other NVIDIA": lambda p: (
        p.run.kind == "dense" and not is_ascend(p) and p.run.space.cluster.name not in GPUS
    ),
    "MoE, NVIDIA": lambda p: p.run.kind == "moe" and not is_ascend(p),
    "Ascend, without CI": lambda p: is_ascend(p) and not is_ci(p),
    "Ascend MoE, without CI": lambda p: is_ascend(p) and not is_ci(p) and p.run.kind == "moe",
    "Ascend CI (cropped)": lambda p: is_ascend(p) and is_ci(p),
}
"""What the figures are stated for; a run may be in two."""


def classes(predictions: Sequence[Prediction]) -> dict[str, Errors]:
    """Errors of every class that has runs."""
    found = {name: errors_of(p.error_frac for p in predictions if mine(p)) for name, mine in CLASSES.items()}
    return {name: errors for name, errors in found.items() if errors is not None}


def validation_document(found: Validation) -> dict[str, Any]:
    """The whole of a validation."""
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": [*map(_row, found.predictions), *map(_unread, found.unread)],
        "groups": [_group(group) for group in groups_of(found.known)],
        "ranks": [_rank(each) for each in found.ranks],
        "summary": summary(found),
    }


def _row(each: Prediction) -> dict[str, Any]:
    result, run = each.result, each.run
    return {
        "id": run.row.id,
        "source": run.row.source,
        "use": run.row.use,
        "plan": run.plan_text,
        "assumed": run.stack.name,
        "predicted_step_time_s": result.step_time_s if result else None,
        "measured_step_time_s": run.step_s,
        "error_frac": each.error_frac,
        "predicted_fits": result.fits if result else None,
        "measured_fits": run.fits,
        "predicted_peak_memory_bytes": each.memory_bytes,
        "measured_peak_memory_bytes": run.peak_bytes,
        "memory_error_frac": each.memory_error_frac,
        "unread_reason": each.reason or None,
    }


def _unread(line: Unread) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(
        (
            "plan", "assumed", "predicted_step_time_s", "measured_step_time_s", "error_frac", "predicted_fits",
            "measured_fits", "predicted_peak_memory_bytes", "measured_peak_memory_bytes", "memory_error_frac",
        )
    )  # fmt: skip
    return {"id": line.id, "source": line.source, "use": line.use, **empty, "unread_reason": line.reason}


def _rank(each: RankErrors) -> dict[str, Any]:
    errors = {"allocated_error_frac": each.allocated_error_frac, "peak_error_frac": each.peak_error_frac}
    return asdict(each) | errors | {"reason": each.reason or None}


def rank_summary(ranks: Sequence[RankErrors]) -> dict[str, Any]:
    """Errors of what single ranks allocate, all of them and those without a known reason."""
    plain = [each for each in ranks if not each.reason]
    return {
        name: {
            "allocated": _errors(errors_of(each.allocated_error_frac for each in some)),
            "allocated_within_2_percent_frac": _share(abs(each.allocated_error_frac) <= NEAR_FRAC for each in some),
            "peak": _errors(errors_of(each.peak_error_frac for each in some)),
            "peak_within_18_percent_frac": _share(abs(each.peak_error_frac) <= FAR_FRAC for each in some),
        }
        for name, some in (("all", ranks), ("without_known_reason", plain))
    }


def _share(hits: Iterable[bool]) -> float | None:
    listed = list(hits)
    return sum(listed) / len(listed) if listed else None


def _group(group: Group) -> dict[str, Any]:
    return asdict(group)


def summary(found: Validation) -> dict[str, Any]:
    """Figures over all rows: pooled, per class, hardware, source; fits; what was not read."""
    known, groups = found.known, groups_of(found.known)
    tau = [group.kendall_tau for group in groups if group.kendall_tau is not None]
    regrets = [group.regret_frac for group in groups]
    return {
        "rows": len(found.predictions) + len(found.unread),
        "read": len(found.predictions),
        "with_step_time": len(known),
        "complete": {
            "read": sum(p.run.complete for p in found.predictions),
            "unread": sum(line.complete for line in found.unread),
        },
        "pooled": _errors(errors_of(p.error_frac for p in known)),
        "median_of_source_medians": median_of_sources(known),
        "complete_rows": _errors(errors_of(p.error_frac for p in known if p.run.complete)),
        "partial_rows": _errors(errors_of(p.error_frac for p in known if not p.run.complete)),
        "classes": {name: _errors(errors) for name, errors in classes(known).items()},
        "hardware": _all(errors_by(known, lambda p: f"{p.run.space.cluster.name} {p.run.kind}")),
        "sources": _all(errors_by(known, lambda p: p.run.row.source)),
        "use": _all(errors_by(known, lambda p: p.run.row.use or "none")),
        "memory": _errors(errors_of(p.memory_error_frac for p in found.predictions)),
        "memory_sources": _memory_sources(found.predictions),
        "ranks": rank_summary(found.ranks),
        "fits": asdict(fits_of(found.predictions)),
        "fits_sources": _fits_sources(found.predictions),
        "groups": {
            "count": len(groups),
            "regret_median_frac": _middle(regrets),
            "regret_mean_frac": sum(regrets) / len(regrets) if regrets else None,
            "regret_max_frac": max(regrets, default=None),
            "kendall_tau_median": _middle(tau),
        },
        "unread": dict(Counter(line.reason for line in found.unread).most_common()),
    }


def _memory_sources(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Errors of the peak memory, per source."""
    named: dict[str, list[Prediction]] = {}
    for each in predictions:
        if each.memory_error_frac is not None:
            named.setdefault(each.run.row.source, []).append(each)
    return {name: _memory_figures(some) for name, some in sorted(named.items())}


def _memory_figures(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Errors of one source, and of those of its runs that have no known reason to stand out."""
    values = [each.memory_error_frac or 0.0 for each in predictions]
    plain = [each.memory_error_frac for each in predictions if not memory_reason(each.run.row.id)]
    within = _share(abs(value) <= FAR_FRAC for value in values)
    figures = _errors(errors_of(values)) or {}
    return figures | {"within_18_percent_frac": within, "without_known_reason": _errors(errors_of(plain))}


def _fits_sources(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Fits or not, per source."""
    named: dict[str, list[Prediction]] = {}
    for each in predictions:
        named.setdefault(each.run.row.source, []).append(each)
    return {name: asdict(fits_of(some)) for name, some in sorted(named.items())}


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _errors(errors: Errors | None) -> dict[str, Any] | None:
    return asdict(errors) if errors else None


def _all(found: dict[str, Errors]) -> dict[str, Any]:
    return {name: asdict(errors) for name, errors in found.items()}
