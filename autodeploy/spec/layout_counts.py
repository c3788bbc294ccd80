"""Layers per slot of a layout in the words of a framework: what every word must keep to, and what it means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

from autodeploy.errors import SpecError, spec_error

Grid = tuple[tuple[int, ...], ...]
_INT = r"(?:0|-?[1-9][0-9]{0,4})"
_GRID = rf"{_INT}(?:[,;]{_INT})*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """What a word is asked to cut, and into what."""

    layers: int
    modules: int
    """MTP modules that are trained."""
    pp: int
    vpp: int

    @property
    def slots(self) -> int:
        """Chunks of all stages."""
        return self.pp * self.vpp

    def by_slot(self, stages: list[list[int]]) -> list[int]:
        """Counts by stage and chunk in the order of the slots: chunk by chunk."""
        return [stages[slot % self.pp][slot // self.pp] for slot in range(self.slots)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A word: how it is written, what it must keep to on any pipeline, and the layers per slot that it means on one."""

    form: str
    pattern: re.Pattern[str]
    check: Callable[[re.Match[str], int], None]
    """Takes the layers of the model. Raises `SpecError`."""
    counts: Callable[[re.Match[str], Pipeline], list[int]]
    """Raises `SpecError`."""

    def match(self, text: str) -> re.Match[str]:
        """The numbers of a text. Raises `SpecError` where it is not of the form."""
        found = self.pattern.fullmatch(text)
        if found is None:
            raise fault(f"{text!r} cannot be read", self.form)
        return found


def fault(problem: str, allowed: str = "") -> SpecError:
    """A `SpecError` about the layout."""
    return spec_error("layout", problem, allowed)


def _grid(found: re.Match[str]) -> Grid:
    return tuple(tuple(int(number) for number in row.split(",")) for row in found[1].split(";"))


def _check_ends(found: re.Match[str], layers: int) -> None:
    given = {name: int(text) for name, text in zip(("first", "last"), found.groups(), strict=True) if text}
    for name, count in given.items():
        if count <= 0:
            raise fault(f"{name} is {count} (rule V68)", "1 or more")
    if sum(given.values()) > layers:
        named = " + ".join(f"{name} {count}" for name, count in given.items())
        raise fault(f"{named} is more than the {layers} layers of the model (rule V68)", f"up to {layers} together")


