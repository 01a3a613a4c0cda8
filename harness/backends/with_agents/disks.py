"""The disks of nodes that have an agent: put under FUSE when the node is made, ordered and probed afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.agent.disk.places import DATA
from harness.backends.backend import ClusterSpec
from harness.backends.with_agents.link import AgentLink, AgentNode
from nemesis.cluster import DISK, CannotInject

_MOUNT_S = 60.0
_LOSS_S = 90.0


class AgentDisks:
    """Part of `AgentCluster`."""

    spec: ClusterSpec
    _disk_problems: dict[str, str]
    """Server -> why its disk could not be mounted."""

    def _link(self, name: str) -> AgentLink:
        raise NotImplementedError

    def _node(self, name: str) -> AgentNode:
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
