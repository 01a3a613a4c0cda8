"""What faults act on: the Protocol every backend implements.

A link is a *directed* pair of node names (source, destination); servers and client nodes are both nodes.  Control
travels outside the data network, so no fault ever cuts the hand that must heal it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from system_under_test.subject import Node, ProcessState

Link = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Beacons:
    """UDP beacons of one directed link within one window, counted by sequence number, so no clock is compared."""

    sent: int
    received: int


class CannotInject(RuntimeError):
    """This backend cannot do this fault; the fault is `skipped` for that reason."""


class Cluster(Protocol):
    servers: Sequence[str]
    clients: Sequence[str]

    def node(self, name: str) -> Node: ...

    async def cut(self, links: Collection[Link]) -> None:
        """From now on exactly these links lose every packet; all others are whole.  One atomic transaction."""
        ...

    async def observe(self, window_s: float, interval_ms: float) -> Mapping[Link, Beacons]:
        """Send beacons on every directed link every `interval_ms` for `window_s` (20 ms apart otherwise) and
        say how many of those sent within the window arrived.  A link whose agent did not answer is left out."""
        ...

    async def state(self, server: str) -> ProcessState: ...

    async def pause(self, server: str) -> None: ...

    async def resume(self, server: str) -> None: ...

    async def kill(self, server: str) -> None: ...

    async def restart(self, server: str) -> None: ...
