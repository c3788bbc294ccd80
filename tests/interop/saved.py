"""What PyTorch keeps from a forward to its backward pass, and where: every storage once. Needs torch in functions only.

Counted are the storages that `torch.autograd.graph.saved_tensors_hooks` hands over and that are still held when the
forward has ended, whole, however small the part that is looked at. Parameters are left out, and so is memory that was
given back by then (storages resized to nothing).
"""

from __future__ import annotations

import linecache
import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where a tensor was saved."""

    module: str
    """The module in whose forward: its dotted name in the layer."""
    line: str
    """The innermost line of code outside torch."""
    dtype: str
    shape: tuple[int, ...]
    """Of the tensor as it was saved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Memory that is held, and every place that asked for it."""

    bytes: int
    sites: tuple[Site, ...]


class _Held:
    """A saved tensor as the graph holds it: gone as soon as the graph lets go."""

    def __init__(self, tensor: Any, site: Site) -> None:
        self.tensor, self.site = tensor, site


class Recorder:
    """Notes what a layer saves while it runs."""

    def __init__(self, layer: Any) -> None:
        self._modules: list[str] = []
        self._held: list[weakref.ref[_Held]] = []
        self._own = {each.untyped_storage().data_ptr() for each in layer.parameters()}
        for name, module in layer.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self._modules.append(name))
            module.register_forward_hook(lambda *_: self._leave())

    def _leave(self) -> None:
        self._modules.pop()

    def pack(self, tensor: Any) -> Any:
        """The hook for what is saved."""
        if tensor.untyped_storage().data_ptr() in self._own:
            return tensor
        site = Site(
            module=self._modules[-1], line=_line(sys._getframe(1)), dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
        )  # fmt: skip
        held = _Held(tensor, site)
        self._held.append(weakref.ref(held))
        return held

    @staticmethod
    def unpack(held: Any) -> Any:
        """The hook for what is asked back."""
        return held.tensor if isinstance(held, _Held) else held

    def storages(self) -> list[Storage]:
        """What is held now, in the order in which it was first saved."""
        groups: dict[int, list[_Held]] = {}
        for held in (ref() for ref in self._held):
            if held is not None and held.tensor.untyped_storage().nbytes():
                groups.setdefault(held.tensor.untyped_storage().data_ptr(), []).append(held)
        return [_storage(group) for group in groups.values()]


def _storage(group: list[_Held]) -> Storage:
    return Storage(bytes=group[0].tensor.untyped_storage().nbytes(), sites=tuple(held.site for held in group))


def _line(frame: FrameType | None) -> str:
    """The code of the innermost frame outside torch."""
    import torch

    inside = str(Path(torch.__file__).parent)
    while frame is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    assert frame is not None
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def saved_by(layer: Any, given: Iterable[Any], **named: Any) -> list[Storage]:
    """What a layer holds after a forward pass; its result is kept until then, as the layer above would."""
    import torch

    recorder = Recorder(layer)
    with torch.autograd.graph.saved_tensors_hooks(recorder.pack, recorder.unpack):
        result = layer(*given, **named)
    found = recorder.storages()
    del result
    return found
