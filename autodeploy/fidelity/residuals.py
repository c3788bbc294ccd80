"""Where the errors lie: signed errors against the shape of a run and against what its step consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autodeploy.fidelity.predict import Prediction
from autodeploy.fidelity.score import Errors, errors_of
from autodeploy.search.result import TIME_TERMS

LARGE_SHARE = 0.15
"""A term with more of the predicted step than this is looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """Errors of the runs that fall into one bin of a factor."""

    factor: str
    bin: str
    errors: Errors


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """Something that errors may depend on, in bins with an upper end."""

    name: str
    value: Callable[[Prediction], float]
    edges: tuple[float, ...]


def _tokens(each: Prediction) -> float:
    run = each.run
    return run.plan.mbs * run.space.job.seq_len / run.plan.cp


def _width(each: Prediction) -> float:
    return each.run.space.model.hidden


def _across(each: Prediction) -> float:
    return each.run.plan.tp / each.run.space.cluster.inner.size


def _launch(each: Prediction) -> float:
    assert each.result is not None
    return each.result.time_terms["launch"] / each.result.step_time_s


FACTORS = (
    Factor(name="tokens of a micro-batch on a rank", value=_tokens, edges=(2048, 4096, 8192, 32768)),
    Factor(name="hidden size (size of the products)", value=_width, edges=(2048, 4096, 8192)),
    Factor(name="micro-batch", value=lambda p: p.run.plan.mbs, edges=(1, 2, 4, 8)),
    Factor(name="tp over the devices of a node", value=_across, edges=(0.125, 0.5, 1.0)),
    Factor(name="pipeline stages", value=lambda p: p.run.plan.pp, edges=(1, 4, 8)),
    Factor(name="share of host launches", value=_launch, edges=(0.0, 0.05, 0.2)),
    Factor(name="devices", value=lambda p: p.run.space.devices, edges=(8, 64, 512)),
)


def residuals(predictions: Sequence[Prediction]) -> list[Residual]:
    """Errors by every factor, and by every term that is a large share of the step."""
    known = [each for each in predictions if each.error_frac is not None]
    return [*(found for factor in FACTORS for found in _by_factor(known, factor)), *_by_term(known)]


def _by_factor(known: Sequence[Prediction], factor: Factor) -> list[Residual]:
    out, low = [], float("-inf")
    for high in (*factor.edges, float("inf")):
        here = errors_of(each.error_frac for each in known if low < factor.value(each) <= high)
        if here is not None:
            name = f"over {low:g}" if high == float("inf") else f"up to {high:g}"
            out.append(Residual(factor=factor.name, bin=name, errors=here))
        low = high
    return out


def _by_term(known: Sequence[Prediction]) -> list[Residual]:
    out = []
    for term in TIME_TERMS:
        large = [
            each.error_frac
            for each in known
            if each.result and each.result.time_terms[term] > LARGE_SHARE * each.result.step_time_s
        ]
        here = errors_of(large)
        if here is not None:
            out.append(Residual(factor=f"a term above {LARGE_SHARE:.0%} of the step", bin=term, errors=here))
    return out
