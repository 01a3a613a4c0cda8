"""Answers that coroutines wait for, by token: the core gives the token back in the effect that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

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
