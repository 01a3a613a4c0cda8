"""Voters that come and go among nodes while a client writes (KIP-853); the model explains every trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node_cluster import OFTEN, REPLICAS, VOTERS, Boot, Cluster, create, fill, set_retention, unexplained
from waiting import eventually

from checkers.base.run_evidence import of_events
from checkers.raft.monitor import NodeMonitor
from checkers.raft.reading import read_rows, rows_of_table
from checkers.raft.trace_checkers import TimedMonitor, in_time
from checkers.raft.trace_row import TraceRow
from system_under_test.kraft.collected.trace_files import table_of, write_trace
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, VoterChange
from system_under_test.kraft.raft.messages import Error, ReplicaKey
from system_under_test.kraft.raft.voters import VoterEntry
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued

pytestmark = pytest.mark.virtual_time


OPTIONS: dict[str, Any] = {"dynamic": VOTERS, "snapshots": OFTEN, "segment_max_bytes": 1000}


async def change(cluster: Cluster, wanted: VoterChange, done: Callable[[QuorumNode], bool]) -> None:
    """Repeat a change, as an operator does, until the leader's log shows it."""
    for _ in range(400):
        leader = await cluster.leader()
        if done(leader):
            return
        await leader.change_voters(wanted)
        await asyncio.sleep(0.02)
    raise AssertionError("the voters did not change")


async def add(cluster: Cluster, voter: int) -> None:
    await change(cluster, AddVoter(VoterEntry(cluster.key(voter))), lambda leader: voter in leader._core.voters)


async def remove(cluster: Cluster, voter: int) -> None:
    await change(cluster, RemoveVoter(cluster.key(voter)), lambda leader: voter not in leader._core.voters)


class Writer:
    """Writes one value after another to the node that leads.  acknowledged: how many."""

    def __init__(self, cluster: Cluster) -> None:
        self.acknowledged = 0
        self._cluster = cluster
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        value = 0
        while True:
            value += 1
            try:
                leader = await self._cluster.leader()
                await leader.write(set_retention("t", value))
                self.acknowledged += 1
                await asyncio.sleep(0.001)  # a lone voter in memory acknowledges without advancing the clock
            except (NotQueued, LostLeadership):
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


async def test_a_cluster_grows_from_one_to_five_while_a_client_writes(boot: Boot) -> None:
    cluster = boot(replicas=REPLICAS, **OPTIONS | {"dynamic": (1,)})
    await (await cluster.leader()).write(create("t"))
    writer = Writer(cluster)
    for voter in (2, 3, 4, 5):
        await add(cluster, voter)
        before = writer.acknowledged
        await eventually(lambda before=before: writer.acknowledged > before + 3)
    await writer.stop()
    leader = await cluster.leader()
    assert {state.id for state in leader.describe().voters} == set(REPLICAS)
    assert not leader.describe().observers


async def test_every_voter_is_replaced_in_turn_the_leader_included_while_a_client_writes(boot: Boot) -> None:
    cluster = boot(replicas=REPLICAS, **OPTIONS)
    await (await cluster.leader()).write(create("t"))
    writer = Writer(cluster)
    for old, new in ((1, 4), (2, 5), (3, 1)):
        await add(cluster, new)
        await remove(cluster, old)
        before = writer.acknowledged
        await eventually(lambda before=before: writer.acknowledged > before + 3)
    await writer.stop()
    leader = await cluster.leader()
    await eventually(lambda: leader._core.voters == (1, 4, 5))
    applied = leader.applied_offset
    await eventually(lambda: all(node.applied_offset >= applied for node in cluster.network.nodes.values()))


async def replace_disk(cluster: Cluster, voter: int, *, removed: bool = True, own_id: bool = True) -> None:
    """A voter is stopped and removed, and comes back with an empty disk."""
    await cluster.network.nodes.pop(voter).stop(0)
    if removed:
        await remove(cluster, voter)
    cluster.wipe(voter, own_id=own_id)
    cluster.boot(voter)


async def test_every_voter_in_turn_comes_back_with_an_empty_disk_while_a_client_writes(boot: Boot) -> None:
    cluster = boot(names_disks=True, **OPTIONS)
    await (await cluster.leader()).write(create("t"))
    writer = Writer(cluster)
    for voter in (1, 2, 3):
        await replace_disk(cluster, voter)
        await add(cluster, voter)
        before = writer.acknowledged
        await eventually(lambda before=before: writer.acknowledged > before + 3)
    await writer.stop()
    leader = await cluster.leader()
    voters = {entry.key for entry in leader._core.voter_history.latest}
    assert voters == {cluster.key(voter) for voter in (1, 2, 3)}, "every id stands with its new disk"
    assert all(key.directory is not None and key.directory.int > 3 for key in voters)
    await eventually(lambda: len({node.applied_offset for node in cluster.network.nodes.values()}) == 1)


