"""The independent reader: what it reads, which damage it tolerates, and that it shares no code with the node."""

from __future__ import annotations

import ast
import json
import struct
from pathlib import Path
from random import Random
from types import ModuleType

import numpy as np
import pyarrow.parquet as pq
import pytest
from collected_logs import SEGMENT, a_log, config, written
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkers.kernels import kafka_files
from system_under_test.kraft import client
from system_under_test.kraft.client import LIST
from system_under_test.kraft.collected import files, log_files, record_layouts, state_model, trace_files
from system_under_test.kraft.collected.log_files import read_snapshot, read_snapshots
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import extend
from system_under_test.kraft.log.small_files import encode_state as encode_quorum_state
from system_under_test.kraft.log.snapshot_file import SnapshotHeader, SnapshotWriter, file_name
from system_under_test.kraft.raft.messages import QuorumState, ReplicaKey, SnapshotId
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, encode
from system_under_test.subject import Collected


def test_what_a_log_says(tmp_path: Path) -> None:
    log = files.read_log(written(tmp_path, *a_log()))
    assert (log.error, log.torn_bytes, log.log_end) == (None, 0, 6)
    assert log.offset.tolist() == [0, 1, 2, 3, 4, 5]
    assert log.epoch.tolist() == [2, 2, 2, 2, 2, 3]
    assert log.batch_offset.tolist() == [0, 1, 1, 1, 4, 5]
    assert log.key.to_pylist() == [None, "k0", None, "k1", "k0", None]
    assert log.value.to_pylist() == [None, 7, None, -1, None, None]
    assert len(set(log.checksum.tolist())) == 6


def test_other_configs_and_other_resources_are_not_the_register(tmp_path: Path) -> None:
    values = [config("k0", 7, "retention.bytes"), config("k0", 7, kind=4)]
    assert files.read_log(written(tmp_path, codec.encode_values(0, 1, values, 1))).key.to_pylist() == [None, None]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.text(max_size=9), st.integers(0, 2**62)), max_size=8)
)
def test_it_agrees_with_the_nodes_own_codec(tmp_path: Path, drawn: list[tuple[int, int, str, int]]) -> None:
    """(rise of the epoch, records, topic, value) of every batch; the prefix hash is the node's own."""
    batches, expected, base, epoch, prefix = [], [], 0, 0, 0
    for rise, count, topic, value in drawn:
        epoch += rise
        raw = codec.encode_values(base, epoch, [config(topic, value + i) for i in range(count)], 1000 + base)
        prefix = extend(prefix, base, epoch, codec.read_header(raw).crc)
        expected += [(base + i, epoch, base, prefix, topic, value + i) for i in range(count)]
        batches.append(raw)
        base += count
    log = files.read_log(written(tmp_path, *batches))
    numbers = (log.offset, log.epoch, log.batch_offset, log.batch_hash)
    columns = (*(column.tolist() for column in numbers), log.key.to_pylist(), log.value.to_pylist())
    assert log.error is None
    assert list(zip(*columns, strict=True)) == expected


def test_every_torn_length_of_the_last_batch_is_a_torn_tail(tmp_path: Path) -> None:
    whole = a_log()
    data = b"".join(whole)
    end = len(data) - len(whole[-1])
    for size in range(end + 1, len(data)):
        log = files.read_log(written(tmp_path, data[:size]))
        assert (log.error, log.log_end, log.torn_bytes) == (None, 5, size - end)


def test_a_flipped_bit_is_an_error_unless_it_ends_the_log(tmp_path: Path) -> None:
    batches = a_log()
    batches[1] = batches[1][:70] + bytes([batches[1][70] ^ 4]) + batches[1][71:]
    log = files.read_log(written(tmp_path / "middle", *batches))
    assert log.error is not None and "CRC" in log.error and f"byte {len(batches[0])}" in log.error
    assert log.offset.tolist() == [0]
    log = files.read_log(written(tmp_path / "end", *batches[:2]))
    assert (log.error, log.torn_bytes) == (None, len(batches[1]))


