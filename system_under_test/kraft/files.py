"""What the nodes left behind, read independently: data directories and traces become the tables that checkers judge.

A reader that used the subject's own codec would repeat its mistakes, so this one shares nothing with
`system_under_test/kraft/log`: it follows the published layouts (Kafka's record batch version 2, the metadata records'
flexible encoding of KIP-482) and the definition of the prefix hash, from the bytes alone.

    <copy>/__cluster_metadata-0/NNN.log      segments of record batches, named by their first offset
    <copy>/__cluster_metadata-0/quorum-state one line of JSON: epoch, leader, vote
    trace/<node>.jsonl                       one JSON object a line (see checkers.columns.TRACE_EVENTS)

A batch that is incomplete or damaged at the very end of the last segment is a torn tail: an append that a crash caught
in mid-air, and no violation.  Damage with a whole batch behind it, or offsets that go back, make the copy unreadable
(COPIES.error says why); what stands before the damage is still tabulated.  Holes and falling epochs are for checkers.

    prefix hash: h = 0; for every batch, h = BLAKE2b-64(int64 h, int64 base offset, int32 leader epoch, uint32 CRC),
    all big endian, the digest read as a big-endian int64.

    checksum of a record: the CRC of its batch (31 bits up) and its position in the batch.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from checkers.columns import COPIES, LOG, TRACE, TRACE_EVENTS
from system_under_test.subject import Collected

LOG_FOLDER = "__cluster_metadata-0"
QUORUM_STATE = "quorum-state"
CONFIG_NAME = "retention.ms"
"""The topic's config that is the register of the workload."""

ROW_GROUP = 1 << 17
"""Rows per row group, and every copy begins a new one: the same offsets lie in the same group of every log."""

_HEADER = struct.Struct(">qiibIhi")  # base offset, length, leader epoch, magic, CRC, attributes, last offset delta
_HEADER_SIZE_BYTES = 61
_LENGTH_FROM = 12
_CRC_FROM = 21
_COUNT_AT = 57
_CONTROL = 1 << 5
_COMPRESSION = 0b111
_CONFIG_RECORD = 4
_TOPIC_RESOURCE = 2
_HASHED = struct.Struct(">qqiI")
_HASH = struct.Struct(">q")


class UnreadableFile(ValueError):
    """A file breaks its own layout; the message says which, where and how."""


@dataclass(slots=True)
class LogFile:
    """One log as columns, one entry per record; log_end: the offset after the last whole batch."""

    offset: list[int] = field(default_factory=list)
    epoch: list[int] = field(default_factory=list)
    checksum: list[int] = field(default_factory=list)
    batch_offset: list[int] = field(default_factory=list)
    batch_hash: list[int] = field(default_factory=list)
    key: list[str | None] = field(default_factory=list)
    value: list[int | None] = field(default_factory=list)
    log_end: int = 0
    torn_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class QuorumStateSaid:
    """epoch -1: there is no file."""

    epoch: int = -1
    voted_for: str | None = None


def write_tables(run_folder: Path, copies: Sequence[Collected], started_monotonic_ns: int) -> None:
    """Read every trace in `trace/` and every copy, and write `tables/` (schemas LOG, TRACE and COPIES).

    A trace with a broken line in its middle is not tabulated; `tables/trace/<node>.error` says why.  Raises OSError
    where the run folder cannot be read or written.
    """
    tables = run_folder / "tables"
    for name in ("log", "trace"):
        (tables / name).mkdir(parents=True, exist_ok=True)
    for path in sorted((run_folder / "trace").glob("*.jsonl")):
        _write_trace(path, tables / "trace", started_monotonic_ns)
    rows = []
    for node in sorted({c.node for c in copies}):
        own = sorted((c for c in copies if c.node == node), key=lambda c: c.copy)
        ends = line_ends(run_folder / "trace" / f"{node}.jsonl")
        with pq.ParquetWriter(tables / "log" / f"{node}.parquet", LOG, compression="zstd") as writer:
            reader = LogReader()
            for copy in own:
                log = reader.read(copy.folder / LOG_FOLDER)
                _write_log(writer, copy, log)
                rows.append(_copy_row(copy, log, ends))
    rows.sort(key=lambda r: (r["copy"], r["node"]))
    pq.write_table(pa.Table.from_pylist(rows, COPIES), tables / "copies.parquet", compression="zstd")


