"""The subject and its clients against a real cluster of three.

On a loaded machine the leadership of etcd moves by itself at any moment.  A leader counts when a majority of members
names the same one in the same term, because one status is not atomic: it may show an old leader in a new term.  A step
that rests on one leader is repeated when the leadership moved meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import pytest
import pytest_asyncio
from local_node import LocalNode
from waiting import PATIENCE_S

from checkers.base.history import Type
from system_under_test.client import Placement, Request
from system_under_test.etcd import BINARY, OF_DEBIAN, Etcd
from system_under_test.etcd_client import RANGE
from system_under_test.own.one_client_process import connect
from system_under_test.own.subject import Subject

pytestmark = [
    pytest.mark.skipif(not Path(BINARY).exists(), reason=f"no {BINARY} here: install Debian's etcd-server"),
    pytest.mark.asyncio(loop_scope="module"),
]

FOLLOWS = Placement(thread=0, client_node="c1", follows=True, reads_only=False)
STAYS = Placement(thread=1, client_node="c1", follows=False, reads_only=False)
BRIEF_S = 2.0
"""Of an operation that a stopped member never answers.  It is less than etcd's own patience of seven seconds."""
ATTEMPTS = 10


class Moved(Exception):
    """The leadership moved by itself during a step."""


class Cluster:
    def __init__(self, root: Path) -> None:
        ours = f"{os.getpid() // 250 % 250}.{os.getpid() % 250 + 2}"
        self.nodes = [LocalNode(f"n{i}", f"127.{80 + i}.{ours}", root) for i in (1, 2, 3)]
        self.subject = Subject.bundled(Etcd)
        self.subject.set({"version": OF_DEBIAN})
        self.clients = []

    def client(self, placement: Placement):
        peers = {n.name: f"{n.address}:{self.subject.port}" for n in self.nodes}
        config = self.subject.client_config(seed=1, bug=None) | {"functions": {}}
        self.clients.append(connect(placement, peers, config, {}))
        return self.clients[-1]

    def node(self, name: str) -> LocalNode:
        return next(n for n in self.nodes if n.name == name)

    async def leader(self, *, besides: str | None = None) -> tuple[str, int]:
        """The leader and its term, as a majority of the members names them."""

        async def agreed():
            statuses = await asyncio.gather(*(self.subject.status(node) for node in self.nodes))
            votes = Counter((s.leader, s.epoch) for s in statuses if s is not None and s.leader is not None)
            for named, count in votes.items():
                if count > len(self.nodes) // 2 and named[0] != besides:
                    return named
            return None

        return await until(agreed)

    async def caught_up(self) -> None:
        async def nothing_missing():
            return None if await self.subject.caught_up(self.nodes, 1) else "caught up"

        await until(nothing_missing)

    async def whole_again(self) -> None:
        """Every member runs and has caught up; the clients of the last step are gone."""
        for client in self.clients:
            await client.close()
        self.clients.clear()
        for node in self.nodes:
            await node.signal("CONT")
            if await node.state() == "dead":
                await self.subject.start(node)
        await self.caught_up()

    async def steadily(self, step):
        """The result of `step` in its first attempt during which the leadership did not move by itself."""
        for _ in range(ATTEMPTS):
            try:
                return await step()
            except Moved:
                await self.whole_again()
        raise AssertionError(f"the leadership moved in each of {ATTEMPTS} attempts, or requests go to another member")


