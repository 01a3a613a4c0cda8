"""Generators: small values that say what one thread invokes next, composed into workloads.

Theory.  A generator is a value that never changes.  `next` returns a step and the generator that follows it; `heard`
takes the outcome of a request and returns the generator that follows.  So a generator needs no cluster, no clock and no
lock, and a test drives it with a loop (`Jepsen`'s generators are the example).  A step is one of three things:

    Request    invoke this now
    Wait       invoke nothing for this long, then call `next` again
    None       the generator is exhausted

Everything that varies comes in with the `Turn`: the thread, its seeded random stream, the time since the main phase
began, and how many requests the thread has had.  The last gives values that no other thread uses (`Turn.fresh`), so
that threads share no counter and the seed alone decides what each thread invokes.

How often requests are invoked is no matter of generators: the interpreter paces all threads, and a workload may vary
that pace (`workloads/generators/pace.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from system_under_test.client import Outcome, Placement, Request

VALUES_PER_TURN = 8
"""How many fresh values one request may use: a transaction has at most five steps."""


@dataclass(frozen=True, slots=True)
class Turn:
    """placement: the thread.  threads: how many there are.  rng: the thread's own stream; it advances when it is used.
    time_s: since the main phase began.  count: the requests that this thread has had."""

    placement: Placement
    threads: int
    rng: Random
    time_s: float = 0.0
    count: int = 0

    def fresh(self, place: int = 0) -> int:
        """A whole number above 0 that no other turn of any thread gives.  place: below VALUES_PER_TURN."""
        assert 0 <= place < VALUES_PER_TURN
        return (self.count * VALUES_PER_TURN + place) * self.threads + self.placement.thread + 1


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


Step = Request | Wait | None


class Generator:
    """The base of all generators: exhausted at once, and it ignores outcomes."""

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        return None, self

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        """The generator after the outcome of a request that `next` gave."""
        return self
