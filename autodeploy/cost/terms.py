"""Every term of a step and of a stage's memory: what it is, by which formula, from where, resting on which inputs.

Inputs are keys of a cluster's or target's sources; a term is known as well as the worst of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """A named addend."""

    name: str
    meaning: str
    formula: str
    source: str
    inputs: tuple[str, ...] = ()


_PEAK = (
    "device.peak_flop_per_s", "device.matmul_max_frac", "device.tile_overhead_s", "device.hbm_max_frac",
    "device.spread_frac",
)  # fmt: skip
_LINKS = (
    "node.link_max_frac", "node.latency_s", "node.ramp_s_per_sqrt_byte", "fabric.link_max_frac", "fabric.latency_s",
    "fabric.ramp_s_per_sqrt_byte", "pipelined_collectives",
)  # fmt: skip

TIME: tuple[Term, ...] = (
    Term(
        name="matmul", meaning="dense matrix products, forward and backward",
        formula="(max(waves (2 tm tn k cores / peak + t_tile), bytes / hbm) + gap) x slowest of n devices",
        source="tiles in waves: 910B2C shapes (mamf-finder), H800 shapes (DeepGEMM)", inputs=_PEAK,
    ),
    Term(
        name="experts", meaning="grouped products of the routed experts, on the busiest rank",
        formula="as matmul, tiles counted per expert, rows x imbalance", source="as matmul; arXiv 2603.07685",
        inputs=_PEAK,
    ),
    Term(
        name="attention", meaning="fused causal attention core",
        formula="2 keys T a (d_qk + d_v) / (eta peak), eta = f l / (l + l_half), backward 2.5 x",
        source="cudnn-frontend and FlashAttention benchmarks",
        inputs=("device.attention_forward_frac", "device.attention_backward_frac", "device.attention_half_len"),
    ),
    Term(
        name="vector", meaning="norms, activations, rope, permutation, residuals, loss",
        formula="bytes / (hbm phi) + gap", source="fused traffic of each op", inputs=("device.hbm_max_frac",),
    ),
    Term(
        name="launch", meaning="device waiting for the host: launches, counts of routed tokens",
        formula="max(kernels t_issue - engines, 0) per layer + stalls", source="host floor", inputs=("device.issue_s",),
    ),
    Term(
        name="recompute", meaning="forward work repeated in the backward pass",
        formula="sum over rebuilt modules of their forward time", source="arXiv 2205.05198; Megatron-LM",
        inputs=_PEAK,
    ),
    Term(
        name="tensor_parallel", meaning="all-gathers and reduce-scatters of tensor parallelism in the open",
        formula="(m-1)/m S / B_node + (N-1)/N S/m / B_fabric + c sqrt(S) + latency; cut in 4 beside the product",
        source="arXiv 2205.05198; nccl-tests docs",
        inputs=_LINKS,
    ),
    Term(
        name="context_parallel", meaning="keys and values of other context ranks, beyond what attention hides",
        formula="ring: max((c-1) (S / B + latency) - attention, 0); gathered (c-1) S / B; ulysses: heads exchanged",
        source="arXiv 2310.01889; arXiv 2309.14509; Megatron-LM --cp-comm-type",
        inputs=(*_LINKS, "profile.overlap_context"),
    ),
    Term(
        name="weight_gather", meaning="sharded weights gathered, and gradients scattered, beyond what layers hide",
        formula="per microbatch and layer: max(gather (+ scatter) - layer, 0)",
        source="arXiv 1910.02054; PyTorch FSDP", inputs=(*_LINKS, "profile.overlap_weight_gather"),
    ),
    Term(
        name="expert_exchange", meaning="expert all-to-all in the open, and the cores that it takes where it is not",
        formula="flat: kX(1-1/N) / B_fabric; hier: X(N-1) / B_fabric + kX(m-1)/m / B_node; dedup: XD(1-1/N) / B_fabric",
        source="arXiv 2603.07685; MindSpeed hierarchical-alltoallv", inputs=(*_LINKS, "device.exchange_cores"),
    ),
    Term(
        name="pipeline_send", meaning="messages between stages that the schedule does not hide",
        formula="simulated step less the step with free messages", source="arXiv 2104.04473", inputs=_LINKS,
    ),
    Term(
        name="bubble", meaning="busiest stage waiting for other stages",
        formula="simulated step less all other terms", source="arXiv 2104.04473 section 2.2",
    ),
    Term(
        name="grad_sync", meaning="gradient reduce-scatter beyond the last backward pass",
        formula="max(T/(vn), T/v - (1 - 1/n) W/v, T - ((v-1) pp + 1 - 1/n) W/v)",
        source="Megatron-LM overlap-grad-reduce",
        inputs=(*_LINKS, "profile.grad_buckets", "profile.overlap_grad_reduce"),
    ),
    Term(
        name="param_sync", meaning="parameter all-gather beyond the first forward pass",
        formula="max(T/(vn), T/v - (1 - 1/n) W/v, T - ((v-1) pp + 1 - 1/n) W/v)",
        source="Megatron-LM overlap-param-gather",
        inputs=(*_LINKS, "profile.grad_buckets", "profile.overlap_grad_reduce"),
    ),
    Term(
        name="optimizer", meaning="Adam over the rank's share of the state",
        formula="30 B x / D / hbm", source="bytes read and written by Adam", inputs=("device.hbm_max_frac",),
    ),
    Term(
        name="shared_weights", meaning="gradients of vocabulary matrices that two stages hold",
        formula="grad bytes / B", source="Megatron-LM embedding all-reduce", inputs=_LINKS,
    ),
)  # fmt: skip

MEMORY: tuple[Term, ...] = (
    Term(
        name="weights", meaning="bf16 weights", formula="2 x (/ D under zero 3)",
        source="Megatron-LM theoretical_memory_usage.py",
    ),
    Term(
        name="gradients", meaning="accumulated gradients", formula="4 x (2 x in 16 bits; / D from zero 2)",
        source="Megatron-LM theoretical_memory_usage.py",
    ),
    Term(
        name="optimizer", meaning="fp32 master weights and Adam moments",
        formula="12 x / D (reuse: 10; host: 0); D = dp cp / replicas, for experts edp / replicas",
        source="arXiv 1910.02054; Megatron-LM distributed optimizer",
    ),
    Term(
        name="activations", meaning="rows of all live microbatches",
        formula="max over moments of sum of live layers x rows kept",
        source="Megatron-MoE-ModelZoo deepseek_mem_estimate.py; Megatron-LM schedules.py",
        inputs=("profile.logit_saved_bytes", "profile.combine_saved"),
    ),
    Term(
        name="transient", meaning="one layer's backward pass, rows rebuilt, exchange and p2p buffers",
        formula="max over layers (gradients + rebuilt at a time + buffers) + 4 n h", source="arXiv 2502.07846",
        inputs=("profile.logit_transient_bytes",),
    ),
    Term(
        name="copies", meaning="temporary copies of parameters at the start or in the update",
        formula="copy bytes x largest tensor + state on the host / 16", source="MindSpeed-LLM tests' first peaks",
    ),
    Term(
        name="communicators", meaning="buffers of process groups", formula="groups x bytes",
        source="HCCL_BUFFSIZE; NCCL", inputs=("communicator_bytes",),
    ),
    Term(
        name="fragmentation", meaning="lost to the allocator", formula="allocated f / (1 - f)",
        source="arXiv 2502.07846 section 6", inputs=("fragmentation_frac",),
    ),
)  # fmt: skip
