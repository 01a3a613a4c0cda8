"""Traces, and the tables that are written from what the nodes of a run left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from collected_logs import a_log, written

from checkers.base.columns import COPIES, LOG, TRACE
from system_under_test.kraft.collected import files, trace_files
from system_under_test.kraft.log.small_files import encode_state as encode_quorum_state
from system_under_test.kraft.raft.messages import QuorumState, ReplicaKey
from system_under_test.subject import Collected


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
        with pytest.raises(trace_files.UnreadableFile, match=r"n2\.jsonl: holds no row"):
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
