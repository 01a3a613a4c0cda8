"""`counter`: amounts are added to counters, and sums are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, reads_of, reserve, uniform
from workloads.workload import Workload

AMOUNT_MAX = 3


class Counter(Workload):
    name = "counter"
    summary = "amounts are added to counters, and sums are read"
    checkers: ClassVar[tuple[str, ...]] = ("counter",)
    functions: ClassVar[Mapping[str, str]] = {"add": "increment", "read": "total"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"add"})
    real_test = "Amounts are acknowledged during faults, and every sum is read after the last of them."
    unique_values = False

    def generator(self, placement: Placement) -> Generator:
        key = uniform(self.names)
        add = Call(lambda turn: Request("add", key(turn), turn.rng.randint(1, AMOUNT_MAX)))
        read = Call(lambda turn: Request("read", key(turn)))
        return reserve(placement, readers=read, others=Mix(((0.5, add), (0.5, read))))

    def final(self) -> Sequence[Request]:
        return reads_of("read", self.names)
