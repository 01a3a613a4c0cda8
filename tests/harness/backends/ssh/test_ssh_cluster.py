"""One cluster on three hosts, and everything a subject and a nemesis do to it.

The monotonic clocks of the hosts differ by days: code that compares them fails here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from cluster_links import LISTENER, TALKER, closed_links, cut, until_file_holds
from docker_things import needs_docker
from ssh_hosts import FOLDER, SshHosts

from harness.agent.network import FirewallTables
from harness.backends import ssh_backend as backend
from harness.backends.backend import ClusterSpec
from harness.backends.ssh_backend import SshBackend
from nemesis.cluster import CLOCK, DISK, LINKS, PACKETS, REJECT
from system_under_test.subject import NodeGone

pytestmark = [*needs_docker, pytest.mark.asyncio(loop_scope="module")]

SERVERS, CLIENTS = ("n1", "n2"), ("c1",)
DECOYS = {
    "table": "table ip mine",
    "krucible's table of another kind": "table inet krucible_ssh",
    "process": "sleep 86413",
    "file": f"file {FOLDER}/notes",
    "folder": f"file {FOLDER}/backup",
}
_MAKE_DECOYS = f"""
nft add table ip mine
nft add chain ip mine kept '{{ type filter hook input priority 0; policy accept; }}'
nft add rule ip mine kept ip saddr 198.18.255.255 drop
nft add table inet krucible_ssh
mkdir -p {FOLDER}/backup
touch {FOLDER}/notes
"""


@pytest.fixture(scope="module")
def decoys(shared_hosts: SshHosts) -> Iterator[SshHosts]:
    """Things of others on every host; all are there still when the run is over."""
    for host in shared_hosts.address_of:
        shared_hosts.run(host, "sh", "-ec", _MAKE_DECOYS)
        shared_hosts.begin(host, "sleep", "86413")
    yield shared_hosts
    for host in shared_hosts.address_of:
        there = shared_hosts.run(host, "nft", "list", "ruleset") + shared_hosts.run(host, "ps", "-eo", "args")
        there += "".join(f"file {path}\n" for path in shared_hosts.run(host, "find", FOLDER).split())
        assert [name for name, mark in DECOYS.items() if mark not in there] == []
        assert "ip saddr 198.18.255.255 drop" in there
        shared_hosts.run(
            host, "sh", "-c", f"nft delete table ip mine; nft delete table inet krucible_ssh; rm -r {FOLDER}"
        )
        shared_hosts.run(host, "sh", "-c", "kill $(ps -eo pid,args | awk '$2 == \"sleep\" && $3 == 86413 {print $1}')")
        assert shared_hosts.left_on(host) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(decoys: SshHosts) -> AsyncIterator[SshBackend]:
    inventory = decoys.inventory(("alpha", "beta"), ("gamma",))
    wanted = frozenset({DISK, CLOCK})
    backend = SshBackend(ClusterSpec("cluster", SERVERS, CLIENTS, seed=1, wanted=wanted, inventory=inventory))
    try:
        await backend.create(print)
        yield backend
    finally:
        await backend.destroy()
        await backend.destroy()  # safe to call twice
    assert backend.leftovers == []


# ---- links ---------------------------------------------------------------------------------------------------------


async def test_one_direction_both_and_clients(cluster: SshBackend) -> None:
    assert await closed_links(cluster) == set()
    for links in ({("n1", "n2")}, {("n1", "n2"), ("n2", "n1")}, {("c1", "n1"), ("n2", "c1")}):
        async with cut(cluster, links) as seen:
            assert seen == links
    assert await closed_links(cluster) == set()


async def test_a_new_cut_replaces_the_old_one_unless_it_names_an_unknown_node(cluster: SshBackend) -> None:
    async with cut(cluster, {("n1", "n2")}):
        await cluster.cut({("n2", "c1")})
        with pytest.raises(KeyError):
            await cluster.cut({("n1", "n9"), ("n1", "n2")})
        assert await closed_links(cluster) == {("n2", "c1")}


async def test_no_cut_ever_touches_the_connection_of_the_harness(cluster: SshBackend, decoys: SshHosts) -> None:
    """As if the harness' machine were a node, too: what else comes from it is dropped."""
    visit = cluster._visits["n1"]
    assert visit.facts.control is not None
    text = backend.replace_cut(cluster._table, backend.HostCut(frozenset({visit.facts.control[0]})))
    await cluster._link("n1").ask(FirewallTables.apply, text, [])
    try:
        with pytest.raises(TimeoutError), socket.create_connection((decoys.address_of["alpha"], 22), 0.5):
            pass
        assert await cluster.state("n1") == "dead"
        assert (await cluster.node("n1").run(["echo", "heard"])).stdout == b"heard\n"
    finally:
        cluster._dropped.clear()
        await cluster.cut(())


