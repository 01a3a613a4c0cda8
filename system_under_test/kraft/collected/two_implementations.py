"""Compares what two implementations of Kafka's formats wrote, and how they read one file.

    kafka.tools.DumpLogSegments --cluster-metadata-decoder --files FILE,FILE,…

prints each file as Kafka's own code reads it: a line for each batch, and behind it one for each record.

    baseOffset: 4 lastOffset: 5 count: 2 … partitionLeaderEpoch: 1 … isControl: false … position: 91 … crc: 7 …
    | offset: 4 … valueSize: 23 … payload: {"type":"FEATURE_LEVEL_RECORD","version":0,"data":{…}}

The readers of this folder must find the same batches, and the same records in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import COMPARISONS
from checkers.kernels.kafka_files import COMPLETE, CONTROL, HEADER_SIZE_BYTES, scan
from system_under_test.kraft.collected.cursor import Cursor, record_of_next
from system_under_test.kraft.collected.log_files import segments

KAFKAS_NAMES: Mapping[int, str] = {
    0: "REGISTER_BROKER",
    1: "UNREGISTER_BROKER",
    2: "TOPIC",
    3: "PARTITION",
    4: "CONFIG",
    5: "PARTITION_CHANGE",
    7: "FENCE_BROKER",
    8: "UNFENCE_BROKER",
    9: "REMOVE_TOPIC",
    10: "DELEGATION_TOKEN",
    11: "USER_SCRAM_CREDENTIAL",
    12: "FEATURE_LEVEL",
    14: "CLIENT_QUOTA",
    15: "PRODUCER_IDS",
    17: "BROKER_REGISTRATION_CHANGE",
    18: "ACCESS_CONTROL_ENTRY",
    19: "REMOVE_ACCESS_CONTROL_ENTRY",
    20: "NO_OP",
    22: "REMOVE_USER_SCRAM_CREDENTIAL",
    23: "BEGIN_TRANSACTION",
    24: "END_TRANSACTION",
    25: "ABORT_TRANSACTION",
    26: "REMOVE_DELEGATION_TOKEN",
    27: "REGISTER_CONTROLLER",
    28: "CLEAR_ELR",
}
"""Types of records, as Kafka prints them without "_RECORD"."""
_BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) .*partitionLeaderEpoch: (\d+) .*isControl: (true|false) .*"
    r"position: (\d+) .*size: (\d+) .*crc: (\d+) isvalid: true"
)
_RECORD = re.compile(r'\| offset: (\d+) .*valueSize: (-?\d+) (?:.*payload: \{"type":"(\w+)_RECORD","version":(\d+),)?')
Line = tuple[object, ...]


def write_comparisons(run_folder: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write `tables/comparisons.parquet`."""
    pq.write_table(pa.Table.from_pylist(list(rows), COMPARISONS), run_folder / "tables" / "comparisons.parquet")


def files_in_dump(text: str) -> Mapping[str, Sequence[str]]:
    """Return name of a file -> the lines about it."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("Dumping "):
            lines = found.setdefault(Path(line.removeprefix("Dumping ")).name, [])
        else:
            lines.append(line)
    return found


def read_alike(path: Path, dumped: Sequence[str]) -> tuple[int, str | None]:
    """Return (records compared, the first difference between our reading of a file and Kafka's, None if equal)."""
    theirs = [line for line in map(_line_of_kafka, dumped) if line is not None]
    try:
        ours = list(_lines_of_ours(path))
    except (ValueError, IndexError) as problem:
        return 0, f"our reader fails ({problem}), and DumpLogSegments reads {len(theirs)} batches and records"
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            return 0, f"we read {_words(mine)}, and DumpLogSegments reads {_words(other)}"
    if len(ours) != len(theirs):
        return 0, f"we read {len(ours)} batches and records, and DumpLogSegments reads {len(theirs)}"
    return sum(line[0] == "record" for line in ours), None


def _line_of_kafka(line: str) -> Line | None:
    if found := _BATCH.match(line):
        base, last, epoch, control, position, size, crc = found.groups()
        return "batch", int(base), int(last), int(epoch), control == "true", int(position), int(size), int(crc)
    if found := _RECORD.match(line):
        offset, size, name, version = found.groups()
        return "record", int(offset), int(size), name, None if version is None else int(version)
    return ("unreadable", line[:80]) if line.startswith(("baseOffset", "|")) else None


def _lines_of_ours(path: Path) -> Iterator[Line]:
    """Raises ValueError or IndexError for a file that is damaged in its middle."""
    data = np.fromfile(path, np.uint8)
    first = int(path.name[:20]) if path.suffix == ".log" else 0
    batches, why, position, _ = scan(data, 0, first)
    if why != COMPLETE and path.suffix != ".log":
        raise ValueError(f"byte {position}: no whole batch")
    for base, epoch, crc, count, flags, start, stop in zip(*(column.tolist() for column in batches), strict=True):
        control = bool(flags & CONTROL)
        yield "batch", base, base + count - 1, epoch, control, start, stop - start, crc
        cursor = Cursor(data.tobytes(), start + HEADER_SIZE_BYTES, stop)
        for row in range(count):
            _, value = record_of_next(cursor)
            name, version = (None, None) if control else _type_and_version(value)
            yield "record", base + row, len(value), name, version


def _type_and_version(value: bytes) -> tuple[str, int]:
    data = Cursor(value)
    data.uvarint()
    number, version = data.uvarint(), data.uvarint()
    return KAFKAS_NAMES.get(number, f"type {number}"), version


def _words(line: Line) -> str:
    return " ".join("-" if each is None else str(each) for each in line)


def same_bytes(one: Path, other: Path) -> tuple[int, str | None]:
    """Return (batches compared, the first difference) of two log directories, up to the lower end.

    Two logs may differ behind what is committed.  So the comparison ends where their epochs differ, and log-matching
    decides about that."""
    left, right = _batches(one), _batches(other)
    start = max(min(left, default=0), min(right, default=0))
    stop = min(max(left, default=-1), max(right, default=-1))
    compared = 0
    for base in sorted(b for b in {*left, *right} if start <= b <= stop):
        if base not in left or base not in right:
            return compared, f"a batch begins at offset {base} in one log alone"
        if left[base][0] != right[base][0]:
            break
        if left[base][1] != right[base][1]:
            return compared, f"the batches of epoch {left[base][0]} at offset {base} hold different bytes"
        compared += 1
    return compared, None


def _batches(folder: Path) -> Mapping[int, tuple[int, bytes]]:
    """Base offset -> (epoch, bytes) of each whole batch."""
    found = {}
    for segment in segments(folder):
        columns = (segment.batches.base, segment.batches.epoch, segment.batches.start, segment.batches.stop)
        for base, epoch, start, stop in zip(*(column.tolist() for column in columns), strict=True):
            found[base] = (epoch, segment.data[start:stop].tobytes())
    return found
