"""Which layers are sparse: every family writes the pattern in its own way, and all of them must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autodeploy.formats.huggingface_sheet import Sheet, shown


def _after(value: Any, layer: int) -> bool:
    return layer >= int(value)


def _until(value: Any, layer: int) -> bool:
    return int(value) < 0 or layer <= int(value)


def _every(value: Any, layer: int) -> bool:
    """DeepSeek counts from layer 0; Ling, MiMo and MiniMax list a flag for each layer."""
    return bool(value[layer]) if isinstance(value, list) else layer % int(value) == 0


def _nth(value: Any, layer: int) -> bool:
    """Qwen, Ernie and Llama 4 count layers from 1."""
    return (layer + 1) % int(value) == 0


def _among(value: Any, layer: int) -> bool:
    chosen = value.split(",") if isinstance(value, str) else value
    return layer in [int(each) for each in chosen]


def _not_among(value: Any, layer: int) -> bool:
    return layer not in value


def _called_sparse(value: Any, layer: int) -> bool:
    return {"sparse": True, "dense": False}[value[layer]]


PATTERNS: dict[str, tuple[Callable[[Any, int], bool], str]] = {
    "first_k_dense_replace": (_after, "a number of layers"),
    "num_dense_layers": (_after, "a number of layers"),
    "moe_layer_num_skipped": (_after, "a number of layers"),
    "moe_layer_start_index": (_after, "the index of a layer"),
    "moe_layer_end_index": (_until, "the index of a layer, or -1"),
    "moe_layer_freq": (_every, "a positive number, or a list with 0 or 1 for every layer"),
    "decoder_sparse_step": (_nth, "a positive number"),
    "moe_layer_interval": (_nth, "a positive number"),
    "moe_layer_frequency": (_nth, "a positive number"),
    "interleave_moe_layer_step": (_nth, "a positive number"),
    "mlp_only_layers": (_not_among, "a list of layers"),
    "moe_layers": (_among, "a list of layers"),
    "moe_layers_enum": (_among, "a list of layers"),
    "mlp_layer_types": (_called_sparse, "a list with sparse or dense for every layer"),
}
"""Key -> whether a layer is sparse by its value, and what the value may be. A layer is sparse if all keys agree."""


def sparse_layers(sheet: Sheet, layers: int) -> tuple[bool, ...]:
    """For each layer, whether it has experts."""
    flags = [True] * layers
    for key, (rule, allowed) in PATTERNS.items():
        if key not in sheet.level.data:
            continue
        value = sheet.level.data[key]
        try:
            flags = [flag and rule(value, layer) for layer, flag in enumerate(flags)]
        except (TypeError, ValueError, KeyError, IndexError, ArithmeticError, AttributeError):
            sheet.fault(key, f"not {shown(value)}", allowed)
    return tuple(flags)


def first_and_every(sheet: Sheet, sparse: tuple[bool, ...]) -> tuple[int, int]:
    """The pattern as our model writes it: dense below the first, then every n-th is sparse."""
    chosen = [layer for layer, flag in enumerate(sparse) if flag]
    first = chosen[0]
    every = chosen[1] - first if len(chosen) > 1 else len(sparse)
    if list(range(first, len(sparse), every)) != chosen:
        key = next((key for key in reversed(PATTERNS) if key in sheet.level.data), "moe_layer_freq")
        problem = f"sparse layers {shown(chosen)} of {len(sparse)} follow no pattern"
        sheet.fault(key, problem, "dense layers at the bottom, then every n-th layer sparse up to the top")
    return first, every
