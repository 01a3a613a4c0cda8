"""Answers that coroutines wait for, by token: the core gives the token back in the effect that answers.

One timer that rings at the earliest time it was set for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from system_under_test.kraft.ports import Clock, Timer

T = TypeVar("T")


class Awaited(Generic[T]):
    """tokens: new numbers; all that the core is given a token for shares them.

    An answer that is not awaited any more, because it came twice or its coroutine was cancelled, is ignored.
    """

    def __init__(self, tokens: Iterator[int]) -> None:
        self._tokens = tokens
        self._futures: dict[int, asyncio.Future[T]] = {}

    @contextmanager
    def expect(self) -> Iterator[tuple[int, asyncio.Future[T]]]:
        """A new token and the future of its answer, which is awaited inside the block."""
        token = next(self._tokens)
        future = self._futures[token] = asyncio.get_running_loop().create_future()
        try:
            yield token, future
        finally:
            self._futures.pop(token, None)

    def answer(self, token: int, value: T) -> None:
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_result(value)

    def refuse(self, token: int, problem: Exception) -> None:
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_exception(problem)

    def cancel_all(self) -> None:
        for future in self._futures.values():
            future.cancel()


class DeadlineTimer:
    """Times are those of the clock.  An earlier time is left to ring in vain, which is cheaper than to move it."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._at = math.inf

    def set(self, at: float) -> None:
        """Ring at `at`, unless it rings earlier already."""
        if at >= self._at:
            return
        self.cancel()
        self._at = at
        self._timer = self._clock.call_at(at, self._rings)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, math.inf

    def _rings(self) -> None:
        self._timer, self._at = None, math.inf
        self._ring()
