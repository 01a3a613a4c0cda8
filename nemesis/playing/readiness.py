"""Waiting until the system can take a fault of a kind that must find it whole, such as a change of its members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nemesis.cluster import Cluster
from nemesis.kind import Kind

READY_WAIT_S = 12.0
"""How long a card waits; then it is skipped."""
LOOK_EVERY_S = 0.2


async def why_not_ready(kind: Kind, cluster: Cluster, busy: Callable[[], bool], ended: asyncio.Event) -> str:
    """Wait until the kind finds the system ready and no other fault of the kind is under way.  Returns what is still
    missing after READY_WAIT_S, or when the test has ended; "" once nothing is.

    busy: whether another fault of the kind is under way."""
    if kind.ready is None:
        return ""
    loop = asyncio.get_running_loop()
    until, why = loop.time() + READY_WAIT_S, ""
    while loop.time() < until and not ended.is_set():
        try:
            why = f"another {kind.name} fault was under way" if busy() else await kind.ready(cluster)
        except OSError as problem:
            why = str(problem)
        if not why:
            return ""
        await asyncio.sleep(LOOK_EVERY_S)
    return f"the system was not ready within {READY_WAIT_S:.0f} s: {why}" if why else "the test had ended"
