"""The named processes of servers, ordered through the agents."""

from __future__ import annotations

import asyncio
import errno
import time
from typing import TYPE_CHECKING, Literal

from nemesis.cluster import CannotInject, ProcessNow

if TYPE_CHECKING:
    from harness.backends.backend import ClusterSpec
    from harness.backends.with_agents.link import AgentLink, AgentNode

STOP_LIMIT_S = 15.0
"""How long a server, or one process of it, may take to end after SIGTERM: one that hands over its leadership takes
several seconds."""


class AgentProcesses:
    """A part of `AgentCluster`."""

    spec: ClusterSpec

    def _link(self, name: str) -> AgentLink:
        raise NotImplementedError

    def _node(self, name: str) -> AgentNode:
        raise NotImplementedError

    def why_no_process(self, process: str) -> str:
        """Why no fault can meet this process; "" if one can."""
        if process in self.spec.processes:
            return ""
        known = ", ".join(self.spec.processes)
        there = f"it names {known}" if known else "it names none (`processes` of its class)"
        return f"the system under test names no process {process!r}; {there}"

    async def signal_process(self, server: str, process: str, name: Literal["STOP", "KILL", "TERM", "RELEASE"]) -> None:
        """See Cluster.signal_process."""
        if why := self.why_no_process(process):
            raise CannotInject(why)
        args = {"process": process, "name": name, "names": dict(self.spec.processes)}
        async with self._node(server).alone:
            await self._link(server).call("process.signal", args)
        deadline = time.monotonic() + STOP_LIMIT_S
        while name == "TERM" and not (await self.process_now(server, process)).ended:
            if time.monotonic() > deadline:
                words = f"{server}: {process} did not end within {STOP_LIMIT_S:g} s of SIGTERM"
                raise OSError(errno.ETIMEDOUT, words)
            await asyncio.sleep(0.02)

    async def process_now(self, server: str, process: str) -> ProcessNow:
        """See Cluster.process_now."""
        args = {"process": process, "names": dict(self.spec.processes)}
        result, _ = await self._link(server).call("process.state", args)
        return ProcessNow(**{name: bool(result[name]) for name in ("lives", "stopped", "held", "ended")})
