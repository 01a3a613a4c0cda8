"""Who could reach a majority during a fault: the question on which every partition of a quorum turns.

The links that a fault leaves open are a directed graph over servers and client nodes.  Two nodes can talk if both
directions between them are open.  A server reaches a majority if it can talk to enough other servers itself, because
servers do not forward for each other.  A client reaches one if it can talk to such a server.  The connected components
of that graph are the sides of the partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import networkx

from harness.plain_words import listed, natural
from nemesis.cluster import Link
from nemesis.grudges import grudge_graph, reaching_majority, talking


@dataclass(frozen=True, slots=True)
class Side:
    """Nodes that can still talk, directly or through each other.

    reach: those that reach a majority of the servers.  cut_off: the others.  servers: how many of them are servers.
    most_reached: the largest number of servers that one of them can talk to itself, with itself if it is a server.
    """

    reach: tuple[str, ...]
    cut_off: tuple[str, ...]
    servers: int
    most_reached: int

    def words(self, server_count: int) -> str:
        """One sentence."""
        together = f"{self.servers} of {server_count} servers together"
        if not self.cut_off:
            return f"{listed(self.reach)} could reach a majority: {together}."
        if not self.reach and self.most_reached < self.servers:
            most = f"no server talked to more than {self.most_reached} of {server_count}, itself included"
            return f"{listed(self.cut_off)} could not: {most}."
        if not self.reach:
            return f"{listed(self.cut_off)} could not: {together}."
        return f"{listed(self.reach)} could reach a majority, {listed(self.cut_off)} could not."


def sides(servers: Sequence[str], nodes: Iterable[str], cut: Collection[Link]) -> list[Side]:
    """The sides of a fault that cuts these links, the one with most servers first.  nodes: servers and client nodes."""
    grudge = grudge_graph({*servers, *nodes}, cut)
    can_talk = talking(grudge)
    able = reaching_majority(grudge, servers)
    reach = able | {node for node in can_talk if node not in servers and able & set(can_talk[node])}
    found = []
    for members in networkx.connected_components(can_talk):
        ordered = sorted(members, key=lambda name: (name not in servers, natural(name)))
        found.append(
            Side(
                reach=tuple(n for n in ordered if n in reach),
                cut_off=tuple(n for n in ordered if n not in reach),
                servers=sum(n in servers for n in members),
                most_reached=max((_reached(n, can_talk, servers) for n in members if n in servers), default=0),
            )
        )
    return sorted(found, key=lambda side: (-side.servers, side.reach, side.cut_off))


def _reached(server: str, can_talk: networkx.Graph, servers: Sequence[str]) -> int:
    return 1 + sum(other in servers for other in can_talk[server])
