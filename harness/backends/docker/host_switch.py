"""The switch in the helper container: packets on impaired links, and resets on rejected ones.

Kernels may lack netem, and bridges cannot reject with a reset everywhere.  So both are done by the userspace switch,
which needs neither.  It listens at the host's ends of the containers' veth pairs, in one of two ways.

    beside the bridge    the bridge carries and cuts; the switch only sends resets, while links are rejected
    instead of it        the switch takes the veth pairs over when the nodes are made, and carries every frame

The second way costs CPU time for every frame, so a run gets it only if its faults impair packets.  If the switch dies,
everything is cut.  In both ways the engine removes a container's veth pair together with the container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from harness.backends.with_agents.link import AgentLink, AgentNode
from nemesis.cluster import Link

_START_S = 60.0
_END = "/sys/class/net/eth0"


class HostSwitch:
    """helper: the link to the agent in the host's network.  nodes: of all containers, by name, once they are up."""

    def __init__(self, helper: AgentLink, nodes: Mapping[str, AgentNode]) -> None:
        self._helper = helper
        self._nodes = nodes
        self._running = False
        self._starting = asyncio.Lock()

    async def ports(self) -> dict[str, int]:
        """Node -> the index of the host's end of its veth pair, in the helper's network.  Raises OSError."""
        ends = await asyncio.gather(*(_port(name, node) for name, node in self._nodes.items()))
        return {name: number for name, number, *_ in ends}

    async def take_over(self) -> None:
        """Carry every frame from now on.  Raises OSError if the kernel or the engine denies it."""
        await self._start(carries=True)

    async def cut(self, links: Collection[Link], reject: Collection[Link]) -> None:
        """See Cluster.cut, for a switch that carries.  Raises KeyError for an unknown node."""
        self._demand_known(links)
        await self._order({"cut": sorted(links), "reject": sorted(reject)})

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """See Cluster.impair, for a switch that carries.  Raises KeyError for an unknown node."""
        self._demand_known(links)
        rows = [[*link, dict(impairment)] for link, impairment in sorted(links.items(), key=lambda item: item[0])]
        await self._order({"impair": rows, "seed": seed})

    async def answer_with_resets(self, links: Collection[Link]) -> None:
        """Beside a bridge that cuts: answer TCP on exactly these links with a reset.  Raises OSError as `take_over`."""
        async with self._starting:
            if not self._running:
                if not links:
                    return
                await self._start(carries=False)
        await self._order({"cut": [], "reject": sorted(links)})

    async def _start(self, *, carries: bool) -> None:
        ends = await asyncio.gather(*(_port(name, node) for name, node in self._nodes.items()))
        plan = {"ports": ends, "carries": carries, "release": carries}
        await self._helper.call("switch.start", plan, timeout_s=_START_S)
        self._running = True

    async def _order(self, order: Mapping[str, Any]) -> None:
        await self._helper.call("switch.order", order)

    def _demand_known(self, links: Collection[Link]) -> None:
        for node in {node for link in links for node in link}:
            if node not in self._nodes:
                raise KeyError(node)


async def _port(name: str, node: AgentNode) -> list[Any]:
    """What the switch must know of a node: the number of the host's end of its veth pair, and its addresses."""
    done = await node.run(["cat", f"{_END}/iflink", f"{_END}/address"])
    if done.status != 0:
        raise OSError(f"{name} shows no interface: {done.stderr.decode(errors='replace').strip()}")
    number, mac = done.stdout.decode().split()
    return [name, int(number), mac, node.address]
