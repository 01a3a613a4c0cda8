"""The independent reader: what it must see in files, which damage it tolerates, and what it shares with nobody."""

from __future__ import annotations

import ast
import json
import shutil
import struct
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkers.columns import COPIES, LOG, TRACE
from system_under_test.kraft import files
from system_under_test.kraft.controller.records import TOPIC_RESOURCE, ConfigRecord, NoOpRecord, encode
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.prefix_hash import extend
from system_under_test.kraft.log.quorum_state import encode as encode_quorum_state
from system_under_test.kraft.raft.messages import LeaderChange, QuorumState, ReplicaKey
from system_under_test.subject import Collected

SEGMENT = "00000000000000000000.log"


def config(topic: str, value: int | None, name: str = "retention.ms", kind: int = TOPIC_RESOURCE) -> bytes:
    return encode(ConfigRecord(kind, topic, name, None if value is None else str(value)))


def written(folder: Path, *batches: bytes, segment: str = SEGMENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / segment).write_bytes(b"".join(batches))
    return folder


def a_log() -> list[bytes]:
    """Offsets 0, 1-3, 4 in epoch 2; 5 in epoch 3."""
    return [
        codec.encode_leader_change(0, 2, LeaderChange(1, (1, 2, 3), (1, 2)), 1000),
        codec.encode_values(1, 2, [config("k0", 7), encode(NoOpRecord()), config("k1", -1)], 1001),
        codec.encode_values(4, 2, [config("k0", None)], 1002),
        codec.encode_leader_change(5, 3, LeaderChange(2, (1, 2, 3), (2, 3)), 1003),
    ]


def test_what_a_log_says(tmp_path: Path) -> None:
    log = files.read_log(written(tmp_path, *a_log()))
    assert (log.error, log.torn_bytes, log.log_end) == (None, 0, 6)
    assert log.offset == [0, 1, 2, 3, 4, 5]
    assert log.epoch == [2, 2, 2, 2, 2, 3]
    assert log.batch_offset == [0, 1, 1, 1, 4, 5]
    assert log.key == [None, "k0", None, "k1", "k0", None]
    assert log.value == [None, 7, None, -1, None, None]
    assert len(set(log.checksum)) == 6


def test_other_configs_and_other_resources_are_not_the_register(tmp_path: Path) -> None:
    values = [config("k0", 7, "retention.bytes"), config("k0", 7, kind=4)]
    assert files.read_log(written(tmp_path, codec.encode_values(0, 1, values, 1))).key == [None, None]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    columns = (log.offset, log.epoch, log.batch_offset, log.batch_hash, log.key, log.value)
    assert log.error is None
    assert list(zip(*columns, strict=True)) == expected


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from(["", "torn", "flipped", "roll"]))))
def test_reading_copy_after_copy_is_reading_each_alone(tmp_path: Path, copies: list[tuple[int, int, str]]) -> None:
    """Each copy keeps some batches of the one before (a truncation), adds some, and may be damaged or rolled."""
    reader, log, made = files.LogReader(), list[bytes](), 0
    for number, (kept, added, damage) in enumerate(copies):
        log = log[:kept]
        for _ in range(added):
            made += 1
            log.append(codec.encode_values(len(log), 1, [config("k", made)], made))
        data = b"".join(log)
        if data and damage == "torn":
            data = data[:-5]
        if data and damage == "flipped":
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        folder = tmp_path / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        if log[3:] and damage == "roll":
            written(folder, *log[:3])
            written(folder, *log[3:], segment="00000000000000000003.log")
        else:
            written(folder, data)
        assert reader.read(folder) == files.read_log(folder)


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
    assert log.offset == [0]
    log = files.read_log(written(tmp_path / "end", *batches[:2]))
    assert (log.error, log.torn_bytes) == (None, len(batches[1]))


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
    assert log.batch_hash == files.read_log(written(tmp_path / "one", *whole)).batch_hash


def test_a_segment_that_does_not_join_is_an_error(tmp_path: Path) -> None:
    whole = a_log()
    written(tmp_path, *whole[:2])
    log = files.read_log(written(tmp_path, *whole[3:], segment="00000000000000000005.log"))
    assert log.error is not None and "ends at offset 4" in log.error


def test_the_crc_covers_neither_offset_nor_epoch_but_the_prefix_hash_does(tmp_path: Path) -> None:
    raw = a_log()[0]
    moved = struct.pack(">i", 9).join((raw[:12], raw[16:]))
    assert crc32c(moved[21:]) == crc32c(raw[21:])
    one, other = (files.read_log(written(tmp_path / name, data)) for name, data in (("a", raw), ("b", moved)))
    assert one.checksum == other.checksum and one.batch_hash != other.batch_hash


