"""Much at once: long replays, large requests.  The loop keeps serving the quorum, and nothing is promised in vain."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
from node_cluster import QUICK, VOTERS, Boot, create, set_retention
from waiting import eventually

from system_under_test.kraft.controller.topics import RECORDS_MAX, NewTopic, create_topics, of_ids
from system_under_test.kraft.node import snapshotting
from system_under_test.kraft.node.snapshotting import Replay
from system_under_test.kraft.node.state_machine import WRITE_MAX_BYTES
from system_under_test.kraft.records.metadata import ConfigRecord
from system_under_test.kraft.wire.quorum_service import TooLarge

pytestmark = pytest.mark.virtual_time

PATIENT = replace(QUICK, fetch_timeout_s=10.0, request_timeout_s=10.0)
"""For what takes a while on a loaded machine."""


async def test_a_long_replay_is_done_in_slices_and_reads_wait_for_it(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart with 200,000 records: 69 s without a leader, because the replay was one step."""
    cluster = boot(timing=PATIENT)
    leader = await cluster.leader()
    await leader.write(create("t"))
    for first in range(0, 6000, 500):
        await asyncio.gather(*(leader.write(set_retention("t", first + n)) for n in range(500)))
    for node in cluster.network.nodes.values():
        node._end(0)
    cluster.disks = {voter: disk.crash("lose", Random(voter)) for voter, disk in cluster.disks.items()}
    monkeypatch.setattr(snapshotting, "SLICE_RECORDS", 100)
    slices: list[int] = []
    apply_slice = Replay.apply_slice

    def counted(replay: Replay) -> None:
        before = replay._machine.applied_offset
        apply_slice(replay)
        slices.append(replay._machine.applied_offset - before)

    monkeypatch.setattr(Replay, "apply_slice", counted)
    before_restart = {voter: len(rows) for voter, rows in cluster.traces.items()}
    cluster.boot_all()
    image = await (await cluster.leader()).read()
    assert image.configs("t") == {"retention.ms": "5999"}
    assert len(slices) > 10
    assert max(slices) <= 100 + 500, "one batch is never parted"
    for voter, rows in cluster.traces.items():
        applied = [row for row in rows[before_restart[voter] :] if row["event"] == "applied"]
        assert len(applied) < 100, "a long replay reports some of the states it passes"


async def test_an_atomic_write_has_a_largest_size(boot: Boot) -> None:
    """20,000 records passed, and a value near 16 MiB could be written that no follower could ever fetch."""
    cluster = boot(timing=PATIENT)
    leader = await cluster.leader()
    await leader.write(create("t"))
    end = leader._log.end_offset
    record = ConfigRecord(2, "t", "retention.ms", "1")
    large = ConfigRecord(2, "t", "retention.ms", "x" * WRITE_MAX_BYTES)
    for records in ([record] * (RECORDS_MAX + 1), [large]):
        with pytest.raises(TooLarge):
            await leader.write(lambda image, records=records: (records, None))
    assert leader._log.end_offset == end
    await leader.write(lambda image: ([record] * RECORDS_MAX, None))
    assert leader.is_active()


async def test_a_topic_with_ten_thousand_partitions_costs_no_leader_its_office(boot: Boot) -> None:
    cluster = boot(timing=PATIENT)
    leader = await cluster.leader()
    epoch = leader.epoch

    def many(image):  # type: ignore[no-untyped-def]
        return create_topics(image, [NewTopic("many", RECORDS_MAX - 1, 3)], of_ids(VOTERS), lambda: UUID(int=9))

    (result,) = await leader.write(many)
    assert result["num_partitions"] == RECORDS_MAX - 1
    assert (leader.epoch, leader.is_active()) == (epoch, True)


async def test_the_writes_of_a_lone_client_are_appended_at_once_and_those_of_many_share_an_append(boot: Boot) -> None:
    cluster = boot(timing=PATIENT)
    leader = await cluster.leader()
    await leader.write(create("t"))
    answered: list[int] = []

    def submit(number: int) -> int:
        """How many records were appended before the loop ran again."""
        before = leader._log.end_offset
        leader.submit(set_retention("t", number), lambda result, problem: answered.append(number))
        return leader._log.end_offset - before

    async def appends_for(numbers: range) -> tuple[int, int]:
        """How many records were appended at once, and in how many batches all of them."""
        batches = len(leader._log._batches)
        at_once = sum([submit(number) for number in numbers])
        await eventually(
            lambda: len(answered) == numbers.stop and leader._core.high_watermark == leader._log.end_offset
        )
        return at_once, len(leader._log._batches) - batches

    assert await appends_for(range(1)) == (1, 1), "the topic was created alone"
    assert await appends_for(range(1, 6)) == (1, 2), "the first one alone, and four that find it in flight"
    assert await appends_for(range(6, 11)) == (0, 1)
    assert await appends_for(range(11, 12)) == (0, 1)
    assert await appends_for(range(12, 13)) == (1, 1)
    assert answered == list(range(13))
