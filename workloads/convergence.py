"""`convergence` and `set-convergence`: every client keeps to one server, and in the end all servers must agree.

The promise of systems that replicate without a leader, or that let every server answer: once writes have ended and the
system has recovered, every server answers the same.  What clients saw before is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, reads_of, reserve, uniform
from workloads.workload import Workload

WRITE_SHARE = 0.7


class Convergence(Workload):
    name = "convergence"
    summary = "registers are written at every server, and read at every server after recovery"
    checkers: ClassVar[tuple[str, ...]] = ("convergence",)
    functions: ClassVar[Mapping[str, str]] = {"read": "read", "write": "write"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"write"})
    real_test = "Several servers acknowledge writes of one key while they cannot talk, and all are read after recovery."
    each_server = True
    final_until_same = True
    final_needs_recovery = True

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        (read_f,), (write_f,) = self.reads, self.writes
        write = Call(lambda turn: Request(write_f, key(turn), turn.fresh()))
        read = Call(lambda turn: Request(read_f, key(turn)))
        return reserve(placement, readers=read, others=Mix(((WRITE_SHARE, write), (1 - WRITE_SHARE, read))))

    def final(self) -> Sequence[Request]:
        (read_f,) = self.reads
        return reads_of(read_f, self.names)


class SetConvergence(Convergence):
    name = "set-convergence"
    summary = "elements are added at every server, and whole sets are read at every server after recovery"
    functions: ClassVar[Mapping[str, str]] = {"members": "members", "add": "add"}
    reads: ClassVar[frozenset[str]] = frozenset({"members"})
    writes: ClassVar[frozenset[str]] = frozenset({"add"})
