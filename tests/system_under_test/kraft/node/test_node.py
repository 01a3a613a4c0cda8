"""Nodes in one process: real asyncio, an in-memory network, disks that lose what was not fsynced.

What is written is read, rows follow their effects, deleted topics are gone everywhere, and a read under a lease of the
wall clock (a planted bug) answers from the past once a clock is set.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from node_cluster import QUICK, VOTERS, Boot, Cluster, applied_states, create, set_retention
from waiting import eventually

from checkers.base.checker import Budget, Part
from checkers.raft.replay_equals_live import KIND, REPLAY_EQUALS_LIVE
from simulation.disk import VolatileDisk
from system_under_test.kraft.collected.files import replayed, write_replayed
from system_under_test.kraft.collected.trace_files import write_trace
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.topics import delete_topics
from system_under_test.kraft.log.log import FOLDER, open_log
from system_under_test.kraft.node.fetch_progress import Lease
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.state_machine import LOST_BEFORE_APPEND
from system_under_test.kraft.raft.messages import Identity, RaftRequest, RaftResponse, ReplicaKey, VoteRequest
from system_under_test.kraft.records.metadata import ConfigRecord, FeatureLevelRecord, Record, decode, encode
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued

pytestmark = pytest.mark.virtual_time


async def test_what_is_written_is_read_and_every_node_applies_it(cluster: Cluster) -> None:
    leader = await cluster.leader()
    await leader.write(create("t"))
    await asyncio.gather(*(leader.write(set_retention("t", value % 7)) for value in range(50)))  # the same bytes again
    image = await leader.read()
    assert image.configs("t") == {"retention.ms": "0"}
    await eventually(lambda: len({node.high_watermark for node in cluster.network.nodes.values()}) == 1)
    assert {node.committed_image().state_hash for node in cluster.network.nodes.values()} == {image.state_hash}
    appends = [row for row in cluster.traces[leader.node_id] if row["event"] == "append"]
    assert len(appends) < 20, "fifty writes at once share few appends"


async def test_a_write_without_records_waits_for_what_was_pending(cluster: Cluster) -> None:
    leader = await cluster.leader()
    first = asyncio.ensure_future(leader.write(create("t")))
    await asyncio.sleep(0)
    seen: list[bool] = []

    def look(image: Image) -> tuple[list[Record], str]:
        seen.append("t" in image.topics)
        return [], "looked"

    assert await leader.write(look) == "looked"
    assert seen == [True], "it was decided on the speculative image"
    assert first.done(), "and answered only once that was committed"
    assert "t" in leader.committed_image().topics


async def test_only_the_active_controller_takes_writes_and_reads(cluster: Cluster) -> None:
    leader = await cluster.leader()
    for node in cluster.network.nodes.values():
        if node is not leader:
            with pytest.raises(NotQueued):
                await node.write(create("t"))
            with pytest.raises(NotQueued):
                await node.read()


async def test_a_queued_write_never_ends_as_not_queued(cluster: Cluster) -> None:
    """The leader is cut off with writes in every state: what reached its log must not be called NotQueued."""
    leader = await cluster.leader()
    await leader.write(create("t"))
    cluster.network.isolate(leader.node_id)
    writes = []
    for value in range(200):
        writes.append(asyncio.ensure_future(leader.write(set_retention("t", value))))
        await asyncio.sleep(0.003)
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert not leader.is_active()
    in_log = set()
    log = open_log(cluster.disks[leader.node_id].crash("keep", Random(0)), FOLDER)
    contents = b"".join(bytes(batch.body) for batch in log.batches(0))
    in_log = {value for value in range(200) if encode(ConfigRecord(2, "t", "retention.ms", str(value))) in contents}
    by_kind = {kind: {v for v, d in enumerate(done) if isinstance(d, kind)} for kind in (LostLeadership, NotQueued)}
    assert in_log == by_kind[LostLeadership]
    assert len(by_kind[LostLeadership]) > 5
    assert len(by_kind[NotQueued]) > 5
    assert len(by_kind[LostLeadership] | by_kind[NotQueued]) == 200

    successor = await cluster.leader(but=leader.node_id)
    await successor.write(set_retention("t", 1000))
    cluster.network.cut = set()
    await eventually(lambda: leader.committed_image().configs("t") == {"retention.ms": "1000"})
    assert leader.committed_image().state_hash == successor.committed_image().state_hash
    assert any(row["event"] == "truncate" for row in cluster.traces[leader.node_id])


async def test_what_is_still_pending_when_leadership_goes_was_not_queued(cluster: Cluster) -> None:
    leader = await cluster.leader()
    write = asyncio.ensure_future(leader.write(create("t")))  # decided now, proposed in the next turn of the loop
    stopping = asyncio.ensure_future(leader.stop(0))
    with pytest.raises(NotQueued, match=LOST_BEFORE_APPEND):
        await write
    await stopping
    assert await leader.ended == 0


async def test_a_row_comes_after_its_effect_and_before_what_depends_on_it() -> None:
    """Watched at the leader and at a voter: disk, trace and network in one sequence."""
    cluster = Cluster()
    story: list[str] = []
    for voter in VOTERS:
        cluster.disks[voter] = VolatileDisk(lambda v=voter: story.append(f"disk {v}"))
    original = cluster.network.pass_on

    async def pass_on(sender: int, peer: int, request: RaftRequest) -> RaftResponse | None:
        if isinstance(request, VoteRequest) and not request.pre_vote:
            story.append(f"asks for a vote {sender}")
        response = await original(sender, peer, request)
        if isinstance(request, VoteRequest) and not request.pre_vote and response is not None and response.granted:
            story.append(f"grants {peer}")
        return response

    cluster.network.pass_on = pass_on  # type: ignore[method-assign]
    for voter in VOTERS:
        node = cluster.boot(voter)
        row = node._trace.row

        def write_row(event: str, epoch: int, v: int = voter, row: Any = row, **more: Any) -> None:
            story.append(f"{event} {v}")
            row(event, epoch, **more)

        node._trace.row = write_row  # type: ignore[method-assign]
    leader = (await cluster.leader()).node_id
    await cluster.close()
    first_ask = story.index(f"asks for a vote {leader}")
    own_vote = story.index(f"vote {leader}")
    assert own_vote < first_ask
    assert story[own_vote - 1] == f"disk {leader}", "the vote is durable before it is sent"
    granted = [who for who in VOTERS if f"grants {who}" in story]
    assert granted
    for who in granted:
        vote = story.index(f"vote {who}")
        assert story[vote - 1] == f"disk {who}"
        assert vote < story.index(f"grants {who}")


async def test_an_unforeseen_error_ends_the_node_with_its_traceback(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await cluster.leader()
    monkeypatch.setattr(leader._machine, "apply", lambda batch: 1 // 0)
    write = asyncio.ensure_future(leader.write(create("t")))
    assert await asyncio.wait_for(asyncio.shield(leader.ended), 2) == 70
    with pytest.raises(LostLeadership):
        await write
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert cluster.traces[leader.node_id][-1]["event"] == "fatal"


async def test_a_record_of_later_software_ends_no_node(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Every voter that applied one died; each died again after its restart."""
    leader = await cluster.leader()
    later = bytes.fromhex("016300ff")
    await leader.write(lambda image: ([decode(later), decode(bytes.fromhex("010409"))], None))
    await leader.write(create("t"))
    await eventually(lambda: {n.applied_offset for n in cluster.network.nodes.values()} == {leader.applied_offset})
    assert not any(node.ended.done() for node in cluster.network.nodes.values())
    assert {node.committed_image().unknown for node in cluster.network.nodes.values()} == {2}
    assert len({node.committed_image().state_hash for node in cluster.network.nodes.values()}) == 1
    assert capsys.readouterr().err.count("kept a record of unknown type 99, version 0") == len(VOTERS)
    assert "t" in (await leader.read()).topics


