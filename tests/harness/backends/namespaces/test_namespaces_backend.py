"""Real namespaces: links cut and proven, processes paused and killed, nothing left afterwards, even by kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
from cluster_links import until_retransmitted
from docker_things import needs_namespaces
from namespaces_clusters import CLIENTS, SERVERS, SLEEP, backend, made, processes_of
from waiting import PATIENCE_S, is_alive, until

from checkers.record.faults import Achieved, Card, FaultRecord, Measurement
from harness.backends.backend import BackendUnavailable
from harness.backends.namespaces_backend import why_unavailable
from nemesis.kind import LeaderNow, Scene
from nemesis.kinds import partition
from nemesis.measure import Hooks, proof_of
from nemesis.play import heal_all, play
from nemesis.resolve import MainPhase
from system_under_test.subject import NodeGone

pytestmark = [*needs_namespaces, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster():
    async with made("shared") as cluster:
        yield cluster


async def proven(cluster, cut) -> str:
    """The verdict of a proof; a busy machine gets more time to send enough."""
    await cluster.cut(cut)
    for window_s in (0.3, 1.0, 4.0, 16.0):
        verdict = await proof_over(cluster, cut, window_s)
        if not verdict.startswith("indeterminate"):
            break
    return verdict


async def proof_over(cluster, cut, window_s: float) -> str:
    links = {f"{a}>{b}": (s.sent, s.received) for (a, b), s in (await cluster.observe(window_s, 2.0)).items()}
    phase, pairs = ("inject", cut) if cut else ("heal", permutations((*SERVERS, *CLIENTS), 2))
    measured = (Measurement(phase, 0, 1, links=links),)
    record = FaultRecord(Card(1, "", "", 0, 1), Achieved.INDETERMINATE, "", cut=tuple(pairs), measured=measured)
    proof = proof_of(record, phase)
    return proof.verdict if proof.verdict == "as ordered" else f"{proof.verdict}: {proof.wrong}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a server as another user")
async def test_a_server_that_runs_as_another_user_reaches_its_data_directory(cluster):
    node = cluster.node("n1")
    as_nobody = ["setpriv", "--reuid=nobody", "--clear-groups", "touch", f"{node.data_dir}/reached"]
    made = await node.run(["sh", "-c", f"mkdir -p {node.data_dir} && chown nobody {node.data_dir}"], timeout_s=30)
    assert made.status == 0
    reached = await node.run(as_nobody, timeout_s=30)
    assert (reached.status, reached.stderr) == (0, b"")


@pytest.mark.parametrize("grudge", ["halves", "leader-deaf"])
async def test_a_grudge_is_cut_on_exactly_its_links_both_ways_and_one_way(cluster, grudge):
    fault = partition.KIND.resolve(grudge, Scene(SERVERS, CLIENTS, SERVERS, LeaderNow("n2", 1), Random(1)))
    assert fault is not None
    cut = fault.cut
    assert await proven(cluster, cut) == "as ordered"
    assert await proven(cluster, ()) == "as ordered"
    with pytest.raises(KeyError):
        await cluster.cut([("n1", "n9")])


LISTEN = """
import socket, sys
server = socket.create_server(("", 7000))
open(sys.argv[1], "w").close()
link, _ = server.accept()
print(link.makefile().readline())
"""


async def test_tcp_stalls_under_a_cut_and_goes_on_after_the_heal(cluster):
    n1, n2 = cluster.node("n1"), cluster.node("n2")
    listens = f"{n2.log_dir}/listens-7000"
    speak = f"import socket; socket.create_connection(('{n2.address}', 7000), 60).sendall(b'heard' * 50000 + b'\\n')"
    await cluster.cut([("n1", "n2")])
    listening = asyncio.create_task(n2.run([*n2.python, "-c", LISTEN, listens], timeout_s=120))
    await file_there(n2, listens)
    speaking = asyncio.create_task(n1.run([*n1.python, "-c", speak], timeout_s=120))
    await until_retransmitted(n1, 7000)
    assert not listening.done() and not speaking.done()
    await cluster.cut(())
    heard = await listening
    assert (await speaking).status == 0
    assert heard.stdout.strip() == b"heard" * 50000


HELD = """
import os, socket, sys, time
link = socket.create_connection((sys.argv[1], 7100), 60)
open(sys.argv[2], "w").close()
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
link.settimeout(60)
try:
    link.sendall(b"x")
    print("answered" if link.recv(1) else "closed")
except OSError as error:
    print(type(error).__name__)
