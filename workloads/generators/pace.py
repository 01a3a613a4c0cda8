"""How the rate of a run varies with time: steady, in steps, or in bursts.

A pace is a factor upon the scheduled rate.  Its mean over a period is 1: with every pace the scheduled rate is the mean
rate, and the achieved rate can be compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