def _write_log(writer: pq.ParquetWriter, copy: Collected, log: LogFile) -> None:
    size = len(log.offset)
    columns = [
        pa.array(np.full(size, copy.copy, np.int16)),
        pa.array([copy.node] * size, pa.string()),
        *(pa.array(getattr(log, name), LOG.field(name).type) for name in LOG.names[2:]),
    ]
    table = pa.Table.from_arrays(columns, schema=LOG)
    for start in range(0, size, ROW_GROUP):
        writer.write_table(table.slice(start, ROW_GROUP), row_group_size=ROW_GROUP)


def _copy_row(copy: Collected, log: LogFile, ends: Sequence[tuple[int, int]]) -> dict[str, Any]:
    error = log.error
    try:
        said = read_quorum_state(copy.folder / LOG_FOLDER / QUORUM_STATE)
    except UnreadableFile as problem:
        said, error = QuorumStateSaid(), error or str(problem)
    written = [seq for end, seq in ends if end <= copy.trace_size_bytes]
    return {
        "copy": copy.copy,
        "node": copy.node,
        "when": copy.when,
        "state": copy.state,
        "log_end": log.log_end,
        "torn_bytes": log.torn_bytes,
        "quorum_epoch": said.epoch,
        "voted_for": said.voted_for,
        "trace_seq": written[-1] if written else -1,
        "error": error,
    }


# Logs


def read_log(folder: Path) -> LogFile:
    """All segments of a copied log directory, in order; an empty log if there are none.  Never raises for what the
    files hold: `error` says what is wrong with them."""
    return LogReader().read(folder)


