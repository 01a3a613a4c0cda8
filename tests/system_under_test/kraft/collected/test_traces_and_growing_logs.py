"""Traces, the tables of what the nodes of a run left behind, and logs that are read while they grow."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
from collected_logs import a_log, written

from checkers.base.columns import COPIES, LOG, TRACE
from checkers.online import LIVE
from system_under_test.kraft.collected import files, trace_files
from system_under_test.kraft.collected import live as live_reader
from system_under_test.kraft.collected.files import LOG_FOLDER
from system_under_test.kraft.collected.live import LiveNode
from system_under_test.kraft.collected.log_files import read_log
from system_under_test.kraft.collected.members import Hearsay
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.small_files import encode_state as encode_quorum_state
from system_under_test.kraft.raft.messages import QuorumState, ReplicaKey
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, encode
from system_under_test.subject import Collected, Node


def trace_line(seq: int, event: str = "flush", **more: object) -> bytes:
    return json.dumps({"seq": seq, "inc": 0, "t": 5_000 + seq, "event": event, "epoch": 1, **more}).encode() + b"\n"


def test_a_trace_and_its_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "n2.jsonl"
    path.write_bytes(trace_line(0, "vote", peer="n1") + trace_line(1, offset=3, hash=-(2**63)) + b'{"seq": 2, "in')
    table = trace_files.read_trace(path, 5_000)
    assert table.schema == TRACE
    assert table.column("seq").to_pylist() == [0, 1] and table.column("time_ns").to_pylist() == [0, 1]
    assert table.column("hash").to_pylist() == [None, -(2**63)] and set(table.column("node").to_pylist()) == {"n2"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"seq": 1, "in\n', "truncated"),
        (b"[]\n", "Expected `object`"),
        (b"[" * 20_000 + b"]" * 20_000 + b"\n", ""),
        (trace_line(1, "flashed"), r"Invalid enum value 'flashed' - at `\$.event`"),
        (trace_line(1, role="king"), r"Invalid enum value 'king' - at `\$.role`"),
        (trace_line(1, peer=3), r"Expected `str \| null`, got `int` - at `\$.peer`"),
        (trace_line(1, detail="\ud83d"), "truncated"),
        (b'{"seq": 1}\n', "missing required field `inc`"),
        (trace_line(0), "seq 0 after 0"),
        (trace_line(2), "seq 2 after 0"),
        (trace_line(1, offset="three"), r"Expected `int \| null`, got `str` - at `\$.offset`"),
        (trace_line(1, offset=2**63), r"Expected `int` <= 9223372036854775807 - at `\$.offset`"),
        (trace_line(1, epoch=2**31), r"Expected `int` <= 2147483647 - at `\$.epoch`"),
        (trace_line(1, epoch=None), "Expected `int`, got `null`"),
        (trace_line(1, epoch=True), "Expected `int`, got `bool`"),
        (trace_line(1, epoch=5.5), "Expected `int`, got `float`"),
        (b"\n", "truncated"),
    ],
)
def test_a_broken_line_in_the_middle_of_a_trace(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "n2.jsonl"
    path.write_bytes(trace_line(0) + line + trace_line(2))
    with pytest.raises(trace_files.UnreadableFile, match=f"line 2: .*{why}"):
        trace_files.read_trace(path, 0)


@pytest.mark.parametrize("block_size_bytes", [1, 70, 100, 1000])
def test_a_trace_is_the_same_in_blocks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_size_bytes: int
) -> None:
    path = tmp_path / "n2.jsonl"
    lines = [trace_line(seq, "high-watermark", offset=seq, hash=seq * 7, more="ignored") for seq in range(20)]
    lines[7] = trace_line(7, "role", role="leader", peer="n2", detail="zwölf")
    path.write_bytes(b"".join(lines) + b'{"seq": 20')
    whole = trace_files.read_trace(path, 0)
    monkeypatch.setattr(trace_files, "BLOCK_SIZE_BYTES", block_size_bytes)
    (tmp_path / "out").mkdir()
    ends, seqs = trace_files.write_trace(path, tmp_path / "out" / "n2.parquet", 0)
    assert pq.read_table(tmp_path / "out" / "n2.parquet").to_pylist() == whole.to_pylist()
    assert whole["detail"].to_pylist()[7] == "zwölf" and seqs.tolist() == list(range(20))
    assert ends.tolist() == [sum(map(len, lines[: i + 1])) for i in range(20)]
    lines[13] = trace_line(12)
    path.write_bytes(b"".join(lines))
    with pytest.raises(trace_files.UnreadableFile, match="line 14: seq 12 after 12"):
        trace_files.write_trace(path, tmp_path / "out" / "n2.parquet", 0)
    assert not (tmp_path / "out" / "n2.parquet").exists()
    assert trace_files.rows_before_damage(path)[1].tolist() == [*range(13), 12, *range(14, 20)]


def test_a_trace_without_a_row_is_missing_input(tmp_path: Path) -> None:
    for content in (b"", b'{"seq": 0'):
        (tmp_path / "n2.jsonl").write_bytes(content)
        with pytest.raises(trace_files.UnreadableFile, match=r"n2\.jsonl: contains no row"):
            trace_files.write_trace(tmp_path / "n2.jsonl", tmp_path / "n2.parquet", 0)


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
            seen = len(lines[0]) * (1 + number) + 3  # an incomplete row does not count
            copies.append(Collected(number, when, node, "running", folder, seen if node == "n1" else -1))
    files.write_tables(tmp_path, copies, lambda node: 5_000)
    log = pq.read_table(tmp_path / "tables" / "log" / "n1.parquet")
    assert log.schema == LOG and log.column("copy").to_pylist() == [0] * 4 + [1] * 6
    assert pq.read_metadata(tmp_path / "tables" / "log" / "n1.parquet").num_row_groups == 2
    table = pq.read_table(tmp_path / "tables" / "copies.parquet")
    assert table.schema == COPIES
    assert table.select(["copy", "node", "log_end", "quorum_epoch", "voted_for", "trace_seq"]).to_pylist() == [
        {"copy": c, "node": n, "log_end": end, "quorum_epoch": 3, "voted_for": "n2", "trace_seq": seq}
        for c, n, end, seq in ((0, "n1", 4, 0), (0, "n2", 4, -1), (1, "n1", 6, 1), (1, "n2", 6, -1))
    ]
    assert not (tmp_path / "tables" / "trace" / "n2.parquet").exists()
    assert "line 2" in (tmp_path / "tables" / "trace" / "n2.error").read_text()


def test_a_copy_that_is_missing_is_said_to_be_and_is_no_empty_log(tmp_path: Path) -> None:
    files.write_tables(tmp_path, [Collected(0, "final", "n1", "dead", tmp_path / "nothing")], lambda node: 0)
    row = pq.read_table(tmp_path / "tables" / "copies.parquet").to_pylist()[0]
    assert (row["log_end"], row["quorum_epoch"]) == (0, -1)
    assert row["error"] == f"the folder nothing/{files.LOG_FOLDER} is missing"
    assert pq.read_table(tmp_path / "tables" / "log" / "n1.parquet").num_rows == 0


EndAndBytes = tuple[int, bytes]
"""Where it ends (offset), and its bytes."""


class NodeOnDisk:
    """A node whose data directory is a folder here."""

    name = "n1"

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = str(data_dir)

    async def read(self, path: str, position: int = 0, limit: int = -1) -> bytes:
        data = Path(path).read_bytes() if Path(path).exists() else b""
        return data[position:] if limit < 0 else data[position : position + limit]


def drawn_log(rng: Random) -> list[list[EndAndBytes]]:
    """Batches of one to five records, by segment."""
    segments: list[list[EndAndBytes]] = [[]]
    offset, epoch = 0, 1
    for _ in range(rng.randint(1, 30)):
        epoch += rng.random() < 0.2
        count = rng.randint(1, 5)
        values = [encode(ConfigRecord(TOPIC_RESOURCE, "k", "retention.ms", str(offset + i))) for i in range(count)]
        if segments[-1] and rng.random() < 0.15:
            segments.append([])
        segments[-1].append((offset + count, codec.encode_values(offset, epoch, values, 1000 + offset)))
        offset += count
    return segments


def write_up_to(folder: Path, segments: list[list[EndAndBytes]], size_bytes: int) -> int:
    """Write so many bytes of a log, as appends leave them; the log end behind the last whole batch."""
    log_end = begin = 0
    folder.mkdir(parents=True, exist_ok=True)
    for segment in segments:
        if size_bytes <= 0 and begin:
            break
        data = b"".join(raw for _, raw in segment)
        (folder / f"{begin:020d}.log").write_bytes(data[:size_bytes])
        for end, raw in segment:
            if len(raw) <= size_bytes:
                log_end = end
            size_bytes -= len(raw)
        begin = segment[-1][0]
    return log_end


def rows(entries: Any) -> list[tuple[int, int, int]]:
    """Offset, epoch and checksum of each entry."""
    columns = (entries.offset, entries.epoch, entries.checksum)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("seed", range(60))
async def test_a_growing_log_is_read_as_its_copy_is(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark lies anywhere up to the log end; behind the last whole batch part of the next one is written, or wrong."""
    rng = Random(seed)
    monkeypatch.setattr(live_reader, "READ_SIZE_BYTES_MAX", rng.choice([700, 1_500, 1 << 24]))
    segments = drawn_log(rng)
    total_bytes = sum(len(raw) for segment in segments for _, raw in segment)
    folder = tmp_path / LOG_FOLDER
    heard = Hearsay()

    async def hear(node: Node) -> Hearsay:
        return heard

    live = LiveNode(cast(Node, NodeOnDisk(tmp_path)), "no trace", hear, 0)
    seen: list[tuple[int, int, int]] = []
    size_bytes = mark = 0
    while size_bytes < total_bytes:
        size_bytes = min(total_bytes, size_bytes + rng.randint(1, 900))
        log_end = write_up_to(folder, segments, size_bytes)
        torn = read_log(folder).torn_bytes
        last = max(folder.glob("*.log"))
        if torn and rng.random() < 0.5:
            data = bytearray(last.read_bytes())
            data[len(data) - rng.randint(1, torn)] ^= 1 << rng.randrange(8)
            last.write_bytes(data)
        heard.largest_mark = mark = max(mark, rng.randint(0, log_end))
        await live.fetch()
        fresh = rows(live.entries())
        seen += fresh
        in_copy = read_log(folder)
        assert seen == rows(in_copy)[: len(seen)]
        assert all(offset < mark for offset, _, _ in seen)
    heard.largest_mark = log_end
    for _ in range(len(segments) + total_bytes // 700):
        await live.fetch()
        seen += rows(live.entries())
    assert seen == rows(read_log(folder)), "everything below the mark is read in the end"
    assert seen and np.diff([offset for offset, _, _ in seen]).tolist() == [1] * (len(seen) - 1)
    tail = live.tail(Collected(0, "final", "n1", "running", tmp_path, 0))
    assert (tail.copy, rows(tail)) == (0, [])
    assert live.entries().copy == LIVE
