"""The plan document: the JSON in which answers are kept, additive within a major version (docs/json.md)."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autodeploy.errors import spec_error
from autodeploy.formats.short import short_form, varying_fields
from autodeploy.search.enumerate import field_values
from autodeploy.search.result import PlanResult, StageResult
from autodeploy.search.surety import Surety, surety
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.files import parse, read_mapping
from autodeploy.spec.model import Model
from autodeploy.spec.placement import usual_schedule
from autodeploy.spec.plan import (
    CP_COMM_WORDS,
    DISPATCH_WORDS,
    OVERLAP_WORDS,
    SCHEDULE_WORDS,
    STATES_WORDS,
    Plan,
)  # fmt: skip
from autodeploy.spec.space import Space, SpaceFile
from autodeploy.spec.target import Target

SCHEMA_VERSION = "1.0"
ENUM_WORDS = {
    "schedule": SCHEDULE_WORDS,
    "overlap": OVERLAP_WORDS,
    "dispatch": DISPATCH_WORDS,
    "cp_comm": CP_COMM_WORDS,
    "states": STATES_WORDS,
}


LATER = ("cp_comm", "replicas", "states")
"""Plan fields that documents of schema 1.0 did not always have: without them they have their defaults."""


def tool_version() -> str:
    """Version of the installed package."""
    return version("autodeploy")


def varying(space: Space) -> tuple[str, ...]:
    """Fields that a short form of this space prints."""
    values = field_values(space)
    derived = ["dp"] if any(len(values[name]) > 1 for name in ("tp", "pp", "cp")) else []
    return varying_fields(values, derived)


def plan_short(space: Space, plan: Plan) -> str:
    """The short form of a plan of a space, with what its space does not list: read back, it names the same plan."""
    return short_form(plan, (*varying(space), *outside(space, plan)))


def outside(space: Space, plan: Plan) -> tuple[str, ...]:
    """Fields of a plan whose value its space does not list."""
    listed = {"sp": (plan.tp > 1,), "schedule": (usual_schedule(plan.vpp),)} | field_values(space)
    return tuple(name for name, values in listed.items() if getattr(plan, name) not in values)


def inputs_document(space: Space) -> dict[str, Any]:
    """Everything that the answer depends on, written out: the document needs no other file to be explained."""
    return {
        "space": space.name,
        "names": dict(space.inputs),
        "devices": space.devices,
        "job": asdict(space.job),
        "plan": asdict(space.plan),
        "only": list(space.only),
        "ban": list(space.ban),
        "model": asdict(space.model),
        "cluster": asdict(space.cluster),
        "target": asdict(space.target),
    }


def plan_fields(plan: Plan) -> dict[str, Any]:
    """A plan with its codes as words."""
    out: dict[str, Any] = asdict(plan)
    return out | {name: words[int(getattr(plan, name))] for name, words in ENUM_WORDS.items()}


def plan_document(space: Space, rank: int, result: PlanResult) -> dict[str, Any]:
    """One ranked plan."""
    return {
        "rank": rank,
        "plan_id": result.plan_id,
        "plan_short": plan_short(space, result.plan),
        "plan": plan_fields(result.plan),
        "arrangement": asdict(result.arrangement),
        "microbatches": result.microbatches,
        "tokens_per_s_per_device": result.tokens_per_s_per_device,
        "step_time_s": result.step_time_s,
        "mfu_frac": result.mfu_frac,
        "mfu_peak_flop_per_s": result.mfu_peak_flop_per_s,
        "flop_convention": result.flop_convention,
        "peak_memory_bytes": result.peak_memory_bytes,
        "needed_memory_bytes": result.needed_memory_bytes,
        "usable_memory_bytes": result.usable_memory_bytes,
        "fits": result.fits,
        "limited_by": result.limited_by,
        "alternating_by": result.alternating_by,
        "exchange_hidden_frac": result.exchange_hidden_frac,
        "time_split": dict(result.time_split),
        **surety_document(surety(space, result)),
        "bubble_frac": result.bubble_frac,
        "busiest_stage": result.busiest_stage,
        "stages": [_stage_document(stage) for stage in result.stages],
        "time_terms": dict(result.time_terms),
    }


def surety_document(sure: Surety) -> dict[str, Any]:
    """How sure a rate is: an interval, or what lies beyond the data; and the nearest measured run."""
    return {
        "interval": asdict(sure.interval) if sure.interval else None,
        "extrapolated": sure.interval is None,
        "beyond": list(sure.beyond),
        "nearest_measurement": sure.nearest,
    }


def _stage_document(stage: StageResult) -> dict[str, Any]:
    terms = {"memory_terms": dict(stage.memory_terms)}
    return asdict(stage) | terms | {"memory_moments": {name: dict(each) for name, each in stage.memory_moments.items()}}


def search_document(
    space: Space,
    results: Sequence[PlanResult],
    status: str,
    search: Mapping[str, Any],
    run: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """A whole answer. Same inputs, same bytes, `run` apart."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": tool_version(),
        "status": status,
        "inputs": inputs_document(space),
        "search": dict(search),
        "run": {"host": platform.node(), **run},
        "plans": [plan_document(space, rank, result) for rank, result in enumerate(results, 1)],
        **more,
    }


