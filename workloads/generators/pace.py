"""When threads invoke: how the rate of a run varies with time, and how far a late thread catches up.

A pace is a factor upon the scheduled rate.  Its mean over a period is 1: with every pace the scheduled rate is the mean
rate, and the achieved rate can be compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

BACKLOG_S = 1.0
"""How far a thread may fall behind its schedule and still catch up; what is further behind is dropped."""


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
    """When one thread invokes.  rate_hz: of this thread; 0 = without a pause.  until, began: of a monotonic clock, in
    seconds."""

    rate_hz: float
    until: float
    began: float
    pace: Pace

    def mean_gap_s(self, now: float) -> float:
        return 1 / (self.rate_hz * self.pace.factor(now - self.began)) if self.rate_hz else 0.0

    def after(self, due: float, now: float, rng: Random) -> float:
        """When the next request is due, after one that was due at `due` and has its outcome now."""
        mean_gap_s = self.mean_gap_s(now)
        return max(due + rng.expovariate(1 / mean_gap_s), now - BACKLOG_S) if mean_gap_s else now