async def test_an_order_that_may_not_have_arrived_is_given_again(
    cluster: SshBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = cluster._link("n2")

    async def silent(*_: object, **__: object) -> None:
        raise NodeGone("n2: no answer to nft within 10 s")

    await cluster.cut({("n1", "n2")})
    with monkeypatch.context() as patch:
        patch.setattr(link, "call", silent)
        with pytest.raises(NodeGone):
            await cluster.cut(())
    await cluster.cut({("n1", "n2")})
    await cluster.cut(())
    assert await closed_links(cluster) == set()


async def test_a_rejected_link_resets_tcp_and_a_cut_one_does_not(cluster: SshBackend) -> None:
    n1, n2 = cluster.node("n1"), cluster.node("n2")
    output, listens = f"{n1.log_dir}/talker.log", f"{n2.log_dir}/listener.log"
    links = {("n1", "n2")}
    await n2.start(["python3", "-c", LISTENER, n2.address], output=listens)
    try:
        await until_file_holds(n2, listens, b"listens\n")
        await n1.start(["python3", "-c", TALKER, n2.address], output=output)
        await until_file_holds(n1, output, b"connected\n")
        await cluster.cut(links)
        assert await closed_links(cluster) == links
        assert await n1.read(output) == b"connected\n", "a silent cut lets the connection wait"
        await cluster.cut(links, {("n1", "n2")})
        assert await closed_links(cluster) == links
        await until_file_holds(n1, output, b"connected\nreset\n")
    finally:
        await cluster.cut(())
        for server in ("n1", "n2"):
            await cluster.kill(server)
    assert await closed_links(cluster) == set()


# ---- processes and clocks ------------------------------------------------------------------------------------------


async def test_a_server_is_killed_at_a_time_of_the_harness_and_started_again(cluster: SshBackend) -> None:
    node = cluster.node("n1")
    await node.start(["sleep", "1000"])
    before_ns = time.monotonic_ns()
    await cluster.kill("n1")
    after_ns = time.monotonic_ns()
    assert await cluster.state("n1") == "dead"
    end, error_ns = cluster.exits()[-1], cluster.clocks()["n1"].error_ns
    assert (end.node, end.status, end.ordered) == ("n1", -9, True)
    assert before_ns - error_ns <= end.monotonic_ns <= after_ns + error_ns
    cluster.restart_with(lambda again: again.start(["sleep", "1000"]))
    await cluster.restart("n1")
    assert await cluster.state("n1") == "running"
    await cluster.stop("n1")


async def test_clocks_of_their_own_are_measured(cluster: SshBackend) -> None:
    clocks = cluster.clocks()
    for node, ahead_s in (("n1", 100_000), ("n2", 0), ("c1", 7_000)):
        assert abs(clocks[node].ahead_ns - ahead_s * 10**9) <= clocks[node].error_ns
        assert clocks[node].error_ns < 10**9
        # time since boot, shifted in the same way
        uptime = await cluster.node(node).run(["cut", "-d ", "-f1", "/proc/uptime"])
        here_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert abs(float(uptime.stdout) - here_s - ahead_s) < 30
    assert any("no verdict compares two clocks" in note for note in cluster.notes)


# ---- disks ---------------------------------------------------------------------------------------------------------


async def test_a_disk_under_fuse_loses_what_was_not_fsynced(cluster: SshBackend) -> None:
    assert [cluster.lacks(capability) for capability in (DISK, LINKS, REJECT)] == ["", "", ""]
    assert "no switch lies between hosts" in cluster.lacks(PACKETS)
    assert "/disk fuse" in (await cluster.node("n1").run(["cat", "/proc/mounts"])).stdout.decode()
    await cluster.lose_power("n1", "lose", 1)
    loss = await cluster.power_loss("n1")
    assert (loss["fsynced_kept"], loss["not_fsynced_kept"]) == (1, 0)
