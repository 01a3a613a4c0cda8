"""`register`: reads and writes of a few registers, the workload that shows stale reads and lost writes.

Every written value is unique, for three reasons: a stale answer can be distinguished from a repeated one; an unchanged
write (which Kafka answers without a record) never occurs; and linearizability is decided in linear time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, reads_of, reserve, uniform
from workloads.workload import Workload

WRITE_SHARE = 0.5
"""Of the requests of a thread that both reads and writes."""


class Register(Workload):
    name = "register"
    summary = "reads and writes of single registers; every value is written once"
    checkers: ClassVar[tuple[str, ...]] = ("linearizability",)
    functions: ClassVar[Mapping[str, str]] = {"read": "read", "write": "write"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"write"})
    real_test = "Reads of every key overlap writes of that key, and some threads read from a leader they never leave."

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        read = Call(lambda turn: Request("read", key(turn)))
        write = Call(lambda turn: Request("write", key(turn), turn.fresh()))
        return reserve(placement, readers=read, others=Mix(((1 - WRITE_SHARE, read), (WRITE_SHARE, write))))

    def final(self) -> Sequence[Request]:
        return reads_of("read", self.names)
