"""State that is in force on the cluster while several faults overlap.

A backend knows one set of cut links.  Here every fault owns a *layer*: the links it cuts.  The union of all layers is
what the backend is ordered to cut.  A link that changes its order while it is measured is *unsettled* and not judged.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from checkers.record.faults import Fault
from nemesis.cluster import Cluster, Link

IMPAIRED_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Layer:
    cut: frozenset[Link]
    reject: frozenset[Link]


class Field:
    """One per run.  `cluster`: where orders of processes go directly."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._layers: dict[int, Layer] = {}
        self._impaired: dict[int, dict[Link, Mapping[str, float]]] = {}
        self._healing: dict[int, frozenset[Link]] = {}
        self._unimpaired = asyncio.Event()
        self._ordering = asyncio.Lock()
        self._changes: list[frozenset[Link]] = []
        self._changing: frozenset[Link] = frozenset()

    async def cut(self, fault: Fault, *, reject: bool = False) -> None:
        """Cut the links of this fault in addition to those of all others."""
        await self._lay(id(fault), Layer(fault.cut, fault.cut if reject else frozenset()))

    async def uncut(self, fault: Fault) -> None:
        """Make the links of this fault whole, but for those that another fault cuts too."""
        await self._lay(id(fault), None)

    async def impair(self, fault: Fault, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """Impair each link in its own way.  Where several faults impair one link, the latest order holds.

        So it first waits for a fault of these links whose heal is due, and for the measurement after that heal, for
        IMPAIRED_WAIT_S at most: that one would lapse, or not seem healed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(IMPAIRED_WAIT_S):
                while not self._are_whole(links):
                    self._unimpaired.clear()
                    await self._unimpaired.wait()
        async with self._ordering:
            self._impaired[id(fault)] = dict(links)
            await self._impair_all(seed)

    async def unimpair(self, fault: Fault) -> None:
        """Take back what this fault ordered of its links.  `closed` must follow, once they were measured."""
        async with self._ordering:
            self._healing[id(fault)] = frozenset(self._impaired.pop(id(fault), ()))
            await self._impair_all(0)

    def closed(self, fault: Fault) -> None:
        """This fault is healed and measured: another one may take its links."""
        self._healing.pop(id(fault), None)
        self._unimpaired.set()

    def _are_whole(self, links: Collection[Link]) -> bool:
        taken = _union([*self._impaired.values(), *self._healing.values()])
        return taken.isdisjoint(links)

    async def _impair_all(self, seed: int) -> None:
        union = {link: it for links in self._impaired.values() for link, it in links.items()}
        await self.cluster.impair(union, seed)

    async def clear(self) -> None:
        """Make every link whole, every disk healthy and every clock right."""
        async with self._ordering:
            self._layers.clear()
            self._impaired.clear()
            self._healing.clear()
            await self.cluster.cut(())
            await self.cluster.mend()
        self._unimpaired.set()

    async def each(self, nodes: Sequence[str], order: Callable[[str], Awaitable[None]]) -> None:
        """Give an order to all these nodes at once; raises the first failure after every one has ended."""
        for answer in await asyncio.gather(*(order(node) for node in nodes), return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    def now_cut(self) -> frozenset[Link]:
        """The links that are ordered cut now."""
        return _union(layer.cut for layer in self._layers.values())

    def lateness(self) -> dict[Link, float]:
        """Return, by link, the seconds by which faults delay it now; infinity for one that is held."""
        found: dict[Link, float] = {}
        for links in self._impaired.values():
            for link, it in links.items():
                found[link] = math.inf if it.get("hold") else it.get("delay_s", 0.0) + it.get("jitter_s", 0.0)
        return found

    def changes(self) -> int:
        """A number to give to `unsettled` later."""
        return len(self._changes)

    def unsettled(self, since: int) -> frozenset[Link]:
        """Links whose order changed since then, or changes now."""
        return _union([*self._changes[since:], self._changing])

    async def _lay(self, owner: int, layer: Layer | None) -> None:
        async with self._ordering:
            before = self.now_cut()
            after = {n: each for n, each in self._layers.items() if n != owner}
            if layer is not None:
                after[owner] = layer
            union = _union(each.cut for each in after.values())
            self._changing = before ^ union
            try:
                await self.cluster.cut(union, _union(each.reject for each in after.values()))
            finally:
                self._layers = after
                self._changes.append(self._changing)
                self._changing = frozenset()


def _union(sets: Iterable[Collection[Link]]) -> frozenset[Link]:
    return frozenset(link for links in sets for link in links)
