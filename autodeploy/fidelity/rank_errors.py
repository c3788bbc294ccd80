"""Measured memory of single ranks against ours: what is allocated after the first step, and the first step's peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autodeploy.errors import spec_error
from autodeploy.fidelity.predict import Prediction
from autodeploy.fidelity.ranks import RankMemory, stage_of_rank
from autodeploy.fidelity.reasons import memory_reason
from autodeploy.units import MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class RankErrors:
    """One rank of a run; ranks of one stage that report the same to a MiB are one."""

    id: str
    source: str
    use: str
    rank: int
    stage: int
    measured_allocated_bytes: float
    predicted_allocated_bytes: float
    measured_peak_bytes: float
    predicted_peak_bytes: float

    @property
    def allocated_error_frac(self) -> float:
        """Signed error of what is allocated after the first step."""
        return self.predicted_allocated_bytes / self.measured_allocated_bytes - 1.0

    @property
    def peak_error_frac(self) -> float:
        """Signed error of the first step's peak."""
        return self.predicted_peak_bytes / self.measured_peak_bytes - 1.0

    @property
    def reason(self) -> str:
        """Why it stands out, where that is known."""
        return memory_reason(self.id)


def rank_errors(
    predictions: Iterable[Prediction], measured: Mapping[str, Sequence[RankMemory]], source: str = ""
) -> list[RankErrors]:
    """Every distinct measured rank of the runs that were predicted. Raises `SpecError` for ranks of no run at all."""
    known = {each.run.row.id: each for each in predictions}
    strangers = sorted(set(measured) - set(known))
    if measured and len(strangers) == len(measured):
        raise spec_error("id", f"{strangers[0]!r} is none of the runs", "ids of the table of runs", source=source)
    return [each for name, ranks in measured.items() if name in known for each in _of_run(known[name], ranks)]


def _of_run(prediction: Prediction, ranks: Sequence[RankMemory]) -> list[RankErrors]:
    result, run = prediction.result, prediction.run
    if result is None:
        return []
    found: dict[tuple[int, int, int], RankErrors] = {}
    for each in ranks:
        stage = result.stages[stage_of_rank(run.plan, each.rank)]
        key = (stage.stage, round(each.allocated_bytes / MIB), round(each.peak_bytes / MIB))
        made = RankErrors(
            id=run.row.id, source=run.row.source, use=run.row.use, rank=each.rank, stage=stage.stage,
            measured_allocated_bytes=each.allocated_bytes, predicted_allocated_bytes=stage.allocated_first_step_bytes,
            measured_peak_bytes=each.peak_bytes, predicted_peak_bytes=stage.first_step_peak_bytes,
        )  # fmt: skip
        found.setdefault(key, made)
    return list(found.values())