async def test_a_level_that_is_not_supported_is_not_served(cluster: Cluster) -> None:
    """The records behind such a level mean something that this software does not know."""
    leader = await cluster.leader()
    await leader.write(create("t"))
    await leader.write(lambda image: ([FeatureLevelRecord("metadata.version", 99)], None))
    for refused in (leader.read(), leader.write(create("u"))):
        with pytest.raises(NotQueued, match="is at level 99, and this software supports levels 7 to"):
            await refused
    assert not leader.ended.done()


@pytest.mark.parametrize("bug", ["", "acks-before-commit", "renounce-keeps-speculative"])
async def test_a_write_that_never_commits_is_acknowledged_or_kept_by_a_planted_bug_alone(boot: Boot, bug: str) -> None:
    """A leader that is cut off appends it, and a successor overwrites it."""
    cluster = boot(bug)
    old = await cluster.leader()
    await old.write(create("t"))
    cluster.network.isolate(old.node_id)
    lost = asyncio.ensure_future(old.write(create("lost")))
    await asyncio.sleep(0.05)
    acknowledged = lost.done() and lost.exception() is None
    successor = await cluster.leader(but=old.node_id)
    await successor.write(set_retention("t", 2))
    cluster.network.cut = set()
    await eventually(lambda: old.applied_offset >= successor.applied_offset)
    await asyncio.wait({lost})
    assert acknowledged == (bug == "acks-before-commit")
    keeps = bug == "renounce-keeps-speculative"
    assert ("lost" in old.committed_image().topics) == keeps
    assert any(len(hashes) > 1 for hashes in applied_states(cluster).values()) == keeps, "nodes applied other states"


