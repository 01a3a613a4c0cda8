"""Parts of which workloads are composed: generators, the choice of a key, and the pace of all threads.

Theory.  A generator is an immutable value.  `next` returns a step and the generator that replaces this one; `heard`
accepts the outcome of a request and returns the generator that replaces this one.  So a generator needs no cluster, no
clock and no lock, and a test drives it with a loop (`Jepsen`'s generators are the example).  A step is one of three
things:

    Request    invoke this now
    Wait       invoke nothing for this long, then call `next` again
    None       the generator is exhausted

The `Turn` contains everything that varies: the thread, its seeded random stream, the time since the main phase began,
and the number of requests of the thread so far.  This number yields values that no other thread uses (`Turn.fresh`), so
threads share no counter, and the seed alone determines the requests of each thread.

Generators do not determine the rate of requests: the interpreter paces all threads, and a workload may vary the pace.
A pace is a factor of the scheduled rate.  Its mean over a period is 1, so with every pace the mean rate is the
scheduled rate, and the achieved rate can be compared with the scheduled rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random
from typing import Protocol

from system_under_test.client import Outcome, Placement, Request

VALUES_PER_TURN = 8
"""Maximum number of fresh values of one request: a transaction has at most five steps."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Input of a generator.

    placement: the thread
    threads: number of all threads
    rng: the thread's own random generator, which advances with each use
    time_s: seconds since the main phase began
    count: number of requests of this thread so far
    """

    placement: Placement
    threads: int
    rng: Random
    time_s: float = 0.0
    count: int = 0

    def fresh(self, place: int = 0) -> int:
        """Return a positive integer that no other turn of any thread returns.

        place: index below VALUES_PER_TURN, to get several integers in one turn
        """
        assert 0 <= place < VALUES_PER_TURN
        return (self.count * VALUES_PER_TURN + place) * self.threads + self.placement.thread + 1


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


Step = Request | Wait | None


class Generator:
    """The base of all generators.  It is exhausted at once, and ignores outcomes."""

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        return None, self

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        """Return the generator that follows the outcome of a request from `next`."""
        return self


@dataclass(frozen=True, slots=True)
class Call(Generator):
    """A generator that is never exhausted; `make` returns each request."""

    make: Callable[[Turn], Request]

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        return self.make(turn), self


@dataclass(frozen=True, slots=True)
class InOrder(Generator):
    """A generator of these requests, each once."""

    requests: Sequence[Request]

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if not self.requests:
            return None, self
        return self.requests[0], InOrder(self.requests[1:])


@dataclass(frozen=True, slots=True)
class Limit(Generator):
    """A generator of at most `count` requests of another generator."""

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
    """Another generator, which is exhausted `time_s` seconds after the main phase began."""

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
    """A generator that runs several generators in sequence, each until it is exhausted."""

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
    """A generator that draws each request from one of several generators, chosen by weight.  Exhausted generators are
    no longer chosen.

    An outcome is passed to the generator of the last request, because a thread has only one request open at a time.
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
    """Another generator, with a pause before each request; the pauses are exponentially distributed with this mean."""

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
    """Return the generator of this thread: `readers` for a thread that only reads (`Placement.reads_only`), else
    `others`.
    """
    return readers if placement.reads_only else others


@dataclass(frozen=True, slots=True)
class PerKey(Generator):
    """A generator that composes one generator for each key, `width` keys at a time.

    keys: all keys, in the order of their use
    make: returns the generator of a key

    A key whose generator is exhausted is retired, and the next of `keys` replaces it.  The composed generator is
    exhausted when all keys are retired.
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
    """Choose all keys with equal probability."""
    return lambda turn: turn.rng.choice(names)


def zipf(names: Sequence[str], exponent: float = 1.0) -> Pick:
    """Choose the k-th key with a weight of 1 / k ** exponent: few keys have much concurrency, many keys have little."""
    cumulative = _zipf_weights(len(names), exponent)
    return lambda turn: turn.rng.choices(names, cum_weights=cumulative)[0]


def moving(names: Sequence[str], width: int, requests_per_key: int) -> Pick:
    """Choose among `width` neighbouring keys.  After `requests_per_key` requests of the thread, the oldest of these
    keys is retired and the next key is used, in a circle.
    """
    return zipf_of_moving(names, width, requests_per_key, exponent=0.0)


def zipf_of_moving(names: Sequence[str], width: int, requests_per_key: int, exponent: float = 1.0) -> Pick:
    """Choose like `moving`, but the newest of the keys in use most often, as `zipf` does with its first key."""
    if not 0 < width <= len(names):
        raise ValueError(f"cannot use {width} keys at a time: there are only {len(names)} keys")
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
"""Maximum seconds by which a thread may fall behind its schedule and still catch up; requests further behind are
dropped.
"""


class Pace(Protocol):
    def factor(self, time_s: float) -> float:
        """Return the factor of the rate at this second of the main phase; above 0."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    def factor(self, time_s: float) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Steps:
    """A pace with several levels, each for `length_s` seconds, in a circle.

    levels: relative rates, above 0
    """

    length_s: float
    levels: tuple[float, ...]

    def factor(self, time_s: float) -> float:
        mean = sum(self.levels) / len(self.levels)
        return self.levels[int(time_s / self.length_s) % len(self.levels)] / mean


@dataclass(frozen=True, slots=True)
class Bursts:
    """A pace with a burst of `length_s` seconds at the begin of every `period_s`.  In a burst the rate is `height`
    times the rate between bursts.
    """

    period_s: float
    length_s: float
    height: float

    def factor(self, time_s: float) -> float:
        share = self.length_s / self.period_s
        between = 1 / (share * self.height + 1 - share)
        return between * (self.height if time_s % self.period_s < self.length_s else 1.0)


@dataclass(frozen=True, slots=True)
class ThreadPace:
    """Pace of one thread.

    rate_hz: mean requests per second of this thread; 0 for no pauses
    until, began: seconds of a monotonic clock
    """

    rate_hz: float
    until: float
    began: float
    pace: Pace

    def mean_gap_s(self, now: float) -> float:
        return 1 / (self.rate_hz * self.pace.factor(now - self.began)) if self.rate_hz else 0.0

    def after(self, due: float, now: float, rng: Random) -> float:
        """Return the time at which the next request is due.

        due: time at which the previous request was due
        now: time at which the previous request completed
        """
        mean_gap_s = self.mean_gap_s(now)
        return max(due + rng.expovariate(1 / mean_gap_s), now - BACKLOG_S) if mean_gap_s else now
