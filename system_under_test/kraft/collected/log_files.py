"""Reader of the log and the snapshots of one data directory, which shares no code with the subject's own codec.

It follows the published layouts (Kafka's record batch version 2, the metadata records' flexible encoding of KIP-482)
and the definition of the prefix hash; `checkers/kernels/kafka_files.py` scans the bytes.

    NNN.log     a segment: a sequence of record batches, named after its first offset

A torn tail is an append that a crash interrupted.  A torn tail is no violation.  It has three properties:
- it is at the end of the last segment and reaches to the end of that file;
- its first bytes are those of a batch at the log's end: the right base offset, a possible length, the right magic (a
  crash may leave zeros in place of bytes that were not written);
- no complete batch with a correct CRC begins anywhere after its first byte.

Any other error is corruption: `error` names the file and the byte, and the checkers' verdict is unknown.  Corruption is
no violation by itself, because either the node or the copying may have corrupted the bytes.  Data before the error is
still returned.  Checkers judge gaps and decreasing epochs.

A log whose first segment begins at offset 0 begins at 0.  Any other log begins at the end of a snapshot in the same
folder (NNN-EEE.checkpoint, KIP-630): the first snapshot that does not end before the first segment.  Batches before the
end of this snapshot are left out.  If there is no such snapshot, or if it does not match the batches, the log has lost
its beginning.  The prefix hash continues from the prefix hash in the snapshot's header.

A folder without any segment is missing input and not an empty log, because a node creates its first segment when it
starts.

    prefix hash: h = 0; for every batch, h = BLAKE2b-64(int64 h, int64 base offset, int32 leader epoch, uint32 CRC),
    all big endian, the digest read as a big-endian int64.

    checksum of a record: the CRC of its batch (31 bits up) and its position in the batch.

Cost: headers, CRCs and hashes of a million batches of 100 bytes take 0.2 s, with their records 0.45 s; memory: one
segment, and 60 bytes a batch and a record each.

*Snapshots.*  The reader of snapshots shares no code with the subject's codec, either.
It follows the published layout (KIP-630): record batches of version 2 whose offsets count from 0 and whose epoch is
that of the snapshot.  The first batch is a control batch with the header, the last batch one with the footer.  If
voters can change, `kraft.version` and the voters follow the header, in the same batch or in separate batches (KIP-853).

    state hash   of the state that results from its records (`state_model.py`)
    prefix hash  of the log at the snapshot's end: tag 10000 of the header, which only the bundled system writes; else 0
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Int32, Int64, UInt8
from checkers.kernels import kafka_files
from system_under_test.kraft.collected.record_layouts import Cursor, record_of_next
from system_under_test.kraft.collected.state_model import StateModel

REGISTER = b"retention.ms"
"""Config of a topic that is the register of a workload."""

LIST = b"follower.replication.throttled.replicas"
"""Config of a topic that is the set, or the log, of a workload."""

_TOPIC_RESOURCE = 2


def _no(kind: type) -> Any:
    return np.empty(0, kind)


@dataclass(slots=True)
class LogFile:
    """One log as columns of schema LOG, with one entry per record.

    key, value: Arrow arrays of large strings and of int64, both with nulls
    log_end: offset after the last complete batch
    start: offset at which the log begins
    start_hash: prefix hash at `start`, from the snapshot
    """

    offset: Int64 = field(default_factory=lambda: _no(np.int64))
    epoch: Int32 = field(default_factory=lambda: _no(np.int32))
    checksum: Int64 = field(default_factory=lambda: _no(np.int64))
    batch_offset: Int64 = field(default_factory=lambda: _no(np.int64))
    batch_hash: Int64 = field(default_factory=lambda: _no(np.int64))
    key: pa.Array = field(default_factory=lambda: pa.array([], pa.large_string()))
    value: pa.Array = field(default_factory=lambda: pa.array([], pa.int64()))
    log_end: int = 0
    torn_bytes: int = 0
    error: str | None = None
    start: int = 0
    start_hash: int = 0

    def __len__(self) -> int:
        return len(self.offset)

    def behind(self, other: LogFile, count: int) -> LogFile:
        """Return this log with the first `count` entries of another log in front; all other fields are unchanged."""
        joined: dict[str, Any] = {}
        for name in (*_ARRAYS, *_LISTS):
            join = np.concatenate if name in _ARRAYS else pa.concat_arrays
            joined[name] = join([getattr(other, name)[:count], getattr(self, name)])
        return replace(self, **joined)


_ARRAYS, _LISTS = ("offset", "epoch", "checksum", "batch_offset", "batch_hash"), ("key", "value")
"""Names of the columns of a `LogFile`: the numpy arrays, and the Arrow arrays."""


def log_start(folder: Path) -> int:
    """Return the offset at which the log of a copied directory begins."""
    return _beginning(folder).end_offset


def read_log(folder: Path) -> LogFile:
    """Read all segments of a copied log directory, in order; an empty log if there are none.  Never raises because of
    file contents: `error` describes the problem.
    """
    begins = _beginning(folder)
    whole = LogFile(error=missing(folder) or begins.error, start=begins.end_offset)
    whole.start_hash = begins.prefix_hash
    pieces: list[LogFile] = []
    prefix = begins.prefix_hash
    for segment in segments(folder, begins):
        hashes = kafka_files.chain(prefix, segment.batches.base, segment.batches.epoch, segment.batches.crc)
        piece = _records(segment, hashes)
        pieces.append(piece)
        whole.torn_bytes, whole.error = segment.torn_bytes, segment.error
        if piece.error is not None:
            whole.torn_bytes, whole.error = 0, piece.error
            break
        prefix = int(hashes[-1]) if len(hashes) else prefix
    if pieces:
        for column in (*_ARRAYS, *_LISTS):
            joined = np.concatenate if column in _ARRAYS else pa.concat_arrays
            setattr(whole, column, joined([getattr(piece, column) for piece in pieces]))
    whole.log_end = int(whole.offset[-1]) + 1 if len(whole) else whole.start
    return whole


def missing(folder: Path) -> str | None:
    """Return the reason why a copied log directory has no log; None if it has a log, even an empty one."""
    if not folder.is_dir():
        return f"the folder {folder.parent.name}/{folder.name} is missing"
    return None if any(folder.glob("*.log")) else f"{folder.parent.name}/{folder.name} contains no segment (*.log)"


@dataclass(frozen=True, slots=True)
class _Segment:
    """The complete batches of one segment, and the error after the last complete batch."""

    name: str
    data: UInt8
    batches: kafka_files.Batches
    torn_bytes: int = 0
    error: str | None = None


def _beginning(folder: Path) -> SnapshotFile:
    """Return the snapshot after which a log begins; an empty snapshot for a log that begins at 0 or has no segment."""
    first = min((path.name for path in folder.glob("*.log")), default="")
    base = int(first[:20]) if first[:20].isdigit() else 0
    if base == 0:
        return SnapshotFile(0, 0)
    for end, epoch, path in snapshot_names(folder):
        if end >= base:
            return read_snapshot(path, end, epoch)
    words = f"{first}: the log begins at offset {base}, and no snapshot ends there or later"
    return SnapshotFile(base, 0, error=words)


def segments(folder: Path, begins: SnapshotFile | None = None) -> Iterator[_Segment]:
    """Yield the segments in order, up to the first corrupt one, without the batches before the beginning of the log.
    Only one segment is in memory at a time.

    begins: snapshot before the log, if already known
    """
    begins = begins or _beginning(folder)
    if begins.error is not None:
        return
    paths = sorted(folder.glob("*.log"))
    log_end, joined = 0, begins.end_offset == 0
    for number, path in enumerate(paths):
        data = np.fromfile(path, np.uint8)
        name = path.name
        if number == 0 and name[:20].isdigit():
            log_end = int(name[:20])
            joined = joined or log_end == begins.end_offset
        if number > 0 and name[:20].isdigit() and int(name[:20]) != log_end and len(data):
            words = f"{name}: the segment before it ends at offset {log_end}"
            yield _Segment(name, data, kafka_files.scan(data, 0, 0, limit=0)[0], error=words)
            return
        batches, why, position, end = kafka_files.scan(data, 0, log_end)
        log_end = int(batches.base[-1]) + int(batches.records[-1]) if len(batches.base) else log_end
        if not joined:
            batches, joined = _behind(batches, begins)
        if why == kafka_files.COMPLETE:
            yield _Segment(name, data, batches)
            continue
        where = f"{name}, byte {position}: {_problem(data, position, end, why)}"
        if why > kafka_files.BAD_CRC:
            reached = f", though the log had reached {log_end}" if why == kafka_files.OFFSET_WENT_BACK else ""
            yield _Segment(name, data, batches, error=where + reached)
        elif number < len(paths) - 1 or kafka_files.resumes(data, position + 1):
            yield _Segment(name, data, batches, error=f"{where}, and the log continues after it")
        elif end < len(data) or not _begins_append(data[position:], log_end):
            yield _Segment(name, data, batches, error=f"{where}, and these bytes are no interrupted append")
        else:
            yield _Segment(name, data, batches, torn_bytes=len(data) - position)
        return


def batches_in(folder: Path) -> Iterator[tuple[int, int, int, Iterator[bytes]]]:
    """Yield (base offset, epoch, attributes, values of the records) of each batch of a copied log directory, in order.

    An error in the lengths of a record is raised when its value is read: ValueError or IndexError.
    """
    for segment in segments(folder):
        data, batches = segment.data.tobytes(), segment.batches
        columns = (batches.base, batches.epoch, batches.attributes, batches.records, batches.start, batches.stop)
        for base, epoch, attributes, count, start, stop in zip(*(c.tolist() for c in columns), strict=True):
            cursor = Cursor(data, start + kafka_files.HEADER_SIZE_BYTES, stop)
            yield base, epoch, attributes, (record_of_next(cursor)[1] for _ in range(count))


def _behind(batches: kafka_files.Batches, begins: SnapshotFile) -> tuple[kafka_files.Batches, bool]:
    """Return (the batches from the end of the snapshot on, True if a batch ends there and has its epoch).

    If no batch ends at the end of the snapshot, the snapshot is about to replace the log, and no batch counts.
    """
    ends = batches.base + batches.records
    at = np.flatnonzero((ends == begins.end_offset) & (batches.epoch == begins.epoch))
    if len(at) == 0:
        return batches.first(0), False
    return batches.without_first(int(at[0]) + 1), True


def _problem(data: UInt8, position: int, end: int, why: int) -> str:
    left = len(data) - position
    words = {
        kafka_files.SHORT_HEADER: f"{left} bytes are less than a batch header",
        kafka_files.INCOMPLETE: f"a batch of {end - position} bytes, of which {left} are there",
        kafka_files.BAD_CRC: "the CRC does not match",
        kafka_files.WRONG_COUNT: "a batch whose number of records contradicts its offsets",
        kafka_files.COMPRESSED: "a compressed batch, which a metadata log never has",
    }
    if why in words:
        return words[why]
    what, at, size = {
        kafka_files.BAD_LENGTH: ("batch length of", 8, 4),
        kafka_files.BAD_MAGIC: ("batch of magic", 16, 1),
        kafka_files.OFFSET_WENT_BACK: ("batch at offset", 0, 8),
    }[why]
    return f"a {what} {_number(data, position + at, size)}"


def _number(data: UInt8, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size].tobytes(), "big", signed=True)


def _begins_append(tail: UInt8, log_end: int) -> bool:
    """Return True if these bytes may be the beginning of a batch at `log_end`, partly written and followed by zeros."""
    written = tail.tobytes().rstrip(b"\0")
    length, magic = written[8:12], written[16:17]
    return (
        log_end.to_bytes(8, "big").startswith(written[:8])
        and (len(length) < 4 or int.from_bytes(length, "big", signed=True) >= kafka_files.HEADER_SIZE_BYTES - 12)
        and magic in (b"", b"\2")
    )


def _records(segment: _Segment, hashes: Int64) -> LogFile:
    """Return the records of one segment.  If a record cannot be decoded, return only the batches before it, and set
    `error`.
    """
    batches = segment.batches
    names = np.frombuffer(REGISTER, np.uint8), np.frombuffer(LIST, np.uint8)
    configs, broken = kafka_files.find_configs(segment.data, batches, _TOPIC_RESOURCE, *names)
    rows_to = np.cumsum(batches.records, dtype=np.int64)
    why = "its lengths or numbers are invalid"
    keys = _keys(segment.data, configs)
    if (row := _first_not_text(keys)) is not None:
        of_text = int(np.searchsorted(rows_to, row, side="right"))
        if broken < 0 or of_text < broken:
            broken, why = of_text, "a name that is not UTF-8"
    error = None
    if broken >= 0:
        error = f"{segment.name}, byte {batches.start[broken]}: a record that cannot be decoded ({why})"
        batches, hashes, rows_to = batches.first(broken), hashes[:broken], rows_to[:broken]
    count = batches.records
    size = int(rows_to[-1]) if len(rows_to) else 0
    delta = np.arange(size) - np.repeat(rows_to - count, count)
    return LogFile(
        offset=np.repeat(batches.base, count) + delta,
        epoch=np.repeat(batches.epoch, count),
        checksum=np.repeat(batches.crc << 31, count) | delta,
        batch_offset=np.repeat(batches.base, count),
        batch_hash=np.repeat(hashes, count),
        key=keys[:size],
        value=pa.array(configs.value[:size], mask=~configs.known[:size]),
        error=error,
    )


def _keys(data: UInt8, configs: kafka_files.Configs) -> pa.Array:
    joined, begins = kafka_files.gather(data, configs.name_at, configs.name_size)
    there = np.packbits(configs.name_size >= 0, bitorder="little")
    buffers = [pa.py_buffer(there), pa.py_buffer(begins), pa.py_buffer(joined)]
    return pa.Array.from_buffers(pa.large_string(), len(configs.name_at), buffers)


def _first_not_text(keys: pa.Array) -> int | None:
    """Return the first row whose bytes are not UTF-8; None if all rows are UTF-8."""
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        for row, name in enumerate(keys.cast(pa.large_binary()).to_pylist()):
            if name is not None and name.decode(errors="ignore").encode() != name:
                return row
    return None


_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_HEADER, _FOOTER = 3, 4
_OF_VOTERS = [5, 6]
"""Types of control records: KRaftVersion and Voters, in this order (KIP-853)."""
_PREFIX_HASH_TAG = 10_000


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One snapshot.

    records: number of records of the state
    state_hash, prefix_hash: hashes; 0 if `error` is set
    error: reason why the snapshot is incomplete; None if it is complete
    """

    end_offset: int
    epoch: int
    records: int = 0
    state_hash: int = 0
    prefix_hash: int = 0
    error: str | None = None