class LogReader:
    """Reads one copy of a node's log after another.  Most of a log is as it was in the copy before, so only what lies
    behind the first byte that changed is read anew."""

    def __init__(self) -> None:
        self._log = LogFile()
        self._contents: list[tuple[str, bytes]] = []  # name and bytes of each segment of the last copy
        self._ends: list[tuple[int, int]] = []  # per batch: number of its segment, position of its end there
        self._rows: list[int] = []  # per batch: records up to its end

    def read(self, folder: Path) -> LogFile:
        """As `read_log`.  The result is valid until the next call."""
        contents = [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.log"))]
        self._forget_from(self._unchanged(contents))
        self._contents = contents
        log = self._log
        try:
            number, position = self._ends[-1] if self._ends else (0, 0)
            for at in range(number, len(contents)):
                self._read_segment(at, position if at == number else 0)
        except UnreadableFile as problem:
            log.error = str(problem)
        return log

    def _unchanged(self, contents: list[tuple[str, bytes]]) -> int:
        """How many batches lie before the first byte that differs from the last copy."""
        for number, ((name, data), (old_name, old)) in enumerate(zip(contents, self._contents, strict=False)):
            same = _common_prefix(data, old) if name == old_name else 0
            if same < len(data) or same < len(old):
                return bisect_right(self._ends, (number, same))
        return bisect_left(self._ends, (min(len(contents), len(self._contents)), 0))

    def _forget_from(self, batch: int) -> None:
        rows = self._rows[batch - 1] if batch else 0
        log = self._log
        for column in (log.offset, log.epoch, log.checksum, log.batch_offset, log.batch_hash, log.key, log.value):
            del column[rows:]
        del self._ends[batch:], self._rows[batch:]
        log.log_end = log.offset[-1] + 1 if rows else 0
        log.torn_bytes, log.error = 0, None

    def _read_segment(self, number: int, position: int) -> None:
        name, data = self._contents[number]
        log, view = self._log, memoryview(data)
        if number > 0 and position == 0 and name[:20].isdigit() and int(name[:20]) != log.log_end:
            raise UnreadableFile(f"{name}: the segment before it ends at offset {log.log_end}")
        is_last = number == len(self._contents) - 1
        while position < len(data):
            end, problem = _whole_batch(view, position)
            if problem:
                if is_last and not _resumes(view, end):
                    log.torn_bytes = len(data) - position
                    return
                raise UnreadableFile(f"{name}, byte {position}: {problem}, and the log goes on behind it")
            _read_batch(f"{name}, byte {position}", view[position:end], log)
            position = end
            self._ends.append((number, position))
            self._rows.append(len(log.offset))


def _common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes two byte strings have in common from their beginning."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    differs = np.frombuffer(one, np.uint8, size) != np.frombuffer(other, np.uint8, size)
    return int(np.argmax(differs))


def _whole_batch(view: memoryview, position: int) -> tuple[int, str]:
    """(where the batch ends, what is wrong with it or ""); the end is beyond the data where it is incomplete."""
    left = len(view) - position
    if left < _HEADER_SIZE_BYTES:
        return len(view) + 1, f"{left} bytes are less than a batch header"
    _, length, _, magic, crc, _, _ = _HEADER.unpack_from(view, position)
    end = position + _LENGTH_FROM + length
    if length < _HEADER_SIZE_BYTES - _LENGTH_FROM:
        return len(view) + 1, f"a batch length of {length}"
    if end > len(view):
        return end, f"a batch of {end - position} bytes, of which {left} are there"
    if magic != 2:
        return end, f"a batch of magic {magic}"
    if crc32c(view[position + _CRC_FROM : end]) != crc:
        return end, "the CRC does not match"
    return end, ""


def _resumes(view: memoryview, position: int) -> bool:
    """Whether a whole batch stands at `position`."""
    return position < len(view) and not _whole_batch(view, position)[1]


def _read_batch(where: str, batch: memoryview, log: LogFile) -> None:
    """Add the records of a batch whose CRC is right.  Raises UnreadableFile, and then adds nothing."""
    base, _, epoch, _, crc, attributes, last_delta = _HEADER.unpack_from(batch)
    count = last_delta + 1
    if base < log.log_end:
        raise UnreadableFile(f"{where}: a batch at offset {base}, though the log had reached {log.log_end}")
    if count < 1 or struct.unpack_from(">i", batch, _COUNT_AT)[0] != count:
        raise UnreadableFile(f"{where}: a batch whose number of records contradicts its offsets")
    if attributes & _COMPRESSION:
        raise UnreadableFile(f"{where}: a compressed batch, which a metadata log never has")
    before = log.batch_hash[-1] if log.batch_hash else 0
    digest = blake2b(_HASHED.pack(before, base, epoch, crc), digest_size=8).digest()
    hashed: int = _HASH.unpack(digest)[0]
    try:
        written = [(None, None)] * count if attributes & _CONTROL else list(_written(batch, count))
    except (IndexError, ValueError) as problem:
        raise UnreadableFile(f"{where}: a record that cannot be decoded ({problem})") from problem
    log.offset.extend(range(base, base + count))
    log.epoch.extend([epoch] * count)
    log.checksum.extend((crc << 31) | delta for delta in range(count))
    log.batch_offset.extend([base] * count)
    log.batch_hash.extend([hashed] * count)
    log.key.extend(key for key, _ in written)
    log.value.extend(value for _, value in written)
    log.log_end = base + count


def _written(batch: memoryview, count: int) -> Iterator[tuple[str | None, int | None]]:
    """(topic, retention.ms) of each record that sets or removes it; (None, None) of every other one."""
    data = bytes(batch)
    at = _HEADER_SIZE_BYTES
    for _ in range(count):
        length, at = _zigzag(data, at)
        end = at + length
        _, at = _zigzag(data, at + 1)  # attributes, then the timestamp's delta
        _, at = _zigzag(data, at)  # the offset's delta
        key_length, at = _zigzag(data, at)
        value_length, at = _zigzag(data, at + max(key_length, 0))
        yield _config(data, at, at + value_length) if value_length > 0 else (None, None)
        at = end
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes behind the last record")


def _config(data: bytes, at: int, end: int) -> tuple[str | None, int | None]:
    """A metadata record's (topic, retention.ms) if it is a Config record of just that."""
    _, at = _uvarint(data, at)  # frame version
    kind, at = _uvarint(data, at)
    if kind != _CONFIG_RECORD:
        return None, None
    _, at = _uvarint(data, at)  # version of the record
    if data[at] != _TOPIC_RESOURCE:
        return None, None
    topic, at = _compact(data, at + 1)
    name, at = _compact(data, at)
    if topic is None or name != CONFIG_NAME:
        return None, None
    text, at = _compact(data, at)
    if at > end:
        raise ValueError("a string reaches beyond its record")
    return topic, None if text is None else int(text)


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] >= 0x80:
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return number | data[at] << shift, at + 1


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, at = _uvarint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _compact(data: bytes, at: int) -> tuple[str | None, int]:
    """A compact nullable string: its length plus one as uvarint, 0 for null."""
    length, at = _uvarint(data, at)
    if length == 0:
        return None, at
    end = at + length - 1
    return data[at:end].decode(), end


