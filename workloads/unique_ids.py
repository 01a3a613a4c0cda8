"""`unique-ids`: ids are generated, and none may be given twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, reads_of
from workloads.workload import Workload


class UniqueIds(Workload):
    name = "unique-ids"
    summary = "ids are generated, and none may be given twice"
    checkers: ClassVar[tuple[str, ...]] = ("unique-ids",)
    functions: ClassVar[Mapping[str, str]] = {"generate": "generate"}
    reads: ClassVar[frozenset[str]] = frozenset({"generate"})
    writes: ClassVar[frozenset[str]] = frozenset({"generate"})
    final_repeats = False
    real_test = "Several threads generate ids at once, during faults too."

    @staticmethod
    def objects(key_count: int) -> int:
        return 1

    def generator(self, placement: Placement) -> Generator:
        return Call(lambda turn: Request("generate", self.names[0]))

    def final(self) -> Sequence[Request]:
        return reads_of("generate", self.names)