async def test_a_wiped_voter_that_nobody_removed_is_an_observer_until_it_has_taken_its_own_place(boot: Boot) -> None:
    """Its id is that of a voter, its disk is not: it is added only after a removal."""
    cluster = boot(names_disks=True, **OPTIONS)
    await (await cluster.leader()).write(create("t"))
    old = cluster.key(3)
    await replace_disk(cluster, 3, removed=False)
    leader = await cluster.leader()
    wiped = cluster.network.nodes[3]
    await eventually(lambda: wiped.applied_offset == leader.applied_offset)
    assert wiped.role == "follower" and wiped._core.voters == (1, 2, 3)
    error, _ = await leader.change_voters(AddVoter(VoterEntry(cluster.key(3))))
    assert error == Error.DUPLICATE_VOTER
    error, _ = await leader.change_voters(RemoveVoter(old))
    assert error == Error.NONE
    await add(cluster, 3)


async def test_a_wiped_voter_that_passes_for_its_old_disk_is_found_by_its_trace() -> None:
    cluster = Cluster(names_disks=True, **OPTIONS).boot_all()
    leader = await cluster.leader()
    for value in range(3):
        await leader.write(create(f"t{value}"))
    other = next(voter for voter in (1, 2, 3) if voter != leader.node_id)
    await replace_disk(cluster, other, removed=False, own_id=False)
    await leader.write(create("after"))
    await cluster.close()
    (stop,) = unexplained(cluster)
    assert "epoch went back" in stop or "flushed entries lost" in stop


async def test_a_removed_leader_resigns_and_another_one_is_elected(boot: Boot) -> None:
    cluster = boot(**OPTIONS)
    leader = await cluster.leader()
    error, _ = await leader.change_voters(RemoveVoter(ReplicaKey(leader.node_id)))
    assert error == Error.NONE
    assert leader.role == "resigned"
    second = await cluster.leader(but=leader.node_id)
    await second.write(create("t"))
    await eventually(lambda: "t" in leader.committed_image().topics)
    assert [state.id for state in second.describe().observers] == [leader.node_id]


async def test_voters_outlive_restarts_and_snapshots(boot: Boot) -> None:
    cluster = boot(replicas=REPLICAS[:4], **OPTIONS)
    leader = await cluster.leader()
    await leader.write(create("t"))
    await add(cluster, 4)
    await remove(cluster, 3)
    leader = await cluster.leader()
    await fill(leader, 80)
    await eventually(lambda: leader.log.start_offset > 20)
    for replica in (1, 2, 3, 4):
        await cluster.network.nodes[replica].stop(0)
        cluster.boot(replica)
    assert {replica: node._core.voters for replica, node in cluster.network.nodes.items()} == dict.fromkeys(
        (1, 2, 3, 4), (1, 2, 4)
    )
    fifth = cluster.boot(5)
    leader = await cluster.leader()
    await eventually(lambda: fifth.applied_offset == leader.applied_offset)
    assert fifth._core.voters == (1, 2, 4), "it learnt them from a snapshot"


MINORITIES = {
    "removed-leader-counts-itself": lambda leader: RemoveVoter(ReplicaKey(leader)),
    "voters-at-commit": lambda leader: AddVoter(VoterEntry(ReplicaKey(4))),
}


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("bug", MINORITIES)
async def test_a_minority_of_the_new_voters_commits_nothing_but_with_the_bug(
    boot: Boot, bug: str, planted: bool
) -> None:
    """The leader hears only one of the voters 1, 2, 3, and replica 4 is cut off after it has caught up."""
    cluster = boot(bug if planted else "", replicas=REPLICAS[:4], **OPTIONS)
    leader = await cluster.leader()
    await leader.write(create("t"))
    await eventually(lambda: cluster.network.nodes[4].applied_offset == leader.applied_offset)
    heard = next(voter for voter in (1, 2, 3) if voter != leader.node_id)
    cluster.network.cut = {
        pair
        for other in (1, 2, 3, 4)
        if other not in (heard, leader.node_id)
        for pair in ((leader.node_id, other), (other, leader.node_id))
    }
    change = asyncio.ensure_future(leader.change_voters(MINORITIES[bug](leader.node_id)))
    await asyncio.wait({change}, timeout=0.15)
    assert (change.done() and change.result()[0] == Error.NONE) == planted
    await cluster.close()
    change.cancel()
    await asyncio.wait({change})
    assert any("that a majority held everything below" in stop for stop in unexplained(cluster)) == planted


def judged_changes(cluster: Cluster, folder: Path) -> list[str]:
    """The kinds of violations that `quorum-intersection` finds in the traces."""
    kinds = []
    for replica, rows in cluster.traces.items():
        source, target = folder / f"n{replica}.jsonl", folder / f"n{replica}.parquet"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        write_trace(source, target, 0)
        monitor = NodeMonitor(f"n{replica}")
        found = [broken for row in read_rows(str(target)) for broken in monitor.take(row)]
        kinds += [broken.kind for broken in found if broken.rule.checker == "quorum-intersection"]
    return kinds


