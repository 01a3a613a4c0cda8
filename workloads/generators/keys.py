"""Choices of keys: uniform, a few far more often than the rest, or a window that moves on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from system_under_test.client import Request
from workloads.generators.generator import Turn

Pick = Callable[[Turn], str]
"""Chooses the key of a request."""


def uniform(names: Sequence[str]) -> Pick:
    """Every key as often as any other."""
    return lambda turn: turn.rng.choice(names)


def zipf(names: Sequence[str], exponent: float = 1.0) -> Pick:
    """The k-th key with a weight of 1 / k ** exponent: a few keys have much concurrency, many have little."""
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
    """One request per key: the final reads of most workloads."""
    return [Request(f, name) for name in names]


def _zipf_weights(count: int, exponent: float) -> list[float]:
    return list(accumulate(rank**-exponent for rank in range(1, count + 1)))
