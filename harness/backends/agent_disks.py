"""The disks of nodes that have an agent: put under FUSE when the node is made, ordered and probed afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.agent.disk.verbs import DATA
from harness.backends.agent_link import AgentLink
from harness.backends.backend import ClusterSpec
from nemesis.cluster import DISK, CannotInject

_MOUNT_S = 20.0
_LOSS_S = 30.0


class AgentDisks:
    """Part of `AgentCluster`."""

    spec: ClusterSpec
    _disk_problem: str | None = None
    """Why the last node's disk could not be mounted; None before the first was tried."""

    def _link(self, name: str) -> AgentLink:
        raise NotImplementedError

    async def data_folder(self, link: AgentLink, folder: str) -> str:
        """The folder for a server's data below `folder`: under FUSE if the run needs that and the node can do it.

        Where it cannot, `why_no_disk` says why, and every fault of disks is refused for that reason.
        """
        if DISK not in self.spec.wanted or link.name not in self.spec.servers:
            return f"{folder}/data"
        try:
            await link.call("disk.mount", {"path": f"{folder}/disk", "root": f"{folder}/kept"}, timeout_s=_MOUNT_S)
        except OSError as problem:
            self._disk_problem = (
                f"{problem.strerror or problem}.  It needs /dev/fuse, the right to mount (CAP_SYS_ADMIN), "
                f"and Debian's libfuse3-3"
            )
            return f"{folder}/data"
        self._disk_problem = ""
        return f"{folder}/disk/{DATA}"

    def why_no_disk(self) -> str:
        """Why the disks of the servers cannot fail here; "" if they can, as far as is known by now."""
        if self._disk_problem is None:
            return "" if DISK in self.spec.wanted else "the run was made without disks that can fail"
        return self._disk_problem

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
        """See Cluster.lose_power."""
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
        await self._order(
            server, "disk.damage", {"files": self.spec.notices_damage[how], "how": how, "seed": seed}, _LOSS_S
        )

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
