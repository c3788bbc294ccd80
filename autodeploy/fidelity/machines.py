"""From a row to the machine that it ran on: the cluster that its hardware names, the profile of its stack with the
switches that the row itself states."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from autodeploy.catalog.lookup import load, names
from autodeploy.errors import spec_error
from autodeploy.fidelity.rows import Row
from autodeploy.fidelity.stacks import Stack
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.target import Fusible, Profile, Target

HARDWARE = {
    "a100-80g-sxm": "a100-80g", "a100-40g-sxm": "a100-40g", "a800-80g-sxm": "a800", "h100-80g-sxm": "h100-80g",
    "h100-96g-sxm": "h100-96g", "gb200": "gb200-nvl72", "910a": "atlas-800",
}  # fmt: skip
"""Names in tables of runs beside those of the catalog."""
VARIANTS = {
    "910A": "atlas-800", "910 32GB": "atlas-800", "910B2": "atlas-800t-a2-910b2", "910B3": "atlas-800t-a2",
}  # fmt: skip
"""Names of the part, where the machine is not named."""
KERNELS: dict[str, Fusible] = {
    "use-fused-rmsnorm": "norm", "rms kernel": "norm", "fused-rmsnorm": "norm", "use-fused-swiglu": "activation",
    "fused-swiglu": "activation", "use-fused-rotary-pos-emb": "rope",
    "use-fused-moe-token-permute-and-unpermute": "permute", "moe-grouped-gemm": "grouped",
}  # fmt: skip
"""Switches that name one fused kernel each."""
FLASH = ("flash-attn", "npu-fusion-attention", "flash attention", "triangle-attn")
TENSOR_OVERLAP = (
    "use-mc2",
    "use-ascend-mc2",
    "mc2-on",
    "use-ascend-coc",
    "userbuffer",
    "async tp",
    "fine_grain_interleave",
)
TENSOR_APART = ("tp and pp p2p overlap off", "tp, pp p2p overlap off")
MASK_BYTES = 1.0
"""A boolean an element."""
GRAPHS = ("full-iteration cuda graphs", "full_iteration", "cuda graphs", "te cuda graphs")
CAPACITY = re.compile(r"capacity[-_]factor=(\d+(?:\.\d+)?)")
LAYER_GRAPHS = ("cuda graphs transformer_engine", "te cuda graphs")
"""Those of single layers."""
GRAPH_SAVED_BYTES = 3 * 2.0
"""Input, gradient that comes and gradient that goes, in 16 bits (Transformer Engine pytorch/graph.py)."""


def cluster_of(row: Row, stack: Stack) -> Cluster:
    """The cluster of a row. Raises `SpecError` for hardware that the catalog does not hold."""
    named = row.hardware or next((c for v, c in VARIANTS.items() if row.npu_variant.startswith(v)), "") or stack.cluster
    name = HARDWARE.get(named, named)
    if name not in names(Cluster):
        problem = f"unknown {named!r}" if named else "is not named, and nothing is assumed for this source"
        raise spec_error("hardware", problem, " ".join(sorted({*HARDWARE, *names(Cluster)})))
    cluster = load(Cluster, name)
    if stack.fabric_bytes_per_s:
        cluster = replace(cluster, fabric=replace(cluster.fabric, link_bytes_per_s=stack.fabric_bytes_per_s))
    return cluster


def profile_of(row: Row, stack: Stack) -> Profile:
    """The profile of the stack's target, with what the row states."""
    profile = load(Target, stack.target).profile
    found: dict[str, Any] = {}
    if row.says(*TENSOR_OVERLAP):
        found["overlap_tensor"] = True
    if row.says(*TENSOR_APART) or stack.overlap_tensor is False:
        found["overlap_tensor"] = False
    if row.says(*GRAPHS):
        found["graphs"] = True
    if row.says(*LAYER_GRAPHS):
        found["graph_saved_bytes"] = GRAPH_SAVED_BYTES
    if capacity_of(row):
        found |= {"moe_stalls": 0, "moe_backward_stalls": 0}
    if stack.dropout:
        found["dropout_saved_bytes"] = MASK_BYTES
    if stack.update_copy_most_bytes:
        found["update_copy_most_bytes"] = stack.update_copy_most_bytes
    if "legacy" in row.source_ref:
        found |= _of_legacy_models(row)
    kernels = [kernel for switch, kernel in KERNELS.items() if row.says(switch)]
    found["fused"] = tuple(dict.fromkeys((*profile.fused, *kernels)))
    if stack.flags_state_kernels:
        found |= _stated(row)
    return replace(profile, **found)


def capacity_of(row: Row) -> float:
    """Rows that every expert takes over the mean, where they are padded to a capacity; 0: as many as come."""
    found = CAPACITY.search(f"{row.flags}; {row.notes}")
    return float(found[1]) if found else 0.0


def _of_legacy_models(row: Row) -> dict[str, Any]:
    """Megatron's models before its core: every layer holds a mask beside flash attention, and products keep the part
    of their input that a rank has, but under MC2 (MindSpeed-LLM legacy/model/transformer.py)."""
    flash = row.says(*FLASH)
    return {"layer_mask_bytes": 1.0 if flash else 0.0, "gathered_inputs_saved": row.says("use-mc2", "use-ascend-mc2")}


def _stated(row: Row) -> dict[str, Any]:
    """Switches of a stack whose rows list them all."""
    return {
        "attention": "best" if row.says(*FLASH) else "unfused",
        "overlap_grad_reduce": row.says("overlap-grad-reduce"),
        "overlap_param_gather": row.says("overlap-param-gather"),
        "overlap_context": row.says("use-cp-send-recv-overlap"),
        "padded_values": not row.says("mla-fa-without-pad"),
    }
