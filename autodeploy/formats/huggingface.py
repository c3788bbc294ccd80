"""Models as users hold them: a Hugging Face config.json becomes a `Model`, or is refused with the reason.

Keys are matched by their spellings, not by a registry of model types (huggingface_keys.py). What the file does not
say is `assumed`; what may change parameters, FLOP or memory and is not read is `ignored`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autodeploy.analysis.readings import ModelSize, model_size
from autodeploy.catalog.lookup import SUFFIXES, load
from autodeploy.errors import SpecError, spec_error
from autodeploy.formats.huggingface_build import model_of
from autodeploy.formats.huggingface_keys import ALIASES, NEUTRAL, OTHER_KEYS, UNMODELLED, is_harmless
from autodeploy.formats.huggingface_layers import PATTERNS
from autodeploy.formats.huggingface_refusals import LOOKED_AT, refuse, simplify
from autodeploy.formats.huggingface_sheet import Level, Sheet, enter, sheet_of
from autodeploy.spec.files import parse, read_mapping
from autodeploy.spec.model import MLA, Model
from autodeploy.units import GIGA, MEGA, TERA, format_count

READ = {key for keys in ALIASES.values() for key in keys} | OTHER_KEYS | set(PATTERNS) | LOOKED_AT
NAMES_A_LEVEL = {"model_type", "architectures", "tie_word_embeddings"}
"""Keys of an outer level that are looked at."""
TOLERANCE = 0.02
"""How far a count may be from what the user expects."""
COUNT = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*([kmbgt]?)", re.IGNORECASE)
FACTORS = {"": 1.0, "k": 1000.0, "m": MEGA, "b": GIGA, "g": GIGA, "t": TERA}


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A model, and how far the file that it came from said all of it."""

    model: Model
    assumed: tuple[str, ...] = ()
    """What the file does not say, and what is read as something simpler: `field: value, why`."""
    ignored: tuple[str, ...] = ()
    """What is not read although it may matter: `key: what happens instead`."""


def is_config(data: Mapping[str, Any]) -> bool:
    """Whether named fields look like a Hugging Face config.json."""
    level = enter(data)
    named = level.named("model_type") is not None or level.named("architectures") is not None
    return named and any(key in level.data for key in ALIASES["hidden"])


def load_model(name: str) -> Imported:
    """A model of the catalog by its name, a file of our own form, or a config.json (or the folder that holds one)."""
    if "/" not in name and Path(name).suffix.lower() not in SUFFIXES:
        return Imported(model=load(Model, name))
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    data = read_mapping(path)
    return read_config(data, str(path)) if is_config(data) else Imported(model=parse(Model, data, str(path)))


def read_config(data: Mapping[str, Any], source: str = "") -> Imported:
    """The model of a config.json. Raises `SpecError` with every fault; a layout that is not modelled is reported
    alone, since its other keys need not mean what they say."""
    if not is_config(data):
        allowed = "model_type or architectures, and hidden_size here or under text_config"
        raise spec_error("", "not a Hugging Face config.json", allowed, source)
    sheet = sheet_of(data)
    if refuse(sheet):
        raise SpecError(*sheet.faults, source=source)
    title = title_of(sheet, source)
    model = model_of(sheet, re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-"), title)
    if sheet.faults:
        raise SpecError(*dict.fromkeys(sheet.faults), source=source)
    simplify(sheet)
    assumed = tuple(dict.fromkeys((*where_read(sheet, model), *sheet.assumed)))
    return Imported(
        model=replace(model, sources=sources(source, assumed)), assumed=assumed, ignored=tuple(left_out(sheet.level))
    )  # fmt: skip


def title_of(sheet: Sheet, source: str) -> str:
    """The name of the file, or of its folder where the file is called config.json."""
    path = Path(source)
    stem = path.parent.name if path.stem == "config" else path.stem
    return stem or sheet.family.name or "model"


def sources(source: str, assumed: tuple[str, ...]) -> dict[str, str]:
    """Where the numbers come from, in the form of the catalog."""
    named = {"*": f"published: Hugging Face config.json{f' ({source})' if source else ''}"}
    for text in assumed:
        key, why = text.split(": ", 1)
        named[key] = f"{named[key]}; {why}" if key in named else f"assumed: {why}"
    return named


def where_read(sheet: Sheet, model: Model) -> Iterator[str]:
    """Which level was read, and as what where the model_type does not say it."""
    if sheet.level.path:
        yield f"level: {sheet.level.path.removesuffix('.')}, the language model; nothing else is planned"
    if not sheet.family.known:
        named = f"model_type {sheet.family.name!r} is not known" if sheet.family.name else "there is no model_type"
        yield f"layout: {layout(model)}, by its keys; {named}"


def layout(model: Model) -> str:
    """A model that is built alike."""
    if isinstance(model.attention, MLA):
        return "as DeepSeek-V3" if model.moe else "as DeepSeek-V3 without experts"
    if model.moe is not None:
        return "as Qwen2-MoE, with shared experts" if model.moe.shared_width else "as Mixtral"
    return "as Llama" if model.gated else "as GPT-NeoX"


def left_out(level: Level) -> Iterator[str]:
    """Keys that may matter and are not read, in alphabetical order; inner levels last."""
    outside = f"outside {level.path.removesuffix('.')}, not read"
    for path, data in level.around:
        for key in sorted(set(data) - NAMES_A_LEVEL):
            if data[key] != level.data.get(key) and not _says_nothing(key, data[key]):
                yield f"{path}{key}: {UNMODELLED.get(key, outside)}"
    for key in sorted(set(level.data) - READ):
        if not _says_nothing(key, level.data[key]):
            yield f"{level.path}{key}: {UNMODELLED.get(key, 'not known')}"


def _says_nothing(key: str, value: Any) -> bool:
    """Whether a key cannot matter: by its name, because it is empty, or because it is known and off."""
    off = key in UNMODELLED and (not value or value == NEUTRAL.get(key))
    return is_harmless(key) or value in ("", [], {}) or off


def parse_count(text: str) -> float:
    """`235B`, `1.04T`, `7.6e9` -> a number. Raises `SpecError`."""
    match = COUNT.fullmatch(text.strip())
    value = float(match[1] + (match[2] or "")) * FACTORS[match[3].lower()] if match else 0.0
    if not (0.0 < value < math.inf):
        raise spec_error("total_params", f"not {text!r}", "a positive number such as 235B, 1.04T or 7.6e9")
    return value


def check_expected(imported: Imported, text: str) -> None:
    """Raises `SpecError` where the model has another number of parameters than the user expects, by more than 2 %."""
    expected, size = parse_count(text), model_size(imported.model)
    difference = size.total / expected - 1.0
    if abs(difference) > TOLERANCE:
        problem = f"{format_count(size.total)}{_mtp(size)} counted, {text.strip()} expected ({difference:+.2%})"
        raise spec_error("total_params", problem, f"within {TOLERANCE:.0%}", imported.model.name)


def _mtp(size: ModelSize) -> str:
    return f" (and {format_count(size.mtp)} of MTP)" if size.mtp else ""
