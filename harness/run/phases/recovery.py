"""The recovery phase: all that is broken is healed and proven healed, and every live node must catch up in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

from nemesis.cluster import Cluster
from nemesis.heal import heal_all
from system_under_test.own.read_own_system import BrokenSystem
from system_under_test.subject import Node, Subject


class RecoveryPhase:
    """found: what `outcome.json` keeps of it; complete only when `run` has returned.  detail: takes what is awaited."""

    def __init__(
        self, subject: Subject, nodes: Sequence[Node], keys: int, limit_s: float, detail: Callable[[str], None]
    ) -> None:
        self._subject = subject
        self._nodes = nodes
        self._keys = keys
        self._limit_s = limit_s
        self._detail = detail
        self.found: dict[str, Any] = {"needed": bool(nodes), "limit_s": limit_s}

    async def run(self, cluster: Cluster, restart: Collection[str]) -> None:
        """restart: the servers that a fault killed."""
        if not self._nodes:
            return
        proof = await heal_all(cluster, restart=restart)
        self.found["proof"] = asdict(proof)
        began = time.monotonic()
        waiting_for: str | None = "no node has answered yet"
        broken = False
        while waiting_for is not None and time.monotonic() - began < self._limit_s:
            try:
                waiting_for, broken = await self._subject.caught_up(self._nodes, self._keys), False
            except BrokenSystem as problem:  # what is not known is asked again, and violates nothing
                waiting_for, broken = str(problem), True
            if dead := await self._majority_dead():
                broken = False
                waiting_for = f"{dead}: no majority is left that could recover"
                break
            if waiting_for is not None:
                self._detail(waiting_for)
                await asyncio.sleep(0.1)
        self.found |= {
            "recovered": waiting_for is None,
            "seconds": round(time.monotonic() - began, 3),
            "waiting_for": waiting_for or "",
            "not_known": broken,
        }

    async def _majority_dead(self) -> str:
        """The servers that died unexpectedly, if they are a majority: they stay dead, so waiting is useless."""
        states = await asyncio.gather(*(node.state() for node in self._nodes))
        dead = [node.name for node, state in zip(self._nodes, states, strict=True) if state == "dead"]
        return f"{' and '.join(dead)} died" if 2 * len(dead) > len(self._nodes) else ""