def read_quorum_state(path: Path) -> QuorumStateSaid:
    """Raises UnreadableFile where the file is there and is no quorum-state."""
    if not path.exists():
        return QuorumStateSaid()
    try:
        said = json.loads(path.read_bytes())
        epoch, voted = int(said["leaderEpoch"]), int(said["votedId"])
    except (ValueError, KeyError, TypeError) as problem:
        raise UnreadableFile(f"{path.name}: not a quorum-state file ({problem!r})") from problem
    return QuorumStateSaid(epoch, f"n{voted}" if voted >= 0 else None)


# Traces


def _write_trace(path: Path, folder: Path, started_monotonic_ns: int) -> None:
    broken = folder / f"{path.stem}.error"
    broken.unlink(missing_ok=True)
    (folder / f"{path.stem}.parquet").unlink(missing_ok=True)
    try:
        table = read_trace(path, started_monotonic_ns)
    except UnreadableFile as problem:
        broken.write_text(f"{problem}\n")
        return
    pq.write_table(table, folder / f"{path.stem}.parquet", compression="zstd", row_group_size=ROW_GROUP)


def read_trace(path: Path, started_monotonic_ns: int) -> pa.Table:
    """A node's trace as a table of schema TRACE; a torn last line is left out.

    Raises UnreadableFile for a line that is no row, an unknown event, or a seq that does not rise.
    """
    rows: dict[str, list[Any]] = {name: [] for name in TRACE.names}
    for number, said in _lines(path):
        try:
            seq, event = said["seq"], said["event"]
            if event not in TRACE_EVENTS:
                raise UnreadableFile(f"{path.name}, line {number}: an unknown event {event!r}")
            if rows["seq"] and seq <= rows["seq"][-1]:
                raise UnreadableFile(f"{path.name}, line {number}: seq {seq} after {rows['seq'][-1]}")
            rows["incarnation"].append(said["inc"])
            rows["time_ns"].append(said["t"] - started_monotonic_ns)
            rows["epoch"].append(said["epoch"])
        except (KeyError, TypeError) as problem:
            raise UnreadableFile(f"{path.name}, line {number}: not a row of a trace ({problem!r})") from problem
        rows["seq"].append(seq)
        rows["event"].append(event)
        for name in ("offset", "hash", "peer", "role", "detail"):
            rows[name].append(said.get(name))
    rows["node"] = [path.stem] * len(rows["seq"])
    try:
        return pa.table([pa.array(rows[f.name], f.type) for f in TRACE], schema=TRACE)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as problem:
        raise UnreadableFile(f"{path.name}: a value of the wrong type ({problem})") from problem


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, the object on it) of every whole line; a torn last line is left out."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        try:
            yield number, json.loads(line)
        except ValueError as problem:
            raise UnreadableFile(f"{path.name}, line {number}: not JSON ({problem})") from problem


def line_ends(path: Path) -> list[tuple[int, int]]:
    """(bytes up to the end of the row, its seq) of every row; empty where there is no readable trace.  A copy of which
    the trace's size is known can thus say which rows had been written before it was taken."""
    if not path.exists():
        return []
    ends = []
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):
        end += len(line)
        try:
            ends.append((end, int(json.loads(line)["seq"])))
        except (ValueError, KeyError, TypeError):
            break  # torn or broken: what follows cannot be placed
    return ends
