"""The reader of growing logs against the reader of copies: both see the same entries in the same bytes."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest

from checkers.online import LIVE
from system_under_test.kraft.collected import live as live_reader
from system_under_test.kraft.collected.files import LOG_FOLDER
from system_under_test.kraft.collected.live import LiveNode
from system_under_test.kraft.collected.log_files import read_log
from system_under_test.kraft.collected.members import Hearsay
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, encode
from system_under_test.subject import Collected, Node

Batch = tuple[int, bytes]
"""Where it ends (offset), and its bytes."""


class NodeOnDisk:
    """A node whose data directory is a folder here."""

    name = "n1"

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = str(data_dir)

    async def read(self, path: str, position: int = 0, limit: int = -1) -> bytes:
        data = Path(path).read_bytes() if Path(path).exists() else b""
        return data[position:] if limit < 0 else data[position : position + limit]


def drawn_log(rng: Random) -> list[list[Batch]]:
    """Batches of one to five records, by segment."""
    segments: list[list[Batch]] = [[]]
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


def write_up_to(folder: Path, segments: list[list[Batch]], size_bytes: int) -> int:
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
