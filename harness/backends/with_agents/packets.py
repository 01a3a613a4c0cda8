"""Measures what links do to packets, on nodes that have an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count

from harness.backends.with_agents.link import AgentLink, AgentNode
from nemesis.cluster import Link

TRIAL_PORT = 7789
_SETTLE_S = 0.05


class AgentPackets:
    """Part of `AgentCluster`."""

    _trials = count(1)

    def _link(self, name: str) -> AgentLink:
        raise NotImplementedError

    def _node(self, name: str) -> AgentNode:
        raise NotImplementedError

    async def try_link(self, link: Link, datagrams: int, interval_s: float, wait_s: float) -> Mapping[str, float]:
        """See Cluster.try_link."""
        source, to = link
        for name in link:
            where = {"address": self._node(name).address, "port": TRIAL_PORT}
            await self._link(name).call("trial.listen", where)
        trial = next(self._trials)
        peer = {"address": self._node(to).address, "port": TRIAL_PORT}
        order = {"peer": peer, "trial": trial, "count": datagrams, "interval_s": interval_s}
        sent, _ = await self._link(source).call("trial.send", order, timeout_s=10.0 + datagrams * interval_s * 3)
        await asyncio.sleep(_SETTLE_S + wait_s)
        result, _ = await self._link(to).call("trial.result", {"trial": trial})
        return {"sent": sent["sent"], **result}
