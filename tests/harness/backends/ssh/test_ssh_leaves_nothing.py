"""Nothing is left on a host, however a run ends: killed at any moment, cut off, or with its guard dead.

What is left is looked for by the tests' own means: files, rules, mounts, the lock, and processes by their environment.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from docker_things import needs_docker, seconds_until
from held_cluster import HeldCluster
from ssh_hosts import FOLDER, SshHosts
from waiting import PATIENCE_S

from harness.backends.backend import ClusterSpec
from harness.backends.ssh_backend import SshBackend
from harness.backends.ssh_inventory import read_inventory
from harness.backends.ssh_visit import Visit, sweep_hosts
from nemesis.cluster import DISK
from system_under_test.subject import NodeGone

pytestmark = needs_docker


class Harness(HeldCluster):
    def __init__(self, hosts: SshHosts) -> None:
        self.hosts = hosts
        inventory = hosts.inventory(("alpha", "beta"), ("gamma",))
        super().__init__("ssh", f"kill{time.monotonic_ns() % 10**9}", inventory, DISK)


@pytest.fixture
def harness(hosts: SshHosts) -> Iterator[Harness]:
    started = Harness(hosts)
    yield started
    started.kill_if_alive()


@asynccontextmanager
async def a_cluster(hosts: SshHosts, run_id: str, silence_s: float = 60.0) -> AsyncIterator[SshBackend]:
    """Two servers, one of which runs, a cut link and disks under FUSE."""
    inventory = hosts.inventory(("alpha", "beta"), ("gamma",))
    spec = ClusterSpec(run_id, ("n1", "n2"), ("c1",), seed=1, wanted=frozenset({DISK}), inventory=inventory)
    backend = SshBackend(spec)
    backend.silence_s = silence_s
    try:
        await backend.create(print)
        await backend.node("n1").start(["sh", "-c", "env -i setsid sleep 86414 & exec sleep 1000"])
        await backend.cut({("n2", "n1"), ("n1", "n2")})
        yield backend
    finally:
        await backend.destroy()


def pids(hosts: SshHosts, host: str, words: str) -> list[str]:
    """Of the processes whose command line matches."""
    listing = hosts.run(host, "ps", "-eo", "pid,args").splitlines()
    return [line.split()[0] for line in listing if re.search(words, line)]


def kill(hosts: SshHosts, host: str, words: str) -> None:
    """All at one moment: a guard that outlives its agent for an instant begins to clean up."""
    found = pids(hosts, host, words)
    assert found
    for signal_name in ("-STOP", "-KILL"):
        hosts.run(host, "kill", signal_name, *found)


def everything(hosts: SshHosts, host: str) -> set[str]:
    """What sorts of things a run has on a host."""
    marks = {"file": "file ", "rules": "table ip", "mount": "fuse", "process": "process ", "lock": "@krucible"}
    left = "\n".join(hosts.left_on(host))
    return {sort for sort, mark in marks.items() if mark in left}


def test_killed_while_everything_runs(harness: Harness) -> None:
    harness.wait_for("up")
    assert everything(harness.hosts, "alpha") == {"file", "rules", "mount", "process", "lock"}
    harness.kill()
    print(f"gone after {harness.hosts.seconds_until_clean():.1f} s")


@pytest.mark.parametrize(
    "after_s", [3.0, *(pytest.param(random.Random(n).uniform(0.0, 12.0), marks=pytest.mark.nightly) for n in range(20))]
)
def test_killed_at_any_moment(harness: Harness, after_s: float) -> None:
    time.sleep(after_s)
    harness.kill()
    print(f"gone after {harness.hosts.seconds_until_clean():.1f} s")


def test_interrupted(harness: Harness) -> None:
    harness.wait_for("up")
    harness.process.send_signal(signal.SIGINT)
    harness.process.wait(PATIENCE_S)
    assert [harness.hosts.left_on(host) for host in harness.hosts.address_of] == [[], [], []]


async def test_a_run_that_ends_leaves_nothing_not_even_what_hid_from_it(hosts: SshHosts) -> None:
    """The server has started a process in a session of its own and without the run's mark."""
    async with a_cluster(hosts, "ends") as backend:
        await asyncio.to_thread(seconds_until, lambda: pids(hosts, "alpha", "sleep 86414"))
    assert backend.leftovers == []
    assert [hosts.left_on(host) for host in hosts.address_of] == [[], [], []]
    assert pids(hosts, "alpha", "sleep 86414") == []


