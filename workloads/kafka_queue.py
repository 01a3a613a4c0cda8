"""`kafka-queue`: records are sent to partitions and polled by consumers; at the end each partition is polled whole.

A poll names the offset at which it begins: the one after the last record that an answer showed.  So a consumer skips
nothing when an answer is lost, and a skipped record was lost by the system.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, Request
from system_under_test.functions import Function
from workloads.generators import Call, Generator, Step, Turn
from workloads.workload import Workload

_POLL = json.dumps([["poll"]])


@dataclass(frozen=True)
class AssignedConsumer(Generator):
    """One thread that polls one partition.  offset: of the next record; -1 before the partition is assigned."""

    key: str
    offset: int = -1

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if self.offset < 0:
            return Request("assign", self.key, payload=json.dumps([self.key])), self
        return Request("poll", self.key, self.offset, payload=_POLL), self

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        if outcome.type is Type.INFO:  # another process takes the place of this one, and begins anew
            return AssignedConsumer(self.key)
        if outcome.type is not Type.OK:
            return self
        if request.f == "assign":
            return replace(self, offset=0)
        polled = json.loads(outcome.payload or "[]")[0][1].get(self.key, [])
        return replace(self, offset=polled[-1][0] + 1) if polled else self


class KafkaQueue(Workload):
    name = "kafka-queue"
    summary = "records are sent to partitions, and polled by consumers with assigned partitions"
    checkers: ClassVar[tuple[str, ...]] = ("kafka-read-to-end",)
    own_functions: ClassVar[Mapping[str, Function]] = {
        "send_records": Function("send records; the steps with [offset, value]", "payload", "anything"),
        "assign_partitions": Function("read these partitions from now on", "payload", "anything", observes=True),
        "poll_records": Function("the records from an offset on", "key value", "anything", observes=True),
    }
    functions: ClassVar[Mapping[str, str]] = {
        "send": "send_records",
        "assign": "assign_partitions",
        "poll": "poll_records",
    }
    reads: ClassVar[frozenset[str]] = frozenset({"poll"})
    writes: ClassVar[frozenset[str]] = frozenset({"send"})
    real_test = (
        "Records are acknowledged during faults, and each partition is polled to its end after the last of them."
    )
    final_needs_recovery = True

    def generator(self, placement: Placement) -> Generator:
        key = self.names[placement.thread % len(self.names)]
        if placement.reads_only:
            return AssignedConsumer(key)
        return Call(lambda turn: self._send(turn))

    def _send(self, turn: Turn) -> Request:
        key = turn.rng.choice(self.names)
        return Request("send", key, payload=json.dumps([["send", key, turn.fresh()]]))

    def final(self) -> Sequence[Request]:
        return [Request("poll", name, 0, payload=_POLL) for name in self.names]
