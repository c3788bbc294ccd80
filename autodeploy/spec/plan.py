"""The plan: what an engineer chooses. `Plan` is one, `PlanTable` the same fields as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from autodeploy.spec.checks import Count


class Schedule(IntEnum):
    """Order of forward and backward passes on a rank.

    The zero-bubble ones and DualPipe run the weight gradients of a backward pass apart, where they fill a gap. ZB_V and
    DUALPIPE_V give a rank two chunks that lie on a V: down the ranks, and back up. DUALPIPE gives it two whole stages,
    its own and that of the rank opposite, and half of the microbatches come from either end.
    Source: arXiv 2401.10241, 2405.15362 (ZB-V), 2412.19437 (DualPipe); deepseek-ai/DualPipe.
    """

    ONE_F_ONE_B = 0
    INTERLEAVED = 1
    ZB_H1 = 2
    ZB_H2 = 3
    ZB_V = 4
    DUALPIPE_V = 5
    DUALPIPE = 6


class Overlap(IntEnum):
    """PAIR merges a forward and a backward pass so that each hides the other's all-to-all."""

    NONE = 0
    PAIR = 1


class Dispatch(IntEnum):
    """How tokens reach their experts: one all-to-all; all-gather across nodes and all-to-all inside; once to every node
    and rank that needs them, in two steps; all of them to all ranks; or once, by one kernel that forwards what it
    receives (DeepEP, HybridEP)."""

    FLAT = 0
    HIER = 1
    DEDUP = 2
    GATHER = 3
    FUSED = 4


class CpComm(IntEnum):
    """How context-parallel ranks share keys and values: passed around a ring, gathered, or exchanged for heads."""

    RING = 0
    GATHER = 1
    ULYSSES = 2


class States(IntEnum):
    """Where the optimizer's state lies: on the device; there, with the bf16 weights as the upper halves of the fp32
    ones; or on the host while passes run, back for the update piece by piece."""

    DEVICE = 0
    REUSE = 1
    HOST = 2


SCHEDULE_WORDS = ("1f1b", "interleaved", "zbh1", "zbh2", "zbv", "dualpipev", "dualpipe")
FIRST_SPLIT = Schedule.ZB_H1
"""From here on schedules run weight gradients apart."""
FIRST_OF_TWO = Schedule.ZB_V
"""From here on a rank has two chunks."""
OVERLAP_WORDS = ("none", "pair")
DISPATCH_WORDS = ("flat", "hier", "dedup", "gather", "fused")
CP_COMM_WORDS = ("ring", "kvgather", "ulysses")
STATES_WORDS = ("device", "reuse", "host")
LAYOUT_RULES = ("even", "light", "apart", "late")
RANK_ORDER = "tp-cp-dp-pp; experts etp-ep-edp-pp"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One parallel plan. Degrees are whole numbers; `layout` and `recompute` are rules, resolved later."""

    tp: Count
    pp: Count
    vpp: Count
    cp: Count
    dp: Count
    ep: Count
    """Size of the expert group over tp x cp x dp (TP-extend-EP is etp = 1 with ep = tp x k)."""
    etp: Count
    mbs: Count
    sp: bool
    schedule: Schedule
    overlap: Overlap
    dispatch: Dispatch
    zero: Literal[0, 1, 2, 3]
    """Sharded over data parallelism: 0 nothing, 1 optimizer state (distributed optimizer), 2 also gradients, 3 also
    weights (FSDP)."""
    cp_comm: CpComm = CpComm.RING
    replicas: Count = 1
    """Copies of the sharded state: it is spread over dp x cp / replicas ranks (hybrid sharding)."""
    states: States = States.DEVICE
    layout: str
    """`auto`, a rule (`even`, `light`, `apart`, `late`), a layout string, or the words of a framework."""
    recompute: str
    """`none`, `fit`, `full`, `full:SHARE`, or modules joined by `+`."""

    @property
    def edp(self) -> int:
        """Data-parallel degree of the routed experts."""
        return self.tp * self.cp * self.dp // (self.etp * self.ep)


PLAN_FIELDS = tuple(f.name for f in fields(Plan))
DEGREES = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs", "replicas")
CODES = {
    "sp": bool, "schedule": Schedule, "overlap": Overlap, "dispatch": Dispatch, "zero": int, "cp_comm": CpComm,
    "states": States,
}  # fmt: skip
TEXTS = ("layout", "recompute")


class PlanTable:
    """Plans as columns: degrees float64, codes int8, texts as indices into `words`.

    Made from the fields of `Plan`; `row(i)` gives the plan back.
    """

    def __init__(self, columns: Mapping[str, np.ndarray], words: Mapping[str, tuple[str, ...]]) -> None:
        self.words = dict(words)
        self.columns = {name: columns[name] for name in PLAN_FIELDS}
        self.__dict__.update(self.columns)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> np.ndarray: ...

    def __len__(self) -> int:
        return len(self.columns["tp"])

    @cached_property
    def edp(self) -> np.ndarray:
        """Data-parallel degree of the routed experts."""
        return np.floor_divide(self.tp * self.cp * self.dp, self.etp * self.ep)

    def rows(self, index: Any) -> PlanTable:
        """The rows that a slice, a mask or an index array names."""
        return PlanTable({name: column[index] for name, column in self.columns.items()}, self.words)

    def text(self, name: str, i: int) -> str:
        """The word of a text field in row i."""
        return self.words[name][int(self.columns[name][i])]

    def row(self, i: int) -> Plan:
        """Row i as a plan."""
        values: dict[str, Any] = {name: int(self.columns[name][i]) for name in DEGREES}
        values |= {name: code(int(self.columns[name][i])) for name, code in CODES.items()}
        values |= {name: self.text(name, i) for name in TEXTS}
        return Plan(**values)


def table_of(plans: Sequence[Plan]) -> PlanTable:
    """Plans as a table."""
    words = {name: tuple(dict.fromkeys(getattr(plan, name) for plan in plans)) for name in TEXTS}
    columns = {name: np.array([getattr(plan, name) for plan in plans], dtype=float) for name in DEGREES}
    columns |= {name: np.array([int(getattr(p, name)) for p in plans], dtype=np.int8) for name in CODES}
    columns |= {name: np.array([words[name].index(getattr(p, name)) for p in plans], dtype=np.int16) for name in TEXTS}
    return PlanTable(columns, words)


def distinct(table: PlanTable, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(first row of every distinct combination of some columns, combination of every row)."""
    key = np.zeros(len(table), dtype=np.int64)
    for name in names:
        codes, count = _codes(table.columns[name])
        key = key * count + codes
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse


def _codes(column: np.ndarray) -> tuple[np.ndarray, int]:
    """Whole numbers as places among the distinct ones, and how many those are."""
    whole = column.astype(np.int64)
    present = np.bincount(whole) > 0
    places = np.cumsum(present) - 1
    return places[whole], max(int(present.sum()), 1)


class LayerKey(NamedTuple):
    """All of a plan that the cost of a layer depends on; plans that agree in it share their layers."""

    tp: Any
    cp: Any
    ep: Any
    etp: Any
    mbs: Any
    sp: Any
    dispatch: Any
    cp_comm: Any


def layer_key(plan: Plan | PlanTable) -> LayerKey:
    """The layer key of a plan, or the columns of a table."""
    return LayerKey(*(getattr(plan, name) for name in LayerKey._fields))


PlanLike = Plan | PlanTable
"""What a formula takes: one plan or a table."""
LayerLike = Plan | PlanTable | LayerKey
"""What a formula about layers takes."""
