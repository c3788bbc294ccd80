"""What a source leaves out: one table of explicit assumptions, per source and never per row, each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from autodeploy.fidelity.own import own_table
from autodeploy.fidelity.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """How the runs of a source were driven, where their rows do not say. The first stack that fits a row counts."""

    name: str
    match: str
    """Regular expression over `source; framework framework_version; model; source_ref`."""
    unless: str = ""
    """Regular expression over a row's flags that must not match; empty: all rows are taken."""
    target: str
    """The catalog's target whose profile it runs under."""
    cluster: str = ""
    """The cluster of rows that name no hardware; empty: such a row is not read."""
    vocab: int = 0
    """Vocabulary of rows that leave it out; 0: such a row is not read."""
    recompute: str = "none"
    selective: str = "core_attn"
    """What its rows mean by `selective` without a module."""
    zero: Literal[0, 1, 2, 3] = 1
    zero_without_pipeline: Literal[0, 1, 2, 3] | None = None
    """The same where the plan has no pipeline; None: as `zero`."""
    zero_in_pipeline: Literal[0, 1, 2, 3] | None = None
    """What ZeRO 3 comes to where the plan has a pipeline; None: the same."""
    grad_precision: Literal["fp32", "bf16", "fp16", "megatron"] = "fp32"
    """`megatron`: fp16 in fp16 runs, fp32 in all others."""
    moment_precision: Literal["fp32", "bf16"] = "fp32"
    sequence_parallel: bool = False
    mbs: Literal["one", "all"] = "one"
    """Of rows that leave it out: 1, or all sequences of a data-parallel rank."""
    vpp: int = 1
    """Chunks a stage where the row does not say."""
    chunk_layers: int = 0
    """Layers of a chunk where the interleaving is not printed, if they divide evenly; 0: `vpp`."""
    layout: Literal["even", "cost"] = "even"
    """Stages of equal layers, or filled one by one to their share of the products' parameters, head included."""
    etp: Literal["one", "tp"] = "one"
    expert_imbalance: float = 1.0
    mtp: bool = False
    lora_rank: int = 32
    document_len: int = 0
    """Tokens of a packed document in fine-tuning rows; 0: as long as the sequence."""
    cp_comm: Literal["ring", "kvgather", "ulysses"] = "ring"
    dispatch: Literal["flat", "fused"] = "flat"
    overlap_tensor: bool | None = None
    """None: as the target's profile says."""
    fabric_bytes_per_s: float = 0.0
    """What its nodes have a device on the fabric; 0: as the cluster."""
    mfu_peak_flop_per_s: float = 0.0
    """Peak behind a published MFU; 0: the device's own in the number format of the run."""
    scores: Literal["full", "causal", "none"] = "full"
    """How its FLOP count takes attention, where a row does not say."""
    update_copy_most_bytes: float = 0.0
    """The most that the temporary of the update takes; 0: as the target's profile says."""
    dropout: bool = False
    """Outputs of attention and feed-forward are dropped at random, which keeps a mask of one byte an element."""
    flags_state_kernels: bool = False
    """Its rows list every fused kernel: what is not listed is not fused."""
    memory: Literal["allocated", "first_step", "reserved", "device"] = "allocated"
    """What its peak memory counts: what the framework's allocator handed out (in the first step alone), what it held,
    or all that the device had in use (nvidia-smi)."""
    binary_gigabytes: bool = False
    """Its GB of memory are 2^30 bytes."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A policy of a source that keeps some products and runs the rest of a forward pass again."""

    word: str
    """As its rows have it."""
    means: str
    """As a recompute policy of ours."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """The file of assumptions."""

    policy: tuple[Policy, ...]
    stack: tuple[Stack, ...]


def assumptions() -> Assumptions:
    """The whole file."""
    return own_table(Assumptions, "assumptions")


def stacks() -> tuple[Stack, ...]:
    """All stacks, in the order in which they are tried."""
    return assumptions().stack


@cache
def policies() -> dict[str, str]:
    """Policies of sources, and ours."""
    return {policy.word: policy.means for policy in assumptions().policy}


@cache
def _named(text: str, flags: str) -> Stack:
    return next(stack for stack in stacks() if _takes(stack, text, flags))


def _takes(stack: Stack, text: str, flags: str) -> bool:
    if stack.unless and re.search(stack.unless, flags, re.IGNORECASE):
        return False
    return re.search(stack.match, text, re.IGNORECASE) is not None


def stack_of(row: Row) -> Stack:
    """The stack of a row."""
    return _named(f"{row.source}; {row.framework} {row.framework_version}; {row.model}; {row.source_ref}", row.flags)
