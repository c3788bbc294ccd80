"""Every float of the package's values says its unit in its name, or stands below with the reason why not."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass, make_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from tests.house.source import sources

SUFFIXES = ("_log", "_bytes", "_bytes_per_s", "_flop", "_flop_per_s", "_s", "_s_per_sqrt_byte", "_tokens", "_frac")
ALLOWED = {
    "Job.expert_imbalance": "a ratio of one and more, named in docs/nomenclature.md; not a share, so not _frac",
    "Level.oversubscription": "a ratio of one and more, as networks are specified",
    "Claim.published": "in the unit that its field `unit` names",
    "Outcome.over_published": "a ratio: both are in the name",
    "Range.low": "in the unit of its claim",
    "Range.nominal": "as low",
    "Range.high": "as low",
    "Open.imbalance": "as Job.expert_imbalance",
    "PlanResult.tokens_per_s_per_device": "tokens, seconds and devices are all in the name",
    "PlanResult.time_terms": "term -> seconds; the terms' names are those of cost/terms.py, the key that of the JSON",
    "PlanResult.time_split": "as time_terms",
    "StageResult.memory_terms": "term -> bytes; as time_terms",
    "StageResult.memory_moments": "moment -> term -> bytes; as memory_terms",
    "Pressure.now": "of anything that may grow; its name says what",
    "Pressure.breaks_at": "as now",
    "Pressure.growth": "a ratio",
    "_Held.shares": "(chunk, kind) -> part -> share of its layers",
    "Threshold.min_tokens_per_s_per_device": "as tokens_per_s_per_device",
    "Sweep.base": "values of any field, under that field's name",
    "Sweep.matrix": "as base",
    "Cell.values": "as base",
    "Machine.slowest_over_typical": "a ratio of one and more: both are in the name",
    "Stack.expert_imbalance": "as Job.expert_imbalance",
    "Comparison.live_stages": "a count, in activations of a whole stage; chunks make it a fraction",
    "FittedFactor.factor": "a ratio, on what a file states",
    "Parameter.factor": "as FittedFactor.factor",
    "Profile.pace": "a ratio: time over what its terms say",
    "CollectiveLog.points": "bytes and seconds of each, as its docstring says",
    "Sensitivity.slope": "a ratio of relative changes",
    "Interval.low_tokens_per_s_per_device": "as PlanResult.tokens_per_s_per_device",
    "Interval.high_tokens_per_s_per_device": "as PlanResult.tokens_per_s_per_device",
    "Row.value": "its unit is in the column `metric` (docs/validate.md)",
    "Row.params_b": "a column of tables of runs: parameters in 10^9",
    "Group.kendall_tau": "a correlation, from -1 to 1",
    "Group.spread": "a ratio of one and more: slowest over fastest",
    "Factor.value": "of any factor that errors may depend on",
    "Factor.edges": "as value",
    "ModelSize.total": "parameters; the class counts nothing else",
    "ModelSize.active": "parameters",
    "ModelSize.mtp": "parameters",
    "ModelSize.embedding": "parameters",
    "LayerClass.live": "a count, of microbatches; halves of them make it a fraction",
    "LayerClass.weight": "a count, of passes",
    "StageNeed.swap_s_per_byte": "seconds and bytes are in the name",
}


def holds_float(hint: Any) -> bool:
    """Whether a type is a float, or a tuple or mapping of floats."""
    return hint is float or any(holds_float(each) for each in get_args(hint))


def floats(cls: type) -> Iterator[str]:
    """`Class.name` of the float fields and float properties of a class."""
    for name, hint in get_type_hints(cls).items():
        if holds_float(hint):
            yield f"{cls.__name__}.{name}"
    for name, member in vars(cls).items():
        if isinstance(member, property) and holds_float(get_type_hints(member.fget).get("return")):
            yield f"{cls.__name__}.{name}"


def values_of_the_package() -> set[type]:
    """Every dataclass and named tuple that the package defines."""
    found = set()
    for source in sources():
        if source.package in ("", "__main__"):
            continue
        for cls in vars(importlib.import_module(source.module)).values():
            value = inspect.isclass(cls) and (is_dataclass(cls) or hasattr(cls, "_fields"))
            if value and cls.__module__ == source.module:
                found.add(cls)
    return found


def unnamed(classes: set[type]) -> set[str]:
    """Floats whose name carries no unit."""
    return {name for cls in classes for name in floats(cls) if not name.endswith(SUFFIXES)}


def test_floats_carry_their_unit() -> None:
    assert unnamed(values_of_the_package()) - ALLOWED.keys() == set()


def test_every_exception_is_one() -> None:
    assert ALLOWED.keys() - unnamed(values_of_the_package()) == set()


@pytest.mark.parametrize("hint", [float, float | None, tuple[float, ...], dict[str, float]])
def test_a_planted_name_is_found(hint: Any) -> None:
    planted = make_dataclass("Planted", [("hbm_bytes", hint), ("hbm_gib", hint), ("count", int)])
    assert unnamed({planted}) == {"Planted.hbm_gib"}
