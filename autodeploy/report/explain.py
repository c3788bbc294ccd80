"""One plan term by term: values, shares, formulas, sources, stages, and the difference to another plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autodeploy.cost.terms import MEMORY, TIME, Term
from autodeploy.formats.document import plan_fields, plan_short
from autodeploy.search.result import PlanResult, StageResult
from autodeploy.spec.provenance import Evidence, fit_text, weakest
from autodeploy.spec.space import Space
from autodeploy.units import TERA, format_bytes, format_seconds, gib


def sources_of(space: Space) -> dict[str, str]:
    """Where every input of the machine comes from."""
    return {**space.cluster.sources, **space.target.sources}


def evidence_text(space: Space, term: Term) -> str:
    """How well the inputs of a term are known: the worst of them by name."""
    if not term.inputs:
        return "counted"
    sources = sources_of(space)
    kind, key = weakest(sources, term.inputs)
    return f"{fit_text(sources.get(key, '')) or kind.name.lower()}: {key}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a plan stands in a search: its rank among the plans that fit, None if it is none of them."""

    rank: int | None
    outside: tuple[str, ...] = ()
    """Fields with values that the space does not list."""
    status: str
    search: Mapping[str, Any]

    def text(self) -> str:
        """`rank 12 of 22,979 that fit`."""
        if self.outside:
            return f"not ranked: the space does not list its {' and '.join(self.outside)}"
        if self.rank is None:
            return "not ranked: it does not fit"
        fits = self.search.get("fits")
        return f"rank {self.rank:,}" + (f" of {fits:,} plans that fit, arranged by rule" if fits else "")


def explanation(
    space: Space, result: PlanResult, chosen: Mapping[str, Any], place: Place, other: PlanResult | None
) -> Group:
    """Everything that `explain` prints."""
    parts: list[RenderableType] = [_headline(space, result, chosen, place)]
    parts += [_time_table(space, result), _memory_table(space, result), _stage_table(result)]
    if other is not None:
        parts.append(difference_table(space, result, other))
    parts.append(_assumptions(space))
    return Group(*parts)


def _headline(space: Space, result: PlanResult, chosen: Mapping[str, Any], place: Place) -> Text:
    plan, arrangement = result.plan, result.arrangement
    whole = " ".join(f"{name}={value}" for name, value in plan_fields(plan).items())
    fits = "fits" if result.fits else "DOES NOT FIT"
    lines = [
        f"{plan_short(space, plan)}   plan_id {result.plan_id}   {place.text()}",
        f"{space.model.title}, {space.devices} x {space.cluster.device.name}, {space.job.seq_len} tokens x "
        f"{space.job.gbs} sequences, target {space.target.name}",
        f"{whole}; {result.microbatches} microbatches",
        f"layout {arrangement.layout} ({arrangement.layout_rule}); ranks {arrangement.rank_order}",
        f"step {format_seconds(result.step_time_s)}, {result.tokens_per_s_per_device:.1f} tokens/s/device, MFU "
        f"{result.mfu_frac:.1%} of {result.mfu_peak_flop_per_s / TERA:g} TF ({result.flop_convention})",
        f"{fits}: needs {format_bytes(result.needed_memory_bytes)} of {format_bytes(result.usable_memory_bytes)} "
        f"(peak allocated {format_bytes(result.peak_memory_bytes)}); "
        f"limited by {result.limited_by}; bound {format_seconds(result.bound_s)}",
        f"average stage: {split_words(result)}",
    ]
    if result.exchange_hidden_frac is not None:
        unit = f", merged passes alternate by {result.alternating_by}" if result.alternating_by else ""
        lines.append(f"expert all-to-all of the busiest stage: {result.exchange_hidden_frac:.1%} hidden{unit}")
    if chosen:
        lines.append(chosen_words(chosen))
    return Text("\n".join(lines))


def split_words(result: PlanResult) -> str:
    """`compute 12.1 s (61.0%), recompute ...`, largest terms as they come."""
    step = result.step_time_s
    return ", ".join(
        f"{name.replace('_', ' ')} {format_seconds(value)} ({value / step:.1%})"
        for name, value in result.time_split.items()
    )


def chosen_words(chosen: Mapping[str, Any]) -> str:
    """What was chosen among the values of the space."""
    words = ", ".join(f"{name}={getattr(value, 'name', value)}".lower() for name, value in chosen.items())
    return f"chosen for you: {words}"


def _time_table(space: Space, result: PlanResult) -> Table:
    title = f"Step time on the busiest stage ({result.busiest_stage})"
    table = _term_table(title)
    for term in TIME:
        value = result.time_terms[term.name]
        if value:
            share = value / result.step_time_s
            table.add_row(
                term.name, format_seconds(value), f"{share:.1%}", term.meaning, term.formula, term.source,
                evidence_text(space, term),
            )  # fmt: skip
    table.add_row("step", format_seconds(result.step_time_s), "100.0%")
    return table