def test_one_wrong_length_in_the_middle_is_corruption_and_no_torn_tail(tmp_path: Path) -> None:
    """A batch whose length leads beyond the file, or to a place without a batch, hides whole batches behind it."""
    batches = a_log()
    for high, low in ((0x7F, 0), (0, 1), (0xFF, 0)):
        damaged = batches[1][:8] + bytes([high]) + batches[1][9:11] + bytes([batches[1][11] + low]) + batches[1][12:]
        log = files.read_log(written(tmp_path, batches[0], damaged, *batches[2:]))
        assert log.error is not None and f"{SEGMENT}, byte {len(batches[0])}" in log.error, (high, low)
        assert (log.torn_bytes, log.log_end) == (0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_neither_a_torn_tail_nor_an_empty_log(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    noise = random.randbytes(random.choice([9, 60, 61, 200, 5000]))
    for before in ([], a_log()):
        log = files.read_log(written(tmp_path, *before, noise))
        assert log.error is not None and f"{SEGMENT}, byte {sum(map(len, before))}" in log.error
        assert log.torn_bytes == 0


def test_zeros_in_place_of_what_was_not_written_are_a_torn_tail(tmp_path: Path) -> None:
    whole = a_log()
    for kept in (0, 4, 13, 30, len(whole[-1]) - 20):
        tail = whole[-1][:kept] + bytes(len(whole[-1]) - kept)
        log = files.read_log(written(tmp_path, *whole[:-1], tail))
        assert (log.error, log.log_end, log.torn_bytes) == (None, 5, len(tail)), kept


def test_a_log_that_is_missing_is_not_an_empty_log(tmp_path: Path) -> None:
    assert "is missing" in str(files.read_log(tmp_path / "none").error)
    (tmp_path / "empty").mkdir()
    assert "contains no segment" in str(files.read_log(tmp_path / "empty").error)
    assert files.read_log(written(tmp_path / "fresh", b"")).error is None


def test_a_torn_tail_before_the_last_segment_is_an_error(tmp_path: Path) -> None:
    whole = a_log()
    written(tmp_path, *whole[:2], whole[2][:-1])
    log = files.read_log(written(tmp_path, whole[3], segment="00000000000000000004.log"))
    assert log.error is not None and SEGMENT in log.error


def test_segments_are_one_log(tmp_path: Path) -> None:
    whole = a_log()
    written(tmp_path, *whole[:2])
    log = files.read_log(written(tmp_path, *whole[2:], segment="00000000000000000004.log"))
    assert log.error is None
    one = files.read_log(written(tmp_path / "one", *whole))
    assert log.batch_hash.tolist() == one.batch_hash.tolist() and log.key == one.key


def test_a_segment_that_does_not_join_is_an_error(tmp_path: Path) -> None:
    whole = a_log()
    written(tmp_path, *whole[:2])
    log = files.read_log(written(tmp_path, *whole[3:], segment="00000000000000000005.log"))
    assert log.error is not None and "ends at offset 4" in log.error


def a_snapshot(folder: Path, end_offset: int, epoch: int, values: tuple[bytes, ...] = (), prefix_hash: int = 0) -> Path:
    header = SnapshotHeader(version=0, last_timestamp_ms=1000, prefix_hash=prefix_hash)
    path = folder / file_name(SnapshotId(end_offset, epoch))
    path.write_bytes(b"".join(SnapshotWriter(SnapshotId(end_offset, epoch), header, values)))
    return path


def test_a_log_that_lost_its_first_segment_is_an_error_unless_a_snapshot_stands_for_it(tmp_path: Path) -> None:
    whole = a_log()
    folder = written(tmp_path, *whole[1:], segment="00000000000000000001.log")
    a_snapshot(folder, 0, 0)
    assert "begins at offset 1, and no snapshot ends there" in str(files.read_log(folder).error)
    hashes = files.read_log(written(tmp_path / "whole", *whole)).batch_hash
    for end in (4, 1):  # inside the first segment, or at its start
        a_snapshot(folder, end, 2, prefix_hash=int(hashes[end - 1]))
        log = files.read_log(folder)
        assert (log.error, log.start, log.log_end) == (None, end, 6)
        assert log.offset.tolist() == list(range(end, 6))
        assert log.batch_hash.tolist() == hashes.tolist()[end:]


def copied(folder: Path, node: int, copy: int) -> Collected:
    return Collected(copy, "final", f"n{node}", "stopped", folder, 0)


def test_entries_below_the_start_are_taken_from_copies_that_prove_to_hold_them(tmp_path: Path) -> None:
    whole = a_log()
    hashes = files.read_log(written(tmp_path / "n1" / files.LOG_FOLDER, *whole)).batch_hash
    other = [codec.encode_values(0, 2, [config("k9", 9)], 1000), *whole[1:3]]
    written(tmp_path / "n4" / files.LOG_FOLDER, *other)
    for node, named in ((2, int(hashes[0])), (3, int(hashes[0]) ^ 1)):
        folder = written(tmp_path / f"n{node}" / files.LOG_FOLDER, *whole[1:], segment="00000000000000000001.log")
        a_snapshot(folder, 1, 2, (config("k", 1),), named)
    run = tmp_path / "run"
    (run / "trace").mkdir(parents=True)
    copies = [copied(tmp_path / f"n{node}", node, 0) for node in (4, 1, 2, 3)]
    files.write_tables(run, copies, lambda node: 0)
    logs = {node: pq.read_table(run / "tables" / "log" / f"n{node}.parquet").to_pylist() for node in (1, 2, 3)}
    without = [{name: value for name, value in row.items() if name != "node"} for row in logs[1]]
    assert [{name: value for name, value in row.items() if name != "node"} for row in logs[2]] == without
    assert [row["offset"] for row in logs[3]] == [1, 2, 3, 4, 5]
    rows = {row["node"]: row for row in pq.read_table(run / "tables" / "copies.parquet").to_pylist()}
    assert [rows[f"n{node}"]["log_start"] for node in (1, 2, 3, 4)] == [0, 1, 1, 0]
    state = Image()
    state.replay(config("k", 1))
    assert rows["n2"]["snapshots"] == [
        {"end_offset": 1, "epoch": 2, "records": 1, "state_hash": state.hash_of_content(), "error": None}
    ]


def test_records_of_brokers_below_the_start_are_taken_from_the_same_copies(tmp_path: Path) -> None:
    """A table of the log that begins at 0, and one of brokers that does not, would show brokers that never came."""
    whole = a_log()
    hashes = files.read_log(written(tmp_path / "n1" / files.LOG_FOLDER, *whole)).batch_hash
    for node, named in ((2, int(hashes[3])), (3, int(hashes[3]) ^ 1)):
        folder = written(tmp_path / f"n{node}" / files.LOG_FOLDER, *whole[2:], segment="00000000000000000004.log")
        a_snapshot(folder, 4, 2, (config("k", 1),), named)
    run = tmp_path / "run"
    (run / "trace").mkdir(parents=True)
    files.write_tables(run, [copied(tmp_path / f"n{node}", node, 0) for node in (1, 2, 3)], lambda node: 0)
    rows = {n: pq.read_table(run / "tables" / "cluster" / f"n{n}.parquet").to_pylist() for n in (1, 2, 3)}
    assert {n: [(row["offset"], row["kind"]) for row in rows[n]] for n in rows} == {
        1: [(2, "no-op")],
        2: [(2, "no-op")],
        3: [],
    }


def test_a_log_that_does_not_hold_the_end_of_its_snapshot_counts_as_replaced_by_it(tmp_path: Path) -> None:
    """A follower fetched it and was killed: its next start deletes what is left of the log."""
    for end, epoch in ((9, 5), (4, 1), (3, 2)):
        folder = written(tmp_path / f"{end}", *a_log()[1:], segment="00000000000000000001.log")
        a_snapshot(folder, end, epoch)
        log = files.read_log(folder)
        assert (log.error, log.start, log.log_end, len(log)) == (None, end, end, 0)


def test_a_log_behind_a_damaged_snapshot_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = written(tmp_path, *a_log()[1:], segment="00000000000000000001.log")
    path = a_snapshot(folder, 1, 2, (config("k", 1),))
    whole = path.read_bytes()
    for at in range(len(whole)):
        for damaged in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:at]):
            path.write_bytes(damaged)
            assert path.name in str(files.read_log(folder).error)


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    for count in (0, 1, 5, 3000):
        values = tuple(config(f"topic-{number}", number) for number in range(count))
        path = a_snapshot(tmp_path, 1 + count, 3, values, prefix_hash=-77)
        image = Image()
        for value in values:
            image.replay(value)
        found = read_snapshot(path, 1 + count, 3)
        assert (found.error, found.records, found.prefix_hash) == (None, count, -77)
        assert found.state_hash == image.hash_of_content()
    assert [found.end_offset for found in read_snapshots(tmp_path)] == [1, 2, 6, 3001]
    assert "another epoch" in str(read_snapshot(path, 3001, 4).error)


