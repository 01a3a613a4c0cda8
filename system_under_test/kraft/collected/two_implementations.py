"""Comparison of two implementations of Kafka's formats: of the files that they write, and of the records that they read
from one file.

    kafka.tools.DumpLogSegments --cluster-metadata-decoder --files FILE,FILE,…

prints each file as Kafka's own code reads it: a line for each batch, followed by one for each of its records.

    baseOffset: 4 lastOffset: 5 count: 2 … partitionLeaderEpoch: 1 … isControl: false … position: 91 … crc: 7 …
    | offset: 4 … valueSize: 23 … payload: {"type":"FEATURE_LEVEL_RECORD","version":0,"data":{…}}

The readers of this folder must find the same batches, and the same records in them.

*Topics.*  The logs of topics on brokers become tables: batches by header and CRC, and the checkpoint files beside the
logs.

    <topic>-<number>/NNN.log                    segments of record batches, compressed or not
    <topic>-<number>/leader-epoch-checkpoint    lines "epoch offset": where each epoch begins
    <topic>-<number>/partition.metadata         the topic id
    replication-offset-checkpoint               lines "topic number offset": high watermarks of partitions
    cleaner-offset-checkpoint                   lines "topic number offset": compaction may have rewritten lower batches

A checkpoint file begins with a line for its version and one for the number of its entries.  The log of the metadata
quorum in the same directory is left out, and so are folders of partitions that are being deleted or moved, or that are
lost.

Cost: 5 µs a batch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import COMPARISONS, TOPICS
from checkers.kernels.kafka_files import COMPLETE, CONTROL, HEADER_SIZE_BYTES, crc32c, scan
from system_under_test.kraft.collected.log_files import segments
from system_under_test.kraft.collected.record_layouts import LAYOUTS, Cursor, record_of_next, type_and_version
from system_under_test.subject import Collected

_IN_KAFKA: Mapping[str, str] = {
    "feature": "FEATURE_LEVEL",
    "change partition": "PARTITION_CHANGE",
    "change broker": "BROKER_REGISTRATION_CHANGE",
}
"""Kind of a record -> Kafka's name of the record without "_RECORD", if the names differ."""
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
    """Return name of a file -> its lines in the output of DumpLogSegments."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("Dumping "):
            lines = found.setdefault(Path(line.removeprefix("Dumping ")).name, [])
        else:
            lines.append(line)
    return found


def read_alike(path: Path, dumped: Sequence[str]) -> tuple[int, str | None]:
    """Return (number of records compared, first difference between our reading of a file and Kafka's reading; None if
    there is none).
    """
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
    """Yield the batches and records that our reader finds.  Raises ValueError or IndexError for a file with an error in
    its middle.
    """
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
    number, version = type_and_version(value)
    kind = LAYOUTS[number].kind if number in LAYOUTS else f"type {number}"
    return _IN_KAFKA.get(kind, kind.upper().replace(" ", "_").replace("-", "_")), version


def _words(line: Line) -> str:
    return " ".join("-" if each is None else str(each) for each in line)


def same_bytes(one: Path, other: Path) -> tuple[int, str | None]:
    """Return (number of batches compared, first difference) of two log directories, up to the lower end.

    Two logs may differ after the committed part.  So the comparison ends where their epochs differ; the checker
    log-matching judges the difference of epochs.
    """
    left, right = _batches(one), _batches(other)
    start = max(min(left, default=0), min(right, default=0))
    stop = min(max(left, default=-1), max(right, default=-1))
    compared = 0
    for base in sorted(b for b in {*left, *right} if start <= b <= stop):
        if base not in left or base not in right:
            return compared, f"a batch begins at offset {base} in only one of the logs"
        if left[base][0] != right[base][0]:
            break
        if left[base][1] != right[base][1]:
            return compared, f"the batches of epoch {left[base][0]} at offset {base} differ"
        compared += 1
    return compared, None


def _batches(folder: Path) -> Mapping[int, tuple[int, bytes]]:
    """Return base offset -> (epoch, bytes) of each complete batch."""
    found = {}
    for segment in segments(folder):
        columns = (segment.batches.base, segment.batches.epoch, segment.batches.start, segment.batches.stop)
        for base, epoch, start, stop in zip(*(column.tolist() for column in columns), strict=True):
            found[base] = (epoch, segment.data[start:stop].tobytes())
    return found


BATCH, EPOCH, HIGH_WATERMARK, CLEANED, UNREADABLE = "batch", "epoch", "high-watermark", "cleaned", "unreadable"
OF_LOG_DIRECTORY = {HIGH_WATERMARK: "replication-offset-checkpoint", CLEANED: "cleaner-offset-checkpoint"}
_PARTITION = re.compile(r"(?!__cluster_metadata-)(.+)-(\d+)")
_HEADER = struct.Struct(">qiibIhi")
"""Layout of a batch header: base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_CRC_FROM, _LENGTH_FROM = 21, 12

