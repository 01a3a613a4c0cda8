"""One cluster of containers, and everything a subject and a nemesis do to it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from cluster_links import closed_links, cut, directed_links
from docker_things import enable_ipv6, forget_neighbours, left_of, needs_docker
from waiting import PATIENCE_S

from checkers.base.history import Type
from harness.backends.backend import ClusterSpec
from harness.backends.docker_backend import DockerBackend
from harness.backends.docker_engine import connect
from nemesis.cluster import Link
from system_under_test.client import Request
from system_under_test.subject import Node, NodeGone

pytestmark = [*needs_docker, pytest.mark.asyncio(loop_scope="module")]

SERVERS, CLIENTS = ("n1", "n2", "n3"), ("c1", "c2")


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[DockerBackend]:
    run_id = f"test-{os.getpid()}"
    backend = DockerBackend(ClusterSpec(run_id, SERVERS, CLIENTS, seed=1))
    try:
        await backend.create(print)
        yield backend
    finally:
        await backend.destroy()
        await backend.destroy()  # safe to call twice
    assert left_of(run_id) == []


# ---- links ---------------------------------------------------------------------------------------------------------


async def test_links_are_cut_one_way_and_between_sides_and_a_new_cut_replaces_the_old_one(
    cluster: DockerBackend,
) -> None:
    assert await closed_links(cluster) == set()
    side = {"n1", "c1"}
    halves = {(a, b) for a, b in directed_links([*SERVERS, *CLIENTS]) if (a in side) != (b in side)}
    for links in ({("n1", "n2")}, halves):
        async with cut(cluster, links) as seen:
            assert seen == links
            await cluster.cut({("n3", "c2")})
            assert await closed_links(cluster) == {("n3", "c2")}
    assert await closed_links(cluster) == set()


@pytest.mark.parametrize(
    ("impairment", "fits"),
    [
        ({"corrupt": 0.3}, lambda seen: seen["received"] < 0.9 * seen["sent"]),
        ({"delay_s": 0.2, "jitter_s": 0.1}, lambda seen: seen["delay_ms"] >= 190.0),
    ],
    ids=["corrupt", "late"],
)
async def test_an_impairment_is_measured_and_only_there(
    cluster: DockerBackend, impairment: dict[str, float], fits: Callable[[Mapping[str, float]], bool]
) -> None:
    async def shows(link: Link, wanted: bool) -> None:
        """Some burst shows it.  A busy machine holds datagrams up, so the last ones of a burst get more time."""
        measured = []
        for wait_s in (0.6, 2.0, *[6.0] * 10):
            measured.append(await cluster.try_link(link, 200, 0.002, wait_s))
            if fits(measured[-1]) is wanted:
                return
        pytest.fail(f"{link}: {measured}")

    await cluster.impair({("n1", "n2"): impairment}, 7)
    try:
        await shows(("n1", "n2"), True)
        await shows(("n2", "n1"), False)
    finally:
        await cluster.impair({}, 0)
    await shows(("n1", "n2"), False)
    with pytest.raises(OSError, match="loss must be from 0 to 1"):
        await cluster.impair({("n1", "n2"): {"loss": 1.5}}, 1)


async def test_a_link_cut_for_long_opens_at_once_and_the_other_direction_stays_open(cluster: DockerBackend) -> None:
    """Nodes forget each other's ARP entries meanwhile.  They find each other again, because no ARP is dropped."""
    async with cut(cluster, {("n1", "n2")}):
        for node in ("n1", "n2"):  # as if minutes had passed
            await asyncio.to_thread(forget_neighbours, cluster.spec.run_id, node)
        assert await closed_links(cluster) == {("n1", "n2")}
    assert await closed_links(cluster) == set()


async def test_a_cut_drops_multicast_broadcast_and_ipv6(cluster: DockerBackend) -> None:
    """Of each sort a datagram arrives before the cut, none in it, and one again after it."""
    for node in SERVERS:
        await asyncio.to_thread(enable_ipv6, cluster.spec.run_id, node)
    async with group_talk([cluster.node(name) for name in SERVERS]) as talk:
        await talk.until_all_hear(directed_links(SERVERS), SORTS)
        await cluster.cut({("n1", "n2")})
        await talk.forget()
        await talk.until_all_hear(set(directed_links(SERVERS)) - {("n1", "n2")}, SORTS)
        assert talk.heard("n1", "n2") == set()
        await cluster.cut({("n3", node) for node in ("n1", "n2")} | {(node, "n3") for node in ("n1", "n2")})
        await talk.forget()
        await talk.until_all_hear({("n1", "n2"), ("n2", "n1")}, SORTS)
        for other in ("n1", "n2"):
            assert talk.heard("n3", other) == talk.heard(other, "n3") == set()
        await cluster.cut(())
        await talk.until_all_hear(directed_links(SERVERS), SORTS)