def to_json(document: Mapping[str, Any]) -> str:
    """The text of a document."""
    return json.dumps(document, indent=1, default=list) + "\n"


def check_writable(path: Path, flag: str = "--out") -> None:
    """Raises `SpecError` before any work is done for an answer that could not be kept."""
    folder = path.parent
    if path.is_dir():
        raise spec_error(flag, f"{path} is a folder", "a file")
    if path.exists() and not path.is_file():
        raise spec_error(flag, f"{path} is a device or a pipe", "a file")
    if not folder.is_dir():
        raise spec_error(flag, f"the folder {folder} does not exist", "a file in a folder that does")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise spec_error(flag, f"{path} cannot be written", "a writable file")


def write_text(path: Path, text: str) -> None:
    """Write whole or not at all: to a temporary file beside it, then renamed. Links are followed, modes kept."""
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """What the process takes from the mode of new files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def read_document(path: Path) -> dict[str, Any]:
    """A plan document. Raises `SpecError` if it is none, is cut off, or is of a newer schema."""
    data = read_mapping(path)
    written = data.get("schema_version")
    whole = isinstance(data.get("plans"), list) and isinstance(data.get("search", {}), dict)
    if not isinstance(written, str) or not whole:
        raise spec_error("schema_version", "not a plan document of autodeploy", source=str(path))
    if written.split(".")[0] != SCHEMA_VERSION.split(".", maxsplit=1)[0]:
        known = f"{SCHEMA_VERSION.split('.', maxsplit=1)[0]}.x"
        raise spec_error("schema_version", f"{written!r} is not one this version reads", known, source=str(path))
    return data


def document_space(data: Mapping[str, Any], source: str) -> Space:
    """The space that a document was made from."""
    try:
        inputs = data["inputs"]
        parts = {name: inputs[name] for name in ("model", "cluster", "target")}
        asked = {name: inputs[name] for name in ("devices", "job", "plan")} | dict(inputs["names"])
        asked |= {"name": inputs["space"]} | {name: inputs[name] for name in ("only", "ban") if name in inputs}
    except (KeyError, TypeError, ValueError) as error:
        raise spec_error("inputs", f"incomplete: {error}", source=source) from error
    head = parse(SpaceFile, asked, f"{source}: inputs")
    return Space(
        name=head.name,
        model=parse(Model, parts["model"], f"{source}: inputs.model"),
        cluster=parse(Cluster, parts["cluster"], f"{source}: inputs.cluster"),
        target=parse(Target, parts["target"], f"{source}: inputs.target"),
        devices=head.devices,
        job=head.job,
        plan=head.plan,
        only=head.only,
        ban=head.ban,
        inputs=inputs["names"],
    )


def document_plan(data: Mapping[str, Any], rank: int, source: str) -> Plan:
    """The plan of a rank in a document."""
    plans = data["plans"]
    if not 1 <= rank <= len(plans):
        allowed = f"#1 to #{len(plans)}" if plans else "none: it holds no plan"
        raise spec_error("plan", f"no rank {rank}", allowed, source=source)
    try:
        fields = dict(plans[rank - 1]["plan"])
        codes = {
            name: ENUM_WORDS[name].index(fields[name]) for name in ENUM_WORDS if name in fields or name not in LATER
        }
    except (KeyError, TypeError, ValueError) as error:
        raise spec_error(f"plans[{rank - 1}].plan", f"not a plan: {error}", source=source) from error
    return parse(Plan, fields | codes, f"{source}: plans[{rank - 1}].plan")
