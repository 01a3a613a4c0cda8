"""A figure of a run with its minimum."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Criterion:
    """One figure.  met: value >= least.  words: what the value counts.  advice: what to do about a shortfall.

    demanded: whether a shortfall makes the verdict unknown."""

    name: str
    value: float
    least: float
    words: str
    demanded: bool = True
    advice: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.least

    def shortfall(self) -> str:
        words = f"{self.name}: {self.value:g}, and at least {self.least:g} is needed"
        return f"{words} ({self.advice})" if self.advice else words

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}
