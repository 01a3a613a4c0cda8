"""Snapshots on the disk, and the log that begins behind them: at rest, under damage, and against power losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from power_loss import at_every_moment

from simulation.disk import VolatileDisk
from system_under_test.kraft.log import snapshot_file
from system_under_test.kraft.log.batch import read_header
from system_under_test.kraft.log.log import FOLDER, CorruptLog, Log, open_log
from system_under_test.kraft.log.snapshot_file import (
    BATCH_MAX_BYTES,
    CorruptSnapshot,
    SnapshotHeader,
    SnapshotWriter,
    file_name,
)
from system_under_test.kraft.raft.decisions import next_log_start
from system_under_test.kraft.raft.messages import Batch, EpochEnd, ReplicaKey, SnapshotId
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry, VoterSet, voter_set

NOW_MS = 1_750_000_000_000
SMALL_SEGMENT_BYTES = 400


def content(snapshot: SnapshotId, values: tuple[bytes, ...], prefix_hash: int = 0) -> bytes:
    header = SnapshotHeader(version=0, last_timestamp_ms=NOW_MS, prefix_hash=prefix_hash)
    return b"".join(SnapshotWriter(snapshot, header, values))


def take(log: Log, end_offset: int) -> SnapshotId:
    """A snapshot of everything below an offset, as a node takes it."""
    snapshot, prefix_hash = log.prefix_at(end_offset), log.prefix_hash_at(end_offset)
    assert snapshot is not None and prefix_hash is not None
    log.snapshots.write_part(snapshot, 0, content(snapshot, (b"state",), prefix_hash))
    log.snapshots.freeze(snapshot)
    return snapshot


def filled(disk: VolatileDisk, batches: int = 9) -> Log:
    """Batches of 180 bytes, two to a segment; the epoch rises with every third one."""
    log = open_log(disk, segment_max_bytes=SMALL_SEGMENT_BYTES)
    for number in range(batches):
        log.append([Batch(log.end_offset, 1 + number // 3, 1, (bytes([number]) * 110,))], NOW_MS)
    log.flush()
    return log


def clean(log: Log) -> None:
    log.clean(0, 0, lambda snapshots: next_log_start(snapshots, 0))


def bases(disk: VolatileDisk) -> list[int]:
    return [int(name[:20]) for name in disk.names(FOLDER) if name.endswith(".log")]


# Files


some_values = st.lists(st.binary(max_size=300), max_size=20)
VOTERS = voter_set(
    VoterEntry(ReplicaKey(n, UUID(int=n * 7)), (VoterEndpoint("CONTROLLER", f"10.0.0.{n}", 9092),)) for n in (3, 1, 2)
)


@given(
    st.lists(st.binary(max_size=300), max_size=20), st.integers(-(2**63), 2**63 - 1), st.sampled_from([None, VOTERS])
)
def test_a_snapshot_holds_what_was_written(values: list[bytes], prefix_hash: int, voters: VoterSet | None) -> None:
    snapshot = SnapshotId(7, 3)
    header = SnapshotHeader(version=0, last_timestamp_ms=5, prefix_hash=prefix_hash)
    writer = SnapshotWriter(snapshot, header, values, voters)
    data = b"".join(writer)
    found = snapshot_file.read(data, snapshot)
    assert (found.values, found.header, found.voters) == (tuple(values), header, voters)
    assert found.state_hash == writer.content_hash
    assert snapshot_file.read_beginning(data[: snapshot_file.BEGINNING_MAX_BYTES]) == (header, voters)


def test_the_beginning_of_a_snapshot_may_end_within_a_batch() -> None:
    header = SnapshotHeader(version=0, last_timestamp_ms=0)
    data = b"".join(SnapshotWriter(SnapshotId(10, 1), header, [bytes(100)] * 20))
    first = read_header(data).size_bytes
    for end in (first, first + 5, len(data) - 5):
        assert snapshot_file.read_beginning(data[:end]) == (header, None)
    with pytest.raises(CorruptSnapshot, match="it has no header"):
        snapshot_file.read_beginning(data[: first - 1])


def test_a_large_snapshot_is_written_in_batches() -> None:
    values = tuple(bytes([n]) * (BATCH_MAX_BYTES // 3) for n in range(10))
    batches = list(SnapshotWriter(SnapshotId(10, 1), SnapshotHeader(version=0, last_timestamp_ms=0), values))
    assert len(batches) == 2 + 3  # four values fill one
    assert snapshot_file.read(b"".join(batches), SnapshotId(10, 1)).values == values


def test_a_damaged_or_torn_snapshot_is_refused_wherever_it_is_damaged() -> None:
    snapshot = SnapshotId(7, 3)
    data = content(snapshot, (b"one", b"two"))
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        for wrong in (bytes(flipped), data[:at]):
            with pytest.raises(CorruptSnapshot):
                snapshot_file.read(wrong, snapshot)
    with pytest.raises(CorruptSnapshot):
        snapshot_file.read(data, SnapshotId(7, 4))
    with pytest.raises(CorruptSnapshot):
        snapshot_file.read(data + data, snapshot)


# A log that begins after a snapshot


def test_a_log_is_cut_behind_its_second_snapshot_and_goes_on() -> None:
    disk = VolatileDisk()
    log = filled(disk)
    whole = list(log.batches(0))
    hashes = [log.prefix_hash_at(offset) for offset in range(10)]
    take(log, 2)
    clean(log)
    assert log.start_offset == 0  # one snapshot is not enough: the newest stays, and the log after the one before
    second = take(log, 5)
    clean(log)
    assert (log.start, log.snapshots.ids, bases(disk)) == (second, [second], [4, 6, 8])
    for reopened in (False, True):
        again = open_log(disk, segment_max_bytes=SMALL_SEGMENT_BYTES) if reopened else log
        assert (again.start, again.end_offset, again.last_epoch) == (second, 9, 3)
        assert list(again.batches(5)) == whole[5:]
        assert [again.prefix_hash_at(offset) for offset in range(5, 10)] == hashes[5:]
        assert again.prefix_hash_at(4) is None
        assert [again.end_offset_for_epoch(epoch) for epoch in (1, 2, 3)] == [
            EpochEnd(2, 5),  # an epoch no longer known: the end of the snapshot
            EpochEnd(2, 6),
            EpochEnd(3, 9),
        ]
        with pytest.raises(ValueError, match=r"offset 4 is not within 5\.\.9"):
            again.read(4, 1)
        again.truncate(6)
        assert (again.end_offset, again.last_epoch) == (6, 2)
        again.truncate(5)
        assert (again.end_offset, again.last_epoch, again.prefix_hash) == (5, 2, hashes[5])
        again.append(whole[5:], NOW_MS)
        again.flush()
        assert again.prefix_hash == hashes[9]


def test_retention_keeps_what_is_small_and_young() -> None:
    log = filled(VolatileDisk())
    for end in (2, 5, 7):
        take(log, end)
    log.clean(1 << 20, NOW_MS, lambda snapshots: next_log_start(snapshots, 0))
    assert log.start_offset == 0
    log.clean(1 << 20, NOW_MS + 1, lambda snapshots: next_log_start(snapshots, 0))
    assert (log.start_offset, log.snapshots.ids) == (7, [SnapshotId(7, 3)])


def test_a_log_begins_above_0_only_behind_a_snapshot_that_it_holds() -> None:
    disk = VolatileDisk()
    log = filled(disk)
    older = take(log, 1)
    log.close()
    disk.remove(f"{FOLDER}/{0:020d}.log")
    with pytest.raises(CorruptLog, match="the log begins at offset 2, and no snapshot ends there or later"):
        open_log(disk)
    for wrong in (SnapshotId(2, 2), SnapshotId(3, 9), SnapshotId(4, 1)):
        path = f"{FOLDER}/{file_name(wrong)}"
        disk.rename(f"{FOLDER}/{file_name(older)}", path)
        with pytest.raises(CorruptLog):
            open_log(disk)
        disk.rename(path, f"{FOLDER}/{file_name(older)}")


def test_a_snapshot_beyond_a_log_that_lost_fsynced_batches_does_not_hide_the_loss() -> None:
    disk = VolatileDisk()
    log = filled(disk)
    take(log, 7)
    log.close()
    for base in bases(disk)[2:]:
        disk.remove(f"{FOLDER}/{base:020d}.log")
    with pytest.raises(CorruptLog, match="everything below offset 9 was fsynced"):
        open_log(disk)


# far ahead; or in conflict with an uncommitted tail
def test_a_log_that_holds_the_end_of_a_snapshot_keeps_what_follows() -> None:
    log = filled(VolatileDisk())
    snapshot = log.prefix_at(4)
    log.snapshots.write_part(snapshot, 0, content(snapshot, (b"a",)))
    log.install(snapshot)
    assert (log.start_offset, log.end_offset, log.snapshots.ids) == (0, 9, [snapshot])


def test_a_damaged_part_is_not_installed() -> None:
    disk = VolatileDisk()
    log = filled(disk)
    snapshot = SnapshotId(20, 5)
    data = content(snapshot, (b"a",))
    log.snapshots.write_part(snapshot, 0, data[:50])
    with pytest.raises(CorruptSnapshot):
        log.install(snapshot)
    with pytest.raises(CorruptSnapshot):
        log.snapshots.check_part(snapshot, 50, data[50:-1])
    log.snapshots.check_part(snapshot, 50, data[50:])
    assert (log.start_offset, log.end_offset) == (0, 9)
    assert open_log(disk).snapshots.ids == []
    assert not [name for name in disk.names(FOLDER) if name.endswith(".part")]


# Power losses


def left(prepare: Callable[[VolatileDisk], Log], act: Callable[[Log], None]) -> Iterator[tuple[Log, bool]]:
    """The logs that a power loss before each change of the disk leaves, in four kinds; whether `act` had returned."""
    for disk, returned in at_every_moment(prepare, act):
        for kind, seed in product(("lose", "keep", "torn", "reorder"), range(3)):
            survivor = disk.crash(kind, Random(seed))  # type: ignore[arg-type]
            yield open_log(survivor, segment_max_bytes=SMALL_SEGMENT_BYTES), returned


def test_a_power_loss_while_the_log_is_cut_leaves_it_behind_a_snapshot() -> None:
    whole = list(filled(VolatileDisk()).batches(0))
    hashes = {offset: filled(VolatileDisk()).prefix_hash_at(offset) for offset in range(10)}

    def prepare(disk: VolatileDisk) -> Log:
        log = filled(disk)
        for end in (3, 5, 8):
            take(log, end)
        return log

    starts = set()
    for log, returned in left(prepare, clean):
        starts.add(log.start_offset)
        assert list(log.batches(log.start_offset)) == whole[log.start_offset :]
        assert log.prefix_hash == hashes[9]
        assert log.prefix_hash_at(log.start_offset) == hashes[log.start_offset]
        assert log.snapshots.ids[-1].end_offset == 8
        assert log.start_offset in (0, *(each.end_offset for each in log.snapshots.ids))
        if returned:
            assert (log.start_offset, len(log.snapshots.ids)) == (8, 1)
    assert starts >= {0, 8}


@pytest.mark.parametrize("snapshot", [SnapshotId(20, 5), SnapshotId(8, 2)])
def test_a_power_loss_during_an_installation_leaves_the_old_log_or_the_snapshot(snapshot: SnapshotId) -> None:
    whole = list(filled(VolatileDisk()).batches(0))

    def install(log: Log) -> None:
        log.snapshots.write_part(snapshot, 0, content(snapshot, (b"a", b"b"), 77))
        log.install(snapshot)

    seen = set()
    for log, returned in left(filled, install):
        installed = log.start == snapshot
        seen.add(installed)
        if installed:
            assert log.snapshots.load(snapshot).values == (b"a", b"b")
            assert (log.end_offset, log.prefix_hash) == (snapshot.end_offset, 77)
        else:
            assert not returned
            assert list(log.batches(0)) == whole
    assert seen == {False, True}