def test_garbage_never_raises(tmp_path: Path) -> None:
    whole = b"".join(a_log())
    for seed in range(300):
        random = Random(seed)
        data = bytearray(whole)
        for _ in range(random.randrange(1, 6)):
            data[random.randrange(len(data))] = random.randrange(256)
        log = files.read_log(written(tmp_path, bytes(data)))
        assert len(log.offset) == len(log.key) == len(log.batch_hash)


@pytest.mark.parametrize(("voted", "name"), [(None, None), (ReplicaKey(3), "n3")])
def test_quorum_state(tmp_path: Path, voted: ReplicaKey | None, name: str | None) -> None:
    path = tmp_path / "quorum-state"
    assert files.read_quorum_state(path) == files.QuorumStateSaid(-1, None)
    path.write_bytes(encode_quorum_state(QuorumState(4, None, voted), "cluster", [1, 2, 3]))
    assert files.read_quorum_state(path) == files.QuorumStateSaid(4, name)


def trace_line(seq: int, event: str = "flush", **more: object) -> bytes:
    return json.dumps({"seq": seq, "inc": 0, "t": 5_000 + seq, "event": event, "epoch": 1, **more}).encode() + b"\n"


def test_a_trace_and_its_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "n2.jsonl"
    path.write_bytes(trace_line(0, "vote", peer="n1") + trace_line(1, offset=3, hash=-(2**63)) + b'{"seq": 2, "in')
    table = files.read_trace(path, 5_000)
    assert table.schema == TRACE
    assert table.column("seq").to_pylist() == [0, 1] and table.column("time_ns").to_pylist() == [0, 1]
    assert table.column("hash").to_pylist() == [None, -(2**63)] and set(table.column("node").to_pylist()) == {"n2"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"seq": 1, "in\n', "line 2: not JSON"),
        (b"[]\n", "line 2: not a row"),
        (trace_line(1, "flashed"), "line 2: an unknown event 'flashed'"),
        (trace_line(0), "line 2: seq 0 after 0"),
        (trace_line(1, offset="three"), "a value of the wrong type"),
    ],
)
def test_a_broken_line_in_the_middle_of_a_trace(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "n2.jsonl"
    path.write_bytes(trace_line(0) + line + trace_line(2))
    with pytest.raises(files.UnreadableFile, match=why):
        files.read_trace(path, 0)


def test_the_tables_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    lines = [trace_line(seq) for seq in range(3)]
    (tmp_path / "trace" / "n1.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "trace" / "n2.jsonl").write_bytes(trace_line(0) + b"garbage\n" + trace_line(2))
    copies = []
    for number, batches in enumerate((a_log()[:2], a_log())):
        for node in ("n1", "n2"):
            folder = tmp_path / "nodes" / node / "copies" / str(number)
            written(folder / files.LOG_FOLDER, *batches)
            state = encode_quorum_state(QuorumState(3, 2, ReplicaKey(2)), "cluster", [1, 2])
            (folder / files.LOG_FOLDER / "quorum-state").write_bytes(state)
            when = "final" if number else "before heal 1"
            seen = len(lines[0]) * (1 + number) + 3  # a torn row is none
            copies.append(Collected(number, when, node, "running", folder, seen if node == "n1" else -1))
    files.write_tables(tmp_path, copies, 5_000)
    log = pq.read_table(tmp_path / "tables" / "log" / "n1.parquet")
    assert log.schema == LOG and log.column("copy").to_pylist() == [0] * 4 + [1] * 6
    assert pq.read_metadata(tmp_path / "tables" / "log" / "n1.parquet").num_row_groups == 2
    said = pq.read_table(tmp_path / "tables" / "copies.parquet")
    assert said.schema == COPIES
    assert said.select(["copy", "node", "log_end", "quorum_epoch", "voted_for", "trace_seq"]).to_pylist() == [
        {"copy": c, "node": n, "log_end": end, "quorum_epoch": 3, "voted_for": "n2", "trace_seq": seq}
        for c, n, end, seq in ((0, "n1", 4, 0), (0, "n2", 4, -1), (1, "n1", 6, 1), (1, "n2", 6, -1))
    ]
    assert not (tmp_path / "tables" / "trace" / "n2.parquet").exists()
    assert "line 2" in (tmp_path / "tables" / "trace" / "n2.error").read_text()


def test_a_node_that_never_wrote_anything(tmp_path: Path) -> None:
    files.write_tables(tmp_path, [Collected(0, "final", "n1", "dead", tmp_path / "nothing")], 0)
    row = pq.read_table(tmp_path / "tables" / "copies.parquet").to_pylist()[0]
    assert (row["log_end"], row["quorum_epoch"], row["error"]) == (0, -1, None)
    assert pq.read_table(tmp_path / "tables" / "log" / "n1.parquet").num_rows == 0


def test_it_shares_nothing_with_the_subjects_own_code() -> None:
    tree = ast.parse(Path(files.__file__).read_text())
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {m for m in imported if m and m.startswith("system_under_test")} == {"system_under_test.subject"}
