"""The batch codec against itself and kio, and damaged files of a log: torn tails are cut, other damage stops the node.

The control records of voters, against kio's own codec of them, and in logs and snapshots.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.schema.k_raft_version_record.v0.data import KRaftVersionRecord
from kio.schema.leader_change_message.v0.data import LeaderChangeMessage
from kio.schema.voters_record.v0.data import VotersRecord
from kio.serial import entity_reader

from simulation.disk import VolatileDisk
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.log import FOLDER, CorruptLog, DamagedLog, open_log
from system_under_test.kraft.log.segment import file_name
from system_under_test.kraft.log.small_files import RECOVERY_POINT
from system_under_test.kraft.node.disk import RealDisk
from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft.messages import Batch, LeaderChange, ReplicaKey
from system_under_test.kraft.raft.voters import KRaftVersion, VoterEndpoint, VoterEntry, voter_set
from system_under_test.kraft.records.struct import Malformed

offsets = st.integers(0, 2**62)
epochs = st.integers(0, 2**31 - 1)
some_values = st.lists(st.binary(max_size=300), min_size=1, max_size=40)
NOW_MS = 1_750_000_000_000


@given(offsets, epochs, some_values)
def test_what_is_encoded_is_decoded_here_and_by_kio(base: int, epoch: int, values: list[bytes]) -> None:
    raw = codec.encode_values(base, epoch, values, NOW_MS)
    header = codec.read_header(raw)
    codec.check_crc(raw)
    assert (header.base_offset, header.epoch, header.count) == (base, epoch, len(values))
    assert (header.size_bytes, header.end_offset) == (len(raw), base + len(values))
    assert not codec.is_control(raw)
    assert codec.values(raw) == values
    theirs, size = read_batch(raw, 0)
    assert size == len(raw)
    assert (theirs.base_offset, theirs.partition_leader_epoch) == (base, epoch)
    assert theirs.last_offset_delta == len(values) - 1
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (-1, -1, -1)
    assert [r.value for r in theirs.records] == values
    assert [r.offset for r in theirs.records] == [base + i for i in range(len(values))]
    assert all(r.key is None and not r.headers for r in theirs.records)


deltas = st.integers(-(2**40), 2**40)
keys = st.none() | st.binary(max_size=90)
headers = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=90)), max_size=2)


@given(st.lists(st.tuples(deltas, keys, st.binary(max_size=90), headers), min_size=1, max_size=90))
def test_the_values_are_found_behind_all_that_kafka_may_write(records: list[Any]) -> None:
    """Timestamps, keys and headers, with numbers of one byte and of many."""
    written = []
    for number, (delta, key, value, pairs) in enumerate(records):
        counted = [len(pairs), *(part for name, text in pairs for part in (name.encode(), text))]
        parts = [delta, number, -1 if key is None else key, value, *counted]
        content = b"\0" + b"".join(
            codec._zigzag(part) if isinstance(part, int) else codec._zigzag(len(part)) + part for part in parts
        )
        written.append(codec._zigzag(len(content)) + content)
    raw = codec._batch(5, 1, 0, len(records), b"".join(written), NOW_MS)
    theirs, _ = read_batch(raw, 0)
    assert codec.values(raw) == [each.value for each in theirs.records] == [value for _, _, value, _ in records]


voters = st.lists(st.integers(0, 2**31 - 1), max_size=20).map(tuple)


@given(st.integers(0, 2**31 - 1), voters, voters)
def test_a_leader_change_is_kafkas(leader: int, every: tuple[int, ...], granting: tuple[int, ...]) -> None:
    change = LeaderChange(leader, every, granting)
    raw = codec.encode(Batch(7, 3, 1, change), NOW_MS)
    assert codec.is_control(raw)
    assert codec.leader_change(raw) == change
    theirs, _ = read_batch(raw, 0)
    [record] = theirs.records
    assert theirs.attributes == 0x20
    assert record.key == b"\x00\x00\x00\x02"
    message, size = entity_reader(LeaderChangeMessage)(record.value, 0)
    assert size == len(record.value)
    assert (message.version, message.leader_id) == (0, leader)
    assert tuple(v.voter_id for v in message.voters) == every
    assert tuple(v.voter_id for v in message.granting_voters) == granting


@given(some_values, st.data())
def test_a_flipped_bit_is_noticed(values: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(codec.encode_values(5, 2, values, NOW_MS))
    # from the magic byte on: the part that magic and CRC protect
    bit = data.draw(st.integers(16 * 8, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(codec.CorruptBatch):
        codec.read_header(bytes(raw))
        codec.check_crc(bytes(raw))


@given(st.lists(some_values, max_size=5), st.integers(0, 400))
def test_a_fetch_is_split_into_its_whole_batches(contents: list[list[bytes]], missing: int) -> None:
    base, raws = 0, []
    for values in contents:
        raws.append(codec.encode_values(base, 1, values, NOW_MS))
        base += len(values)
    data = b"".join(raws)
    data = data[: max(0, len(data) - missing)]
    whole = codec.split(data)
    assert [b.body for b in whole] == raws[: len(whole)]
    assert len(data) - sum(len(b.body) for b in whole) < (len(raws[len(whole)]) if len(whole) < len(raws) else 1)


def test_raw_bytes_must_be_what_the_batch_says() -> None:
    raw = codec.encode_values(5, 2, [b"x"], NOW_MS)
    assert codec.encode(Batch(5, 2, 1, raw), 0) == raw
    for other in (Batch(6, 2, 1, raw), Batch(5, 3, 1, raw), Batch(5, 2, 2, raw), Batch(5, 2, 1, raw + b"\0")):
        with pytest.raises(codec.CorruptBatch):
            codec.encode(other, 0)


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_else(data: bytes) -> None:
    try:
        header = codec.read_header(data)
        codec.check_crc(data[: header.size_bytes])
    except codec.CorruptBatch:
        return
    assert header.size_bytes <= len(data)


def test_records_that_do_not_add_up_are_corrupt() -> None:
    raw = codec.encode_values(0, 1, [b"abc"], NOW_MS)
    negative = raw[:61] + bytes([raw[61] + 1]) + raw[62:]
    for damaged in (raw[:-1], raw + b"\0", raw[:61] + b"\xff" * 12, negative):
        with pytest.raises(codec.CorruptBatch):
            codec.values(damaged)


VOTERS = voter_set(
    VoterEntry(ReplicaKey(n, UUID(int=n * 7)), (VoterEndpoint("CONTROLLER", f"10.0.0.{n}", 9092),)) for n in (3, 1, 2)
)


def test_kio_reads_our_records():
    record, size = entity_reader(VotersRecord)(codec.encode_voters(VOTERS), 0)
    assert size == len(codec.encode_voters(VOTERS))
    assert [(v.voter_id, v.voter_directory_id, v.endpoints[0].host) for v in record.voters] == [
        (n, UUID(int=n * 7), f"10.0.0.{n}") for n in (1, 2, 3)
    ]
    level, _ = entity_reader(KRaftVersionRecord)(codec.encode_kraft_version(KRaftVersion(1)), 0)
    assert level.k_raft_version == 1


def test_voters_stand_in_a_control_batch():
    raw = codec.encode(Batch(9, 4, 1, VOTERS), 1)
    assert codec.is_control(raw) and codec.read_header(raw).base_offset == 9
    assert codec.voters(raw) == VOTERS
    assert codec.voters(codec.encode(Batch(9, 4, 1, KRaftVersion(1)), 1)) is None
    assert codec.voters(codec.encode(Batch(9, 4, 1, (b"x",)), 1)) is None


@pytest.mark.parametrize("cut", range(len(codec.encode_voters(VOTERS))))
def test_bytes_that_are_cut_are_refused(cut):
    with pytest.raises(Malformed):
        codec.decode_voters(codec.encode_voters(VOTERS)[:cut])


SMALL_SEGMENT_BYTES = 400


def three_batches(disk: Disk) -> tuple[list[bytes], list[int]]:
    """Raw batches of a small log, and the prefix hash behind each."""
    log = open_log(disk)
    hashes = [log.prefix_hash]
    for epoch, values in ((1, (b"a", b"bc")), (1, (b"d" * 100,)), (2, (b"e", b"f", b"g"))):
        log.append([Batch(log.end_offset, epoch, len(values), values)], NOW_MS)
        hashes.append(log.prefix_hash)
    log.flush()
    raws = [bytes(b.body) for b in log.batches(0)]
    log.close()
    return raws, hashes


def test_a_torn_tail_is_cut_at_every_byte() -> None:
    disk = VolatileDisk()
    raws, hashes = three_batches(disk)
    file = disk.open(f"{FOLDER}/{file_name(0)}")
    whole = file.read_at(0, file.size())
    ends = [0, len(raws[0]), len(raws[0] + raws[1]), len(whole)]
    for size in range(len(whole) + 1):
        file.truncate(0)
        file.write_at(0, whole[:size])
        disk.remove(f"{FOLDER}/{RECOVERY_POINT}")  # a power loss restored the file from before the append
        log = open_log(disk)
        kept = max(i for i, end in enumerate(ends) if end <= size)
        assert [b.body for b in log.batches(0)] == raws[:kept]
        assert log.prefix_hash == hashes[kept]
        assert log.recovery.torn_bytes == size - ends[kept]
        assert file.size() == ends[kept]
        log.append([Batch(log.end_offset, 3, 1, (b"goes on",))], NOW_MS)
        log.close()


def test_garbage_behind_the_last_batch_is_cut(tmp_path: Path) -> None:
    three_batches(RealDisk(tmp_path))
    path = tmp_path / FOLDER / file_name(0)
    whole = path.read_bytes()
    for tail in (bytes(200), b"\xff" * 200, b"\x02" * 200):
        path.write_bytes(whole + tail)
        log = open_log(RealDisk(tmp_path))
        assert (log.end_offset, log.recovery.torn_bytes) == (6, len(tail))
        assert log.recovery.torn_because
        log.close()


def test_damage_before_the_last_segment_refuses_to_start(tmp_path: Path) -> None:
    log = open_log(RealDisk(tmp_path), segment_max_bytes=SMALL_SEGMENT_BYTES)
    for _ in range(20):
        log.append([Batch(log.end_offset, 1, 1, (b"x" * 100,))], NOW_MS)
    log.flush()
    log.close()
    paths = sorted((tmp_path / FOLDER).glob("*.log"))
    assert len(paths) > 2
    content = bytearray(paths[0].read_bytes())
    content[-1] ^= 1
    paths[0].write_bytes(content)
    with pytest.raises(CorruptLog, match="CRC"):
        open_log(RealDisk(tmp_path))
    content[-1] ^= 1
    paths[0].write_bytes(content)
    paths[1].unlink()
    with pytest.raises(CorruptLog, match="does not continue the log"):
        open_log(RealDisk(tmp_path))


@pytest.mark.parametrize("with_recovery_point", [True, False])
@pytest.mark.parametrize("at", [3, 40, 300])
def test_one_flipped_bit_with_readable_batches_behind_it_refuses_to_start(
    tmp_path: Path, at: int, with_recovery_point: bool
) -> None:
    """It counted as a torn tail: 95 fsynced batches behind it were cut away."""
    log = open_log(RealDisk(tmp_path))
    for _ in range(100):
        log.append([Batch(log.end_offset, 1, 1, (b"x" * 100,))], NOW_MS)
        log.flush()
    log.close()
    path = tmp_path / FOLDER / file_name(0)
    content = bytearray(path.read_bytes())
    content[at * 8 + 17] ^= 1
    path.write_bytes(content)
    if not with_recovery_point:
        (tmp_path / FOLDER / RECOVERY_POINT).unlink()
    size_bytes = len(content) // 100
    number = (at * 8 + 17) // size_bytes
    with pytest.raises(CorruptLog, match=rf"{file_name(0)}, byte {number * size_bytes}, offset {number}: .* follows"):
        open_log(RealDisk(tmp_path))
    assert path.read_bytes() == content, "nothing was cut"


def test_stale_batches_behind_the_end_are_no_torn_tail(tmp_path: Path) -> None:
    three_batches(RealDisk(tmp_path))
    path = tmp_path / FOLDER / file_name(0)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(CorruptLog, match="a readable batch follows it at byte"):
        open_log(RealDisk(tmp_path))


def test_a_flipped_bit_in_the_last_batch_is_damage_where_it_was_fsynced(tmp_path: Path) -> None:
    three_batches(RealDisk(tmp_path))
    path = tmp_path / FOLDER / file_name(0)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptLog, match=r"offset 3: CRC .*; everything below offset 6 was fsynced"):
        open_log(RealDisk(tmp_path))


def test_a_log_that_lost_its_fsynced_end_refuses_to_start(tmp_path: Path) -> None:
    raws, _ = three_batches(RealDisk(tmp_path))
    path = tmp_path / FOLDER / file_name(0)
    path.write_bytes(b"".join(raws[:2]))
    with pytest.raises(CorruptLog, match="ends at offset 3, but everything below offset 6 was fsynced"):
        open_log(RealDisk(tmp_path))


def test_a_batch_that_rots_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    raws, _ = three_batches(RealDisk(tmp_path))
    path = tmp_path / FOLDER / file_name(0)
    log = open_log(RealDisk(tmp_path))
    for where in (3, 15, 20, len(raws[0]) - 1):  # base offset, epoch, CRC, records
        content = bytearray(b"".join(raws))
        content[where] ^= 1
        path.write_bytes(content)
        with pytest.raises(DamagedLog, match=f"{file_name(0)}, byte 0, offset 0: "):
            log.read(0, 1000)
        assert [batch.body for batch in log.read(2, 1000)] == raws[1:]