async def test_the_connection_is_cut_in_mid_run(hosts: SshHosts) -> None:
    async with a_cluster(hosts, "cutoff") as backend:
        await asyncio.to_thread(kill, hosts, "alpha", "sshd: root@")
        await asyncio.to_thread(seconds_until, lambda: not hosts.left_on("alpha"))
        with pytest.raises(NodeGone, match="n1: its agent is gone"):
            await backend.node("n1").state()
        assert await backend.state("n2") == "dead"
        with pytest.raises(NodeGone):
            await backend.cut(())
        assert not re.search("elements", hosts.run("beta", "nft", "list", "ruleset")), "the others heal all the same"
    assert len(backend.leftovers) == 1
    assert re.match(r"alpha \(.*\) did not confirm that everything was removed", backend.leftovers[0])


async def test_a_network_that_dies_in_silence_is_the_end_as_well(hosts: SshHosts) -> None:
    """No end of file ever arrives: nothing from the harness' address does."""
    gateway = hosts.address_of["beta"].rpartition(".")[0] + ".1"
    chain = f"type filter hook input priority 0; ip saddr {gateway} drop;"
    async with a_cluster(hosts, "silent", silence_s=10.0):
        assert hosts.run("beta", "nft", f"table ip silent {{ chain arriving {{ {chain} }}; }}") == ""
        try:
            await asyncio.to_thread(seconds_until, lambda: not hosts.left_on("beta"))
        finally:
            hosts.run("beta", "nft", "delete table ip silent")
        assert everything(hosts, "alpha") == {"file", "rules", "mount", "process", "lock"}, "others live on"


async def test_the_agent_is_killed(hosts: SshHosts) -> None:
    async with a_cluster(hosts, "headless"):
        await asyncio.to_thread(kill, hosts, "alpha", r"-m harness\.agent$")
        await asyncio.to_thread(seconds_until, lambda: not hosts.left_on("alpha"))


async def test_the_guard_is_killed(hosts: SshHosts) -> None:
    """The agent then ends in order; files stay, and the next run removes them."""
    async with a_cluster(hosts, "guardless"):
        await asyncio.to_thread(kill, hosts, "alpha", r"-m harness\.agent\.guard")
        done = {"file"}
        await asyncio.to_thread(seconds_until, lambda: everything(hosts, "alpha") <= done)
    reports: list[str] = []
    backend = SshBackend(ClusterSpec("next", ("n1",), (), seed=1, inventory=hosts.inventory(("alpha",), ())))
    try:
        await backend.create(reports.append)
    finally:
        await backend.destroy()
    assert [words for words in reports if "removed" in words] == [
        f"removed from alpha ({hosts.address_of['alpha']}) what the dead run guardless had left"
    ]
    assert backend.leftovers == []


async def test_a_sweep_removes_what_is_left_when_guard_and_agent_are_killed_at_once(
    hosts: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Visit.enter, "__defaults__", (1.0,))
    async with a_cluster(hosts, "dead"):
        await asyncio.to_thread(kill, hosts, "alpha", r"harness\.agent")
        assert {"file", "rules", "process"} <= everything(hosts, "alpha")
        inventory = read_inventory(Path(hosts.inventory(("alpha", "beta"), ("gamma",))))
        swept = await sweep_hosts(inventory, "sweep")
    removed = {host.name: found.removed for host, found in swept.items()}
    assert removed == {"alpha": ("dead",), "beta": (), "gamma": ()}
    left = {host.name: found.left for host, found in swept.items()}
    assert left["alpha"] == ()
    assert all("another run is using this host (dead)" in "".join(left[name]) for name in ("beta", "gamma"))
    assert f"file {FOLDER}" not in "".join(hosts.left_on("alpha"))
