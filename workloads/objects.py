"""Workloads over objects that grow or count: sets, logs, queues, counters, texts and ids.

Elements and values are added once each, so that a lost acknowledged one shows: nothing overwrites it, and the last read
or drain must show it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Pick, Stagger, Turn, reserve, zipf
from workloads.workload import MixedWorkload, fresh, nothing

READ_EVERY_S = 4.0
"""Mean pause between two reads of one thread that only reads the large set."""
AMOUNT_MAX = 3
"""Largest amount that is added to a counter at once."""


class GrowSet(MixedWorkload):
    name = "set"
    summary = "elements are added to sets, and whole sets are read"
    checkers = ("set",)
    functions: ClassVar[Mapping[str, str]] = {"add": "add", "read": "members"}
    reads = frozenset({"read"})
    writes = frozenset({"add"})
    real_test = "Elements are acknowledged during faults, and every set is read after the last of them."
    mix = ((0.8, "add", fresh), (0.2, "read", nothing))


class LargeSet(GrowSet):
    """One set, which is read seldom while the run goes on, and whole at its end: an element lost late is found too."""

    name = "large-set"
    summary = "elements are added to one set, which is read seldom and whole at the end"
    invoked_share = 0.5

    @staticmethod
    def objects(key_count: int) -> int:
        return 1

    def generator(self, placement: Placement) -> Generator:
        return reserve(
            placement, readers=Stagger(READ_EVERY_S, self.call("read", nothing)), others=self.call("add", fresh)
        )


class AppendLog(MixedWorkload):
    """Two reads that show values in different orders are two logs.  A client that knows the offset of what it appended
    answers it, and two values at one offset are found too."""

    name = "append-log"
    summary = "values are appended to logs, and whole logs are read"
    checkers = ("append-log",)
    functions: ClassVar[Mapping[str, str]] = {"append": "append", "read": "entries"}
    reads = frozenset({"read"})
    writes = frozenset({"append"})
    real_test = "Values are acknowledged during faults, and every log is read after the last of them."
    mix = ((0.8, "append", fresh), (0.2, "read", nothing))

    def pick(self) -> Pick:
        return zipf(self.names)


class Queue(MixedWorkload):
    """A dequeue that got no answer may have taken any value, so it excuses one value that is missing from the last
    drain.  Threads therefore enqueue more often than they dequeue, and the few dequeues that faults leave open excuse
    little."""

    name = "queue"
    summary = "values are enqueued and dequeued, first in first out; at the end queues are drained"
    checkers = ("queue",)
    functions: ClassVar[Mapping[str, str]] = {"enqueue": "enqueue", "dequeue": "dequeue", "drain": "drain"}
    reads = frozenset({"dequeue", "drain"})
    writes = frozenset({"enqueue"})
    final_repeats = False
    real_test = "Values are acknowledged during faults, and every queue is drained after the last of them."
    mix = ((0.7, "enqueue", fresh), (0.3, "dequeue", nothing))
    final_function = "drain"


class AtLeastOnceQueue(Queue):
    """`at-least-once-queue`: the same operations, where a broker may deliver a value again, and in any order.

    `dequeue` takes a value and confirms it.  `drain` goes on until what dead consumers held was delivered again.
    """

    name = "at-least-once-queue"
    summary = "messages are sent and consumed, perhaps more than once; at the end queues are drained"
    checkers = ("at-least-once-queue",)
    real_test = "Messages are acknowledged during faults, and every queue is drained after the last of them."


class Counter(MixedWorkload):
    name = "counter"
    summary = "amounts are added to counters, and sums are read"
    checkers = ("counter",)
    functions: ClassVar[Mapping[str, str]] = {"add": "increment", "read": "total"}
    reads = frozenset({"read"})
    writes = frozenset({"add"})
    real_test = "Amounts are acknowledged during faults, and every sum is read after the last of them."
    unique_values = False
    mix = ((0.5, "add", lambda turn: (turn.rng.randint(1, AMOUNT_MAX),)), (0.5, "read", nothing))


def _text(turn: Turn) -> tuple[None, None, str]:
    return None, None, json.dumps(f"{turn.fresh()} ")


class KeyValue(MixedWorkload):
    name = "kv"
    summary = "strings are put, appended to and read under keys"
    checkers = ("kv",)
    functions: ClassVar[Mapping[str, str]] = {"get": "get", "put": "put", "append": "append_text"}
    reads = frozenset({"get"})
    writes = frozenset({"put", "append"})
    real_test = "Appends of several threads to one key overlap, and reads show in which order they happened."
    mix = ((0.2, "put", _text), (0.4, "append", _text), (0.4, "get", nothing))


class UniqueIds(MixedWorkload):
    name = "unique-ids"
    summary = "ids are generated, and none may be given twice"
    checkers = ("unique-ids",)
    functions: ClassVar[Mapping[str, str]] = {"generate": "generate"}
    reads = frozenset({"generate"})
    writes = frozenset({"generate"})
    final_repeats = False
    real_test = "Several threads generate ids at once, during faults too."
    mix = ((1.0, "generate", nothing),)

    @staticmethod
    def objects(key_count: int) -> int:
        return 1

    def generator(self, placement: Placement) -> Generator:
        return Call(lambda turn: Request("generate", self.names[0]))
