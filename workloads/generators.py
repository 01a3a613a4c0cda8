"""Parts of which workloads are composed: generators, the choice of a key, and the pace of all threads.

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
that pace.  A pace is a factor upon the scheduled rate.  Its mean over a period is 1: with every pace the scheduled rate
is the mean rate, and the achieved rate can be compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random
from typing import Protocol

from system_under_test.client import Outcome, Placement, Request

VALUES_PER_TURN = 8
"""Fresh values that one request may use: a transaction has at most five steps."""


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
        """Return a whole number above 0 that no other turn of any thread gives. place: below VALUES_PER_TURN."""
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


@dataclass(frozen=True, slots=True)
class Call(Generator):
    """Never exhausted; every request is what `make` returns."""

    make: Callable[[Turn], Request]

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        return self.make(turn), self


@dataclass(frozen=True, slots=True)
class InOrder(Generator):
    """These requests, once each."""

    requests: Sequence[Request]

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if not self.requests:
            return None, self
        return self.requests[0], InOrder(self.requests[1:])


@dataclass(frozen=True, slots=True)
class Limit(Generator):
    """At most `count` requests of another generator."""

    count: int
    inner: Generator

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if self.count <= 0:
            return None, self
        step, after = self.inner.next(turn)
        return step, Limit(self.count - isinstance(step, Request), after)

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        return replace(self, inner=self.inner.heard(request, outcome))


@dataclass(frozen=True, slots=True)
class Until(Generator):
    """Another generator, exhausted as soon as the main phase is `time_s` old."""

    time_s: float
    inner: Generator

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if turn.time_s >= self.time_s:
            return None, self
        step, after = self.inner.next(turn)
        if isinstance(step, Wait):
            step = Wait(min(step.seconds, self.time_s - turn.time_s))
        return step, replace(self, inner=after)

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        return replace(self, inner=self.inner.heard(request, outcome))


@dataclass(frozen=True, slots=True)
class Phases(Generator):
    """One generator after another, each until it is exhausted."""

    phases: tuple[Generator, ...]

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        phases = self.phases
        while phases:
            step, after = phases[0].next(turn)
            if step is not None:
                return step, Phases((after, *phases[1:]))
            phases = phases[1:]
        return None, Phases(())

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        if not self.phases:
            return self
        return Phases((self.phases[0].heard(request, outcome), *self.phases[1:]))


@dataclass(frozen=True, slots=True)
class Mix(Generator):
    """Each request from one of several generators, chosen by weight; one that is exhausted is left out from then on.

    An outcome goes to the generator that gave the last request: a thread has one request open at a time.
    """

    choices: tuple[tuple[float, Generator], ...]
    last: int = -1

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        choices = list(self.choices)
        while choices:
            weights = [weight for weight, _ in choices]
            at = turn.rng.choices(range(len(choices)), weights)[0]
            step, after = choices[at][1].next(turn)
            if step is not None:
                choices[at] = (choices[at][0], after)
                return step, Mix(tuple(choices), at)
            del choices[at]
        return None, Mix(())

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        choices = list(self.choices)
        if 0 <= self.last < len(choices):
            weight, generator = choices[self.last]
            choices[self.last] = (weight, generator.heard(request, outcome))
        return replace(self, choices=tuple(choices))


@dataclass(frozen=True, slots=True)
class Stagger(Generator):
    """A pause before each request of another generator; pauses are exponential with this mean."""

    mean_s: float
    inner: Generator
    waited: bool = False

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if not self.waited and self.mean_s > 0:
            return Wait(turn.rng.expovariate(1 / self.mean_s)), replace(self, waited=True)
        step, after = self.inner.next(turn)
        return step, replace(self, inner=after, waited=isinstance(step, Wait))

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        return replace(self, inner=self.inner.heard(request, outcome))


def reserve(placement: Placement, *, readers: Generator, others: Generator) -> Generator:
    """The generator of this thread: some threads are reserved for reading (`Placement.reads_only`)."""
    return readers if placement.reads_only else others


@dataclass(frozen=True, slots=True)
class PerKey(Generator):
    """A generator that composes one generator for each key, `width` keys at a time.

    keys: in the order in which they are taken.  make: the generator of a key.  A key whose generator is exhausted is
    retired, and the next of `keys` takes its place; the whole is exhausted when all are retired.
    """

    keys: tuple[str, ...]
    width: int
    make: Callable[[str], Generator]
    active: Mapping[str, Generator] = field(default_factory=dict)
    last: str = ""

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        active, waiting = dict(self.active), self.keys
        while True:
            while waiting and len(active) < self.width:
                active[waiting[0]] = self.make(waiting[0])
                waiting = waiting[1:]
            if not active:
                return None, replace(self, keys=waiting, active=active)
            key = turn.rng.choice(list(active))
            step, after = active[key].next(turn)
            if step is None:
                del active[key]
                continue
            active[key] = after
            return step, replace(self, keys=waiting, active=active, last=key)

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        if self.last not in self.active:
            return self
        return replace(self, active={**self.active, self.last: self.active[self.last].heard(request, outcome)})


Pick = Callable[[Turn], str]
"""Chooses the key of a request."""


def uniform(names: Sequence[str]) -> Pick:
    """Return every key as often as any other."""
    return lambda turn: turn.rng.choice(names)


def zipf(names: Sequence[str], exponent: float = 1.0) -> Pick:
    """Return the k-th key with a weight of 1 / k ** exponent: a few keys have much concurrency, many have little."""
    cumulative = _zipf_weights(len(names), exponent)
    return lambda turn: turn.rng.choices(names, cum_weights=cumulative)[0]


def moving(names: Sequence[str], width: int, requests_per_key: int) -> Pick:
    """`width` neighbouring keys at a time.  After `requests_per_key` requests of the thread the oldest is retired and
    the next one taken, in a circle."""
    return zipf_of_moving(names, width, requests_per_key, exponent=0.0)


def zipf_of_moving(names: Sequence[str], width: int, requests_per_key: int, exponent: float = 1.0) -> Pick:
    """Act like `moving`; of the keys in use the newest is chosen most often, as `zipf` does."""
    if not 0 < width <= len(names):
        raise ValueError(f"{width} keys at a time, and there are {len(names)}")
    cumulative = _zipf_weights(width, exponent)

    def pick(turn: Turn) -> str:
        newest = turn.count // requests_per_key + width - 1
        rank = turn.rng.choices(range(width), cum_weights=cumulative)[0]
        return names[(newest - rank) % len(names)]

    return pick


def reads_of(f: str, names: Sequence[str]) -> list[Request]:
    """Return one request per key: the final reads of most workloads."""
    return [Request(f, name) for name in names]


def _zipf_weights(count: int, exponent: float) -> list[float]:
    return list(accumulate(rank**-exponent for rank in range(1, count + 1)))


BACKLOG_S = 1.0
"""Seconds that a thread may fall behind its schedule and still catch up; requests further behind are dropped."""


class Pace(Protocol):
    def factor(self, time_s: float) -> float:
        """By how much the rate is multiplied at this time of the main phase; above 0."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    def factor(self, time_s: float) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Each level holds for `length_s`, then the next, in a circle.  levels: above 0, in any unit."""

    length_s: float
    levels: tuple[float, ...]

    def factor(self, time_s: float) -> float:
        mean = sum(self.levels) / len(self.levels)
        return self.levels[int(time_s / self.length_s) % len(self.levels)] / mean


@dataclass(frozen=True, slots=True)
class Bursts:
    """Every `period_s` begins with a burst of `length_s` in which the rate is `height` times that between bursts."""

    period_s: float
    length_s: float
    height: float

    def factor(self, time_s: float) -> float:
        share = self.length_s / self.period_s
        between = 1 / (share * self.height + 1 - share)
        return between * (self.height if time_s % self.period_s < self.length_s else 1.0)


@dataclass(frozen=True, slots=True)
class ThreadPace:
    """Pace of one thread.  rate_hz: of this thread; 0 = without a pause.  until, began: of a monotonic clock, in
    seconds."""

    rate_hz: float
    until: float
    began: float
    pace: Pace

    def mean_gap_s(self, now: float) -> float:
        return 1 / (self.rate_hz * self.pace.factor(now - self.began)) if self.rate_hz else 0.0

    def after(self, due: float, now: float, rng: Random) -> float:
        """Return when the next request is due, after one that was due at `due` and has its outcome now."""
        mean_gap_s = self.mean_gap_s(now)
        return max(due + rng.expovariate(1 / mean_gap_s), now - BACKLOG_S) if mean_gap_s else now
