"""`append-log`: values are appended to logs, each once, and whole logs are read.

An acknowledged value that the last read does not show was lost; two reads that show values in different orders are two
logs.  A client that knows the offset of what it appended answers it, and two values at one offset are found too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, reads_of, reserve, zipf
from workloads.workload import Workload

APPEND_SHARE = 0.8


class AppendLog(Workload):
    name = "append-log"
    summary = "values are appended to logs, and whole logs are read"
    checkers: ClassVar[tuple[str, ...]] = ("append-log",)
    functions: ClassVar[Mapping[str, str]] = {"append": "append", "read": "entries"}
    reads: ClassVar[frozenset[str]] = frozenset({"read"})
    writes: ClassVar[frozenset[str]] = frozenset({"append"})
    real_test = "Values are acknowledged during faults, and every log is read after the last of them."

    def generator(self, placement: Placement) -> Generator:
        key = zipf(self.names)
        append = Call(lambda turn: Request("append", key(turn), turn.fresh()))
        read = Call(lambda turn: Request("read", key(turn)))
        return reserve(placement, readers=read, others=Mix(((APPEND_SHARE, append), (1 - APPEND_SHARE, read))))

    def final(self) -> Sequence[Request]:
        return reads_of("read", self.names)
