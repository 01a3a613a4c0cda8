"""`lock` and `fenced-lock`: threads acquire a lock, hold it for a while and release it.

Without tokens no two threads may hold the lock at once.  A lock that is given with a lease cannot promise that: a
holder that is paused for longer than the lease still believes that it holds the lock.  With fencing tokens it need not:
a later holder has a greater token, and the protected object refuses a smaller one (Kleppmann 2016).  Then tokens
must grow from each holder to the next.

A thread whose acquire got no answer does not know whether it holds the lock, so it does not release it: its next
request is an acquire by a new process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, Request
from workloads.generators import Generator, Step, Turn, Wait
from workloads.workload import Workload

HELD_S = 0.1
"""Mean time for which a thread holds a lock."""
HELD_LONG_S = 6.0
LONG_SHARE = 0.1
"""So many times the lock is held for HELD_LONG_S in the mean: longer than a lease that is not kept alive."""
WRITES = 2
"""How often a holder of a fenced lock writes to what the lock protects."""
RELEASES_MAX = 20
"""How often a thread tries to release a lock whose release certainly did not happen; then it believes the lock is
lost."""


@dataclass(frozen=True, slots=True)
class Holding(Generator):
    """One thread.  key: of the lock that it holds, "" while it holds none.  token: that lock's fencing token.
    waited: since it acquired that lock.  writes: still to be made while it holds that lock.  fenced: with tokens."""

    names: tuple[str, ...]
    fenced: bool = False
    key: str = ""
    token: int | None = None
    writes: int = 0
    waited: bool = False
    releases: int = 0

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if not self.key:
            return Request("acquire", turn.rng.choice(self.names)), self
        if not self.waited:
            long = turn.rng.random() < LONG_SHARE
            return Wait(turn.rng.expovariate(1 / (HELD_LONG_S if long else HELD_S))), replace(self, waited=True)
        if self.writes:
            return Request("write", self.key, self.token), replace(self, writes=self.writes - 1, waited=False)
        return Request("release", self.key), self

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        if request.f == "acquire" and outcome.type is Type.OK:
            writes = WRITES if self.fenced else 0
            return Holding(self.names, self.fenced, request.key or "", outcome.value, writes)
        if request.f == "acquire":
            return self
        if request.f == "write":
            return self if outcome.type is Type.OK else Holding(self.names, self.fenced)
        if outcome.type is Type.FAIL and self.releases < RELEASES_MAX:
            return replace(self, releases=self.releases + 1)
        return Holding(self.names, self.fenced)


class Lock(Workload):
    name = "lock"
    summary = "locks are acquired, held and released"
    checkers: ClassVar[tuple[str, ...]] = ("mutex",)
    functions: ClassVar[Mapping[str, str]] = {"acquire": "acquire", "release": "release"}
    reads: ClassVar[frozenset[str]] = frozenset({"acquire"})
    writes: ClassVar[frozenset[str]] = frozenset({"acquire", "release"})
    real_test = "Threads compete for a lock while its holder is cut off or paused."
    invoked_share = 0.1
    ok_share = 0.5
    unique_values = False

    @staticmethod
    def objects(key_count: int) -> int:
        return max(1, key_count // 5)

    def generator(self, placement: Placement) -> Generator:
        return Holding(self.names)

    def final(self) -> Sequence[Request]:
        return []


class FencedLock(Lock):
    name = "fenced-lock"
    summary = "locks with fencing tokens guard a register that refuses a smaller token"
    checkers: ClassVar[tuple[str, ...]] = ("fenced-lock",)
    functions: ClassVar[Mapping[str, str]] = {"acquire": "acquire_token", "write": "fenced_write", "release": "release"}
    writes: ClassVar[frozenset[str]] = frozenset({"acquire", "write", "release"})
    real_test = "A holder that was cut off or paused writes after another holder has written."

    def generator(self, placement: Placement) -> Generator:
        return Holding(self.names, fenced=True)
