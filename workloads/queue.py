"""`queue`: values are enqueued, each once, and dequeued; at the end every queue is drained.

A dequeue that got no answer may have taken any value, so it excuses one value that is missing from the last drain.
Threads therefore enqueue more often than they dequeue, and the few dequeues that faults leave open excuse little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, reads_of, reserve, uniform
from workloads.workload import Workload

ENQUEUE_SHARE = 0.7


class Queue(Workload):
    name = "queue"
    summary = "values are enqueued and dequeued, first in first out; at the end queues are drained"
    checkers: ClassVar[tuple[str, ...]] = ("queue",)
    functions: ClassVar[Mapping[str, str]] = {"enqueue": "enqueue", "dequeue": "dequeue", "drain": "drain"}
    reads: ClassVar[frozenset[str]] = frozenset({"dequeue", "drain"})
    writes: ClassVar[frozenset[str]] = frozenset({"enqueue"})
    final_repeats = False
    real_test = "Values are acknowledged during faults, and every queue is drained after the last of them."

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        enqueue = Call(lambda turn: Request("enqueue", key(turn), turn.fresh()))
        dequeue = Call(lambda turn: Request("dequeue", key(turn)))
        return reserve(placement, readers=dequeue, others=Mix(((ENQUEUE_SHARE, enqueue), (1 - ENQUEUE_SHARE, dequeue))))

    def final(self) -> Sequence[Request]:
        return reads_of("drain", self.names)


class AtLeastOnceQueue(Queue):
    """`at-least-once-queue`: the same operations, where a broker may deliver a value again, and in any order.

    `dequeue` takes a value and confirms it.  `drain` goes on until what dead consumers held was delivered again.
    """

    name = "at-least-once-queue"
    summary = "messages are sent and consumed, perhaps more than once; at the end queues are drained"
    checkers: ClassVar[tuple[str, ...]] = ("at-least-once-queue",)
    real_test = "Messages are acknowledged during faults, and every queue is drained after the last of them."
