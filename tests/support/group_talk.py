"""Nodes that talk to each other by multicast, by broadcast and by IPv6, as systems do that discover their members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from waiting import PATIENCE_S

from nemesis.cluster import Link
from system_under_test.subject import Node

SORTS = frozenset({"broadcast", "multicast", "multicast-6", "unicast-6"})
"""What nodes in one /24 hear of each other."""

_TALKER = """
import contextlib, os, socket, sys, threading, time

name, address, *peers = sys.argv[1:]
number = socket.if_nametoindex("eth0")

def hear(end):
    while True:
        os.write(1, end.recv(100) + b"\\n")

four = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
four.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
four.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
four.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
four.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + socket.inet_aton(address))
four.bind(("", 9997))
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
six.bind(("::", 9997))
for end in (four, six):
    threading.Thread(target=hear, args=(end,), daemon=True).start()
sent = 0
while True:
    sent += 1
    sorts = [(four, "multicast", ("239.1.2.3", 9997)), (four, "broadcast", (address.rpartition(".")[0] + ".255", 9997))]
    sorts += [(six, "multicast-6", ("ff02::1", 9997, 0, number))]
    sorts += [(six, "unicast-6", (peer, 9997, 0, number)) for peer in peers]
    for end, sort, to in sorts:
        with contextlib.suppress(OSError):  # IPv6 is not there, or its address is still being checked
            end.sendto(f"{name} {sort} {sent}".encode(), to)
    os.write(1, f"sent {sent}\\n".encode())
    time.sleep(0.05)
"""


class GroupTalk:
    """What each node has heard since the last `forget`."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._heard: dict[Link, set[str]] = {}
        self._after = dict.fromkeys(self._nodes, 0)

    def heard(self, source: str, to: str) -> set[str]:
        """Sorts of datagrams, sent after the last `forget`."""
        return self._heard.get((source, to), set())

    async def forget(self) -> None:
        """Only what is sent from now on counts."""
        for name in self._nodes:
            sent = [int(words[1]) for words in await self._lines(name) if words[0] == "sent"]
            self._after[name] = max(sent, default=0) + 1  # the next number may already be in use
        self._heard = {}

    async def until_all_hear(self, links: Collection[Link], sorts: Collection[str]) -> None:
        """Fails if these links do not carry all these sorts in time."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(self.heard(*link) >= set(sorts) for link in links):
                await asyncio.sleep(0.1)
                for to in self._nodes:
                    for words in await self._lines(to):
                        if words[0] != "sent" and int(words[2]) > self._after[words[0]]:
                            self._heard.setdefault((words[0], to), set()).add(words[1])

    async def _lines(self, name: str) -> list[list[str]]:
        whole, _, _ = (await self._nodes[name].read(_log(self._nodes[name]))).rpartition(b"\n")
        return [line.split() for line in whole.decode().splitlines()]


@asynccontextmanager
async def group_talk(nodes: Sequence[Node]) -> AsyncIterator[GroupTalk]:
    """Every node sends datagrams of each sort every 50 ms; programs that are servers of these nodes.  They are killed
    at the end."""
    peers = {node.name: await _link_local(node) for node in nodes}
    try:
        for node in nodes:
            await node.run(["rm", "-f", _log(node)])
            others = [address for name, address in peers.items() if name != node.name and address]
            await node.start([*node.python, "-c", _TALKER, node.name, node.address, *others], output=_log(node))
        yield GroupTalk(nodes)
    finally:
        for node in nodes:
            await node.signal("KILL")


def _log(node: Node) -> str:
    return f"{node.log_dir}/group-talk.log"


async def _link_local(node: Node) -> str:
    """The address of IPv6 that every interface has which allows IPv6; "" without one."""
    for line in (await node.run(["cat", "/proc/net/if_inet6"])).stdout.decode().splitlines():
        digits, _, _, scope, _, interface = line.split()
        if (scope, interface) == ("20", "eth0"):
            return ":".join(digits[i : i + 4] for i in range(0, 32, 4))
    return ""