def _memory_table(space: Space, result: PlanResult) -> Table:
    worst = max(result.stages, key=lambda stage: stage.needed_bytes)
    table = _term_table(f"Memory of the fullest stage ({worst.stage})")
    for term in MEMORY:
        value = worst.memory_terms[term.name]
        table.add_row(
            term.name, format_bytes(value), f"{value / worst.needed_bytes:.1%}", term.meaning, term.formula,
            term.source, evidence_text(space, term),
        )  # fmt: skip
    table.add_row("needed", format_bytes(worst.needed_bytes), "100.0%")
    return table


def _term_table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("term")
    for name in ("value", "share"):
        table.add_column(name, justify="right")
    for name in ("what it is", "formula", "source", "known by its worst input"):
        table.add_column(name)
    return table


def stage_groups(result: PlanResult) -> list[tuple[str, StageResult]]:
    """Neighbouring stages with the same contents and recompute, as (`0` or `2-13`, the fullest of them)."""
    groups: list[list[StageResult]] = []
    for stage in result.stages:
        last = groups[-1][0] if groups else None
        if last and (last.layers, last.recompute) == (stage.layers, stage.recompute):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return [
        (
            str(group[0].stage) if len(group) == 1 else f"{group[0].stage}-{group[-1].stage}",
            max(group, key=lambda stage: stage.needed_bytes),
        )
        for group in groups
    ]


def _stage_table(result: PlanResult) -> Table:
    """The fullest of each group of equal stages."""
    table = Table(title="Stages (of equal neighbours the fullest)", title_justify="left")
    for name in ("stages", "layers by chunk", "recompute"):
        table.add_column(name, overflow="fold")
    names = [term.name for term in MEMORY]
    for name in ("busy", "waiting", "after", "peak GiB", *names):
        table.add_column(name, justify="right", overflow="fold")
    for label, stage in stage_groups(result):
        waiting = stage.finish_s - stage.busy_s
        table.add_row(
            label, " ".join(stage.layers), "+".join(stage.recompute) or "-", format_seconds(stage.busy_s),
            format_seconds(waiting), format_seconds(stage.tail_s), f"{gib(stage.needed_bytes):.1f}",
            *(f"{gib(stage.memory_terms[name]):.2f}" for name in names),
        )  # fmt: skip
    return table


def differences(result: PlanResult, other: PlanResult) -> list[tuple[str, float, float]]:
    """(term, seconds here, seconds there) of every term that differs, largest difference first."""
    rows = [(name, value, other.time_terms[name]) for name, value in result.time_terms.items()]
    rows = [row for row in rows if abs(row[1] - row[2]) > 0.0]
    return sorted(rows, key=lambda row: -abs(row[1] - row[2]))


def difference_table(space: Space, result: PlanResult, other: PlanResult) -> Table:
    """Term by term against another plan, largest difference first."""
    ratio = other.step_time_s / result.step_time_s
    word = "faster" if ratio >= 1.0 else "slower"
    factor = ratio if ratio >= 1.0 else 1.0 / ratio
    title = f"Against {plan_short(space, other.plan)}: {factor:.3f} x {word}; {_changed(result, other)}"
    table = Table(title=title, title_justify="left")
    table.add_column("term")
    for name in ("this plan", "that plan", "difference"):
        table.add_column(name, justify="right")
    for name, here, there in differences(result, other):
        table.add_row(name, format_seconds(here), format_seconds(there), f"{here - there:+.3f} s")
    table.add_row("memory", format_bytes(result.needed_memory_bytes), format_bytes(other.needed_memory_bytes))
    return table


def _changed(result: PlanResult, other: PlanResult) -> str:
    here, there = plan_fields(result.plan), plan_fields(other.plan)
    words = [f"{name} {here[name]} -> {there[name]}" for name in here if here[name] != there[name]]
    return ", ".join(words) or "the same plan"


def _assumptions(space: Space) -> Table:
    """Inputs that nobody has measured or published, numbered."""
    table = Table(title="Assumed inputs", title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    assumed = [
        (key, text) for key, text in sources_of(space).items() if weakest({key: text}, (key,))[0] is Evidence.ASSUMED
    ]
    if space.model.moe:
        assumed.append(("job.expert_imbalance", f"stated: {space.job.expert_imbalance:g}"))
    for number, (key, text) in enumerate(assumed, 1):
        table.add_row(str(number), key, text.removeprefix("assumed: "))
    return table


def explanation_facts(space: Space, result: PlanResult, other: PlanResult | None) -> dict[str, Any]:
    """The same for machines: formula, source and evidence of every term, and the difference to another plan."""
    terms = {
        group: [
            {"name": t.name, "formula": t.formula, "source": t.source, "evidence": evidence_text(space, t)}
            for t in listed
        ]
        for group, listed in (("time", TIME), ("memory", MEMORY))
    }
    compared = None
    if other is not None:
        compared = {
            "plan_short": plan_short(space, other.plan),
            "plan_id": other.plan_id,
            "step_time_s": other.step_time_s,
            "differences_s": {name: here - there for name, here, there in differences(result, other)},
        }
    return {"terms": terms, "compared_with": compared}
