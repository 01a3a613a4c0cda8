"""Damage to files of servers, and snapshots in parts: a clean node keeps every rule, and mistakes are found.

What a node reports as durable is held against its disk, also where a segment is full while its fsync goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from harness.campaign.swarm import acts
from harness.campaign.swarm.node_voter import DurableLog
from harness.campaign.swarm.scenario import Scenario, StormCard
from harness.campaign.swarm.world import StormWorld, play
from simulation.disk import VolatileDisk
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log import small_files, snapshot_file
from system_under_test.kraft.log.log import FOLDER, Log, open_log
from system_under_test.kraft.log.segment import Segment
from system_under_test.kraft.log.small_files import RecoveryPoint
from system_under_test.kraft.log.snapshot_file import PART, Snapshots
from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft import replication
from system_under_test.kraft.raft.messages import (
    Batch,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderChange,
    QuorumState,
    ReplicaKey,
    SnapshotId,
)
from system_under_test.kraft.raft.states import Download, Follower
from system_under_test.kraft.raft.voter_memory import Voter


def test_a_bit_that_flips_lies_where_the_crc_of_its_batch_covers_it() -> None:
    """An epoch that changed on the disk makes a log look newer than it is, and no server can notice that."""
    raws = [codec.encode_values(offset, 2, [b"value"], 0) for offset in (0, 1)]
    log, begins = b"".join(raws), (0, len(raws[0]))
    for place in acts.covered(log):
        begin = begins[place >= begins[1]]
        damaged = bytearray(log)
        damaged[place] ^= 4
        with pytest.raises(codec.CorruptBatch):
            codec.check_crc(bytes(damaged[begin : begin + len(raws[0])]))


def test_the_last_batch_of_a_log_is_found_in_front_of_a_torn_one() -> None:
    first, second = (codec.encode_values(offset, 2, [b"value"], 0) for offset in (0, 1))
    assert acts.last_batch(first + second) == len(first)
    assert acts.last_batch(first + second + second[:9]) == len(first)
    assert acts.last_batch(b"") == acts.last_batch(first) == 0


def forgets_the_recovery_point(monkeypatch: pytest.MonkeyPatch) -> None:
    read = RecoveryPoint.__init__

    def promises_nothing(point: RecoveryPoint, disk: Any, folder: str) -> None:
        read(point, disk, folder)
        point.offset = -1

    monkeypatch.setattr(RecoveryPoint, "__init__", promises_nothing)


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("how", [acts.IN_LAST_BATCH, acts.LAST_BATCH_GONE])
def test_a_server_with_a_damaged_log_refuses_to_start_and_does_not_forget(
    how: str, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wrong:
        forgets_the_recovery_point(monkeypatch)
    flip = StormCard("flip", "follower:0", 5.0, 0.5, how=how, size=60)
    played = play(Scenario(1, seconds=8.0, cards=(flip,)))
    assert sum(played.faults.values()) == 1
    assert [found.rule for found in played.found][:1] == (["committed entry lost"] if wrong else [])


def test_a_server_that_also_loses_power_may_take_a_damaged_batch_for_a_torn_one() -> None:
    """The recovery point is not fsynced, so a power loss may take what it promised."""
    inside = StormCard("inside", "follower:0", 5.0, 3.0, how="lose", size=500)
    flip = StormCard("flip", "follower:0", 5.0, 0.5, how=acts.IN_LAST_BATCH, size=60)
    world = StormWorld(Scenario(1, seconds=8.0, cards=(inside, flip)))
    world.loop.run(world.main())
    assert [server.may_forget for server in world.servers].count(True) == 1
    assert world.watch.found == []
    assert world.calm_s >= 0


Plant = Callable[[pytest.MonkeyPatch], None]

AWAY = StormCard("kill", "follower:0", 2.0, 6.0)
SMALL = Scenario(1, seconds=14.0, segment_bytes=1 << 11, snapshot_bytes=1 << 11, part_bytes=100)


def damaged(how: str, size: int = 60) -> Scenario:
    """One file of a follower is damaged; of the leader, if it sends the file to a follower that was away."""
    if how == acts.SERVED_SNAPSHOT:
        served = StormCard("flip", "leader", 2.0, moment="part", how=how, size=size)
        return replace(SMALL, cards=(AWAY, served))
    return replace(SMALL, seconds=8.0, cards=(StormCard("flip", "follower:0", 5.0, 0.5, how=how, size=size),))


def believes_snapshots(patch: pytest.MonkeyPatch) -> None:
    """No reader of a snapshot looks at a CRC."""
    patch.setattr(snapshot_file, "codec", SimpleNamespace(**{**vars(codec), "check_crc": lambda raw: None}))


@pytest.mark.parametrize("how", [acts.SNAPSHOT, acts.SERVED_SNAPSHOT, "quorum-state", *acts.MENDED])
def test_a_clean_node_refuses_a_damaged_file_or_does_without(how: str) -> None:
    played = play(damaged(how))
    assert sum(count for (fault, *_), count in played.faults.items() if fault == "flip") == 1
    assert played.found == []


@pytest.mark.parametrize("how", [acts.SNAPSHOT, acts.SERVED_SNAPSHOT])
def test_a_node_that_believes_a_damaged_snapshot_is_found(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    believes_snapshots(monkeypatch)
    assert [broken.rule for broken in play(damaged(how, 254)).found[:1]] == ["snapshot differs from its prefix"]


def test_a_bit_flips_in_quorum_state_only_where_a_reader_can_notice_it() -> None:
    state = QuorumState(7, 2, ReplicaKey(3, UUID(int=5)))
    for data in (small_files.encode_state(state, "c", [1, 2, 3]), small_files.encode_state(state, "c", None)):
        for place in acts.FILE_KINDS["quorum-state"].places(data):
            for bit in range(8):
                flipped = bytearray(data)
                flipped[place] ^= 1 << bit
                with suppress(small_files.UnreadableQuorumState):
                    assert small_files.decode_state(bytes(flipped)) == small_files.decode_state(data)


NOT_DURABLE = "what is reported as durable is not"
SLOW = StormCard("disk", "leader", 2.0, 4.0, how="slow", size=0.2)
ROLLS = Scenario(1, seconds=8.0, segment_bytes=1 << 11, cards=(SLOW,))
"""An fsync of the leader takes so long that its segment is full before it ends."""


def rolls_without_a_flush(patch: pytest.MonkeyPatch) -> None:
    """A flush goes on already."""
    flush = Log.flush
    patch.setattr(Log, "flush", lambda log: None if log._flushing is not None else flush(log))


def trusts_the_fsync_that_goes_on(patch: pytest.MonkeyPatch) -> None:
    flush = Segment.flush
    patch.setattr(Segment, "flush", lambda segment: segment._write() if segment._syncing else flush(segment))


def reports_its_end_as_it_is_afterwards(patch: pytest.MonkeyPatch) -> None:
    note = Log._note_flushed
    patch.setattr(Log, "_note_flushed", lambda log, end_offset: note(log, log.end_offset))


@pytest.mark.parametrize(
    "plant", [rolls_without_a_flush, trusts_the_fsync_that_goes_on, reports_its_end_as_it_is_afterwards]
)
def test_a_log_that_reports_more_than_is_durable_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert play(ROLLS).found[0].rule == NOT_DURABLE


def test_a_clean_log_rolls_while_an_fsync_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled = []
    create = Segment.create

    def counted(disk: VolatileDisk, folder: str, base_offset: int) -> Segment:
        rolled.append(base_offset)
        return create(disk, folder, base_offset)

    monkeypatch.setattr(Segment, "create", counted)
    assert play(ROLLS).found == []
    assert len(rolled) > 10


# The end of the log as the disk shows it


def opening(base: int, epoch: int = 1) -> Batch:
    return Batch(base, epoch, 1, LeaderChange(1, (1, 2, 3), (1, 2)))


def test_the_durable_end_is_that_of_what_was_fsynced_and_joins() -> None:
    disk = VolatileDisk()
    log = open_log(disk, segment_max_bytes=200)
    durable = DurableLog()
    assert durable.end_offset(disk) == 0
    log.append([opening(0)], 0)
    assert durable.end_offset(disk) == 0
    log.flush()
    assert durable.end_offset(disk) == 1
    for offset in range(1, 6):
        log.append([opening(offset)], 0)
    assert durable.end_offset(disk) < 6 == log.end_offset
    log.flush()
    assert len([name for name in disk.names(FOLDER) if name.endswith(".log")]) > 1
    assert durable.end_offset(disk) == DurableLog().end_offset(disk) == 6


def test_a_log_that_was_cut_is_read_anew() -> None:
    disk = VolatileDisk()
    log = open_log(disk)
    log.append([opening(offset) for offset in range(4)], 0)
    log.flush()
    durable = DurableLog()
    assert durable.end_offset(disk) == 4
    log.truncate(2)
    durable.begin_anew()
    assert durable.end_offset(disk) == 2


def test_a_server_whose_disk_failed_while_it_was_busy_is_restarted_when_all_is_healed() -> None:
    """The server has failed before the end of the storm, and is too busy to exit before it."""
    cards = (
        StormCard("slow", "follower:0", 4.5, 9.0, size=3000.0),
        StormCard("disk", "follower:0", 4.5, 0.3, how="write", size=0.04),
    )
    played = play(Scenario(1, 3, seconds=5.0, rate_hz=50.0, cpu_factor=1.0, cards=cards))
    assert "disk" in played.struck
    assert played.found == []


LOST = StormCard("cut", "leader", 2.0, 4.0, moment="part", nth=3, how="both")
FETCHED = replace(SMALL, cards=(AWAY,))
"""A server that was away fetches a snapshot of ten parts or more."""
BROKEN_OFF = replace(FETCHED, cards=(AWAY, LOST))
"""The same, and its leader is lost meanwhile."""
KILLED = replace(FETCHED, cards=(AWAY, replace(LOST, fault="kill", who="it", for_s=0.1)))
"""The same, and it is killed meanwhile."""


def written_at_the_beginning(patch: pytest.MonkeyPatch) -> None:
    write = Snapshots.write_part
    patch.setattr(Snapshots, "write_part", lambda self, snapshot, position, data: write(self, snapshot, 0, data))


def sent_from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    read = Log.read_snapshot
    patch.setattr(
        Log, "read_snapshot", lambda self, snapshot, position, size_bytes: read(self, snapshot, 0, size_bytes)
    )


def last_part_left_out(patch: pytest.MonkeyPatch) -> None:
    on_response = replication.on_response

    def ends_early(
        voter: Voter, now: float, peer: int, request: FetchSnapshotRequest, response: FetchSnapshotResponse
    ) -> None:
        end = response.position + len(response.data)
        left = response.size_bytes - end
        if 0 < left <= len(response.data):
            response = replace(response, size_bytes=end)
        on_response(voter, now, peer, request, response)

    patch.setattr(replication, "on_response", ends_early)


def goes_on_where_it_was_with_another(patch: pytest.MonkeyPatch) -> None:
    begin = replication.begin
    reached: dict[int, Download] = {}

    def at_the_former_position(voter: Voter, follower: Follower, snapshot: SnapshotId) -> None:
        begin(voter, follower, snapshot)
        assert follower.download is not None
        if voter.me in reached:
            follower.download.position = reached[voter.me].position
        reached[voter.me] = follower.download

    patch.setattr(replication, "begin", at_the_former_position)


def takes_a_stale_part_for_a_whole(patch: pytest.MonkeyPatch) -> None:
    make = Snapshots.__init__

    def renames(self: Any, disk: Disk, folder: str) -> None:
        for name in disk.names(folder):
            if name.endswith(f".checkpoint{PART}"):
                disk.rename(f"{folder}/{name}", f"{folder}/{name.removesuffix(PART)}")
        make(self, disk, folder)

    patch.setattr(Snapshots, "__init__", renames)


OUT_OF_TURN = "a part of a snapshot is asked for out of turn"


@pytest.mark.parametrize(
    ("scenario", "plant", "rule"),
    [
        (FETCHED, written_at_the_beginning, "a voter stops"),
        (FETCHED, sent_from_the_beginning, "no progress"),
        (FETCHED, last_part_left_out, "a voter stops"),
        (BROKEN_OFF, goes_on_where_it_was_with_another, OUT_OF_TURN),
        (KILLED, takes_a_stale_part_for_a_whole, "a voter cannot start"),
    ],
)
def test_a_mistake_with_the_parts_of_a_snapshot_breaks_a_rule(
    scenario: Scenario, plant: Plant, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert [found.rule for found in play(scenario).found[:1]] == [rule]


@pytest.mark.parametrize("scenario", [FETCHED, BROKEN_OFF, KILLED])
def test_a_clean_node_fetches_its_snapshot_in_parts_and_begins_anew_when_it_is_broken_off(scenario: Scenario) -> None:
    played = play(scenario)
    assert played.moments["part"] >= 8
    assert played.found == []