def test_a_snapshot_of_garbage_never_raises(tmp_path: Path) -> None:
    path = a_snapshot(tmp_path, 3, 1, tuple(config(f"t{number}", number) for number in range(5)))
    whole = path.read_bytes()
    for seed in range(300):
        random = Random(seed)
        data = bytearray(whole)
        for _ in range(random.randrange(1, 6)):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_bytes(data)
        assert read_snapshot(path, 3, 1).error is not None or bytes(data) == whole


@pytest.mark.parametrize("leader", [None, 2])
@pytest.mark.parametrize(("voted", "name"), [(None, None), (ReplicaKey(3), "n3")])
def test_quorum_state(tmp_path: Path, voted: ReplicaKey | None, name: str | None, leader: int | None) -> None:
    path = tmp_path / "quorum-state"
    assert files.read_quorum_state(path) == files.RecordedState(-1, None)
    path.write_bytes(encode_quorum_state(QuorumState(4, leader, voted), "cluster", [1, 2, 3]))
    assert files.read_quorum_state(path) == files.RecordedState(4, name, leader or -1)


@pytest.mark.parametrize("field", ["leaderEpoch", "leaderId", "votedId"])
def test_a_quorum_state_with_a_number_beyond_32_bits_cannot_be_read(tmp_path: Path, field: str) -> None:
    path = tmp_path / "quorum-state"
    path.write_text(json.dumps({"leaderEpoch": 1, "leaderId": 1, "votedId": 1, field: 1 << 31}))
    with pytest.raises(files.UnreadableFile, match="beyond 32 bits"):
        files.read_quorum_state(path)


