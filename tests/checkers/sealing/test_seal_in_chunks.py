"""Sealing holds a chunk of the history and a few buckets, never the whole of it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from histories import by_construction

from checkers.base.columns import HISTORY, events_to_table, read_history
from checkers.base.history import Event, MalformedHistory, Type
from checkers.sealing import seal as sealing
from checkers.sealing import walk
from checkers.sealing.seal import seal

ROWS_PER_BATCH, KEYS = 700, 200


def in_chunks_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "ROWS_PER_CHUNK", rows)
    monkeypatch.setattr(sealing, "ROWS_PER_CHUNK", rows)


def write(folder: Path, events: list[Event]) -> Path:
    folder.mkdir()
    with pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY) as stream:
        for first in range(0, len(events), ROWS_PER_BATCH):
            stream.write_table(events_to_table(events[first : first + ROWS_PER_BATCH]))
    return folder


def buckets(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "buckets").glob("bucket-*")}


@pytest.mark.parametrize("rows", [61, 700, 2048])
def test_the_size_of_chunks_changes_nothing(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that end in a later chunk than they began, keys that appear late, mismatches, a process number that
    is no index."""
    events = list(by_construction(Random(1), 3_000, keys=KEYS))
    events = [replace(e, process=2**31 - 1) if e.process == 3 else e for e in events]
    whole = write(tmp_path / "whole", events)
    seal(whole)
    in_chunks_of(rows, monkeypatch)
    chunked = write(tmp_path / "chunked", events)
    seal(chunked)
    assert read_history(chunked).to_pylist() == read_history(whole).to_pylist()
    assert buckets(chunked) == buckets(whole)
    seal(chunked)
    assert buckets(chunked) == buckets(whole), "made again from history.parquet"


def test_a_fault_of_the_grammar_is_seen_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 0 begins what row 1999 ends, on another key."""
    busy = [replace(e, index=e.index + 1, process=e.process + 1) for e in by_construction(Random(2), 1998, keys=KEYS)]
    first = Event(0, 0, 0, Type.INVOKE, "write", "k1", 1)
    last = Event(1 + len(busy), busy[-1].time_ns, 0, Type.OK, "write", "k2", 1, node="n1")
    in_chunks_of(100, monkeypatch)
    folder = write(tmp_path / "run", [first, *busy, last])
    with pytest.raises(MalformedHistory, match=f"row {last.index}: process 0 completes on key 'k2', .* in row 0"):
        seal(folder)
    assert [path.name for path in folder.iterdir()] == ["history.arrows"]


def test_memory_does_not_grow_with_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the rows; NumPy reports its arrays to tracemalloc, and Arrow counts its own.

    The least of three counts: threads of earlier tests in this process may hold memory meanwhile.
    """
    in_chunks_of(2048, monkeypatch)
    monkeypatch.setattr(sealing, "EVENTS_PER_BUCKET", 2048)
    long = list(by_construction(Random(3), 60_000, keys=KEYS))
    seal(write(tmp_path / "first", long[:600]))  # one-time set-up does not count
    short_bytes = peak_bytes(write(tmp_path / "short", long[:6_000]))
    assert min(peak_bytes(write(tmp_path / f"long{n}", long)) for n in range(3)) < 1.5 * short_bytes


def peak_bytes(folder: Path) -> int:
    """The most that sealing a folder held at once."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        seal(folder)
        return tracemalloc.get_traced_memory()[1] + int(pool.max_memory())
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
