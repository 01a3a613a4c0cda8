"""`long-fork`: single writes to pairs of registers, and reads of whole pairs.

If two reads each see a write that the other one lacks, they saw two histories of the same database: a long fork.
Parallel snapshot isolation allows it, and snapshot isolation forbids it (Sovran et al. 2011).  Every key is written at
most once.  A pair is in use for `ROUND_S`; then all threads move on to the next.  Its two writers write as soon as the
round begins, so that both writes are under way at once while others read the pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from checkers.base.history import CREATE
from system_under_test.client import Placement, Request
from workloads.generators import Generator, Step, Turn
from workloads.transactions import DATABASE, transaction
from workloads.workload import Workload

ROUND_S = 0.1


def pair(number: int) -> tuple[str, str]:
    return f"f{number}a", f"f{number}b"


@dataclass(frozen=True, slots=True)
class Rounds(Generator):
    """One thread.  pairs: how many are in use at a time.  written: the last round in which it was a writer's turn."""

    pairs: int
    written: int = -1

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        number = int(turn.time_s / ROUND_S)
        if number > self.written and (key := self._mine(number, turn)) is not None:
            return transaction([["w", key, turn.fresh()]]), replace(self, written=number)
        both = pair(number * self.pairs + turn.rng.randrange(self.pairs))
        return transaction([["r", key, None] for key in turn.rng.sample(both, 2)]), self

    def _mine(self, number: int, turn: Turn) -> str | None:
        """The key that this thread writes in a round: keys are dealt over the threads in turn."""
        if turn.placement.reads_only:
            return None
        keys = [key for place in range(self.pairs) for key in pair(number * self.pairs + place)]
        for place, key in enumerate(keys):
            if (number * len(keys) + place) % turn.threads == turn.placement.thread:
                return key
        return None


class LongFork(Workload):
    name = "long-fork"
    summary = "single writes to pairs of registers, and reads of whole pairs"
    checkers: ClassVar[tuple[str, ...]] = ("long-fork",)
    functions: ClassVar[Mapping[str, str]] = {"txn": "transact_registers"}
    reads: ClassVar[frozenset[str]] = frozenset({"txn"})
    writes: ClassVar[frozenset[str]] = frozenset({"txn"})
    real_test = "Several threads on several servers read a pair between its two writes."

    def keys(self) -> Sequence[str]:
        return [DATABASE]

    def set_up(self) -> Sequence[Request]:
        return [Request(CREATE, DATABASE)]

    def generator(self, placement: Placement) -> Generator:
        return Rounds(max(1, self.key_count // 4))

    def final(self) -> Sequence[Request]:
        return [transaction([["r", key, None] for key in pair(0)])]
