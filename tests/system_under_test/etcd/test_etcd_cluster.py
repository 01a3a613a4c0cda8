"""The subject and its clients against a real cluster of three."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from local_etcd_nodes import LocalNode

from checkers.base.history import Type
from system_under_test.client import Placement, Request
from system_under_test.etcd.client import connect
from system_under_test.etcd.subject import BINARY, Etcd

pytestmark = pytest.mark.skipif(not Path(BINARY).exists(), reason=f"no {BINARY} here: install Debian's etcd-server")

FOLLOWS = Placement(thread=0, client_node="c1", follows=True, reads_only=False)
STAYS = Placement(thread=1, client_node="c1", follows=False, reads_only=False)


class Cluster:
    def __init__(self, root: Path) -> None:
        tail = os.getpid() % 250 + 2
        self.nodes = [LocalNode(f"n{i}", f"127.{80 + i}.0.{tail}", root) for i in (1, 2, 3)]
        self.subject = Etcd()
        self.clients = []

    def client(self, placement: Placement):
        peers = {n.name: f"{n.address}:{self.subject.port}" for n in self.nodes}
        self.clients.append(connect(placement, peers, {}))
        return self.clients[-1]

    def node(self, name: str) -> LocalNode:
        return next(n for n in self.nodes if n.name == name)

    async def leader(self, *, besides: str | None = None):
        return await until(lambda: self._leader(besides))

    async def _leader(self, besides: str | None):
        for node in self.nodes:
            status = await self.subject.status(node)
            if status is not None and status.role == "leader" and status.leader == node.name != besides:
                return status
        return None


async def until(ask, limit_s: float = 20.0):
    """The first answer that is not None."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if (answer := await ask()) is not None:
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError(f"no answer within {limit_s} s")


@pytest.fixture
async def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    await cluster.subject.install(cluster.nodes, seed=1, bug=None)
    await asyncio.gather(*(cluster.subject.start(n) for n in cluster.nodes))
    try:
        await cluster.leader()
        yield cluster
    finally:
        for client in cluster.clients:
            await client.close()
        for node in cluster.nodes:
            await node.signal("KILL")


async def test_a_register_is_created_written_read_compared_and_read_again(cluster):
    client = cluster.client(FOLLOWS)
    leader = (await cluster.leader()).node

    async def ask(*request):
        outcome = await client.invoke(Request(*request), 2.0)
        assert outcome.node == leader
        return outcome.type, outcome.value, outcome.error

    assert await ask("create", "k1") == (Type.OK, None, None)
    assert await ask("read", "k1") == (Type.OK, None, None)
    assert await ask("write", "k1", 7) == (Type.OK, 7, None)
    assert await ask("read", "k1") == (Type.OK, 7, None)
    assert await ask("cas", "k1", 6, 8) == (Type.FAIL, 6, "mismatch")
    assert await ask("cas", "k1", 7, 8) == (Type.OK, 7, None)
    assert await ask("read", "k1") == (Type.OK, 8, None)
    assert await ask("cas", "k2", None, 1) == (Type.OK, None, None)
    assert await ask("cas", "k2", None, 2) == (Type.FAIL, None, "mismatch")


async def test_a_paused_majority_leaves_writes_unknown_and_reads_undone(cluster):
    client = cluster.client(FOLLOWS)
    leader = (await cluster.leader()).node
    assert (await client.invoke(Request("write", "k", 1), 2.0)).type is Type.OK
    followers = [n for n in cluster.nodes if n.name != leader]
    for node in followers:
        await node.signal("STOP")
        assert await cluster.subject.status(node) is None
    began = time.monotonic()
    read = await client.invoke(Request("read", "k"), 0.4)
    write = await client.invoke(Request("write", "k", 2), 0.4)
    assert time.monotonic() - began < 1.2
    assert (read.type, write.type) == (Type.FAIL, Type.INFO)
    assert (read.error, write.error) == ("timeout", "timeout")
    assert "says nothing" in await cluster.subject.caught_up(cluster.nodes, 1)
    for node in followers:
        await node.signal("CONT")

    async def caught_up():
        return None if await cluster.subject.caught_up(cluster.nodes, 1) else "caught up"

    await until(caught_up)
    assert (await client.invoke(Request("read", "k"), 5.0)).value in (1, 2)


async def test_after_the_leader_is_killed_both_kinds_of_process_find_the_next(cluster):
    follows, stays = cluster.client(FOLLOWS), cluster.client(STAYS)
    before = await cluster.leader()
    for value, client in enumerate((follows, stays)):
        outcome = await client.invoke(Request("write", "k", value), 2.0)
        assert (outcome.type, outcome.node) == (Type.OK, before.node)
    await cluster.node(before.node).signal("KILL")
    refused = await stays.invoke(Request("write", "k", 5), 2.0)
    assert refused.type in (Type.FAIL, Type.INFO) and refused.node == before.node
    after = await cluster.leader(besides=before.node)
    assert after.epoch > before.epoch

    async def asks_the_new_leader(client):
        outcome = await client.invoke(Request("read", "k"), 1.0)
        return outcome if outcome.type is Type.OK and outcome.node == after.node else None

    await until(lambda: asks_the_new_leader(follows))
    assert (await until(lambda: asks_the_new_leader(stays))).value in (1, 5)
    assert await cluster.subject.caught_up(cluster.nodes, 1) is None
    await cluster.subject.start(cluster.node(before.node))

    async def back():
        return await cluster.subject.status(cluster.node(before.node))

    assert (await until(back)).role in ("follower", "unattached")


async def test_one_that_stays_keeps_asking_a_deposed_leader_until_it_follows_another(cluster):
    follows, stays = cluster.client(FOLLOWS), cluster.client(STAYS)
    before = (await cluster.leader()).node
    for client in (follows, stays):
        assert (await client.invoke(Request("read", "k"), 2.0)).node == before
    await cluster.node(before).signal("STOP")
    after = (await cluster.leader(besides=before)).node

    async def asks_the_new_leader(client):
        outcome = await client.invoke(Request("read", "k"), 0.3)
        return True if outcome.type is Type.OK and outcome.node == after else None

    await until(lambda: asks_the_new_leader(follows))
    asked = await stays.invoke(Request("read", "k"), 0.3)
    assert (asked.type, asked.node) == (Type.FAIL, before)
    await cluster.node(before).signal("CONT")
    await until(lambda: asks_the_new_leader(stays))


async def test_a_status_costs_milliseconds(cluster):
    node = cluster.nodes[0]
    began = time.process_time()
    for _ in range(5):
        assert await cluster.subject.status(node) is not None
    assert (time.process_time() - began) / 5 < 0.02


async def test_a_panic_in_the_log_is_a_complaint(cluster, tmp_path):
    run = tmp_path / "run"
    for node in cluster.nodes:
        await cluster.subject.collect(node, run / "nodes" / node.name)
    assert b"etcd" in (run / "nodes" / "n1" / "etcd.log").read_bytes()
    assert cluster.subject.complaints(run) == []
    with (run / "nodes" / "n2" / "etcd.log").open("ab") as log:
        log.write(b"\npanic: tocommit(9) is out of range [lastIndex(5)]\n\ngoroutine 1 [running]:\n")
    (complaint,) = cluster.subject.complaints(run)
    assert complaint.node == "n2" and complaint.reason.startswith("panic: tocommit(9)")
    assert "goroutine 1" in complaint.excerpt
