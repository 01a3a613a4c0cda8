"""Changes of the members, on nodes that have an agent: the subject knows how, the backend knows the nodes."""

from __future__ import annotations

from collections.abc import Mapping

from harness.backends.backend import ClusterSpec
from harness.backends.with_agents.link import AgentNode
from nemesis.cluster import CannotInject
from system_under_test.subject import Members


class AgentMembers:
    """Part of `AgentCluster`."""

    spec: ClusterSpec
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

    async def add_member(self, server: str) -> None:
        """See Cluster.add_member."""
        await self._changing().add(self._servers(), self._nodes[server])

    def _servers(self) -> list[AgentNode]:
        return [self._nodes[name] for name in self.spec.servers]

    def _changing(self) -> Members:
        if self.spec.members is None:
            raise CannotInject(self.why_no_members())
        return self.spec.members