async def until(ask, limit_s: float = PATIENCE_S):
    """The first answer that is not None."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if (answer := await ask()) is not None:
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError(f"no answer within {limit_s} s")


async def until_ok(client, *request, by=None):
    """The first OK outcome, and the first from the member that `by` returns if it is given."""

    async def ask():
        outcome = await client.invoke(Request(*request), BRIEF_S)
        if outcome.type is not Type.OK or (by is not None and outcome.node != await by()):
            return None
        return outcome

    return await until(ask)


async def until_sent(client, *request):
    """The first outcome of a request that left: on a busy machine the time may pass before it does."""

    async def ask():
        outcome = await client.invoke(Request(*request), BRIEF_S)
        return None if (outcome.error or "").startswith("not sent") else outcome

    return await until(ask)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def members(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("etcd"))
    await cluster.subject.install(cluster.nodes, seed=1, bug=None)
    try:
        yield cluster
    finally:
        for node in cluster.nodes:
            await node.signal("KILL")


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(members):
    await members.whole_again()
    yield members
    for client in members.clients:
        await client.close()
    members.clients.clear()


async def test_a_register_is_created_written_read_compared_and_read_again(cluster):
    steps = [
        (("create", "k1"), (Type.OK, None, None)),
        (("read", "k1"), (Type.OK, None, None)),
        (("write", "k1", 7), (Type.OK, 7, None)),
        (("read", "k1"), (Type.OK, 7, None)),
        (("cas", "k1", 6, 8), (Type.FAIL, 6, "mismatch")),
        (("cas", "k1", 7, 8), (Type.OK, 7, None)),
        (("read", "k1"), (Type.OK, 8, None)),
        (("cas", "k2", None, 1), (Type.OK, None, None)),
        (("cas", "k2", None, 2), (Type.FAIL, None, "mismatch")),
    ]
    attempts = iter(range(ATTEMPTS))

    async def under_one_leader():
        keys = next(attempts)
        client = cluster.client(FOLLOWS)
        before = await cluster.leader()
        for (f, key, *values), expected in steps:
            outcome = await client.invoke(Request(f, f"{key}-{keys}", *values), PATIENCE_S)
            seen = (outcome.type, outcome.value, outcome.error)
            if (seen, outcome.node) != (expected, before[0]) and await cluster.leader() != before:
                raise Moved
            assert seen == expected, f"{f} {key} {values}"
            assert outcome.node == before[0]

    await cluster.steadily(under_one_leader)


async def test_a_paused_majority_leaves_writes_unknown_and_reads_undone(cluster):
    client = cluster.client(FOLLOWS)
    await until_ok(client, "write", "k", 1)
    leader, _ = await cluster.leader()
    others = [n for n in cluster.nodes if n.name != leader]
    for node in others:
        await node.signal("STOP")
        assert await cluster.subject.status(node) is None
    read = await until_sent(client, "read", "k")
    write = await until_sent(client, "write", "k", 2)
    assert (read.type, write.type) == (Type.FAIL, Type.INFO)
    assert (read.error, write.error) == ("timeout", "timeout"), "our own limit, before etcd's"
    why = await cluster.subject.caught_up(cluster.nodes, 1)
    assert why == f"{others[0].name}, {others[1].name}: stopped"
    for node in others:
        await node.signal("CONT")
    await cluster.caught_up()
    assert (await until_ok(client, "read", "k")).value in (1, 2)


async def test_after_the_leader_is_killed_both_kinds_of_process_find_the_next(cluster):
    async def killed_under_its_clients():
        follows, stays = cluster.client(FOLLOWS), cluster.client(STAYS)
        before = await cluster.leader()
        for value, client in enumerate((follows, stays)):
            if (await until_ok(client, "write", "k", value)).node != before[0]:
                raise Moved
        await cluster.node(before[0]).signal("KILL")
        refused = await stays.invoke(Request("write", "k", 5), PATIENCE_S)
        if refused.node != before[0]:
            raise Moved
        assert refused.type in (Type.FAIL, Type.INFO)
        return before, follows, stays

    (killed, epoch), follows, stays = await cluster.steadily(killed_under_its_clients)
    assert (await cluster.leader(besides=killed))[1] > epoch

    async def by_the_next():
        return (await cluster.leader(besides=killed))[0]

    await until_ok(follows, "read", "k", by=by_the_next)
    assert (await until_ok(stays, "read", "k", by=by_the_next)).value in (1, 5)
    await cluster.caught_up()
    await cluster.subject.start(cluster.node(killed))

    async def back():
        status = await cluster.subject.status(cluster.node(killed))
        return status if status is not None and status.leader is not None else None

    await until(back)


async def test_one_that_stays_keeps_asking_a_deposed_leader_until_it_follows_another(cluster):
    async def stopped_under_its_clients():
        follows, stays = cluster.client(FOLLOWS), cluster.client(STAYS)
        before, _ = await cluster.leader()
        for client in (follows, stays):
            if (await until_ok(client, "read", "k")).node != before:
                raise Moved
        await cluster.node(before).signal("STOP")

        async def by_the_next():
            return (await cluster.leader(besides=before))[0]

        await until_ok(follows, "read", "k", by=by_the_next)
        outcome = await stays.invoke(Request("read", "k"), BRIEF_S)
        if outcome.node != before:
            raise Moved
        assert outcome.type is Type.FAIL
        return before, stays

    before, stays = await cluster.steadily(stopped_under_its_clients)
    await cluster.node(before).signal("CONT")

    async def by_whom_it_leads_now():
        return (await cluster.leader())[0]

    await until_ok(stays, "read", "k", by=by_whom_it_leads_now)


async def test_a_panic_in_the_log_is_a_complaint(cluster, tmp_path):
    run = tmp_path / "run"
    for node in cluster.nodes:
        await cluster.subject.collect(node, run / "nodes" / node.name)
    assert b"etcd" in (run / "nodes" / "n1" / "server.log").read_bytes()
    assert cluster.subject.complaints(run) == []
    with (run / "nodes" / "n2" / "server.log").open("ab") as log:
        log.write(b"\npanic: tocommit(9) is out of range [lastIndex(5)]\n\ngoroutine 1 [running]:\n")
    (complaint,) = cluster.subject.complaints(run)
    assert complaint.node == "n2" and complaint.reason.startswith("panic: tocommit(9)")
    assert "goroutine 1" in complaint.excerpt


async def test_a_member_is_removed_and_comes_back_with_an_empty_disk(cluster):
    """Repeated removals and additions do nothing more, and what was written before is there afterwards."""
    client = cluster.client(FOLLOWS)
    await until_ok(client, "write", "kept", 5)
    changes, nodes = cluster.subject.members, cluster.nodes
    leader, _ = await cluster.leader()
    leaving = next(node for node in nodes if node.name == leader)
    names = {node.name for node in nodes}

    async def members():
        try:
            return await changes.members(nodes)
        except OSError:
            return None  # the next leader is not elected yet

    async def it_is_gone():
        return await members() == names - {leader} or None

    for _ in range(2):
        await changes.remove(nodes, leaving)
    await until(it_is_gone)
    await leaving.signal("KILL")
    await changes.add(nodes, leaving)
    await until(it_is_gone)  # the member is added, and not started yet
    await cluster.subject.start(leaving)

    async def all_are_back():
        return await members() == names or None

    await until(all_are_back)
    await cluster.caught_up()
    assert (await until_ok(client, "read", "kept")).value == 5


class Told:
    """A node whose member answers a linearizable read, or does not.  applied: the index in its status."""

    def __init__(self, name: str, applied: int, *, reads: bool) -> None:
        self.name, self.applied, self.reads = name, applied, reads

    @property
    def node(self):
        return self

    async def state(self):
        return "running"

    async def answer(self, path: str):
        if path == RANGE:
            if not self.reads:
                raise OSError("no answer")
            return {"header": {}}
        identity = {"header": {"member_id": "1", "raft_term": "4"}, "leader": "1"}
        return identity | {"raftIndex": "121", "raftTerm": "4", "raftAppliedIndex": str(self.applied)}


@pytest.mark.parametrize(("reads", "why"), [(True, None), (False, "n2 has not applied index 121")])
async def test_a_member_that_a_snapshot_brought_up_has_caught_up_once_it_reads(monkeypatch, reads, why):
    async def post(node, path, body="{}"):
        return await node.answer(path)

    monkeypatch.setattr("system_under_test.etcd.post", post)
    nodes = [Told("n1", 121, reads=True), Told("n2", 39, reads=reads)]
    system = Etcd()
    system.nodes = nodes
    assert await system.caught_up(nodes) == why
