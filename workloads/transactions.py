"""Workloads of transactions: `list-append` and `rw-register`, `bank` and `long-fork`.

`list-append` and `rw-register`: transactions of one to five steps over lists or registers, judged as Elle does.

Few keys are in use at a time, because a dependency needs two transactions on the same key.  After REQUESTS_PER_KEY
requests a key is retired and a new key replaces it, so lists stay short, and a witness that shows a whole list stays
readable.  Among the keys in use the newest is chosen most often (Zipf): some keys then have much concurrency, and
others have little.

`bank`: money moves between accounts, and all balances are read at once.

Transfers do not change the total of all balances, so every read returns the same total if reads are snapshots.
Accounts are few, so that transfers use the same accounts; amounts are often larger than a balance, so that some
transfers are refused.

`long-fork`: single writes to pairs of registers, and reads of whole pairs.

If each of two reads sees a write that the other read misses, the two reads saw two histories of the same database: a
long fork.  Parallel snapshot isolation allows a long fork, and snapshot isolation forbids it (Sovran et al. 2011).
Every key is written at most once.  A pair is in use for `ROUND_S`; then all threads continue with the next pair.  The
two writers of a pair write as soon as the round begins, so that both writes are concurrent while other threads read the
pair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from checkers.base.history import CREATE
from system_under_test.client import Placement, Request
from workloads.generators import Call, Generator, Mix, Pick, Step, Turn, reserve, zipf_of_moving
from workloads.workload import Workload

STEPS_MAX = 5
WRITE_SHARE = 0.5
POOL = 4
"""Ratio of all keys to the keys in use at a time."""
REQUESTS_PER_KEY = 60
"""Number of requests of a thread after which the oldest key is retired."""


DATABASE = "db"
"""The key of every transaction in the history."""


def transaction(steps: Sequence[Sequence[object]]) -> Request:
    return Request("txn", DATABASE, payload=json.dumps(steps))


class OneDatabase(Workload):
    """A workload whose keys all belong to one database, which one request reads at the end."""

    def keys(self) -> Sequence[str]:
        return [DATABASE]

    def set_up(self) -> Sequence[Request]:
        return [Request(CREATE, DATABASE)]


class TransactionWorkload(OneDatabase):
    """A workload of transactions of several steps.

    write: name in the history of a step that writes
    """

    write: ClassVar[str]
    reads = frozenset({"txn"})
    writes = frozenset({"txn"})
    real_test = "Transactions that write the same keys overlap, and later ones read what they left."

    @staticmethod
    def objects(key_count: int) -> int:
        return POOL * key_count

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
    checkers = ("list-append",)
    functions: ClassVar[Mapping[str, str]] = {"txn": "transact_lists"}
    write = "append"


class RwRegister(TransactionWorkload):
    name = "rw-register"
    summary = "transactions that write registers and read them"
    checkers = ("rw-register",)
    functions: ClassVar[Mapping[str, str]] = {"txn": "transact_registers"}
    write = "w"


BALANCE = 10
"""Balance of each account at first."""
AMOUNT_MAX = 6
TRANSFER_SHARE = 0.6


class Bank(OneDatabase):
    """One bank with `key_count` accounts, at least two."""

    name = "bank"
    summary = "money moves between accounts, and all balances are read at once"
    checkers = ("bank",)
    functions: ClassVar[Mapping[str, str]] = {CREATE: "open_account", "transfer": "transfer", "read": "balances"}
    reads = frozenset({"read"})
    writes = frozenset({"transfer"})
    real_test = "Transfers between the same accounts overlap, and balances are read while they happen."
    unique_values = False
    prefix = "a"

    @staticmethod
    def objects(key_count: int) -> int:
        return max(2, key_count)

    def set_up(self) -> Sequence[Request]:
        return [Request(CREATE, DATABASE, payload=json.dumps([account, BALANCE])) for account in self.names]

    def generator(self, placement: Placement) -> Generator:
        transfer, read = Call(self._transfer), Call(lambda turn: Request("read", DATABASE))
        mixed = Mix(((TRANSFER_SHARE, transfer), (1 - TRANSFER_SHARE, read)))
        return reserve(placement, readers=read, others=mixed)

    def final(self) -> Sequence[Request]:
        return [Request("read", DATABASE)]

    def _transfer(self, turn: Turn) -> Request:
        source, target = turn.rng.sample(self.names, 2)
        return Request("transfer", DATABASE, payload=json.dumps([source, target, turn.rng.randint(1, AMOUNT_MAX)]))


ROUND_S = 0.1


def pair(number: int) -> tuple[str, str]:
    return f"f{number}a", f"f{number}b"


@dataclass(frozen=True, slots=True)
class Rounds(Generator):
    """One thread.

    pairs: number of pairs in use at a time
    written: last round in which this thread has written
    """

    pairs: int
    written: int = -1

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        number = int(turn.time_s / ROUND_S)
        if number > self.written and (key := self._mine(number, turn)) is not None:
            return transaction([["w", key, turn.fresh()]]), replace(self, written=number)
        both = pair(number * self.pairs + turn.rng.randrange(self.pairs))
        return transaction([["r", key, None] for key in turn.rng.sample(both, 2)]), self

    def _mine(self, number: int, turn: Turn) -> str | None:
        """Return the key that this thread writes in a round; None if it only reads.  The keys are assigned to the
        threads in turn.
        """
        if turn.placement.reads_only:
            return None
        keys = [key for place in range(self.pairs) for key in pair(number * self.pairs + place)]
        for place, key in enumerate(keys):
            if (number * len(keys) + place) % turn.threads == turn.placement.thread:
                return key
        return None


class LongFork(OneDatabase):
    name = "long-fork"
    summary = "single writes to pairs of registers, and reads of whole pairs"
    checkers = ("long-fork",)
    functions: ClassVar[Mapping[str, str]] = {"txn": "transact_registers"}
    reads = frozenset({"txn"})
    writes = frozenset({"txn"})
    real_test = "Several threads on several servers read a pair between its two writes."

    def generator(self, placement: Placement) -> Generator:
        return Rounds(max(1, self.key_count // 4))

    def final(self) -> Sequence[Request]:
        return [transaction([["r", key, None] for key in pair(0)])]
