"""Load of the transfers of an op under one plan (or a table): which group, which levels, what stays in the open."""

from __future__ import annotations

from autodeploy.analysis.ops import Group, Transfer
from autodeploy.cost.collectives import (
    Lanes,
    Rates,
    dedup_lanes,
    flat_lanes,
    gather_rates,
    hier_lanes,
    ring_lanes,
    serial,
    shuffle_lanes,
    span,
)  # fmt: skip
from autodeploy.cost.load import Load
from autodeploy.numeric import Num, maximum, minimum, where
from autodeploy.spec.job import Job
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Model
from autodeploy.spec.plan import CpComm, Dispatch, LayerLike

OVERLAP_PIECES = 4.0
"""Pieces of a product and its collective that run beside each other."""


class Traffic:
    """Process groups of a plan and what one of their collectives takes."""

    def __init__(self, model: Model, job: Job, machine: Machine, plan: LayerLike) -> None:
        self.cluster, self.profile, self.moe = machine.cluster, machine.profile, model.moe
        self.plan = plan
        self.imbalance = where(plan.ep > 1, job.expert_imbalance, 1.0)
        self.rates = {
            Group.TP: gather_rates(self.cluster, span(self.cluster, plan.tp, 1)),
            Group.ETP: gather_rates(self.cluster, span(self.cluster, plan.etp, 1)),
        }
        self.ep = span(self.cluster, plan.ep, plan.etp)
        self.cp = span(self.cluster, plan.cp, plan.tp)

    def load(self, transfer: Transfer, count: Num, beside_s: Num) -> Load:
        """`count` collectives of the transfer, of an op that takes `beside_s` on its engine."""
        if transfer.group is Group.EP:
            return self._exchange(transfer.bytes).times(count)
        if transfer.group is Group.CP:
            return self._context(transfer.bytes, count, beside_s)
        return self._gathered(self.rates[transfer.group], transfer, count, beside_s)

    def _gathered(self, rates: Rates, transfer: Transfer, count: Num, beside_s: Num) -> Load:
        """All-gathers or reduce-scatters; of tensor parallelism beside their product where the stack cuts both.

        Formula: max(product, transfer) + min(product, transfer) / pieces - product
        Source: model.md 6.5; NeMo tp_overlap_configs/userbuffers.py (4 splits), MindSpeed CoC (2, 4 or 8).
        """
        lanes = rates.lanes(transfer.bytes)
        load = Load(busy=serial(self.cluster, lanes), inner=lanes.inner, outer=lanes.outer).times(count)
        if not self.profile.overlap_tensor or transfer.group is not Group.TP:
            return load
        alone = load.busy
        both = maximum(beside_s, alone) + minimum(beside_s, alone) / OVERLAP_PIECES
        return load._replace(busy=where(self.plan.tp > 1, both - beside_s, alone))

    def _exchange(self, copy_bytes: Num) -> Load:
        """Dispatch or combine by the plan's method; the busiest receiver sets the time. The levels of a flat or
        de-duplicated all-to-all run at once, the two steps of a hierarchical one in turn."""
        sent, top_k = copy_bytes * self.imbalance, self.moe.top_k if self.moe else 0
        dispatch = self.plan.dispatch
        flat = flat_lanes(self.cluster, self.ep, self.plan.ep, sent, top_k)
        hier = hier_lanes(self.cluster, self.ep, copy_bytes, top_k, self.imbalance)
        once = dedup_lanes(self.cluster, self.ep, sent, self.moe) if self.moe else flat
        is_hier, is_once = dispatch == Dispatch.HIER, dispatch == Dispatch.DEDUP
        lanes = Lanes(*(where(is_hier, h, where(is_once, o, f)) for h, o, f in zip(hier, once, flat, strict=True)))
        alone = where(is_hier, lanes.inner + lanes.outer, maximum(lanes.inner, lanes.outer))
        return Load(exchange=alone, inner=lanes.inner, outer=lanes.outer)

    def _context(self, moved_bytes: Num, count: Num, beside_s: Num) -> Load:
        """Keys and values around a ring, hidden behind the attention of those before where the stack sends early; or
        gathered; or an exchange for heads (twice each way)."""
        ring = ring_lanes(self.cluster, self.cp, self.plan.cp, moved_bytes)
        gather = gather_rates(self.cluster, self.cp).lanes(moved_bytes * self.plan.cp)
        shuffle = shuffle_lanes(self.cluster, self.cp, self.plan.cp, moved_bytes)
        is_ring, is_gather = self.plan.cp_comm == CpComm.RING, self.plan.cp_comm == CpComm.GATHER
        ways = zip(ring, gather, shuffle, strict=True)
        lanes = Lanes(*(where(is_ring, r, where(is_gather, g, u)) for r, g, u in ways))
        load = Load(busy=serial(self.cluster, lanes), inner=lanes.inner, outer=lanes.outer).times(count)
        if not self.profile.overlap_context:
            return load
        return load._replace(busy=where(is_ring, maximum(load.busy - beside_s, 0.0), load.busy))

    def gathered_bytes(self, copy_bytes: Num) -> Num:
        """Tokens of all nodes, held while a hierarchical dispatch runs."""
        return where(self.plan.dispatch == Dispatch.HIER, self.ep.nodes * copy_bytes, 0.0)