def _ends(found: re.Match[str], pipeline: Pipeline) -> list[int]:
    """Megatron-LM core/transformer/transformer_config.py: the rest is spread evenly over the other stages (V68)."""
    first, last = ([int(text)] if text else [] for text in found.groups())
    if last and pipeline.pp == 1:
        raise fault("pp is 1, where a count of the last stage builds only those layers (rule V69)", "pp > 1")
    stages = pipeline.pp - len(first) - len(last)
    layers = pipeline.layers - sum(first) - sum(last)
    if bool(stages) != bool(layers) or (stages and layers % stages):
        allowed = f"a multiple of {stages} above 0" if stages else "first and last that sum to the layers of the model"
        raise fault(f"{layers} layers are left for {stages} other stages: not as many for each (rule V68)", allowed)
    counts = [*first, *([layers // stages] * stages if stages else []), *last]
    for count in counts:
        if count % pipeline.vpp:
            problem = f"{count} layers of a stage do not divide by vpp {pipeline.vpp} (rule V68)"
            raise fault(problem, f"multiples of {pipeline.vpp}")
    return pipeline.by_slot([[count // pipeline.vpp] * pipeline.vpp for count in counts])


def _account(found: re.Match[str], pipeline: Pipeline) -> list[int]:
    """Megatron-LM core/transformer/transformer_block.py: the slots are equal with embedding or loss counted (V60).

    Equal slots hold one layer or more, so that no end falls below zero by it (V70).
    """
    words = found[1].split(",")
    each, rest = divmod(pipeline.layers + len(words), pipeline.slots)
    if rest:
        total = f"{pipeline.layers} layers + {' + '.join(words)} = {pipeline.layers + len(words)}"
        raise fault(f"{total} do not divide by pp {pipeline.pp} x vpp {pipeline.vpp} (rule V60)", "pp x vpp that does")
    counts = [each] * pipeline.slots
    counts[0] -= "embedding" in words
    counts[-1] -= "loss" in words
    return counts


def _check_list(found: re.Match[str], layers: int) -> None:
    counts = list(chain(*_grid(found)))
    rule = "V79" if ";" in found[1] else "V77"
    if min(counts) < 0:
        raise fault(f"lists {min(counts)} layers (rule {rule})", "0 or more")
    if sum(counts) != layers:
        raise fault(f"sums to {sum(counts)}, but the model has {layers} layers (rule {rule})", f"a sum of {layers}")


def _list(found: re.Match[str], pipeline: Pipeline) -> list[int]:
    """MindSpeed-LLM pipeline_parallel/num_layer_list.py (V77), MindSpeed unaligned_pineline_feature.py (V79)."""
    stages = [list(row) for row in _grid(found)]
    by_stage = len(stages) == 1
    if by_stage:
        stages = [[count] for count in stages[0]]
    if len(stages) != pipeline.pp:
        rule = "V77" if by_stage else "V79"
        raise fault(f"lists {len(stages)} stages, but pp is {pipeline.pp} (rule {rule})", f"{pipeline.pp} stages")
    if by_stage and pipeline.vpp > 1:
        raise fault(f"lists stages without chunks, but vpp is {pipeline.vpp} (rule V77)", f"vpp 1; or {_LIST_FORM}")
    if by_stage and pipeline.pp == 1:
        raise fault("pp is 1, where a list by stage is refused (rule V77)", "pp > 1")
    for stage, row in enumerate(stages):
        if len(row) != pipeline.vpp:
            problem = f"stage {stage} lists {len(row)} chunks, but vpp is {pipeline.vpp} (rule V79)"
            raise fault(problem, f"{pipeline.vpp} counts between two ';'")
    return pipeline.by_slot(stages)


def _check_noop(found: re.Match[str], layers: int) -> None:
    numbers = _grid(found)[0]
    padded = layers + len(numbers)
    twice = [number for number in numbers if numbers.count(number) > 1]
    if twice:
        raise fault(f"names layer {twice[0]} twice (rule V78)", "each number once")
    beyond = [number for number in numbers if not 0 <= number < padded]
    if beyond:
        problem = f"layer {beyond[0]} is none of {layers} + {len(numbers)} no-ops = {padded} (rule V78)"
        raise fault(problem, f"0 to {padded - 1}")


def _noop(found: re.Match[str], pipeline: Pipeline) -> list[int]:
    """MindSpeed noop_layers.py: no-ops count among the layers that are spread evenly (V78)."""
    numbers = _grid(found)[0]
    padded = pipeline.layers + len(numbers)
    each, rest = divmod(padded, pipeline.slots)
    if rest:
        total = f"{pipeline.layers} layers + {len(numbers)} no-ops = {padded}"
        raise fault(f"{total} do not divide by pp {pipeline.pp} x vpp {pipeline.vpp} (rule V78)", "pp x vpp that does")
    idle = [number // each for number in numbers]
    return [each - idle.count(slot) for slot in range(pipeline.slots)]


def _offset(found: re.Match[str], pipeline: Pipeline) -> list[int]:
    """MindFormers models/utils.py LayerSetting (V85). One generation counts MTP among the layers, of the last slot,
    the other does not: their sums differ, so the sum says which is meant."""
    chunks = _grid(found)
    if len(chunks) != pipeline.vpp:
        problem = f"{len(chunks)} lists of stages, but vpp is {pipeline.vpp} (rule V85)"
        raise fault(problem, f"{pipeline.vpp} lists cut by ';'")
    for row in chunks:
        if len(row) != pipeline.pp:
            problem = f"lists {len(row)} stages, but pp is {pipeline.pp} (rule V85)"
            raise fault(problem, f"{pipeline.pp} offsets in each list")
    offsets = list(chain(*chunks))
    counted = _counted(sum(offsets), pipeline)
    even = (pipeline.layers + counted) // pipeline.slots
    counts = [even + offset for offset in offsets]
    counts[-1] -= counted
    return counts


def _counted(total: int, pipeline: Pipeline) -> int:
    """MTP modules that offsets of this sum count as layers."""
    rests = {(pipeline.layers + extra) % pipeline.slots: extra for extra in (pipeline.modules, 0)}
    if total not in rests:
        shape = f"pp {pipeline.pp} x vpp {pipeline.vpp}"
        problem = f"sums to {total}, but {pipeline.layers} layers on {shape} leave {pipeline.layers % pipeline.slots}"
        also = f", or {next(iter(rests))} with MTP counted" if len(rests) > 1 else ""
        raise fault(f"{problem} (rule V85)", f"a sum of {pipeline.layers % pipeline.slots}{also}")
    return rests[total]


def _any(found: re.Match[str], layers: int) -> None:
    """Nothing to ask before the pipeline is known."""


_LIST_FORM = "list:N,N,... by stage, or list:N,N;N,N;... by stage and chunk"
WORDS: Mapping[str, Word] = {
    "first": Word(
        form="first:N or first:N,last:M",
        pattern=re.compile(rf"first:({_INT})(?:,last:({_INT}))?"),
        check=_check_ends,
        counts=_ends,
    ),
    "last": Word(form="last:M", pattern=re.compile(rf"last:()({_INT})"), check=_check_ends, counts=_ends),
    "account": Word(
        form="account:embedding, account:loss or account:embedding,loss",
        pattern=re.compile(r"account:(embedding|loss|embedding,loss)"),
        check=_any,
        counts=_account,
    ),
    "list": Word(form=_LIST_FORM, pattern=re.compile(rf"list:({_GRID})"), check=_check_list, counts=_list),
    "noop": Word(
        form="noop:I,I,... numbers of padded layers, from 0",
        pattern=re.compile(rf"noop:({_INT}(?:,{_INT})*)"),
        check=_check_noop,
        counts=_noop,
    ),
    "offset": Word(
        form="offset:D,D,... by stage, or offset:D,D;D,D;... by chunk and stage",
        pattern=re.compile(rf"offset:({_GRID})"),
        check=_any,
        counts=_offset,
    ),
}
"""The words by what they begin with."""