"""
ECHO = """
import socket, sys
server = socket.create_server(("", 7100))
open(sys.argv[1], "w").close()
link, _ = server.accept()
print(link.recv(1))
"""


async def test_tcp_is_reset_on_a_cut_link_that_rejects(cluster):
    n1, n2 = cluster.node("n1"), cluster.node("n2")
    listens, connected, go = f"{n2.log_dir}/listens", f"{n1.log_dir}/connected", f"{n1.log_dir}/go"
    serving = asyncio.create_task(n2.run([*n2.python, "-c", ECHO, listens], timeout_s=120))
    await file_there(n2, listens)
    held = asyncio.create_task(n1.run([*n1.python, "-c", HELD, n2.address, connected, go], timeout_s=120))
    await file_there(n1, connected)
    both_ways = [("n1", "n2"), ("n2", "n1")]
    await cluster.cut(both_ways, both_ways)
    await n1.write(go, b"")
    assert (await held).stdout.split() == [b"ConnectionResetError"]
    afresh = f"import socket; socket.create_connection(('{n2.address}', 7100), 60)"
    refused = await n1.run([*n1.python, "-c", afresh], timeout_s=120)
    assert b"ConnectionRefusedError" in refused.stderr, "refused at once, not timed out"
    assert (await cluster.observe(0.3, 2.0))["n1", "n2"].received == 0
    await cluster.cut(())
    serving.cancel()


async def file_there(node, path):
    waiting = ["sh", "-c", 'until [ -e "$1" ]; do sleep 0.02; done', "sh", path]
    assert (await node.run(waiting, timeout_s=120)).status == 0


async def test_processes_are_paused_resumed_killed_and_restarted(cluster):
    node = cluster.node("n1")
    await node.start(SLEEP)
    for order, state in ((cluster.pause, "stopped"), (cluster.resume, "running"), (cluster.kill, "dead")):
        await order("n1")
        assert await cluster.state("n1") == state
    assert [(e.node, e.status, e.ordered) for e in cluster.exits()] == [("n1", -signal.SIGKILL, True)]
    cluster.restart_with(lambda again: again.start(SLEEP))
    await cluster.restart("n1")
    assert await cluster.state("n1") == "running"
    await cluster.kill("n1")


async def test_a_schedule_is_played_and_proven(cluster):
    for name in SERVERS:
        await cluster.node(name).start(SLEEP)
    cluster.restart_with(lambda again: again.start(SLEEP))

    for times in (1, 4, 16):  # a busy machine may measure too little in a short time
        records = await played(cluster, times)
        assert (await heal_all(cluster)).verdict == "as ordered"
        if Achieved.INDETERMINATE not in {record.achieved for record in records}:
            break
    assert [(r.achieved, r.reason) for r in records] == [(Achieved.INSTALLED, "")] * 3
    for name in SERVERS:
        await cluster.kill(name)


async def played(cluster, times: int) -> list[FaultRecord]:
    cards = [
        Card(1, "partition", "halves", 0.0, 0.8 * times),
        Card(2, "pause", "minority", 1.5 * times, 2.0 * times),
        Card(3, "kill", "all", 2.2 * times, 2.5 * times),
    ]
    began = time.monotonic_ns()

    async def before_heal(record):
        return None

    async def statuses():
        return []

    hooks = Hooks(record=lambda record: None, before_heal=before_heal)
    return await play(cards, MainPhase(cluster, statuses, lambda: time.monotonic_ns() - began, 0), Random(1), hooks)


async def test_each_node_has_its_own_disk_and_its_files_travel(cluster, tmp_path):
    n1, n2 = cluster.node("n1"), cluster.node("n2")
    assert len({n1.data_dir, n1.trace_dir, n1.log_dir, n2.data_dir}) == 4
    await n1.write(f"{n1.data_dir}/deep/file", b"held by n1")
    assert await n2.read(f"{n2.data_dir}/deep/file") == b""
    await n1.copy_out(n1.data_dir, tmp_path / "copy")
    assert (tmp_path / "copy" / "deep" / "file").read_bytes() == b"held by n1"
    imported = await n1.run([*n1.python, "-c", "import system_under_test.client, checkers.base.history"])
    assert imported.status == 0, imported.stderr


async def test_two_runs_at_once_do_not_meet(cluster):
    async with made("second") as other:
        assert other.node("n1").address == cluster.node("n1").address
        await other.cut([("n1", "n2")])
        assert await proven(cluster, ()) == "as ordered"
        assert (await other.observe(0.3, 2.0))["n1", "n2"].received == 0


async def test_if_the_switch_dies_everything_is_cut_and_said(cluster):
    async with made("switch") as other:
        (switch,) = [
            pid
            for pid in processes_of(other.spec.run_id)
            if b"harness.agent.frame_switch" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(switch, signal.SIGKILL)
        until(lambda: not is_alive(switch))
        beacons = await other.observe(0.3, 2.0)
        assert {b.received for b in beacons.values()} == {0} and len(beacons) == 20
        with pytest.raises(OSError, match="the switch has ended"):
            await other.cut([])


async def test_an_agent_that_dies_is_gone_at_once_and_the_others_go_on():
    async with made("agent") as other:
        node = other.node("n2")
        done = await node.run(["sh", "-c", "echo $PPID"])
        killing = asyncio.create_task(other.node("n1").run(["sh", "-c", f"kill -9 {int(done.stdout)}"]))
        assert (await killing).status == 0
        with pytest.raises(NodeGone, match="n2: its agent is gone"):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await node.state()
        seen = await other.observe(2.0, 2.0)
        assert {link for link in seen if "n2" in link} == set()
        assert all(b.received for b in seen.values()) and len(seen) == 12


async def test_files_of_the_working_folder_do_not_stand_for_modules_of_python(tmp_path, monkeypatch):
    (tmp_path / "socket.py").write_text("raise SystemExit('this is no module of Python')")
    monkeypatch.chdir(tmp_path)
    assert why_unavailable() is None
    async with made("beside") as cluster:
        assert await proven(cluster, []) == "as ordered"


async def test_without_the_rights_it_says_so_in_one_sentence(tmp_path, monkeypatch):
    stub = tmp_path / "unshare"
    stub.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(BackendUnavailable, match=r"\(unshare: unshare failed: Operation not permitted\): run as root"):
        await backend("denied").create(lambda words: None)


async def test_without_the_tools_it_names_the_package(monkeypatch):
    monkeypatch.setattr("harness.backends.namespaces_backend.TOOLS", {"unshare-of-nowhere": "util-linux"})
    with pytest.raises(BackendUnavailable, match=r"need unshare-of-nowhere \(package util-linux\): install it"):
        await backend("toolless").create(lambda words: None)
