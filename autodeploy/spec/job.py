"""The job: how much is trained in one step, in which number format, with which optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autodeploy.spec.checks import AtLeastOne, Count, Natural


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One training step. The defaults are mixed-precision Adam as Megatron and MindSpeed run it."""

    gbs: Count
    """Sequences per step over the whole cluster."""
    seq_len: Count
    precision: Literal["bf16", "fp16", "fp8", "nvfp4"] = "bf16"
    """Of the products of the decoder's linear layers. Below 16 bits, attention, router and head stay in bf16."""
    optimizer: Literal["adam"] = "adam"
    grad_precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    moment_precision: Literal["fp32", "bf16"] = "fp32"
    """Of Adam's two moments; master weights stay in fp32."""
    mtp: bool = True
    """Train the model's MTP modules, where it has any."""
    document_len: Natural = 0
    """Tokens of the document that a token stands in, on average over tokens (sum l^2 / sum l of packed documents);
    0: as long as the sequence."""
    lora_rank: Natural = 0
    """Rank of the adapters that are trained beside frozen weights (arXiv 2106.09685); 0: all weights are trained."""
    expert_imbalance: AtLeastOne = 1.2
    """Load of the busiest expert rank over the mean. 1.2: balancing loss or bias (balanced routing
    in training runs); 1.0: routing forced even. Multiplies expert matmul, all-to-all and routed activations."""

    @property
    def mean_document(self) -> int:
        """Tokens of the document that a token stands in: at most the sequence."""
        return min(self.document_len or self.seq_len, self.seq_len)

    @property
    def grad_bytes(self) -> float:
        """Bytes of one gradient element as it is kept and reduced."""
        return 4.0 if self.grad_precision == "fp32" else 2.0

    @property
    def moment_bytes(self) -> float:
        """Bytes that the two moments of a parameter take."""
        return 8.0 if self.moment_precision == "fp32" else 4.0
