"""What agents do for faults of clocks, disks, packets, named processes and members: the parts of `AgentCluster`."""

from __future__ import annotations

import asyncio
import errno
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Literal

from harness.agent.disk.folders import DATA
from harness.backends.backend import ClusterSpec
from harness.backends.clock_library import clock_library
from harness.backends.with_agents.link import AgentLink, AgentNode
from nemesis.cluster import CLOCK, DISK, CannotInject, Link, ProcessNow
from system_under_test.subject import Members

_INSTALL_S = 60.0
_MOUNT_S = 60.0
_LOSS_S = 90.0
TRIAL_PORT = 7789
_SETTLE_S = 0.05
STOP_LIMIT_S = 15.0
"""How long a server, or one process of it, may take to end after SIGTERM: one that hands over its leadership takes
several seconds."""


class AgentPart(ABC):
    """What each part of `AgentCluster` needs of the whole."""

    spec: ClusterSpec

    @abstractmethod
    def _link(self, name: str) -> AgentLink: ...

    @abstractmethod
    def _node(self, name: str) -> AgentNode: ...


class AgentClocks(AgentPart):
    """The wall clocks of servers: the library is sent once, and servers start with it."""

    _clock_problems: dict[str, str]
    """Server -> why its wall clock cannot be shifted."""

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


class AgentDisks(AgentPart):
    """The disks of servers: put under FUSE when the node is made, ordered and probed afterwards."""

    _disk_problems: dict[str, str]
    """Server -> why its disk could not be mounted."""

    async def data_folder(self, link: AgentLink, folder: str) -> str:
        """The folder for a server's data below `folder`: under FUSE if the run needs that and the node can do it.

        Where it cannot, `why_no_disk` says why, and every fault of disks is refused for that reason.
        """
        if DISK not in self.spec.wanted or link.name not in self.spec.servers:
            return f"{folder}/data"
        try:
            await link.call("disk.mount", {"path": f"{folder}/disk", "root": f"{folder}/kept"}, timeout_s=_MOUNT_S)
        except OSError as problem:
            self._disk_problems[link.name] = (
                f"{problem.strerror or problem}.  It needs /dev/fuse, the right to mount (CAP_SYS_ADMIN), "
                f"and Debian's libfuse3-3"
            )
            return f"{folder}/data"
        self._disk_problems.pop(link.name, None)
        return f"{folder}/disk/{DATA}"

    def why_no_disk(self) -> str:
        """Why the disks of the servers cannot fail here; "" if they can, as far as is known by now."""
        if DISK not in self.spec.wanted:
            return "the run was made without disks that can fail"
        return next((f"{server}: {why}" for server, why in sorted(self._disk_problems.items())), "")

    async def behave_disk(self, server: str, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        """See Cluster.behave_disk."""
        await self._order(server, "disk.behave", {"rules": list(rules), "seed": seed})

    async def arm_disk(self, server: str, operation: str, nth: int) -> None:
        """See Cluster.arm_disk."""
        await self._order(server, "disk.arm", {"operation": operation, "nth": nth})

    async def disk_reached(self, server: str) -> bool:
        """See Cluster.disk_reached."""
        return bool((await self._order(server, "disk.reached", {}))["reached"])

    async def lose_power(self, server: str, kept: str, seed: int) -> None:
        """See Cluster.lose_power.  Waits while the disk is being copied: a copy is of one state of the disk."""
        async with self._node(server).alone:
            await self._order(server, "disk.lose", {"kept": kept, "seed": seed}, _LOSS_S)

    async def power_loss(self, server: str) -> Mapping[str, int]:
        """See Cluster.power_loss."""
        return await self._order(server, "disk.loss", {})

    async def probe_disk(self, server: str) -> Mapping[str, Any]:
        """See Cluster.probe_disk."""
        return await self._order(server, "disk.probe", {}, _LOSS_S)

    def why_no_damage(self, how: str) -> str:
        """Why files of the servers cannot be damaged in this way; "" if they can."""
        if how not in self.spec.notices_damage:
            return f"the system under test does not promise to notice this damage of its files: {how}"
        return self.why_no_disk()

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        """See Cluster.damage_disk."""
        if why := self.why_no_damage(how):
            raise CannotInject(why)
        damage = {"files": self.spec.notices_damage[how], "how": how, "seed": seed}
        async with self._node(server).alone:
            await self._order(server, "disk.damage", damage, _LOSS_S)

    async def disk_damage(self, server: str) -> Mapping[str, Any]:
        """See Cluster.disk_damage."""
        return await self._order(server, "disk.damaged", {}, _LOSS_S)

    async def _order(
        self, server: str, verb: str, args: Mapping[str, Any], timeout_s: float = _MOUNT_S
    ) -> Mapping[str, Any]:
        if why := self.why_no_disk():
            raise CannotInject(f"the disk of {server} cannot fail on order: {why}")
        result, _ = await self._link(server).call(verb, args, timeout_s=timeout_s)
        return result


class AgentPackets(AgentPart):
    """Measures what links do to packets."""

    _trials = count(1)

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


class AgentProcesses(AgentPart):
    """The named processes of servers."""

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


class AgentMembers(AgentPart):
    """Changes of the members: the subject knows how, the backend knows the nodes."""

    _nodes: Mapping[str, AgentNode]

    def why_no_members(self) -> str:
        """Why the members cannot change; "" if they can."""
        if self.spec.members is None:
            return "the members of the system under test cannot change while it runs"
        return ""

    async def members(self) -> frozenset[str]:
        """See Cluster.members."""
        return await self._changing().members(self._servers())

    async def remove_member(self, server: str) -> None:
        """See Cluster.remove_member."""
        await self._changing().remove(self._servers(), self._nodes[server])

    async def add_member(self, server: str, *, wiped: bool = False) -> None:
        """See Cluster.add_member."""
        await self._changing().add(self._servers(), self._nodes[server], wiped=wiped)

    def _servers(self) -> list[AgentNode]:
        return [self._nodes[name] for name in self.spec.servers]

    def _changing(self) -> Members:
        if self.spec.members is None:
            raise CannotInject(self.why_no_members())
        return self.spec.members
