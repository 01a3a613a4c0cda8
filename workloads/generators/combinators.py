"""The generators that workloads are composed of: calls, phases, mixes, limits, pauses and a generator for each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from system_under_test.client import Outcome, Placement, Request
from workloads.generators.generator import Generator, Step, Turn, Wait


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
    """A generator of its own for each key, `width` keys at a time.

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