Row = tuple[str, str, int, int, int, int]
"""Partition, kind, offset, end, epoch, CRC."""


def write_topics(run_folder: Path, copies: Sequence[Collected], pattern: str) -> None:
    """Write `tables/topics/<node>.parquet`.

    pattern: pattern of the folders of partitions, within a copy
    """
    folder = run_folder / "tables" / "topics"
    folder.mkdir(parents=True, exist_ok=True)
    for node in sorted({copy.node for copy in copies}):
        with pq.ParquetWriter(folder / f"{node}.parquet", TOPICS, compression="zstd") as writer:
            for copy in sorted((each for each in copies if each.node == node), key=lambda each: each.copy):
                rows = list(read_topics(copy.folder, pattern))
                columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * (len(TOPICS) - 2)
                given = [[copy.copy] * len(rows), [node] * len(rows), *columns]
                arrays = [pa.array(column, field.type) for column, field in zip(given, TOPICS, strict=True)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=TOPICS))


def read_topics(folder: Path, pattern: str) -> Iterator[Row]:
    """Yield the rows of one copy.  Never raises because of file contents."""
    noted = {kind: _offsets((folder / pattern).parent / name) for kind, name in OF_LOG_DIRECTORY.items()}
    for partition in sorted(folder.glob(pattern)):
        if not (named := _PARTITION.fullmatch(partition.name)):
            continue
        name = f"{partition.name} {_topic_id(partition)}".rstrip()
        for kind, offsets in noted.items():
            if (offset := offsets.get((named[1], int(named[2])))) is not None:
                yield name, kind, offset, -1, -1, -1
        for number, start in sorted(_numbers(partition / "leader-epoch-checkpoint", 2)):
            yield name, EPOCH, int(start), -1, int(number), -1
        for kind, offset, end, epoch, crc in _batches_of_topic(partition):
            yield name, kind, offset, end, epoch, crc


def _batches_of_topic(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield (kind, base offset, end, epoch, CRC) of each complete batch, with the kind "unreadable" for a corrupt
    batch.
    """
    end = -1
    for path in sorted(folder.glob("*.log")):
        data, at = np.fromfile(path, np.uint8), 0
        raw = data.tobytes()
        while len(raw) - at >= HEADER_SIZE_BYTES:
            base, length, epoch, magic, crc, _, delta = _HEADER.unpack_from(raw, at)
            stop = at + _LENGTH_FROM + length
            if length >= HEADER_SIZE_BYTES - _LENGTH_FROM and stop > len(raw):
                break  # an append that was interrupted
            if magic != 2 or length < HEADER_SIZE_BYTES - _LENGTH_FROM or base < end or delta < 0:
                yield UNREADABLE, max(end, 0), -1, -1, -1
                return
            if crc32c(data[at + _CRC_FROM : stop]) != crc:
                yield UNREADABLE, base, -1, -1, -1
                return
            end, at = base + delta + 1, stop
            yield BATCH, base, end, epoch, crc


def _offsets(path: Path) -> Mapping[tuple[str, int], int]:
    """Return (topic, partition number) -> offset in a checkpoint file."""
    return {(topic, int(number)): int(offset) for topic, number, offset in _numbers(path, 3)}


def _numbers(path: Path, words: int) -> Iterator[list[str]]:
    """Yield the entries of a checkpoint file; none if the file is missing.  Lines of another form are left out."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    for line in text.splitlines()[2:]:
        found = line.split()
        if len(found) == words and all(each.lstrip("-").isdigit() for each in found[words == 3 :]):
            yield found


def _topic_id(folder: Path) -> str:
    path = folder / "partition.metadata"
    found = re.search(r"^topic_id: (\S+)$", path.read_text(errors="replace"), re.M) if path.is_file() else None
    return "" if found is None else found[1]
