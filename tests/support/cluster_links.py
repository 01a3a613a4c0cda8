"""Links between the nodes of a real cluster: which are silent, what TCP does on them, and programs that use them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping

from waiting import PATIENCE_S

from harness.backends.docker_backend import DockerBackend
from harness.backends.ssh_backend import SshBackend
from nemesis.cluster import Beacons, Link
from system_under_test.subject import Node

RealCluster = DockerBackend | SshBackend

ENOUGH = 50
"""Number of beacons that must be sent on a link before silence counts."""
ATTEMPTS = 10

LISTENER = """
import socket, sys
with socket.create_server((sys.argv[1], 9998)) as server:
    print("listens", flush=True)
    kept = []
    while True:
        kept.append(server.accept())
"""
"""Accepts connections on port 9998 of the given address and never reads."""

TALKER = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 9998))
print("connected", flush=True)
try:
    while True:
        connection.sendall(b"more")
        time.sleep(0.05)
except ConnectionResetError:
    print("reset", flush=True)
"""
"""Writes to the LISTENER at the given address until the connection is reset."""


def directed_links(nodes: Iterable[str]) -> list[Link]:
    """Every directed pair of different nodes."""
    names = list(nodes)
    return [(source, to) for source in names for to in names if source != to]


async def beacons_of(cluster: RealCluster) -> Mapping[Link, Beacons]:
    """A window in which every link was sent at least ENOUGH beacons; a busy machine needs a longer one."""
    window_s = 0.3
    while True:
        seen = await cluster.observe(window_s, 2.0)
        assert seen.keys() == set(directed_links([*cluster.servers, *cluster.clients]))
        if all(beacons.sent >= ENOUGH for beacons in seen.values()):
            return seen
        window_s = min(2 * window_s, 10.0)


async def closed_links(cluster: RealCluster) -> set[Link]:
    """The links on which nothing arrived; every other link must be well open.  A busy machine may hold beacons up."""
    for _ in range(ATTEMPTS):
        seen = await beacons_of(cluster)
        partly = {link: b for link, b in seen.items() if 0 < b.received < b.sent // 2}
        if not partly:
            break
    assert not partly, f"links that are neither open nor cut: {partly}"
    return {link for link, beacons in seen.items() if not beacons.received}


@contextlib.asynccontextmanager
async def cut(cluster: RealCluster, links: Collection[Link]) -> AsyncIterator[set[Link]]:
    """With these links cut: the links on which nothing arrived."""
    try:
        await cluster.cut(links)
        yield await closed_links(cluster)
    finally:
        await cluster.cut(())


async def until_file_holds(node: Node, path: str, content: bytes) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await node.read(path) != content:  # noqa: ASYNC110 - it happens on the node
            await asyncio.sleep(0.05)


async def until_retransmitted(node: Node, port: int) -> None:
    """Until the node's TCP has sent something to this remote port a second time, because nothing was acknowledged."""
    async with asyncio.timeout(PATIENCE_S):
        while not _is_retransmitting((await node.run(["cat", "/proc/net/tcp"])).stdout.decode(), port):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _is_retransmitting(table: str, port: int) -> bool:
    """table: /proc/net/tcp, see proc(5)."""
    for line in table.splitlines()[1:]:
        _, _, remote, _, _, _, retransmits, *_ = line.split()
        if remote.endswith(f":{port:04X}") and int(retransmits, 16) > 0:
            return True
    return False