OWN = {
    files: {
        "kraft.collected.log_files",
        "kraft.collected.record_layouts",
        "kraft.collected.state_model",
        "kraft.collected.trace_files",
        "subject",
    },
    log_files: {"kraft.collected.record_layouts", "kraft.collected.state_model"},
    state_model: {"kraft.collected.record_layouts"},
    record_layouts: set[str](),
    trace_files: set[str](),
    kafka_files: set[str](),
}
"""What the modules of the reader import from where the subject's code lies."""


@pytest.mark.parametrize("module", OWN)
def test_it_shares_nothing_with_the_subjects_own_code(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imported = {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {m for m in imported if m.startswith("system_under_test")} == {f"system_under_test.{m}" for m in OWN[module]}
    assert not any(m.startswith("crc32c") for m in imported)


def by_the_book(data: bytes) -> tuple[list[tuple[int, int, int, int]], int, bool]:
    """A slow reading of one segment with other tools: (base offset, epoch, CRC, prefix hash) of each whole batch, the
    bytes they take, and whether what follows is corruption rather than an interrupted append."""

    def whole(at: int) -> int | None:
        """Where the batch at a byte ends, if it is whole."""
        if len(data) - at < 61:
            return None
        end = at + 12 + struct.unpack_from(">i", data, at + 8)[0]
        if end < at + 61 or end > len(data) or data[at + 16] != 2:
            return None
        return end if crc32c(data[at + 21 : end]) == struct.unpack_from(">I", data, at + 17)[0] else None

    found, at, reached, prefix = [], 0, 0, 0
    while (end := whole(at)) is not None:
        base, _, epoch, _, crc, attributes, last = struct.unpack_from(">qiibIhi", data, at)
        if base < reached or last < 0 or struct.unpack_from(">i", data, at + 57)[0] != last + 1 or attributes & 7:
            return found, at, True
        prefix = extend(prefix, base, epoch, crc)
        found.append((base, epoch, crc, prefix))
        at, reached = end, base + last + 1
    if at == len(data) or any(whole(later) is not None for later in range(at + 1, len(data))):
        return found, at, at < len(data)
    length = struct.unpack_from(">i", data, at + 8)[0] if len(data) - at >= 12 else 49
    ends_before = len(data) - at >= 61 and length >= 49 and at + 12 + length < len(data)
    written = data[at:].rstrip(b"\0")
    is_header = struct.pack(">q", reached).startswith(written[:8])
    is_header &= len(written) < 12 or length >= 49
    is_header &= len(written) < 17 or written[16] == 2
    return found, at, ends_before or not is_header


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=9), st.data())
def test_headers_of_a_damaged_log_are_read_as_by_the_book(
    tmp_path: Path, drawn: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Bytes flipped in batches with their CRC set right again or not, batches twice or cut short."""
    batches, base, epoch = [], 0, 0
    for rise, count in drawn:
        epoch += rise
        batches.append(bytearray(codec.encode_values(base, epoch, [config("k", i) for i in range(count)], 1000)))
        base += count
    for batch in batches:
        if data.draw(st.integers(0, 3)) == 0:
            batch[data.draw(st.integers(0, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
            if data.draw(st.booleans()):
                batch[17:21] = struct.pack(">I", crc32c(batch[21:]))
    if batches and data.draw(st.booleans()):
        batches.append(data.draw(st.sampled_from(batches)))
    raw = b"".join(batches)
    raw = raw[: len(raw) - data.draw(st.sampled_from([0, 0, 1, 50, 70]))]
    [segment] = log_files.segments(written(tmp_path, raw))
    found, size, resumes = by_the_book(raw)
    columns = (segment.batches.base, segment.batches.epoch, segment.batches.crc)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == [batch[:3] for batch in found]
    assert (segment.error is not None) == resumes
    assert segment.torn_bytes == (0 if resumes else len(raw) - size)
    log = files.read_log(tmp_path)
    if log.error == segment.error:
        ends = np.flatnonzero(np.diff(log.batch_offset, append=-1))
        assert log.batch_hash[ends].tolist() == [hash for _, _, _, hash in found]
        counts = segment.batches.records
        assert log.log_end == (found[-1][0] + int(counts[-1]) if found else 0)
    else:
        assert "decoded" in str(log.error)


@given(st.binary(max_size=200))
def test_the_crc_is_that_of_the_library(data: bytes) -> None:
    assert kafka_files.crc32c(np.frombuffer(data, np.uint8)) == crc32c(data)


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("-7", -7), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), ("", None), ("1x", None)]
)
def test_numbers_that_are_read_and_those_that_are_not(tmp_path: Path, text: str, value: int | None) -> None:
    record = encode(ConfigRecord(TOPIC_RESOURCE, "k", "retention.ms", text))
    log = files.read_log(written(tmp_path, codec.encode_values(0, 1, [record], 1)))
    assert log.value.to_pylist() == ([] if value is None else [value])
    assert (log.error is None) == (value is not None)


@pytest.mark.parametrize(
    ("text", "value"), [("7:0", 7), ("7:0,30:0", 30), ("1:0,2:0,0:0", 0), ("", None), (None, None)]
)
def test_a_list_appends_the_first_number_of_its_last_pair(tmp_path: Path, text: str | None, value: int | None) -> None:
    record = encode(ConfigRecord(TOPIC_RESOURCE, "k", LIST, text))
    log = files.read_log(written(tmp_path, codec.encode_values(0, 1, [record], 1)))
    assert (log.key.to_pylist(), log.value.to_pylist(), log.error) == (["k"], [value], None)


@pytest.mark.parametrize("text", ["*", "7", "7:0,", ",7", "x:0", ":0", "7:0,-:0", f"{2**63}:0"])
def test_a_list_that_no_client_writes_cannot_be_decoded(tmp_path: Path, text: str) -> None:
    record = encode(ConfigRecord(TOPIC_RESOURCE, "k", LIST, text))
    log = files.read_log(written(tmp_path, codec.encode_values(0, 1, [record], 1)))
    assert log.value.to_pylist() == [] and "cannot be decoded" in str(log.error)


def test_the_client_and_the_reader_mean_the_same_configs() -> None:
    assert (log_files.REGISTER.decode(), log_files.LIST.decode()) == (client.REGISTER, client.LIST)


def test_a_name_that_is_no_text_is_an_error_and_what_stands_before_it_is_reported(tmp_path: Path) -> None:
    good = codec.encode_values(0, 1, [config("kä", 1)], 1)
    bad = bytearray(codec.encode_values(1, 1, [config("kä", 2)], 1))
    at = bad.index("ä".encode())
    bad[at] = 0xFF
    bad[17:21] = struct.pack(">I", crc32c(bad[21:]))
    log = files.read_log(written(tmp_path, good, bytes(bad), codec.encode_values(2, 1, [config("k", 3)], 1)))
    assert log.key.to_pylist() == ["kä"] and log.log_end == 1
    assert log.error is not None and "UTF-8" in log.error and f"byte {len(good)}" in log.error
