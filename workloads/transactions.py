"""`list-append` and `rw-register`: transactions of one to five steps over lists or registers, judged as Elle does.

Few keys are in use at a time, because a dependency needs two transactions that meet.  After a while a key is retired
and a new one taken: lists stay short, and an anomaly at the beginning of a list is not hidden by its length.  Among the
keys in use the first is chosen most often (Zipf): some keys then have much concurrency and others little.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from checkers.base.history import CREATE
from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Pick, Turn, reserve, zipf_of_moving
from workloads.workload import Workload

STEPS_MAX = 5
WRITE_SHARE = 0.5
POOL = 4
"""How many times as many keys there are as are in use at a time."""
REQUESTS_PER_KEY = 60
"""After so many requests of a thread the oldest key is retired."""


DATABASE = "db"
"""The key of every transaction in the history: all keys of the database are one object, read as one at the end."""


def transaction(steps: Sequence[Sequence[object]]) -> Request:
    return Request("txn", DATABASE, payload=json.dumps(steps))


class TransactionWorkload(Workload):
    """write: how the history names a step that writes."""

    write: ClassVar[str]
    reads: ClassVar[frozenset[str]] = frozenset({"txn"})
    writes: ClassVar[frozenset[str]] = frozenset({"txn"})
    real_test = "Transactions that write the same keys overlap, and later ones read what they left."

    @staticmethod
    def objects(key_count: int) -> int:
        return POOL * key_count

    def keys(self) -> Sequence[str]:
        return [DATABASE]

    def set_up(self) -> Sequence[Request]:
        return [Request(CREATE, DATABASE)]

    def generator(self, placement: Placement) -> Generator:
        key = zipf_of_moving(self.names, self.key_count, REQUESTS_PER_KEY)
        return reserve(
            placement,
            readers=Call(lambda turn: self._transaction(turn, key, 0.0)),
            others=Call(lambda turn: self._transaction(turn, key, WRITE_SHARE)),
        )

    def final(self) -> Sequence[Request]:
        return [transaction([["r", name, None] for name in self.names])]

    def _transaction(self, turn: Turn, key: Pick, write_share: float) -> Request:
        steps: list[list[object]] = []
        for place in range(turn.rng.randint(1, STEPS_MAX)):
            if turn.rng.random() < write_share:
                steps.append([self.write, key(turn), turn.fresh(place)])
            else:
                steps.append(["r", key(turn), None])
        return transaction(steps)


class ListAppend(TransactionWorkload):
    name = "list-append"
    summary = "transactions that append to lists and read them"
    checkers: ClassVar[tuple[str, ...]] = ("list-append",)
    functions: ClassVar[Mapping[str, str]] = {"txn": "transact_lists"}
    write = "append"


class RwRegister(TransactionWorkload):
    name = "rw-register"
    summary = "transactions that write registers and read them"
    checkers: ClassVar[tuple[str, ...]] = ("rw-register",)
    functions: ClassVar[Mapping[str, str]] = {"txn": "transact_registers"}
    write = "w"
