"""A pipeline by events, for comparison only: ranks and ports as machines with queues, one heap of moments.

Written apart from `autodeploy.schedule`: it knows orders, not levels, and keeps the state of one plan.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Pass = tuple[str, int, int]
"""("F" or "B", microbatch, slot)."""
Op = tuple[Pass, ...]
"""One pass, or a forward and a backward merged."""


@dataclass
class Rank:
    """A compute engine with its ops in order, and a port with the messages that wait for it."""

    ops: deque[Op]
    inbox: set[Pass] = field(default_factory=set)
    working: bool = False
    queue: deque[Pass] = field(default_factory=deque)
    sending: bool = False
    ended_s: float = 0.0


class Loop:
    """One simulated step."""

    def __init__(self, orders: Sequence[Sequence[Op]], seconds: Mapping[Op, float], send_s: float, slots: int) -> None:
        self.ranks = [Rank(deque(ops)) for ops in orders]
        self.seconds, self.send_s, self.slots = seconds, send_s, slots
        self.events: list[tuple[float, int, str, int, object]] = []
        self.count = 0

    def run(self) -> list[float]:
        """When every rank ends its last op."""
        for rank in range(len(self.ranks)):
            self.start(rank, 0.0)
        while self.events:
            now, _, kind, rank, what = heapq.heappop(self.events)
            getattr(self, kind)(rank, now, what)
        if any(rank.ops for rank in self.ranks):
            raise RuntimeError("deadlock")
        return [rank.ended_s for rank in self.ranks]

    def at(self, moment_s: float, kind: str, rank: int, what: object) -> None:
        """Something will happen."""
        self.count += 1
        heapq.heappush(self.events, (moment_s, self.count, kind, rank, what))

    def start(self, number: int, now: float) -> None:
        """Begin the next op of a rank if it is free and all inputs are there."""
        rank = self.ranks[number]
        if rank.working or not rank.ops or not all(self.ready(rank, each) for each in rank.ops[0]):
            return
        op = rank.ops.popleft()
        rank.working = True
        self.at(now + self.seconds[op], "op_ended", number, op)

    def ready(self, rank: Rank, each: Pass) -> bool:
        """Whether the input of a pass has come."""
        kind, microbatch, slot = each
        if kind == "F":
            return slot == 0 or (kind, microbatch, slot - 1) in rank.inbox
        return (("F", microbatch, slot) if slot == self.slots - 1 else (kind, microbatch, slot + 1)) in rank.inbox

    def op_ended(self, number: int, now: float, op: Op) -> None:
        """Hand outputs on: to the port, or to the rank itself."""
        rank = self.ranks[number]
        rank.working, rank.ended_s = False, now
        for each in op:
            if self.receiver(each) in (None, number):
                rank.inbox.add(each)
            else:
                rank.queue.append(each)
        self.send(number, now)
        self.start(number, now)

    def receiver(self, each: Pass) -> int | None:
        """The rank that a pass's output goes to."""
        kind, _, slot = each
        target = slot + 1 if kind == "F" else slot - 1
        return target % len(self.ranks) if 0 <= target < self.slots else None

    def send(self, number: int, now: float) -> None:
        """Begin the next message of a rank's port."""
        rank = self.ranks[number]
        if rank.queue and not rank.sending:
            rank.sending = True
            self.at(now + self.send_s, "sent", number, rank.queue.popleft())

    def sent(self, number: int, now: float, each: Pass) -> None:
        """A message is there."""
        self.ranks[number].sending = False
        receiver = self.receiver(each)
        assert receiver is not None
        self.ranks[receiver].inbox.add(each)
        self.send(number, now)
        self.start(receiver, now)