def judged_replays(cluster: Cluster, folder: Path) -> tuple[list[str], int]:
    """What `replay-equals-live` finds at each node, and how many states it compared."""
    kinds, compared = [], 0
    for voter in VOTERS:
        disk = folder / f"n{voter}"
        for path, content in cluster.disks[voter].files().items():
            (disk / path).parent.mkdir(parents=True, exist_ok=True)
            (disk / path).write_bytes(content)
        source, trace, states = (folder / f"n{voter}.{kind}" for kind in ("jsonl", "parquet", "states.parquet"))
        source.write_text("".join(json.dumps(row) + "\n" for row in cluster.traces[voter]))
        write_trace(source, trace, 0)
        write_replayed(states, f"n{voter}", 1, replayed(disk / FOLDER))
        copy = {"copy": 1, "trace_seq": cluster.traces[voter][-1]["seq"]}
        found = REPLAY_EQUALS_LIVE.judge(
            Part((str(trace), str(states)), {"node": f"n{voter}", "copies": [copy]}), Budget()
        )
        kinds += [witness.kind for witness in found.witnesses]
        compared += found.compared
    return kinds, compared


@pytest.mark.parametrize("bug", ["", "deletes-topic-keeps-configs"])
async def test_the_configs_of_a_deleted_topic_are_gone_and_stay_with_the_bug(
    boot: Boot, bug: str, tmp_path: Path
) -> None:
    cluster = boot(bug)
    leader = await cluster.leader()
    for decide in (create("t"), set_retention("t", 4711), lambda image: delete_topics(image, ["t"]), create("t")):
        await leader.write(decide)
    await eventually(lambda: all(n.applied_offset == leader.log.end_offset for n in cluster.network.nodes.values()))
    inherited = {"retention.ms": "4711"} if bug else {}
    assert all(node.committed_image().configs("t") == inherited for node in cluster.network.nodes.values())
    await cluster.close()
    kinds, compared = judged_replays(cluster, tmp_path)
    assert compared > len(VOTERS)
    assert set(kinds) == ({KIND} if bug else set())


BUG = "lease-by-wall-clock"
VOTERS_OF_FIVE = (1, 2, 3, 4, 5)


async def deposed_by_lease(boot: Boot, bug: str, offset_ms: int) -> tuple[Cluster, QuorumNode]:
    """A leader that is cut off, whose wall clock is then set, and whose successor has acknowledged a write."""
    cluster = boot(bug, timing=replace(QUICK, check_quorum_factor=50.0))
    old = await cluster.leader()
    await old.write(create("t"))
    for value in range(5):
        await old.write(set_retention("t", value))
    cluster.network.isolate(old.node_id)
    cluster.wall_offset_ms[old.node_id] = offset_ms
    await (await cluster.leader(but=old.node_id)).write(set_retention("t", 99))
    return cluster, old


@pytest.mark.parametrize(("bug", "offset_ms"), [("", -60_000), (BUG, 0)])
async def test_without_the_bug_or_with_a_right_clock_a_deposed_leader_answers_no_read(
    boot: Boot, bug: str, offset_ms: int
) -> None:
    cluster, old = await deposed_by_lease(boot, bug, offset_ms)
    read = asyncio.ensure_future(old.read())
    await asyncio.sleep(0.05)
    assert not read.done()
    cluster.network.cut = set()
    with pytest.raises((NotQueued, LostLeadership)):
        await asyncio.wait_for(read, 20)


async def test_with_the_bug_and_a_clock_set_back_it_answers_from_the_past(boot: Boot) -> None:
    _, old = await deposed_by_lease(boot, BUG, -60_000)
    image = await asyncio.wait_for(old.read(), 20)
    assert image.configs("t") == {"retention.ms": "4"}


def test_a_lease_counts_from_answers_that_a_majority_certainly_got() -> None:
    lease = Lease(Identity("c", ReplicaKey(1), VOTERS_OF_FIVE, bugs=frozenset({BUG})))
    lease.fetched(2, connection=7)
    assert not lease.answers(0, VOTERS_OF_FIVE), "a first fetch proves nothing"
    for voter, connection in ((2, 7), (3, 8)):
        lease.answered(connection, 1000 + connection)
        assert not lease.answers(1000, VOTERS_OF_FIVE)
        lease.fetched(voter, connection)
    assert lease.answers(1007 + 1499, VOTERS_OF_FIVE)
    assert not lease.answers(1007 + 1500, VOTERS_OF_FIVE), "three quarters of the fetch timeout"
    lease.forget()
    assert not lease.answers(1007, VOTERS_OF_FIVE)


def test_a_lease_counts_the_voters_in_force() -> None:
    """Configured are five.  Two others have proved an answer: no majority of six, but one of three."""
    lease = Lease(Identity("c", ReplicaKey(1), VOTERS_OF_FIVE, bugs=frozenset({BUG})))
    for voter in (2, 3):
        lease.answered(voter, 1000)
        lease.fetched(voter, voter)
    assert lease.answers(1000, (1, 2, 3)) and lease.answers(1000, VOTERS_OF_FIVE)
    assert not lease.answers(1000, (1, 2, 3, 4, 5, 6))
    assert not lease.answers(1000, (2, 4, 5)), "a removed leader does not count itself"
    assert lease.answers(1000, (2, 3, 5))
    assert lease.answers(1000, (1,)), "alone"
