"""Plays cards that are dealt while a run goes on: the next play is chosen when the one before begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from checkers.record.faults import Card
from nemesis.playing.waiting import all_ended


async def play_dealt(
    deal_next: Callable[[], Sequence[Card]],
    play_card: Callable[[Card], Coroutine[Any, Any, None]],
    sleep_until: Callable[[float], Awaitable[None]],
) -> None:
    """Returns when nothing is dealt any more and every card was played.

    sleep_until: until that second of the main phase.  The first failure of a card, or a cancellation, cancels all cards
    and is raised once they have ended.
    """
    tasks: list[asyncio.Future[None]] = []
    try:
        while cards := deal_next():
            tasks += [asyncio.ensure_future(play_card(card)) for card in cards]
            await _unless_one_fails(tasks, asyncio.ensure_future(sleep_until(cards[0].at_s)))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    await all_ended(tasks)


async def _unless_one_fails(tasks: Sequence[asyncio.Future[None]], pause: asyncio.Future[None]) -> None:
    """Await the pause; raise at once what a task raises."""
    try:
        while not pause.done():
            await asyncio.wait({pause, *(t for t in tasks if not t.done())}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        pause.cancel()