# ---- processes -----------------------------------------------------------------------------------------------------


async def test_the_agent_is_process_one_and_reaps_orphans(cluster: DockerBackend) -> None:
    node = cluster.node("n3")
    await node.run(["sh", "-c", "(sleep 0.1 &) & exit 0"])
    async with asyncio.timeout(PATIENCE_S):
        while True:
            listing = (await node.run(["ps", "-eo", "pid,stat,args"])).stdout.decode()
            assert "1 " in listing and "harness.agent" in listing
            if "sleep" not in listing and "defunct" not in listing:
                break


# ---- files and clients ---------------------------------------------------------------------------------------------


async def test_every_module_of_the_nodes_loads_in_the_image(cluster: DockerBackend) -> None:
    """What runs on nodes needs nothing that the image has not got."""
    node = cluster.node("n1")
    modules = [
        "harness.agent.process",
        "checkers.base.history",
        "system_under_test.client",
        "system_under_test.subject",
    ]
    modules += [
        "system_under_test.kraft.node.node",
        "system_under_test.kraft.client",
        "system_under_test.etcd_client",
    ]
    done = await node.run([*node.python, "-c", f"import {', '.join(modules)}, sys; assert 'numpy' not in sys.modules"])
    assert done.status == 0, done.stderr.decode()
    assert (await node.run(["etcd", "--version"])).status == 0


async def test_health_names_every_node(cluster: DockerBackend) -> None:
    health = await cluster.health()
    assert health.steal_s.keys() == {*SERVERS, *CLIENTS}
    assert all(0 <= steal_s < 600 for steal_s in health.steal_s.values())


# ---- how the containers are made -----------------------------------------------------------------------------------


async def test_nodes_have_no_capabilities_and_everything_is_labelled(cluster: DockerBackend) -> None:
    api = connect().api
    run_id = cluster.spec.run_id
    (network,) = api.networks(filters={"label": f"krucible.run={run_id}"})
    assert network["Internal"], "it has no way out"
    listed = api.containers(filters={"label": f"krucible.run={run_id}"})
    assert {c["Names"][0] for c in listed} == {f"/krucible-{run_id}-{n}" for n in (*SERVERS, *CLIENTS, "helper")}
    for container in listed:
        seen = api.inspect_container(container["Id"])
        assert seen["Config"]["StdinOnce"] and seen["HostConfig"]["AutoRemove"]
        assert not seen["HostConfig"]["Privileged"]
        assert seen["HostConfig"]["CapDrop"] == ["ALL"]
        helper = seen["Name"].endswith("-helper")
        assert (seen["HostConfig"]["CapAdd"] or []) == (["NET_ADMIN", "NET_RAW"] if helper else [])
        assert seen["Config"]["Labels"]["krucible.owner"].startswith(f"{os.getpid()}:")


async def test_two_runs_at_once_do_not_touch_each_other(cluster: DockerBackend) -> None:
    """Another cluster comes, cuts, and goes; the first keeps its own cut throughout."""
    other = DockerBackend(ClusterSpec(f"other-{os.getpid()}", ("n1", "n2"), (), seed=2))
    async with cut(cluster, {("n1", "n2")}):
        try:
            await other.create(print)
            await other.cut({("n2", "n1")})
            theirs, ours = await asyncio.gather(closed_links(other), closed_links(cluster))
            assert (theirs, ours) == ({("n2", "n1")}, {("n1", "n2")})
        finally:
            await other.destroy()
        assert await closed_links(cluster) == {("n1", "n2")}
    assert left_of(other.spec.run_id) == []


async def test_a_node_whose_container_died_is_gone_and_its_links_are_left_out(cluster: DockerBackend) -> None:
    """Last, because the container does not come back."""
    name = f"krucible-{cluster.spec.run_id}-c2"
    await asyncio.to_thread(subprocess.run, ["docker", "kill", name], check=True, capture_output=True, timeout=120)
    with pytest.raises(NodeGone, match="c2: its agent is gone"):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await cluster.node("c2").state()
    seen = await cluster.observe(0.1, 5.0)
    assert seen.keys() == set(directed_links([*SERVERS, "c1"]))


async def test_before_it_is_created_nothing_answers() -> None:
    backend = DockerBackend(ClusterSpec("never", ("n1",), ("c1",), seed=1))
    with pytest.raises(NodeGone, match="n1: there is no such node"):
        backend.node("n1")
    outcome = await backend.client_host("c1").invoke(0, Request("read"), 1.0)
    assert outcome.type is Type.INFO
    await backend.destroy()


async def test_a_run_id_that_cannot_be_part_of_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot stand in a container's name"):
        DockerBackend(ClusterSpec("a b; rm", ("n1",), (), seed=1))
