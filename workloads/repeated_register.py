"""`repeated-register`: reads and writes of registers whose few values are written over and over.

A system may treat a write of the value that it already holds in a special way: Kafka's controller answers such a SET
without making a record.  A deposed leader that answers at once acknowledges a write that no majority has seen.  Unique
values never show this, so here a value is one of `VALUES`, and the register may hold it already.

Such an acknowledged write is wrong only if a later read must see it and does not, so that much can excuse it:

* another write just after it: there are `SPREAD` times as many registers as `--keys` says, and writes are fewer
  than reads;
* a write of unknown outcome that is still open, with the value that was read: the threads that stay with a deposed
  leader leave one with every write that is not answered, on one of many registers.

Threads that stay with their leader only write: a read would block them there until it times out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, reads_of, reserve, uniform
from workloads.workload import Workload

VALUES = 2
SPREAD = 3
WRITE_SHARE = 0.3
"""Of the requests of a thread that follows the leader and both reads and writes."""


class RepeatedRegister(Workload):
    name = "repeated-register"
    summary = f"reads and writes of single registers; only {VALUES} values, written over and over"
    checkers: ClassVar[tuple[str, ...]] = ("linearizability",)
    functions: ClassVar[Mapping[str, str]] = {"read": "read", "write": "write"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"write"})
    real_test = "A write of the value that the register already holds reaches a leader that was deposed."
    unique_values = False

    @staticmethod
    def objects(key_count: int) -> int:
        return SPREAD * key_count

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        read = Call(lambda turn: Request("read", key(turn)))
        write = Call(lambda turn: Request("write", key(turn), turn.rng.randrange(1, VALUES + 1)))
        mixed = Mix(((1 - WRITE_SHARE, read), (WRITE_SHARE, write)))
        return reserve(placement, readers=read, others=mixed if placement.follows else write)

    def final(self) -> Sequence[Request]:
        return reads_of("read", self.names)
