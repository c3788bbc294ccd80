"""Where the layers go: Megatron's layout notation, and what it means for every pipeline slot.

E embedding, t decoder layer, m MTP module, L head and loss, `|` cuts a slot, `*n` repeats, `( )` groups.
Slot s is chunk `s // pp` of stage `s % pp`; other schedules lay them otherwise (`spec.placement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby

from autodeploy.errors import SpecError, spec_error
from autodeploy.spec.model import KINDS, Kind, Model, decoder_kinds
from autodeploy.spec.placement import Placement, slot_of, slots_in, stage_of

Counts = tuple[int, ...]
"""How many of each `Kind` a slot holds, indexed by kind."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Role:
    """Stages with equal slot contents. Compared by identity, like the layout it belongs to."""

    stages: tuple[int, ...]
    chunks: tuple[Counts, ...]

    @cached_property
    def totals(self) -> Counts:
        """How many of every kind one stage of the role holds."""
        return tuple(sum(column) for column in zip(*self.chunks, strict=True))

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that the role holds."""
        return tuple(kind for kind in KINDS if self.totals[kind])

    @cached_property
    def distinct(self) -> tuple[tuple[tuple[Kind, int], ...], ...]:
        """Distinct chunk contents in the order of their first chunk: the kinds and how many of each."""
        contents = dict.fromkeys(self.chunks)
        return tuple(tuple((kind, chunk[kind]) for kind in KINDS if chunk[kind]) for chunk in contents)

    @cached_property
    def content_of_chunk(self) -> tuple[int, ...]:
        """Index into `distinct` of every chunk."""
        place = {chunk: i for i, chunk in enumerate(dict.fromkeys(self.chunks))}
        return tuple(place[chunk] for chunk in self.chunks)

    @cached_property
    def content_counts(self) -> tuple[int, ...]:
        """How many chunks have each of the `distinct` contents."""
        return tuple(self.content_of_chunk.count(i) for i in range(len(self.distinct)))

    def count(self, kind: Kind) -> int:
        """How many of a kind one stage of the role holds."""
        return self.totals[kind]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """Every layer in its slot. Made once per model, shape and notation, and compared by identity."""

    pp: int
    vpp: int
    notation: str
    slots: tuple[Counts, ...]
    placement: Placement = Placement.ROUND

    def slots_of(self, stage: int) -> tuple[int, ...]:
        """The slots of one stage, chunk by chunk."""
        return tuple(slot_of(self.placement, self.pp, stage, chunk) for chunk in range(self.vpp))

    def stage_of(self, slot: int) -> int:
        """The stage that holds a slot (of two that do, its own)."""
        return int(stage_of(self.placement, self.pp, slot))

    def chunks(self, stage: int) -> tuple[Counts, ...]:
        """Contents of one stage, chunk by chunk."""
        return tuple(self.slots[slot] for slot in self.slots_of(stage))

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Stages grouped by contents, in the order of their first stage (which holds most live chunks)."""
        members: dict[tuple[Counts, ...], list[int]] = {}
        for stage in range(self.pp):
            members.setdefault(self.chunks(stage), []).append(stage)
        return tuple(Role(stages=tuple(stages), chunks=chunks) for chunks, stages in members.items())

    @cached_property
    def role_of_stage(self) -> tuple[int, ...]:
        """Index of the role of every stage."""
        role = {stage: i for i, role in enumerate(self.roles) for stage in role.stages}
        return tuple(role[stage] for stage in range(self.pp))


class _ApartRole(Role):
    """A single stage whose chunks are each taken by themselves, equal or not."""

    @cached_property
    def distinct(self) -> tuple[tuple[tuple[Kind, int], ...], ...]:
        """The contents of every chunk."""
        return tuple(tuple((kind, chunk[kind]) for kind in KINDS if chunk[kind]) for chunk in self.chunks)

    @cached_property
    def content_of_chunk(self) -> tuple[int, ...]:
        """Every chunk has its own."""
        return tuple(range(len(self.chunks)))


class _ApartLayout(Layout):
    """A layout whose stages are each a role."""

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """One per stage."""
        return tuple(_ApartRole(stages=(stage,), chunks=self.chunks(stage)) for stage in range(self.pp))

    @cached_property
    def role_of_stage(self) -> tuple[int, ...]:
        """Stages are roles."""
        return tuple(range(self.pp))


@lru_cache(maxsize=512)
def apart(layout: Layout) -> Layout:
    """The same layout with every stage a role of its own and every chunk a content of its own."""
    return _ApartLayout(
        pp=layout.pp, vpp=layout.vpp, notation=layout.notation, slots=layout.slots, placement=layout.placement
    )  # fmt: skip


@lru_cache(maxsize=8192)
def role_at(role: Role, stage: int) -> Role:
    """One stage of a role as a role of its own."""
    return role if role.stages == (stage,) else Role(stages=(stage,), chunks=role.chunks)


