"""`lock`, `fenced-lock` and `leased-lock`: threads acquire a lock, hold it for a while and release it.

Without tokens no two threads may hold the lock at once.  A lock that is given with a lease cannot promise that: a
holder that is paused for longer than the lease still believes that it holds the lock.  With fencing tokens it need not:
a later holder has a greater token, and the protected object refuses a smaller one (Kleppmann 2016).  Then tokens
must grow from each holder to the next.  Or the answer to an acquire says how long the lease is valid: then nobody else
may acquire the lock before that time is over, and afterwards everybody may (`leased-lock`).

For how long a lock is held is drawn from an exponential distribution, at most HELD_TIMES its mean.  The means can be
set: `--set held_s=2`.

A thread whose acquire got no answer does not know whether it holds the lock, so it does not release it: its next
request is an acquire by a new process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, Request
from workloads.generators import Generator, Step, Turn, Wait
from workloads.workload import Workload

HELD_S = 0.1
"""Mean time for which a thread holds a lock (`held_s`)."""
HELD_LONG_S = 6.0
"""Mean time of LONG_SHARE of the holds, longer than a lease that is not kept alive (`held_long_s`, `long_share`)."""
LONG_SHARE = 0.1
HELD_TIMES = 3
"""A hold lasts at most so many times its mean."""
WRITES = 2
"""Writes of a holder of a fenced lock to what the lock protects."""
RELEASES_MAX = 20
"""Attempts to release a lock whose release certainly did not happen; then its thread believes the lock is lost."""


@dataclass(frozen=True, slots=True)
class HoldTimes:
    """For how long locks are held, in seconds: the means of most holds and of the long ones, and the share of these."""

    mean_s: float = HELD_S
    long_s: float = HELD_LONG_S
    long_share: float = LONG_SHARE

    def draw(self, rng: Random) -> float:
        mean_s = self.long_s if rng.random() < self.long_share else self.mean_s
        return min(rng.expovariate(1 / mean_s), HELD_TIMES * mean_s) if mean_s else 0.0


@dataclass(frozen=True, slots=True)
class Holding(Generator):
    """One thread.  key: of the lock that it holds, "" while it holds none.  token: that lock's fencing token.
    waited: since it acquired that lock.  writes: still to be made while it holds that lock.  fenced: with tokens."""

    names: tuple[str, ...]
    held: HoldTimes
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
            return Wait(self.held.draw(turn.rng)), replace(self, waited=True)
        if self.writes:
            return Request("write", self.key, self.token), replace(self, writes=self.writes - 1, waited=False)
        return Request("release", self.key), self

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        if request.f == "acquire" and outcome.type is Type.OK:
            writes = WRITES if self.fenced else 0
            return Holding(self.names, self.held, self.fenced, request.key or "", outcome.value, writes)
        if request.f == "acquire":
            return self
        if request.f == "write":
            return self if outcome.type is Type.OK else Holding(self.names, self.held, self.fenced)
        if outcome.type is Type.FAIL and self.releases < RELEASES_MAX:
            return replace(self, releases=self.releases + 1)
        return Holding(self.names, self.held, self.fenced)


class Lock(Workload):
    name = "lock"
    summary = "locks are acquired, held and released"
    checkers = ("mutex",)
    functions: ClassVar[Mapping[str, str]] = {"acquire": "acquire", "release": "release"}
    reads = frozenset()
    writes = frozenset({"acquire", "release"})
    real_test = "Threads compete for a lock while its holder is cut off or paused."
    invoked_share = 0.1
    ok_share = 0.5
    unique_values = False

    parameters: ClassVar[Mapping[str, float]] = {
        "held_s": HELD_S,
        "held_long_s": HELD_LONG_S,
        "long_share": LONG_SHARE,
    }

    def held(self) -> HoldTimes:
        return HoldTimes(self.settings["held_s"], self.settings["held_long_s"], self.settings["long_share"])

    def generator(self, placement: Placement) -> Generator:
        return Holding(self.names, self.held())

    def final(self) -> Sequence[Request]:
        return []


class FencedLock(Lock):
    name = "fenced-lock"
    summary = "locks with fencing tokens guard a register that refuses a smaller token"
    checkers = ("fenced-lock",)
    functions: ClassVar[Mapping[str, str]] = {"acquire": "acquire_token", "write": "fenced_write", "release": "release"}
    writes = frozenset({"acquire", "write", "release"})
    real_test = "A holder that was cut off or paused writes after another holder has written."

    def generator(self, placement: Placement) -> Generator:
        return Holding(self.names, self.held(), fenced=True)


class LeasedLock(Lock):
    name = "leased-lock"
    summary = "locks with a lease, of which the server says how long it is valid"
    checkers = ("leased-lock",)
    functions: ClassVar[Mapping[str, str]] = {"acquire": "acquire_lease", "release": "release"}
    real_test = "Threads compete for a lock while its holder is cut off or paused, and while its lease ends."
