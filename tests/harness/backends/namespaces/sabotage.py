"""A cluster that does not do what the nemesis orders: an order is dropped, half done, or taken back behind its back.

What a fault's record says of itself must then never be *installed*.  The measurements go to the real cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from random import Random
from typing import Any

from nemesis.cluster import Link

NEVER, PARTLY, TAKEN_BACK, INSTEAD = "never", "partly", "taken back", "another fault instead"
LATER_S = (0.0, 0.3)
"""How long after the order it is taken back."""


class Sabotaged:
    """Everything but the orders of faults is the real cluster's own.

    how: what becomes of the next order, "" for an honest cluster.  done: whether the sabotage came to pass; an order
    that has no parts, or for which there is nothing else to do instead, is dropped."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._rng = Random(0)
        self._later: list[asyncio.Task[None]] = []
        self.how = ""
        self.done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def arm(self, how: str, seed: int) -> None:
        self.how, self.done, self._rng = how, False, Random(seed)

    async def disarm(self) -> None:
        """From now on every order is carried out; what was to be taken back has been."""
        self.how = ""
        later, self._later = self._later, []
        await asyncio.gather(*later)

    # ---- orders ------------------------------------------------------------------------------------------------

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        half = set(sorted(links)[: len(links) // 2])
        await self._links(
            bool(links),
            whole=lambda: self._cluster.cut(links, reject),
            half=lambda: self._cluster.cut(half, half & set(reject)),
            back=lambda: self._cluster.cut(()),
        )

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        await self._links(
            bool(links),
            whole=lambda: self._cluster.impair(links, seed),
            half=lambda: self._cluster.impair({}, seed),
            back=lambda: self._cluster.impair({}, seed),
        )

    async def pause(self, server: str) -> None:
        await self._node(lambda: self._cluster.pause(server), back=lambda: self._cluster.resume(server))

    async def kill(self, server: str) -> None:
        await self._node(
            lambda: self._cluster.kill(server),
            back=lambda: self._cluster.restart(server),
            instead=lambda: self._cluster.pause(server),
        )

    async def stop(self, server: str) -> None:
        await self._node(
            lambda: self._cluster.stop(server),
            back=lambda: self._cluster.restart(server),
            instead=lambda: self._cluster.pause(server),
        )

    async def lose_power(self, server: str, kept: str, seed: int) -> None:
        await self._node(
            lambda: self._cluster.lose_power(server, kept, seed),
            back=lambda: self._cluster.restart(server),
            instead=lambda: self._cluster.kill(server),
        )

    async def arm_disk(self, server: str, operation: str, nth: int) -> None:
        """An armed disk holds an operation until the power loss.  A sabotage may drop both: the fault is skipped."""
        if self.how in ("", TAKEN_BACK):
            await self._cluster.arm_disk(server, operation, nth)
        else:
            self.done = True

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        await self._node(
            lambda: self._cluster.damage_disk(server, how, seed), back=lambda: self._cluster.restart(server)
        )

    async def behave_disk(self, server: str, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        if not rules:
            await self._cluster.behave_disk(server, rules, seed)
            return
        slow = [{"operations": ["fsync"], "delay_s": 0.002}]
        await self._node(
            lambda: self._cluster.behave_disk(server, rules, seed),
            back=lambda: self._cluster.behave_disk(server, [], 0),
            instead=lambda: self._cluster.behave_disk(server, slow, 0),
        )

    async def set_clock(self, server: str, offset_s: float, rate: float) -> None:
        if not offset_s:
            await self._cluster.set_clock(server, offset_s, rate)
            return
        await self._node(
            lambda: self._cluster.set_clock(server, offset_s, rate),
            back=lambda: self._cluster.set_clock(server, 0.0, 1.0),
            instead=lambda: self._cluster.set_clock(server, -offset_s, rate),
        )

    # ---- results of a sabotaged order
    # ---------------------------------------------------------------------------------

    async def _links(self, breaks: bool, whole: Order, half: Order, back: Order) -> None:
        if not breaks:
            await whole()
        elif self.how == PARTLY:
            self.done = True
            await half()
        else:
            await self._node(whole, back)

    async def _node(self, order: Order, back: Order, instead: Order | None = None) -> None:
        if not self.how:
            await order()
            return
        if self.how == TAKEN_BACK:
            await order()
            self._later.append(asyncio.ensure_future(self._take_back(back)))
            return
        self.done = True
        if self.how == INSTEAD and instead is not None:
            await instead()

    async def _take_back(self, back: Order) -> None:
        await asyncio.sleep(self._rng.uniform(*LATER_S))
        if self.how:  # the heal has not begun
            with contextlib.suppress(OSError):  # an order that was refused or already undone cannot be undone
                await back()
                self.done = True


Order = Callable[[], Coroutine[Any, Any, Any]]
