"""Prints the files of a node in readable form: logs, snapshots, and the small files beside them.

    NNN.log, NNN-EEE.checkpoint[.part]   a line for each batch, and below it a line for each record
    leader-epoch-checkpoint, quorum-state, recovery-point, meta.properties, partition.metadata     their content

The tool only reads files, so it may be used on a copy or on the files of a running node.  For a corrupt file it prints
a line that begins with "damaged", and reads no further.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log import small_files, snapshot_file
from system_under_test.kraft.log.batch import BatchHeader, CorruptBatch
from system_under_test.kraft.records.metadata import CorruptRecord, UnknownRecord, decode

DAMAGED = "damaged"
_LEADER_CHANGE = 2


def lines_of(path: Path, *, records: bool = True) -> Iterator[str]:
    """Yield the content of a file, or of every known file in a folder.

    records: False to print only batches

    Raises OSError if the path cannot be read, and ValueError for a file of another kind.
    """
    if path.is_dir():
        known = [each for each in sorted(path.rglob("*")) if each.is_file() and _reader(each) is not None]
        if not known:
            raise ValueError(f"{path} holds no file of a node")
        for each in known:
            yield f"── {each.relative_to(path)}"
            yield from lines_of(each, records=records)
        return
    reader = _reader(path)
    if reader is None:
        raise ValueError(f"{path.name} is no file of a node; name a log, a snapshot, or a data directory")
    yield from reader(path, records)


def _reader(path: Path) -> Callable[[Path, bool], Iterator[str]] | None:
    name = path.name
    for suffix, reader in _BY_SUFFIX.items():
        if name.endswith(suffix):
            return reader
    return _BY_NAME.get(name)


def _batches(path: Path, records: bool) -> Iterator[str]:
    data = path.read_bytes()
    position = 0
    while position < len(data):
        try:
            header = codec.read_header(data, position)
            raw = data[position : position + header.size_bytes]
            codec.check_crc(raw)
            shown = list(_records(header, raw)) if records else []
        except (CorruptBatch, CorruptRecord) as problem:
            yield f"{DAMAGED} at byte {position}: {problem}"
            return
        yield _batch(position, header)
        yield from shown
        position += header.size_bytes
    if not data:
        yield "empty"


def _batch(position: int, header: BatchHeader) -> str:
    offsets = f"{header.base_offset}" if header.count == 1 else f"{header.base_offset}..{header.end_offset - 1}"
    kind = "control" if header.control else "data"
    return (
        f"byte {position}: offset {offsets}, epoch {header.epoch}, {kind}, {header.size_bytes} bytes, "
        f"{_time(header.max_timestamp_ms)}, CRC {header.crc:08x}"
    )


def _records(header: BatchHeader, raw: bytes) -> Iterator[str]:
    if header.control:
        for number, (kind, value) in enumerate(codec.controls(raw)):
            yield f"    {header.base_offset + number}  {_control(raw, kind, value)}"
        return
    for number, value in enumerate(codec.values(raw)):
        record = decode(value)
        words = (
            f"type {record.type}, version {record.version}, unknown here, {len(record.value)} bytes"
            if isinstance(record, UnknownRecord)
            else str(record)
        )
        yield f"    {header.base_offset + number}  {words}"


def _control(raw: bytes, type_number: int, value: bytes) -> str:
    if type_number == _LEADER_CHANGE:
        return str(codec.leader_change(raw))
    if type_number == snapshot_file.HEADER:
        header = snapshot_file.read_beginning(raw)[0]
        return (
            f"snapshot header: last record of {_time(header.last_timestamp_ms)}, prefix hash of the log there "
            f"{header.prefix_hash & (1 << 64) - 1:016x}"
        )
    if type_number == snapshot_file.FOOTER:
        return "snapshot footer: complete"
    if type_number == codec.VOTERS:
        return str(codec.voters(raw))
    return f"control record of type {type_number}, {len(value)} bytes"


def _epochs(path: Path, records: bool) -> Iterator[str]:
    version, _, *entries = path.read_text(errors="replace").splitlines() or ["none"]
    yield f"version {version}"
    for entry in entries:
        epoch, _, offset = entry.partition(" ")
        yield f"epoch {epoch} begins at offset {offset}"


def _quorum_state(path: Path, records: bool) -> Iterator[str]:
    try:
        state = small_files.decode_state(path.read_bytes())
    except small_files.UnreadableQuorumState as problem:
        yield f"{DAMAGED}: {problem}"
        return
    voted = "nobody" if state.voted is None else f"{state.voted.id}"
    leader = "unknown" if state.leader_id is None else f"{state.leader_id}"
    yield f"epoch {state.epoch}, leader {leader}, voted for {voted}"
    voters = [voter.get("voterId") for voter in json.loads(path.read_bytes()).get("currentVoters") or ()]
    yield f"voters {', '.join(map(str, voters))}"


def _recovery_point(path: Path, records: bool) -> Iterator[str]:
    offset = small_files.read_recovery_point(path.read_bytes())
    yield f"everything below offset {offset} was fsynced" if offset >= 0 else "promises nothing"


def _text(path: Path, records: bool) -> Iterator[str]:
    yield from path.read_text(errors="replace").splitlines()


def _time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


_BY_SUFFIX: dict[str, Callable[[Path, bool], Iterator[str]]] = {
    ".log": _batches,
    ".checkpoint": _batches,
    ".checkpoint.part": _batches,
}
_BY_NAME: dict[str, Callable[[Path, bool], Iterator[str]]] = {
    small_files.EPOCHS: _epochs,
    small_files.QUORUM_STATE: _quorum_state,
    small_files.RECOVERY_POINT: _recovery_point,
    small_files.META_PROPERTIES: _text,
    "partition.metadata": _text,
}
