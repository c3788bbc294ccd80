"""Load of the transfers of an op under one plan (or a table): which group, which levels, what stays in the open."""

from __future__ import annotations

import numpy as np

from autodeploy.analysis.ops import Group, Transfer
from autodeploy.cost.collectives import (
    Lanes,
    Rates,
    gather_rates,
    ring_lanes,
    serial,
    shuffle_lanes,
    span,
)  # fmt: skip
from autodeploy.cost.exchange import Routed, exchange_of, held_copies
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
        found = np.unique(plan.dispatch)
        self.kinds = tuple(Dispatch(int(kind)) for kind in found) or (Dispatch.FLAT,)  # static: which ways occur
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
        """Dispatch or combine by the plan's way; the busiest receiver sets the time."""
        routed = self._routed(copy_bytes)
        found = exchange_of(self.kinds, self.plan.dispatch, self.cluster, self.ep, self.plan.ep, routed)
        return Load(exchange=found.alone_s, inner=found.lanes.inner, outer=found.lanes.outer)

    def _routed(self, copy_bytes: Num) -> Routed:
        assert self.moe is not None
        return Routed(copy_bytes, self.moe, self.imbalance)

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
        """Tokens of all nodes, or of all ranks, held while a dispatch that gathers them runs."""
        dispatch, (inner, nodes) = self.plan.dispatch, self.ep
        copies = where(dispatch == Dispatch.HIER, nodes, where(dispatch == Dispatch.GATHER, inner * nodes, 0.0))
        return copies * copy_bytes

    def buffer_bytes(self, copy_bytes: Num) -> Num:
        """One buffer of an exchange, of the experts' side."""
        return held_copies(self.plan.dispatch, self.ep, self._routed(copy_bytes)) * copy_bytes
