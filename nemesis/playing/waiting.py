"""Waiting that a cancellation does not leave half-done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def all_ended(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Await all; the first failure, or a cancellation, cancels the others and is raised once they have ended."""
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await to_the_end(_ended(tasks))
        raise


async def _ended(tasks: Sequence[asyncio.Future[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work that must not be cut short, however often the task that awaits it is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue  # `play` re-raises what broke it off; healing has a limit of its own
    return task.result()