class _Malformed(ValueError):
    """The bytes violate the layout; the message names the rule."""


def snapshot_names(folder: Path) -> list[tuple[int, int, Path]]:
    """Return (end offset, epoch, path) of every snapshot whose name marks it as complete, oldest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("*.checkpoint")]
    return sorted((int(match[1]), int(match[2]), path) for match, path in found if match)


def read_snapshots(folder: Path) -> list[SnapshotFile]:
    """Read all snapshots of a copied log directory, oldest first.  Never raises because of file contents.

    The snapshot at offset 0, which Kafka's formatter writes, is left out, because it contains no part of the log.
    """
    return [read_snapshot(path, end, epoch) for end, epoch, path in snapshot_names(folder) if end]


def read_snapshot(path: Path, end_offset: int, epoch: int) -> SnapshotFile:
    data = path.read_bytes()
    try:
        return _read(data, end_offset, epoch)
    except (ValueError, IndexError) as problem:
        words = str(problem) if isinstance(problem, _Malformed) else "a record ends beyond its batch"
        return SnapshotFile(end_offset, epoch, error=f"{path.name}: {words}")


def _read(data: bytes, end_offset: int, epoch: int) -> SnapshotFile:
    batches, why, position, _ = kafka_files.scan(np.frombuffer(data, np.uint8), 0, 0)
    if why != kafka_files.COMPLETE or len(batches.base) < 2:
        raise _Malformed(f"byte {position}: no complete batch with a correct CRC, and the footer is missing")
    ends = np.cumsum(batches.records)
    if np.any(batches.base != ends - batches.records) or np.any(batches.epoch != epoch):
        raise _Malformed("its batches do not follow each other, or are of another epoch")
    control = (batches.attributes & kafka_files.CONTROL) != 0
    if not (control[0] and control[-1]):
        raise _Malformed("the header is not its first batch, or the footer not its last")
    kinds = []
    model, records, prefix_hash = StateModel(), 0, 0
    for start, stop, is_control in zip(batches.start.tolist(), batches.stop.tolist(), control.tolist(), strict=True):
        cursor = Cursor(data, start + kafka_files.HEADER_SIZE_BYTES, stop)
        while cursor.at < stop:
            key, value = record_of_next(cursor)
            if not is_control:
                try:
                    model.replay(value)
                except (ValueError, KeyError) as problem:
                    raise _Malformed(f"record {records + 1} cannot be replayed: {problem}") from None
                records += 1
                continue
            kinds.append(int.from_bytes(key[2:4], "big"))
            if kinds == [_HEADER]:
                prefix_hash = _prefix_hash(value)
    if kinds not in ([_HEADER, _FOOTER], [_HEADER, *_OF_VOTERS, _FOOTER]):
        raise _Malformed(f"its control records are of the types {kinds}")
    return SnapshotFile(end_offset, epoch, records, model.state_hash, prefix_hash)


def _prefix_hash(header: bytes) -> int:
    """Return the prefix hash among the tagged fields of a header; 0 if it is missing."""
    cursor = Cursor(header, 10)
    for _ in range(cursor.uvarint()):
        number, held = cursor.uvarint(), cursor.take(cursor.uvarint())
        if number == _PREFIX_HASH_TAG and len(held) == 8:
            return int.from_bytes(held, "big", signed=True)
    return 0
