"""The target: a framework and version, as the rules it enforces and the profile of what it does by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autodeploy.spec.checks import Count, Natural, NotNegative, Positive

ALL_MODULES = (
    "layernorm", "mlp_act", "moe_act", "mla_up_proj", "shared_experts", "mlp", "moe", "core_attn", "full",
)  # fmt: skip
"""Every recompute module, in the order of analysis.ops.Module."""
SWAP = "swap:"
SWAP_PARTS = ("attention", *ALL_MODULES[:-1])
"""What can wait on the host: what goes into the attention core and comes out of it, and the rows of each module."""
Fusible = Literal["norm", "activation", "rope", "permute", "accumulate", "grouped"]
"""Vector chains that a stack runs as one kernel, or as PyTorch runs them, one kernel a line; `grouped`: the products of
all local experts, or one kernel an expert."""
FUSIBLE: tuple[Fusible, ...] = ("norm", "activation", "rope", "permute", "accumulate", "grouped")


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
    overlap_param_gather: bool = True
    """False: the parameters are gathered in the open even where gradients are not reduced so."""
    scatter_gradients: bool = True
    """False: gradients are all-reduced over all of data parallelism also where the optimizer is sharded."""
    overlap_grad_reduce_paired: bool = False
    """The same while passes are merged."""
    fused: tuple[Fusible, ...] = FUSIBLE
    """Vector chains that are one kernel each."""
    loss: Literal["fused", "torch", "megatron"] = "fused"
    """Cross-entropy in one kernel, by PyTorch's own over fp32 logits, or line by line over a split vocabulary."""
    moe_stalls: Natural = 0
    """Times that a forward pass through a sparse layer waits for a count from the device."""
    moe_backward_stalls: Natural = 0
    """The same of a backward pass: 0 where it uses the counts of the forward pass again."""
    rolling_update: bool = False
    """Where weight gradients run apart: a stage updates without waiting for the others, and checks the norm of all
    gradients later, so that the time in which a pipeline fills and drains overlaps from step to step."""
    whole_drain: bool = False
    """DualPipeV keeps backward passes whole while the pipeline drains."""
    pinned_host: bool = False
    """The threads that launch kernels have cores of their own."""
    dispatch_bytes: Positive = 2.0
    """Of an element that goes to its experts, or of its gradient on the way there; what comes back has 2."""
    padded_values: bool = False
    """The attention kernel takes one head size: values are padded to that of queries and keys."""
    overlap_vector: bool = False
    """In backward passes vector chains run beside weight gradients, where the device has cores for them alone."""
    attention: Literal["best", "flash2", "flash1", "unfused"] = "best"
    """Its attention kernel; unfused: the whole score matrix is written, soft-maxed and read."""
    score_saved_bytes: NotNegative = 2.0
    """Unfused attention: per score, from forward to backward (5 with dropout, arXiv 2205.05198)."""
    dropout_saved_bytes: NotNegative = 0.0
    """Per element of the output of attention and feed-forward: the mask of its dropout; 0: nothing is dropped."""
    split_logits: bool = True
    """The logits are cut over tensor parallelism until the loss."""
    overlap_tensor: bool = False
    """Tensor-parallel collectives run in pieces beside their product (userbuffers, MC2, CoC, async TP)."""
    overlap_context: bool = True
    """Ring context parallelism sends keys and values beside the attention of those before."""
    overlap_weight_gather: bool = True
    """Sharded weights (zero 3) are gathered, and gradients (zero 2) reduced, beside the layer before."""
    graphs: bool = False
    """Kernels are launched as recorded graphs: the host is no floor."""
    graph_saved_bytes: NotNegative = 0.0
    """Per hidden element of a layer's tokens: static copies that its recorded graphs hold per live microbatch."""
    gathered_inputs_saved: bool = False
    """Under sequence parallelism the inputs of column-parallel products are kept gathered, not gathered again."""
    narrow_inputs_saved: bool = False
    """Products below 16 bits keep their inputs as they take them (Transformer Engine); False: in 16 bits."""
    packed_qkv_saved: bool = False
    """Values are a view of the packed projection: queries and keys before their rotation are kept with them."""
    output_copied: bool = False
    """With several sequences in a microbatch the attention output is copied, and the copy kept as well."""
    logit_block_bytes: NotNegative = 0.0
    """Per logit: a block that its forward pass leaves to the allocator and that nothing later fits into."""
    logit_gather_bytes: NotNegative = 0.0
    """Per logit, beside `logit_transient_bytes`, where tensor parallelism cuts the logits."""
    sharded_master: bool = False
    """Sharded weights (zero 3) are the fp32 master weights: there is no 16-bit shard beside them."""
    loss_chunk_tokens: Natural = 0
    """The loss runs over so many tokens at a time and keeps no logits between passes; 0: over all at once."""
    norm_saved_bytes: NotNegative = 4.0
    """RMSNorm line by line, per element: what it keeps beyond its input and output in 16 bits."""
    master_bytes: NotNegative = 4.0
    """fp32 master weight of a parameter; 0 where the update works on the weights themselves."""
    update_copy_bytes: NotNegative = 0.0
    """Temporary of the optimizer's step, per element of the largest trained tensor of the rank's shard."""
    update_copy_most_bytes: NotNegative = 0.0
    """The most that it takes; 0: no limit."""
    gradient_copy_bytes: NotNegative = 0.0
    """Per parameter of the rank's shard: fp32 copy of 16-bit gradients, from the update until the next step."""
    gradient_copy_freed: bool = False
    """The update frees it again."""
    gather_copy_params: Natural = 0
    """Updated weights are gathered through a flat copy of so many at a time; 0: in place."""
    flat_copies: bool = False
    """What the update copies is flat: no block that the passes cached can hold it, so that the allocator reserves it
    beside them. Where the device is full it gives cached blocks back instead."""
    half_gradient_bytes: NotNegative = 0.0
    """Per parameter: 16-bit gradients, or buckets of them, that stand beside fp32 sums while passes run."""
    gradient_cast_bytes: NotNegative = 0.0
    """After a backward pass, per element of its largest trained tensor: such a gradient on the way into its sum."""
    stage_copies: bool = False
    """A pipeline holds a copy of what a stage receives and what it sends, of every live microbatch."""
    statistics_bytes: NotNegative = 4.0
    """Per token and head: what the fused attention core keeps of its soft-max."""
    layer_mask_bytes: NotNegative = 0.0
    """Per layer and squared token of the sequence: an attention mask that every layer holds."""
    extra_groups: Natural = 0
    """Communicators of a pipeline beside those of the plan's degrees and of the world."""
    flat_weights: bool = False
    """At the start all local weights are copied into flat tensors, the old ones still there."""
    stand_in_bytes: NotNegative = 0.0
    """Per element of a linear layer's weight: what stands in for its gradient where products add that up themselves;
    one for all weights of a shape, kept from the first backward pass on."""
    pace: Positive = 1.0
    """Time of a step over what its terms say: one factor of the whole stack, calibrated; 1: no more is known."""
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
