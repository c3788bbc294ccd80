"""A quick choice for a stage: cheapest seconds per byte first, whole layers. What the exact choice is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autodeploy.balance.selection_values import (
    Counts,
    LayerClass,
    Selection,
    StageNeed,
    evaluate,
    fits,
    full_bytes,
    slack_bytes,
)  # fmt: skip


def greedy(stage: StageNeed) -> Selection | None:
    """Parts are rebuilt or swapped in order of seconds per byte until the stage fits; None where it does not.

    Where parts do not suffice, or cost more, layers are rebuilt in full: the classes that offer it, then the rest.
    """
    tries = [_run(stage, fulls=False)]
    if any(c.full_s is not None for c in stage.classes):
        tries.append(_run(stage, fulls=True))
    return min((each for each in tries if fits(stage, each)), key=lambda each: each.added_s, default=None)


class _Move(NamedTuple):
    layers: int
    """Which class."""
    part: int
    """-1: the whole layer."""
    swap: bool


class _State:
    """Counts so far and what they leave to save."""

    def __init__(self, stage: StageNeed) -> None:
        self.stage = stage
        self.short = list(stage.need_bytes)
        self.full = [0] * len(stage.classes)
        self.rebuilt = [[0] * len(c.parts) for c in stage.classes]
        self.swapped = [[0] * len(c.parts) for c in stage.classes]
        self.link = [c.link_bytes for c in stage.classes]
        self.buffers = [0.0] * len(stage.classes)
        self.host, self.rebuild, self.slack = stage.host_bytes, 0.0, slack_bytes(stage)

    def transient(self) -> float:
        return self.rebuild + max(self.buffers, default=0.0)

    def take(self, move: _Move) -> None:
        """Make a move with as few layers as suffice; a swap with all."""
        layers = self.stage.classes[move.layers]
        size = full_bytes(layers) if move.part < 0 else layers.parts[move.part].kept_bytes
        room = self._room(move, layers, size)
        before = self.transient()
        if room <= 0:
            return
        if move.swap:
            self.buffers[move.layers] += 2.0 * size
        else:
            self.rebuild = max(self.rebuild, size)
        self.short = [each + self.transient() - before for each in self.short]
        saved = [live * size for live in layers.live]
        wants = [math.ceil(each / one) if one > 0.0 else room for each, one in zip(self.short, saved, strict=True)]
        number = room if move.swap else max(1, min(room, max(wants)))
        self.short = [each - number * one for each, one in zip(self.short, saved, strict=True)]
        self._count(move, layers, number, size)

    def _room(self, move: _Move, layers: LayerClass, size: float) -> int:
        at, part = move.layers, move.part
        if part < 0:
            return layers.count
        used = self.rebuilt[at][part] + self.swapped[at][part]
        room = layers.count - used - (self.full[at] if layers.parts[part].in_full else 0)
        if not move.swap:
            return room
        moved = layers.count * size
        fits_both = moved <= self.link[at] and moved * max(layers.live) <= self.host
        return layers.count if room == layers.count and fits_both else 0

    def _count(self, move: _Move, layers: LayerClass, number: int, size: float) -> None:
        if move.part < 0:
            self.full[move.layers] += number
        elif move.swap:
            self.swapped[move.layers][move.part] += number
            self.link[move.layers] -= number * size
            self.host -= number * size * max(layers.live)
        else:
            self.rebuilt[move.layers][move.part] += number

    def counts(self) -> list[Counts]:
        return [
            Counts(label=c.label, full=f, rebuilt=tuple(x), swapped=tuple(y))
            for c, f, x, y in zip(self.stage.classes, self.full, self.rebuilt, self.swapped, strict=True)
        ]


def _run(stage: StageNeed, fulls: bool) -> Selection:
    state = _State(stage)
    for move in _moves(stage, fulls):
        if max(state.short) <= state.slack:
            break
        state.take(move)
    return evaluate(stage, state.counts())


def _moves(stage: StageNeed, fulls: bool) -> Sequence[_Move]:
    """All moves, best first, by the moment that needs most; whole layers come before all."""
    worst = max(range(len(stage.need_bytes)), key=lambda moment: stage.need_bytes[moment])
    moves: list[tuple[float, _Move]] = []
    for at, layers in enumerate(stage.classes):
        live = layers.live[worst]
        whole = full_bytes(layers)
        if live <= 0.0 or layers.count <= 0:
            continue
        scale = layers.weight / live
        if fulls and layers.full_s is not None and whole > 0.0:
            moves.append((-1.0 / (1.0 + scale * layers.full_s / whole), _Move(at, -1, False)))
        for place, part in enumerate(layers.parts):
            if part.rebuild_s is not None:
                moves.append((scale * part.rebuild_s / part.kept_bytes, _Move(at, place, False)))
            if part.swap:
                moves.append((scale * stage.swap_s_per_byte, _Move(at, place, True)))
    return [move for _, move in sorted(moves)]
