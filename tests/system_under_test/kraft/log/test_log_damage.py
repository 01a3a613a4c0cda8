"""Torn tails are cut; any other damage of the files of a log stops its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from system_under_test.kraft.log.log import FOLDER, CorruptLog, DamagedLog, open_log
from system_under_test.kraft.log.segment import file_name
from system_under_test.kraft.log.small_files import RECOVERY_POINT
from system_under_test.kraft.node.disk import RealDisk
from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft.messages import Batch

NOW_MS = 1_750_000_000_000


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


def test_a_torn_tail_is_cut_at_every_byte(tmp_path: Path) -> None:
    raws, hashes = three_batches(RealDisk(tmp_path))
    path = tmp_path / FOLDER / file_name(0)
    whole = path.read_bytes()
    ends = [0, len(raws[0]), len(raws[0] + raws[1]), len(whole)]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        (tmp_path / FOLDER / RECOVERY_POINT).unlink()  # a power loss restored the file from before the append
        log = open_log(RealDisk(tmp_path))
        kept = max(i for i, end in enumerate(ends) if end <= size)
        assert [b.body for b in log.batches(0)] == raws[:kept]
        assert log.prefix_hash == hashes[kept]
        assert log.recovery.torn_bytes == size - ends[kept]
        assert path.stat().st_size == ends[kept]
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
    with pytest.raises(CorruptLog, match="does not join"):
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
