"""The inventory: every kind of layer as one list of ops, for a plan or for a table of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autodeploy.analysis.attention import attention_ops
from autodeploy.analysis.ends import embedding_ops, head_ops, mtp_ops
from autodeploy.analysis.feedforward import dense_ops, moe_ops
from autodeploy.analysis.formats import adapted, narrowed
from autodeploy.analysis.ops import Op, Tokens
from autodeploy.numeric import where
from autodeploy.spec.job import Job
from autodeploy.spec.model import Kind, Model, decoder_kinds, mtp_kind, present_kinds
from autodeploy.spec.plan import CpComm, LayerLike
from autodeploy.spec.target import Profile

Inventory = Mapping[Kind, tuple[Op, ...]]


def tokens_of(job: Job, plan: LayerLike) -> Tokens:
    """Token counts on a rank under a plan."""
    whole = 1.0 * plan.mbs * job.seq_len / plan.cp
    return Tokens(
        whole=whole,
        part=whole / where(plan.sp, plan.tp, 1),
        seq=job.seq_len,
        document=job.mean_document,
        sp=1.0 * plan.sp,
        tp=plan.tp,
        cp=plan.cp,
        cp_comm=plan.cp_comm,
        ep=plan.ep,
        etp=plan.etp,
        imbalance=where(plan.ep > 1, job.expert_imbalance, 1.0),
    )


def inventory(model: Model, job: Job, profile: Profile, plan: LayerLike) -> Inventory:
    """Ops of every kind that the model has, per rank and microbatch. Adapters keep their inputs gathered, as
    Megatron-Bridge's do (its guide to memory: unless told to gather them again)."""
    if job.lora_rank and not profile.gathered_inputs_saved:
        profile = replace(profile, gathered_inputs_saved=True)
    ops = inventory_of(model, profile, tokens_of(job, plan), job.mtp)
    return {kind: narrowed(profile, job, adapted(job, ops[kind])) for kind in ops}


def inventory_of(model: Model, profile: Profile, t: Tokens, mtp: bool) -> Inventory:
    """The same from token counts."""
    attention = attention_ops(model, t, profile)
    layers = {Kind.DENSE: (*attention, *dense_ops(model, t, profile))}
    if model.moe is not None:
        layers[Kind.SPARSE] = (*attention, *moe_ops(model, t, profile))
    ops: dict[Kind, tuple[Op, ...]] = {
        Kind.EMBEDDING: tuple(embedding_ops(model, t, profile)),
        **layers,
        Kind.MTP: tuple(mtp_ops(model, t, profile, list(layers[mtp_kind(model)]))),
        Kind.HEAD: tuple(head_ops(model, t, profile)),
    }
    return {kind: ops[kind] for kind in present_kinds(model, mtp)}


def kind_counts(model: Model, mtp: bool) -> dict[Kind, int]:
    """How often each kind occurs in the model as it is trained."""
    layers = decoder_kinds(model)
    counts = {Kind.EMBEDDING: 1, Kind.HEAD: 1, Kind.MTP: model.mtp_depth if mtp else 0}
    counts |= {kind: layers.count(kind) for kind in set(layers)}
    return {kind: counts[kind] for kind in present_kinds(model, mtp)}


def one_token(seq_len: int) -> Tokens:
    """One token of a sequence on one device that holds the whole model: for the readings of the model itself."""
    return Tokens(
        whole=1.0, part=1.0, seq=seq_len, document=seq_len, sp=0.0, tp=1, cp=1, cp_comm=CpComm.RING, ep=1, etp=1,
        imbalance=1.0,
    )  # fmt: skip
