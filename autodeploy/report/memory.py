"""The memory of one plan as tables, and the same for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autodeploy.balance.moments import MEMORY_TERMS, MOMENTS
from autodeploy.formats.document import SCHEMA_VERSION, inputs_document, plan_fields, plan_short, tool_version
from autodeploy.report.explain import chosen_words, stage_groups
from autodeploy.search.choices import Item
from autodeploy.search.memory import PlanMemory
from autodeploy.search.pressure import Pressure
from autodeploy.search.result import PlanResult, StageResult
from autodeploy.spec.space import Space
from autodeploy.units import format_bytes, format_seconds, gib

FIGURES = ("peak", "reserved", "needed", "headroom")


def memory_report(space: Space, found: PlanMemory, chosen: Mapping[str, Any]) -> Group:
    """What `memory` prints."""
    parts: list[RenderableType] = [
        Text(_head(space, found, chosen)),
        _stage_table(space, found.result),
        _moment_table(found.fullest),
    ]
    parts += choice_tables(found)
    parts.append(_pressure_table(found) if found.pressures else Text("Nothing can grow: it does not fit as it is."))
    return Group(*parts)


def choice_tables(found: PlanMemory) -> list[RenderableType]:
    """What a stage rebuilds and swaps, and what other amounts of memory would cost; nothing where nothing is to say."""
    items = [_item_table(found)] if any(found.items) else []
    return [*items, *([_tradeoff_table(found)] if len(found.tradeoffs) > 1 else [])]


def choice_facts(found: PlanMemory) -> dict[str, Any]:
    """The same for machines."""
    return {
        "items": [[asdict(item) for item in items] for items in found.items],
        "tradeoffs": [asdict(point) for point in found.tradeoffs],
    }


def _head(space: Space, found: PlanMemory, chosen: Mapping[str, Any]) -> str:
    result, device, stage = found.result, space.cluster.device, found.fullest
    usable = device.usable_bytes
    verdict = "fits" if result.fits else "DOES NOT FIT"
    lines = [
        f"{plan_short(space, result.plan)}   plan_id {result.plan_id}",
        f"{verdict}: needs {format_bytes(result.needed_memory_bytes)} of {format_bytes(usable)} on stage {stage.stage} "
        f"({stage.fullest_moment.replace('_', ' ')}); headroom {format_bytes(usable - result.needed_memory_bytes)}",
        f"allocated {format_bytes(stage.peak_memory_bytes)}, reserved {format_bytes(stage.reserved_bytes)} with "
        f"{space.cluster.fragmentation_frac:.0%} lost to the allocator; the context takes "
        f"{format_bytes(device.context_bytes)} of {format_bytes(device.hbm_bytes)} beside",
        f"rows and state as {space.target.title} keeps them ({space.target.name}); another version may differ",
    ]
    if any(stage.host_bytes for stage in result.stages):
        most = max(stage.host_bytes for stage in result.stages)
        lines.append(f"on the host: {format_bytes(most)} of {format_bytes(device.host_bytes)} a device")
    return "\n".join([*lines, *([chosen_words(chosen)] if chosen else [])])


def _stage_table(space: Space, result: PlanResult) -> Table:
    table = Table(title="Stages, GiB at the fullest moment (of equal neighbours the fullest)", title_justify="left")
    for name in ("stages", "layers by chunk", "recompute", "swap"):
        table.add_column(name, overflow="fold")
    for name in (*MEMORY_TERMS, *FIGURES, "fits"):
        table.add_column(name, justify="right", overflow="fold")
    usable = space.cluster.device.usable_bytes
    for label, stage in stage_groups(result):
        swap = result.arrangement.swap[stage.stage] if result.arrangement.swap else ()
        figures = (stage.peak_memory_bytes, stage.reserved_bytes, stage.needed_bytes, usable - stage.needed_bytes)
        table.add_row(
            label, " ".join(stage.layers), "+".join(stage.recompute) or "-", "+".join(swap) or "-",
            *(f"{gib(stage.memory_terms[name]):.2f}" for name in MEMORY_TERMS),
            *(f"{gib(value):.2f}" for value in figures), "yes" if stage.fits else "NO",
        )  # fmt: skip
    return table


def _moment_table(stage: StageResult) -> Table:
    table = Table(title=f"Moments of the fullest stage ({stage.stage}), GiB", title_justify="left")
    table.add_column("moment")
    for name in (*MEMORY_TERMS, "all"):
        table.add_column(name, justify="right")
    for moment in MOMENTS:
        terms = stage.memory_moments[moment]
        values = [*(terms[name] for name in MEMORY_TERMS), sum(terms.values())]
        table.add_row(moment.replace("_", " "), *(f"{gib(value):.2f}" for value in values))
    return table


def _item_table(found: PlanMemory) -> Table:
    stage = found.fullest.stage if found.items[found.fullest.stage] else _first_with_items(found)
    table = Table(title=f"What stage {stage} rebuilds or swaps", title_justify="left")
    for name in ("rows", "how", "layers"):
        table.add_column(name)
    for name in ("saved", "time in a step"):
        table.add_column(name, justify="right")
    for item in found.items[stage]:
        table.add_row(item.part, item.action, _of(item), format_bytes(item.saved_bytes), format_seconds(item.added_s))
    return table


def _first_with_items(found: PlanMemory) -> int:
    return next(stage for stage, items in enumerate(found.items) if items)


def _of(item: Item) -> str:
    return f"{item.layers} of {item.of_layers}"


def _tradeoff_table(found: PlanMemory) -> Table:
    table = Table(title=f"Memory against time, stage {found.fullest.stage}", title_justify="left")
    for name in ("allocated in passes", "least added to a step"):
        table.add_column(name, justify="right")
    for point in found.tradeoffs:
        table.add_row(format_bytes(point.allocated_bytes), format_seconds(point.added_s))
    return table


def _pressure_table(found: PlanMemory) -> Table:
    table = Table(title="What breaks first (choices held)", title_justify="left")
    for name in ("what grows", "now", "breaks at", "times", "stage"):
        table.add_column(name, justify="right" if name != "what grows" else "left")
    for each in found.pressures:
        table.add_row(*_pressure_row(each))
    return table


def _pressure_row(each: Pressure) -> tuple[str, ...]:
    if each.breaks_at is None:
        return each.name, _figure(each, each.now), "-", "> 16", "-"
    return each.name, _figure(each, each.now), _figure(each, each.breaks_at), f"{each.growth:.2f}", str(each.stage)


def _figure(each: Pressure, value: float) -> str:
    if each.name == "fragmentation":
        return f"{value:.1%}"
    return f"{value:.2f}" if each.name == "imbalance" else f"{round(value):,}"


def memory_document(space: Space, found: PlanMemory, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The same for machines."""
    result, usable = found.result, space.cluster.device.usable_bytes
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": tool_version(),
        "inputs": inputs_document(space),
        "plan_id": result.plan_id,
        "plan_short": plan_short(space, result.plan),
        "plan": plan_fields(result.plan),
        "arrangement": asdict(result.arrangement),
        "chosen": dict(chosen),
        "fits": result.fits,
        "limited_by": result.limited_by,
        "peak_memory_bytes": result.peak_memory_bytes,
        "needed_memory_bytes": result.needed_memory_bytes,
        "usable_memory_bytes": usable,
        "headroom_bytes": usable - result.needed_memory_bytes,
        "fullest_stage": found.fullest.stage,
        "stages": [_stage_facts(space, found, stage) for stage in result.stages],
        "tradeoffs": [asdict(point) for point in found.tradeoffs],
        "breaks_first": [asdict(each) for each in found.pressures],
    }


def _stage_facts(space: Space, found: PlanMemory, stage: StageResult) -> dict[str, Any]:
    swap = found.result.arrangement.swap
    return {
        "stage": stage.stage,
        "layers": list(stage.layers),
        "recompute": list(stage.recompute),
        "swap": list(swap[stage.stage]) if swap else [],
        "terms": dict(stage.memory_terms),
        "moments": {name: dict(terms) for name, terms in stage.memory_moments.items()},
        "fullest_moment": stage.fullest_moment,
        "peak_memory_bytes": stage.peak_memory_bytes,
        "allocated_first_step_bytes": stage.allocated_first_step_bytes,
        "first_step_peak_bytes": stage.first_step_peak_bytes,
        "reserved_bytes": stage.reserved_bytes,
        "needed_bytes": stage.needed_bytes,
        "headroom_bytes": space.cluster.device.usable_bytes - stage.needed_bytes,
        "host_bytes": stage.host_bytes,
        "fits": stage.fits,
        "items": [asdict(item) for item in found.items[stage.stage]],
    }
