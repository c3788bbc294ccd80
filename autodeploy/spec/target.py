"""The target: a framework and version, as the rules it enforces and the profile of what it does by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from autodeploy.spec.checks import Count, NotNegative

ALL_MODULES = ("layernorm", "mlp_act", "moe_act", "mla_up_proj", "shared_experts", "mlp", "moe", "full")
"""Every recompute module, in the order of analysis.ops.Module."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What the software stack fuses, overlaps and keeps."""

    vocab_multiple: Count
    """The vocabulary is padded to a multiple of this times tp."""
    logit_saved_bytes: NotNegative
    """Per logit, from the head's forward to its backward."""
    logit_transient_bytes: NotNegative
    """Per logit, while the loss is computed."""
    combine_saved: bool
    """Routing weights multiply after the second expert matmul, so its output is kept for the backward pass."""
    grad_buckets: Count
    """Pieces in which gradients and parameters travel; one of them is always exposed."""
    overlap_grad_reduce: bool
    """Gradients are reduced, and parameters gathered, beside the last backward and the first forward pass."""
    overlap_grad_reduce_paired: bool = False
    """The same while passes are merged."""
    modules: tuple[str, ...] = ALL_MODULES
    """What it can rebuild in the backward pass."""
    pair_modules: tuple[str, ...] = ALL_MODULES
    """The same while passes are merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Rules by id (see `autodeploy.legality`) and the profile."""

    name: str
    title: str
    rules: tuple[str, ...]
    profile: Profile
    sources: dict[str, str] = field(default_factory=dict, compare=False)
