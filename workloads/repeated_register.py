"""`repeated-register`: reads and writes of registers whose few values are written over and over.

A system may treat a write of the value that it already holds in a special way: Kafka's controller answers such a SET
without making a record.  A deposed leader that answers at once acknowledges a write that no majority has seen.  Unique
values never show this.

Such a wrong acknowledgement is rare and short-lived, so the threads are arranged for it:

* Each client node writes one value, its own.  A partition that separates client nodes separates values, too.  So a
  leader that is cut off with one client node holds the value that this node goes on writing.  One write that changes
  something would be appended there, and every later write would wait behind it.
* The first client node only writes, and most writes are its own.  So its value is mostly held when a partition begins.
* The other client nodes read, and seldom write; only threads that follow the leader write there.  So few writes of
  their value are open that could excuse what they read.
* There is one register for `KEYS_A_REGISTER` keys: an acknowledged write and a read that contradicts it must meet on
  one register within the second in which two leaders answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, reads_of, reserve, uniform
from workloads.workload import Workload

KEYS_A_REGISTER = 10
WRITE_SHARE = 0.3
"""Of the requests of a thread that both reads and writes."""


class RepeatedRegister(Workload):
    name = "repeated-register"
    summary = "reads and writes of one register; each client node writes one value"
    checkers: ClassVar[tuple[str, ...]] = ("linearizability",)
    functions: ClassVar[Mapping[str, str]] = {"read": "read", "write": "write"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"write"})
    real_test = "A write of the value that the register already holds reaches a leader that was deposed."
    unique_values = False

    @staticmethod
    def objects(key_count: int) -> int:
        return ceil(key_count / KEYS_A_REGISTER)

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        own = int(placement.client_node.lstrip("c"))
        read = Call(lambda turn: Request("read", key(turn)))
        write = Call(lambda turn: Request("write", key(turn), own))
        if own == 1:
            return reserve(placement, readers=read, others=write)
        mixed = Mix(((1 - WRITE_SHARE, read), (WRITE_SHARE, write)))
        return reserve(placement, readers=read, others=mixed if placement.follows else read)

    def final(self) -> Sequence[Request]:
        return reads_of("read", self.names)