def expand(notation: str) -> list[str]:
    """`Et*3|(tt|)*2mL` -> `["Ettt", "tt", "tt", "mL"]`. Raises `SpecError` on any other character."""
    text, rest = _expand(notation.replace(" ", ""), 0, notation)
    if rest != len(notation.replace(" ", "")):
        raise spec_error("layout", f"unmatched ')' in {notation!r}")
    return text.split("|")


def _expand(text: str, at: int, whole: str) -> tuple[str, int]:
    out = ""
    while at < len(text) and text[at] != ")":
        if text[at] == "(":
            item, at = _expand(text, at + 1, whole)
            if at >= len(text):
                raise spec_error("layout", f"unmatched '(' in {whole!r}")
        elif text[at] in "EtmL|":
            item = text[at]
        else:
            raise spec_error("layout", f"unexpected {text[at]!r} in {whole!r}", "E t m L | ( ) *n")
        repeat, at = _repeat(text, at + 1, whole)
        out += item * repeat
    return out, at


def _repeat(text: str, at: int, whole: str) -> tuple[int, int]:
    if at >= len(text) or text[at] != "*":
        return 1, at
    end = at + 1
    while end < len(text) and text[end] in "0123456789":
        end += 1
    if end == at + 1:
        raise spec_error("layout", f"'*' without a number in {whole!r}")
    if end - at > 5:
        raise spec_error("layout", f"'{text[at:end]}' repeats too often in {whole!r}", "*1 to *9999")
    return int(text[at + 1 : end]), end


def compress(slots: list[str]) -> str:
    """The shortest usual writing of slots: the inverse of `expand`."""
    out, last = "", len(slots)
    at = 0
    for slot, run in groupby(slots):
        count = len(list(run))
        at += count
        cut = count if at < last else count - 1
        short = _compress_slot(slot)
        out += (f"({short}|)*{cut}" if cut > 1 else f"{short}|" * cut) + (short if at == last else "")
    return out


def _compress_slot(slot: str) -> str:
    runs = ((letter, len(list(run))) for letter, run in groupby(slot))
    return "".join(f"{letter}*{n}" if n > 2 else letter * n for letter, n in runs)


def with_ends(counts: Sequence[int], modules: int, mtp_slot: int = -1) -> list[str]:
    """Slot strings of decoder layers per slot: embedding first, MTP modules in their slot, the head last."""
    held = ["t" * count for count in counts]
    held[0] = "E" + held[0]
    held[mtp_slot] += "m" * modules
    held[-1] += "L"
    return held


def layout_faults(model: Model, mtp: bool, pp: int, vpp: int, slots: list[str]) -> list[str]:
    """What is wrong with a whole-layer layout, in words; empty when it is legal.

    Every decoder layer once and in order, embedding first, loss last, MTP after the last decoder layer; no
    slot empty (rule L01).
    """
    joined = "".join(slots)
    modules = model.mtp_depth if mtp else 0
    faults = []
    if len(slots) != pp * vpp:
        faults.append(f"{len(slots)} slots, but pp {pp} x vpp {vpp} = {pp * vpp}")
    if joined.count("t") != model.layers:
        faults.append(f"{joined.count('t')} decoder layers, but the model has {model.layers}")
    if joined.count("m") != modules:
        faults.append(f"{joined.count('m')} MTP modules, but {modules} are trained")
    if joined.strip("t").strip("m") != "EL" and joined.replace("t", "").replace("m", "") != "EL":
        faults.append("needs one E and one L")
    elif joined != "E" + "t" * joined.count("t") + "m" * joined.count("m") + "L":
        faults.append("order must be E, decoder layers, MTP, L")
    faults += [f"slot {i} is empty" for i, slot in enumerate(slots) if not slot]
    return faults


@lru_cache(maxsize=4096)
def make_layout(
    model: Model, mtp: bool, pp: int, vpp: int, notation: str, *, placement: Placement = Placement.ROUND
) -> Layout:
    """Slots of a notation for this model; raises `SpecError` naming every fault."""
    slots = expand(notation)
    faults = layout_faults(model, mtp, pp, slots_in(placement, pp, vpp) // pp, slots)
    if faults:
        raise SpecError(*(spec_error("layout", f"{fault} in {notation!r}").faults[0] for fault in faults))
    kinds = iter(decoder_kinds(model))
    letters = {"E": Kind.EMBEDDING, "m": Kind.MTP, "L": Kind.HEAD}
    held = [[next(kinds) if letter == "t" else letters[letter] for letter in slot] for slot in slots]
    counts = tuple(tuple(slot.count(kind) for kind in KINDS) for slot in held)
    return Layout(pp=pp, vpp=vpp, notation=compress(slots), slots=counts, placement=placement)
