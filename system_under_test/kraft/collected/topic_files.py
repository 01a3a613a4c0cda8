"""What copies of brokers hold of the replicas of topics: batches by header and CRC, and checkpoint files beside them.

    <topic>-<number>/NNN.log                    segments of record batches, compressed or not
    <topic>-<number>/leader-epoch-checkpoint    lines "epoch offset": where each epoch begins
    <topic>-<number>/partition.metadata         the topic id
    replication-offset-checkpoint               lines "topic number offset": high watermarks
    cleaner-offset-checkpoint                   the same: below it, compaction may have rewritten batches

A checkpoint file begins with a line for its version and one for the number of its entries.  The log of the metadata
quorum lies in the same directory and is left out, and so are partitions that are deleted, moved or lost.

Cost: 5 µs a batch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import TOPICS
from checkers.kernels.kafka_files import HEADER_SIZE_BYTES, crc32c
from system_under_test.subject import Collected

BATCH, EPOCH, HIGH_WATERMARK, CLEANED, UNREADABLE = "batch", "epoch", "high-watermark", "cleaned", "unreadable"
OF_LOG_DIRECTORY = {HIGH_WATERMARK: "replication-offset-checkpoint", CLEANED: "cleaner-offset-checkpoint"}
_PARTITION = re.compile(r"(?!__cluster_metadata-)(.+)-(\d+)")
_HEADER = struct.Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_CRC_FROM, _LENGTH_FROM = 21, 12

Row = tuple[str, str, int, int, int, int]
"""Partition, kind, offset, end, epoch, CRC."""


def write_topics(run_folder: Path, copies: Sequence[Collected], pattern: str) -> None:
    """Write `tables/topics/<node>.parquet`.  pattern: of the folders of partitions, within a copy."""
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
    """The rows of one copy.  Never raises for what the files hold."""
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
        for kind, offset, end, epoch, crc in _batches(partition):
            yield name, kind, offset, end, epoch, crc


def _batches(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """(kind, base offset, end, epoch, CRC) of each whole batch; "unreadable" where one is damaged."""
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
    """(topic, number) -> offset."""
    return {(topic, int(number)): int(offset) for topic, number, offset in _numbers(path, 3)}


def _numbers(path: Path, words: int) -> Iterator[list[str]]:
    """The entries of a checkpoint file; none if it is not there.  A line of another form is left out."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    for line in text.splitlines()[2:]:
        found = line.split()
        if len(found) == words and all(each.lstrip("-").isdigit() for each in found[words == 3 :]):
            yield found


def _topic_id(folder: Path) -> str:
    path = folder / "partition.metadata"
    found = re.search(r"^topic_id: (\S+)$", path.read_text(errors="replace"), re.M) if path.is_file() else None
    return "" if found is None else found[1]
