"""`cas-register`: reads, writes and compare-and-set of registers with few values.

A compare-and-set that did not match is an answer: it stands in the history as `fail` with the error `mismatch`.  Values
repeat, so that about one compare-and-set in `VALUES` matches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, Turn, reads_of, reserve, uniform
from workloads.workload import Workload

VALUES = 4


def _value(turn: Turn) -> int:
    return turn.rng.randrange(1, VALUES + 1)


class CasRegister(Workload):
    name = "cas-register"
    summary = "reads, writes and compare-and-set of single registers with few values"
    checkers: ClassVar[tuple[str, ...]] = ("linearizability",)
    functions: ClassVar[Mapping[str, str]] = {"read": "read", "write": "write", "cas": "cas"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"write", "cas"})
    real_test = "Compare-and-set operations of several threads compete for the same value, and some of them match."
    unique_values = False

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        read = Call(lambda turn: Request("read", key(turn)))
        write = Call(lambda turn: Request("write", key(turn), _value(turn)))
        cas = Call(lambda turn: Request("cas", key(turn), _value(turn), _value(turn)))
        return reserve(placement, readers=read, others=Mix(((0.3, read), (0.2, write), (0.5, cas))))

    def final(self) -> Sequence[Request]:
        return reads_of("read", self.names)