@pytest.mark.parametrize("bug", ["", "joins-without-catching-up"])
async def test_a_voter_joins_once_it_has_caught_up_and_with_the_bug_at_once(boot: Boot, bug: str) -> None:
    """Replica 4 is cut off until the leader has answered; another one has caught up."""
    cluster = boot(bug, replicas=REPLICAS, **OPTIONS)
    leader = await cluster.leader()
    cluster.network.cut = {(4, other) for other in (1, 2, 3)} | {(other, 4) for other in (1, 2, 3)}
    for value in range(3):
        await leader.write(create(f"t{value}"))
    await eventually(lambda: cluster.network.nodes[5].applied_offset == leader.applied_offset)
    assert await leader.change_voters(AddVoter(VoterEntry(cluster.key(5)))) == (Error.NONE, "")
    error, _ = await leader.change_voters(AddVoter(VoterEntry(cluster.key(4))))
    cluster.network.cut = set()
    assert error == (Error.NONE if bug else Error.REQUEST_TIMED_OUT)
    await add(cluster, 4)
    names = [f"n{node}" for node in cluster.traces]
    monitor = TimedMonitor(names, names)
    rows = in_time(row for node in cluster.traces for row in rows_of(cluster, node))
    found = [broken for row in rows for broken in monitor.take(row) if broken.rule.checker == "voters-caught-up"]
    assert monitor.joined == 2
    kinds = ["voter joined before it had caught up"] if bug else []
    assert [broken.kind for broken in found] == kinds
    assert all(broken.witness().facts["nodes"] == [f"n{leader.node_id}", "n4"] for broken in found)


def rows_of(cluster: Cluster, replica: int) -> list[TraceRow]:
    lines = "".join(json.dumps(row) + "\n" for row in cluster.traces[replica]).encode()
    return list(rows_of_table(of_events(table_of(f"n{replica}", lines, 0), TimedMonitor.EVENTS)))


@pytest.mark.parametrize("bug", ["", "two-voter-changes-at-once"])
async def test_two_changes_at_once_are_refused_unless_the_bug_is_planted(boot: Boot, bug: str, tmp_path: Path) -> None:
    cluster = boot(bug, **OPTIONS)
    leader = await cluster.leader()
    others = [voter for voter in (1, 2, 3) if voter != leader.node_id]
    answers = await asyncio.gather(*(leader.change_voters(RemoveVoter(ReplicaKey(other))) for other in others))
    await cluster.close()
    refused = [error for error, _ in answers if error == Error.REQUEST_TIMED_OUT]
    expected = ["voters changed before the last change was committed"] if bug else []
    assert (judged_changes(cluster, tmp_path), len(refused)) == (expected, 0 if bug else 1)


@pytest.mark.parametrize("bug", ["", "change-before-epoch-commits"])
async def test_a_change_before_the_epoch_commits_is_refused_unless_the_bug_is_planted(
    boot: Boot, bug: str, tmp_path: Path
) -> None:
    cluster = boot(bug, **OPTIONS)
    first = await cluster.leader()
    await first.write(create("t"))
    await first.stop(0)
    del cluster.network.nodes[first.node_id]
    nodes = cluster.network.nodes
    await eventually(lambda: any(node.role == "leader" for node in nodes.values()), every_s=0.0005)
    second = next(node for node in nodes.values() if node.role == "leader")
    assert not second.is_active()
    change = asyncio.ensure_future(second.change_voters(RemoveVoter(ReplicaKey(first.node_id))))
    await eventually(lambda: change.done())
    await cluster.close()
    expected = ["voters changed before the epoch had committed"] if bug else []
    assert judged_changes(cluster, tmp_path) == expected
    assert change.result()[0] == (Error.NONE if bug else Error.REQUEST_TIMED_OUT)


async def test_a_leader_that_removed_itself_is_elected_once_more_if_only_it_holds_that(boot: Boot) -> None:
    """Its removal reached no other log.  The other voter needs the vote of the leader, whose log is longer than its own
    one, and the leader's log names the other alone.  So no one else can win (Ongaro 2014, figure 4.6)."""
    cluster = boot(replicas=(1, 2), **OPTIONS | {"dynamic": (1, 2)})
    leader = await cluster.leader()
    await leader.write(create("t"))
    other = 3 - leader.node_id
    cluster.network.isolate(leader.node_id)
    change = asyncio.ensure_future(leader.change_voters(RemoveVoter(ReplicaKey(leader.node_id))))
    await eventually(lambda: leader.role == "resigned")
    assert leader.voters.ids == (other,)
    cluster.network.cut = set()
    second = await cluster.leader(but=leader.node_id)
    assert (await change)[0] == Error.NOT_LEADER_OR_FOLLOWER, "it learns of no commit in its own office"
    assert second.voters.ids == (other,)
    await second.write(create("u"))
    await eventually(lambda: "u" in leader.committed_image().topics)
    assert leader.role == "follower"
