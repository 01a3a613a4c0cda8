"""The wall clocks of servers on nodes that have an agent: the library is sent once, and servers start with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from harness.backends.backend import ClusterSpec
from harness.backends.clock_library import clock_library
from harness.backends.with_agents.link import AgentLink, AgentNode
from nemesis.cluster import CLOCK, CannotInject

_INSTALL_S = 60.0


class AgentClocks:
    """Part of `AgentCluster`."""

    spec: ClusterSpec
    _clock_problems: dict[str, str]
    """Server -> why its wall clock cannot be shifted."""

    def _link(self, name: str) -> AgentLink:
        raise NotImplementedError

    async def install_clock(self, link: AgentLink, node: AgentNode) -> None:
        """Let every server of this node start with the library, if the run needs that.  `why_no_clock` says why it
        could not be done."""
        if CLOCK not in self.spec.wanted or link.name not in self.spec.servers or self.spec.needs.image:
            return
        try:
            library = await asyncio.to_thread(clock_library)
            folder = {"folder": f"{node.log_dir}/clock"}
            result, _ = await link.call("clock.install", folder, library, timeout_s=_INSTALL_S)
        except OSError as problem:
            self._clock_problems[link.name] = str(problem.strerror or problem)
            return
        self._clock_problems.pop(link.name, None)
        node.environment = result["environment"]

    def why_no_clock(self) -> str:
        """Why the servers' wall clocks cannot be shifted here; "" if they can, as far as is known by now."""
        if CLOCK not in self.spec.wanted:
            return "the run was made without clocks that can be shifted"
        if self.spec.needs.image:
            return f"the library that shifts clocks is not made for the C library of the image {self.spec.needs.image}"
        return next((f"{server}: {why}" for server, why in sorted(self._clock_problems.items())), "")

    async def set_clock(self, server: str, offset_s: float, rate: float) -> None:
        """See Cluster.set_clock."""
        if why := self.why_no_clock():
            raise CannotInject(f"the clock of {server} cannot be shifted: {why}")
        await self._link(server).call("clock.order", {"offset_s": offset_s, "rate": rate})

    async def read_clock(self, server: str) -> Mapping[str, Any]:
        """See Cluster.read_clock."""
        if why := self.why_no_clock():
            raise CannotInject(f"the clock of {server} cannot be read: {why}")
        result, _ = await self._link(server).call("clock.read", timeout_s=_INSTALL_S)
        return result
