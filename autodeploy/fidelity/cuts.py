"""How a row cuts the layers of its model into slots, in the words of layouts."""

from __future__ import annotations

import re

from autodeploy.errors import Fault, SpecError
from autodeploy.fidelity.rows import Row
from autodeploy.fidelity.shapes import idle_layers
from autodeploy.fidelity.stacks import Stack
from autodeploy.spec.layout_words import notation_of
from autodeploy.spec.model import Model

FLAGS = {"list": "num-layer-list", "noop": "noop-layers", "offset": "offset"}


def layout_of(row: Row, stack: Stack, model: Model, pp: int, vpp: int, mtp: bool) -> str:
    """A stated layout, or the layers spread evenly; two left over are the embedding's and the head's. Raises
    `SpecError` for a list that does not cut the model."""
    text = f"{row.flags}; {row.notes}"
    stated = re.search(r"pp_layout (\S+)", text)
    if stated and ("m" in stated[1]) == mtp:
        return stated[1].rstrip(";")
    word = _word(row, text)
    if word:
        return _worded(word, (pp, vpp), model, mtp)
    slots = pp * vpp
    if stack.layout == "cost" and pp > 1:
        return _worded(f"list:{','.join(map(str, filled_stages(model, pp)))}", (pp, 1), model, mtp)
    if slots > 2 and model.layers % slots and (model.layers + 2) % slots == 0:
        return notation_of(model, mtp, pp, vpp, "account:embedding,loss")
    return "even"


def filled_stages(model: Model, pp: int) -> list[int]:
    """Layers by stage where each takes layers until it is beyond its share of the products' parameters.

    Source: nanotron models/base.py build_model, models/llama.py get_block_compute_costs.
    """
    layer = 4.0 * model.hidden * model.hidden + 3.0 * model.ffn_width * model.hidden
    share = (model.layers * layer + model.vocab * model.hidden) / pp
    counts = [0] * pp
    stage = 0
    for number in range(1, model.layers + 1):
        counts[stage] += 1
        stage += number * layer > (stage + 1) * share
    return counts


def _word(row: Row, text: str) -> str:
    """Stated no-ops, layers by stage or offsets, in the words of layouts; empty where a row states none."""
    idle = idle_layers(row)
    if idle:  # which take the place of a list (rule V77)
        return f"noop:{','.join(map(str, idle))}"
    listed = re.search(r"num-layer-list=([\d, ]+)", text)
    if listed:
        return f"list:{''.join(listed[1].split()).rstrip(',')}"
    offsets = re.search(r"\boffset=(\[[-\d;, \[\]]*\])", text)
    chunks = re.findall(r"\[([^\[\]]+)\]", offsets[1]) if offsets else []
    return f"offset:{';'.join(','.join(re.split('[;, ]+', chunk)) for chunk in chunks)}" if chunks else ""


def _worded(word: str, shape: tuple[int, int], model: Model, mtp: bool) -> str:
    """Stated layers by stage as a layout. Raises `SpecError` where they are not those of the model."""
    try:
        return notation_of(model, mtp, *shape, word)
    except SpecError as error:
        flag, _, numbers = word.partition(":")
        raise SpecError(Fault(path=FLAGS[flag], problem=f"{numbers} {error.faults[0].problem}")) from error
