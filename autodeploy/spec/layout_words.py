"""Layouts in the words of the frameworks, turned into Megatron's notation for one model and pipeline shape.

    first:N  last:M  first:N,last:M    Megatron: layers of the first and the last stage, the rest even
    account:embedding,loss             Megatron: either or both count as one layer each
    list:4,4,4,3   list:3,2;2,2        MindSpeed-LLM: layers by stage; MindSpeed: by stage and chunk, stages cut by `;`
    noop:0,47                          MindSpeed: which of the padded layers do nothing, counted from 0
    offset:0,1,0,-1                    MindFormers: layers beyond the even share by stage; chunks cut by `;`

As in the frameworks, MTP modules follow the last layer. docs/layouts.md has the flags and the rules.
"""

from __future__ import annotations

from autodeploy.errors import SpecError, spec_error
from autodeploy.spec.layout import compress, expand, layout_faults, with_ends
from autodeploy.spec.layout_counts import WORDS, Pipeline, Word, fault
from autodeploy.spec.model import Model
from autodeploy.spec.plan import LAYOUT_RULES

ALLOWED = (
    "auto " + " ".join(LAYOUT_RULES) + "; a layout string such as Et*3|(tt|)*29m|L, which ends with L; "
    "first:N,last:M account:embedding,loss list:N,N,... noop:I,... offset:D,D,..."
)
"""What a layout field may say."""


def is_word(text: str) -> bool:
    """Whether a layout is in the words of a framework, well formed or not."""
    head, colon, _ = text.partition(":")
    return bool(colon) and head in WORDS


def _word(text: str) -> Word:
    return WORDS[text.partition(":")[0]]


def check_writing(text: str) -> None:
    """Raises `SpecError` for what is neither a rule nor a word nor a layout string."""
    if text in ("auto", *LAYOUT_RULES):
        return
    if is_word(text):
        _word(text).match(text)
        return
    try:
        slots = expand(text)
    except SpecError as error:
        raise spec_error("layout", error.faults[0].problem, ALLOWED) from error
    if not slots[-1].endswith("L"):
        raise spec_error("layout", f"{text!r} does not end with the head, L", ALLOWED)


def check_layers(model: Model, mtp: bool, text: str) -> None:
    """Raises `SpecError` for a word or a layout string that lies on no pipeline of a model: lost, repeated or
    misplaced layers, counts below zero."""
    if is_word(text):
        word = _word(text)
        word.check(word.match(text), model.layers)
        return
    slots = expand(text)
    _refuse_faults(model, mtp, (len(slots), 1), slots)


def notation_of(model: Model, mtp: bool, pp: int, vpp: int, text: str) -> str:
    """The layout string that a word means on a pipeline; a layout string is given back as it is.

    Raises `SpecError` of one fault, which names the rule, where it does not lie on this model and pipeline.
    """
    check_layers(model, mtp, text)
    pipeline = Pipeline(layers=model.layers, modules=model.mtp_depth if mtp else 0, pp=pp, vpp=vpp)
    slots = slots_of_word(pipeline, text) if is_word(text) else expand(text)
    _refuse_faults(model, mtp, (pp, vpp), slots)
    return compress(slots) if is_word(text) else text


def slots_of_word(pipeline: Pipeline, text: str) -> list[str]:
    """Slot strings of a word. Raises `SpecError` where it does not lie on the pipeline."""
    word = _word(text)
    counts = word.counts(word.match(text), pipeline)
    if min(counts) < 0:
        place = counts.index(min(counts))
        raise fault(f"leaves {counts[place]} layers to {_slot_name(pipeline, place)}", "0 or more")
    held = with_ends(counts, pipeline.modules)
    if not all(held):
        why = "holds only no-ops" if text.startswith("noop") else "holds no layer"
        raise fault(f"{_slot_name(pipeline, held.index(''))} {why} (rule L01)", "a layer, embedding or head")
    return held


def _refuse_faults(model: Model, mtp: bool, shape: tuple[int, int], slots: list[str]) -> None:
    faults = layout_faults(model, mtp, *shape, slots)
    if faults:
        raise fault("; ".join(faults) + " (rule L01)")


def _slot_name(pipeline: Pipeline, slot: int) -> str:
    chunk = f" chunk {slot // pipeline.pp}" if pipeline.vpp > 1 else ""
    return f"stage {slot % pipeline.pp}{chunk}"
