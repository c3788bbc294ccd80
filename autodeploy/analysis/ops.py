"""The vocabulary of the inventory: an op is what one rank does for one microbatch in one step of a layer.

All quantities are per rank and microbatch, and each may be a column. Everything else (parameters, FLOP, bytes
moved, activations, traffic, the price of recompute) is a reading of these lists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal

from autodeploy.numeric import Num


class Engine(IntEnum):
    """Which part of a device works: each is one term of the step time."""

    MATMUL = 0
    EXPERTS = 1
    ATTENTION = 2
    VECTOR = 3


class Module(IntEnum):
    """What can be rebuilt in the backward pass, one disjoint set of rows each (model.md 4.4).

    The names are Megatron's recompute modules, where it has one. FULL is what remains of the layer once all
    others are rebuilt, so that all together keep nothing but the layer input.
    """

    LAYERNORM = 0
    MLP_ACT = 1
    MOE_ACT = 2
    MLA_UP_PROJ = 3
    SHARED_EXPERTS = 4
    MLP = 5
    MOE = 6
    CORE_ATTN = 7
    FULL = 8
    KEPT = 9
    """Never rebuilt: inputs of layers, and the ends of the model."""


MODULE_WORDS = tuple(module.name.lower() for module in Module)
REBUILDABLE = tuple(module for module in Module if module is not Module.KEPT)


class Shard(IntEnum):
    """How the parameters of an op are spread: divided by tp, on every tp rank, or divided by etp x ep."""

    TP = 0
    REPLICATED = 1
    EXPERT = 2


class Group(IntEnum):
    """The process group that a transfer runs over."""

    TP = 0
    EP = 1
    ETP = 2
    CP = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A tensor kept from the forward to the backward pass (one line of model.md 4.2)."""

    name: str
    bytes: Num
    module: Module
    grad_live: bool = False
    """Its gradient is among the largest live tensors of the layer's backward pass (model.md 4.6)."""
    taken: Literal["", "only", "also"] = ""
    """By a linear product that may run in 8 bits: by nothing else, or by other ops as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """Collectives of one op over one group."""

    group: Group
    bytes: Num
    """TP, ETP: the whole tensor. EP: one copy of the rank's own tokens. CP: keys and values, or heads, of the rank."""
    forward: Num = 0.0
    """How many all-gathers, reduce-scatters or all-to-alls in the forward pass."""
    backward: Num = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One step of a layer."""

    name: str
    engine: Engine
    module: Module = Module.FULL
    """The recompute module that has to run this op again."""
    m: Num = 0.0
    n: Num = 0.0
    k: Num = 0.0
    """A product m x k by k x n. Of a fused attention core only k: its mean head size."""
    input_tokens: Num = 0.0
    """Rows of its input that the rank keeps: m, or its own share where they are gathered again."""
    experts: Num = 1.0
    """Grouped products: so many of m / experts rows each."""
    flop: Num = 0.0
    """Model FLOP of the forward pass."""
    counted: bool = True
    """Part of the model FLOP by Megatron's convention, which leaves the router out."""
    aligned: bool = True
    """Its sizes are multiples of 8: the tensor cores take it."""
    apart: bool = False
    """Every expert's product is a kernel of its own."""
    narrow: bool = False
    """Runs in the job's number format where that is below 16 bits."""
    params: Num = 0.0
    trained: bool = True
    """False: its parameters get no weight gradient and have no state."""
    shard: Shard = Shard.TP
    forward_bytes: Num = 0.0
    backward_bytes: Num = 0.0
    """Vector ops: bytes read and written."""
    rows: tuple[Row, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    transient_bytes: Num = 0.0
    """Live only while the op runs."""
    kernels: int = 1
    counts_rows: bool = False
    """Its sizes come from the routing: without capacities the host has to ask for them."""

    @property
    def of_experts(self) -> bool:
        """Lies between a dispatch and its combine."""
        return self.engine is Engine.EXPERTS or self.module is Module.MOE_ACT


def matmul(
    name: str,
    m: Num,
    n: Num,
    k: Num,
    *,
    shard: Shard = Shard.TP,
    module: Module = Module.FULL,
    bias: Num = 0.0,
    rows: tuple[Row, ...] = (),
    transfers: tuple[Transfer, ...] = (),
) -> Op:
    """A linear layer of n x k weights over m tokens."""
    return Op(
        name=name, engine=Engine.MATMUL, module=module, m=m, n=n, k=k, input_tokens=m, flop=2.0 * m * n * k,
        narrow=True, params=1.0 * n * k + bias, shard=shard, rows=rows, transfers=transfers,
    )  # fmt: skip


def gathering(op: Op, tokens: Num) -> Op:
    """A product of whose input only so many tokens are kept, and the others gathered again."""
    return replace(op, input_tokens=tokens)


def vector(
    name: str,
    forward_bytes: Num,
    backward_bytes: Num,
    *,
    params: Num = 0.0,
    module: Module = Module.FULL,
    rows: tuple[Row, ...] = (),
    transfers: tuple[Transfer, ...] = (),
    kernels: int = 1,
) -> Op:
    """An element-wise or reduction step; its parameters, if any, are on every tp rank."""
    return Op(
        name=name, engine=Engine.VECTOR, module=module, params=params, shard=Shard.REPLICATED,
        forward_bytes=forward_bytes, backward_bytes=backward_bytes, rows=rows, transfers=transfers,
        kernels=kernels,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Token counts of one microbatch on a rank, and the degrees that shape its ops."""

    whole: Num
    """T = mbs x seq / cp: what a tensor-parallel region works on."""
    part: Num
    """n: what a sequence-parallel region holds, T / tp with sp, else T."""
    seq: Num
    document: Num
    """Tokens of the document that a token stands in, at most `seq`."""
    sp: Num
    tp: Num
    cp: Num
    cp_comm: Num
    ep: Num
    etp: Num
    imbalance: Num
    """Load of the busiest expert rank over the mean; 1 where the experts are not spread."""
