"""Sealing: what is written, in chunks and never the whole at once, that it can be done twice, and what is refused."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from histories import Script, by_construction, write_stream

from checkers.base.columns import HISTORY, events_to_table, read_history
from checkers.base.history import Event, MalformedHistory, Type
from checkers.sealing import seal as sealing
from checkers.sealing import walk
from checkers.sealing.key_buckets import open_bucket, read_key
from checkers.sealing.seal import bucket_count, seal, write_buckets


def in_batches(folder: Path, events: list[Event]) -> Path:
    """A run folder with a stream of 250 rows a batch."""
    folder.mkdir()
    with pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY) as stream:
        stream.write_table(events_to_table(events), max_chunksize=250)
    return folder


def test_a_sealed_history_is_the_stream_in_index_order(tmp_path: Path) -> None:
    events = list(by_construction(Random(1), 3000, keys=20))
    events += [Event(len(events), 1, -1, Type.INFO, "partition")]
    seal(write_stream(tmp_path, events))
    assert read_history(tmp_path).equals(events_to_table(events))
    assert not (tmp_path / "history.arrows").exists()


def test_sealing_twice_changes_nothing_and_an_interrupted_one_is_finished(tmp_path: Path) -> None:
    events = Script().invoke(0, "write", 1).ok(0).events
    seal(write_stream(tmp_path, events))
    files = {p: p.read_bytes() for p in tmp_path.rglob("*.parquet")}
    written_ns = (tmp_path / "history.parquet").stat().st_mtime_ns
    seal(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.parquet")} == files
    assert (tmp_path / "history.parquet").stat().st_mtime_ns == written_ns
    shutil.rmtree(tmp_path / "buckets")
    write_stream(tmp_path, events)
    seal(tmp_path)
    assert set(tmp_path.rglob("*.parquet")) == set(files)
    assert not (tmp_path / "history.arrows").exists()


@pytest.mark.parametrize("torn", [True, False])
def test_a_stream_is_sealed_up_to_its_damage(tmp_path: Path, torn: bool) -> None:
    """A harness that was killed leaves a torn tail, a disk may damage what lies in the middle."""
    events = list(by_construction(Random(2), 3000))
    path = in_batches(tmp_path / "run", events) / "history.arrows"
    content = path.read_bytes()
    at = len(content) * 2 // 3
    path.write_bytes(content[:at] if torn else content[:at] + b"\xff" * 400 + content[at + 400 :])
    seal(path.parent)
    kept = read_history(path.parent)
    assert 0 < len(kept) < len(events)
    assert kept.equals(events_to_table(events[: len(kept)]))
    assert path.exists(), "what lies behind the damage is not thrown away"


def test_buckets_that_are_not_those_of_the_history_are_made_again(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for folder, seed in ((run, 1), (other, 2)):
        folder.mkdir()
        seal(write_stream(folder, list(by_construction(Random(seed), 300, keys=20))))
    whole = contents(run / "buckets")
    shutil.rmtree(run / "buckets")
    shutil.copytree(other / "buckets", run / "buckets")
    seal(run)
    assert contents(run / "buckets") == whole != contents(other / "buckets")


def test_an_empty_history_is_a_history(tmp_path: Path) -> None:
    seal(write_stream(tmp_path, []))
    assert len(read_history(tmp_path)) == 0
    assert list((tmp_path / "buckets").glob("*.parquet")) == []


def test_buckets_grow_with_the_history_within_bounds() -> None:
    counts = [bucket_count(events) for events in (0, 10, 16_000_000, 16_000_001, 10**10)]
    assert counts == [8, 8, 8, 16, 1024]


def test_a_huge_key_has_a_bucket_to_itself_and_that_bucket_comes_first(tmp_path: Path) -> None:
    many = list(by_construction(Random(3), 400, keys=40))
    huge = [replace(e, index=e.index + len(many), process=e.process + 100) for e in by_construction(Random(4), 2000)]
    seal(write_stream(tmp_path, many + [replace(e, key="huge") for e in huge]))
    buckets = [open_bucket(p, tmp_path / "history.parquet") for p in sorted((tmp_path / "buckets").glob("*.parquet"))]
    assert list(buckets[0].keys) == ["huge"]
    assert len(buckets) == 8
    rest = [int(bucket.operations.sum()) for bucket in buckets[1:]]
    assert max(rest) - min(rest) < 15


GOOD = Script().invoke(0, "write", 1).ok(0).invoke(1, "read").info(1).invoke(2, "write", 2).ok(2).events


def changed(row: int, /, **what: object) -> list[Event]:
    return [replace(e, **what) if e.index == row else e for e in GOOD]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (changed(1, index=5), "row 1: its index is 5"),
        (GOOD[:2] + GOOD[3:], "row 2: its index is 3"),
        (changed(2, process=0), "row 3: process 1 completes an operation that it never invoked"),
        (changed(1, type=Type.INVOKE), "row 1: process 0 invokes although its operation of row 0 is still open"),
        (changed(0, type=Type.OK), "row 0: process 0 completes an operation that it never invoked"),
        (changed(4, process=1), "row 4: process 1 has another row although the info of row 3 retired it"),
        (changed(1, f="read"), "row 1: process 0 completes 'read', but it had invoked another function in row 0"),
        (
            changed(1, key="other"),
            "row 1: process 0 completes on key 'other', but it had invoked on another key in row 0",
        ),
        (changed(1, key=None), "row 1: process 0 completes on key None"),
        (changed(1, process=-2), "row 1: process -2 is neither a client (0 or more) nor the nemesis (-1)"),
        (changed(4, process=2**31 - 1), "row 5: process 2 completes an operation that it never invoked"),
    ],
)
def test_a_history_that_breaks_the_grammar_is_refused_with_its_row(
    tmp_path: Path, events: list[Event], words: str
) -> None:
    write_stream(tmp_path, events)
    with pytest.raises(MalformedHistory, match=words.replace("(", r"\(").replace(")", r"\)")):
        seal(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["history.arrows"]


def test_buckets_are_made_of_grammatical_events_only(tmp_path: Path) -> None:
    """Without this, an operation whose completion stands after the fault would pass for open."""
    table = events_to_table(changed(4, process=1))
    with pytest.raises(MalformedHistory, match="row 4: process 1 has another row although the info"):
        write_buckets(table, tmp_path / "buckets")
    with_gaps = events_to_table([replace(e, index=3 * e.index) for e in GOOD])
    write_buckets(with_gaps, tmp_path / "buckets", count=1)
    [bucket] = (tmp_path / "buckets").glob("*.parquet")
    assert read_key(open_bucket(bucket, tmp_path), 0).invoked.tolist() == [0, 4]


def test_a_type_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    table = events_to_table(GOOD)
    at = table.schema.get_field_index("type")
    types = np.asarray(table.column("type").combine_chunks()).copy()
    types[3] = 9
    write_stream(tmp_path, table.set_column(at, table.schema.field(at), [types]))
    with pytest.raises(MalformedHistory, match="row 3: type 9 is none of"):
        seal(tmp_path)


@pytest.mark.parametrize("name", ["index", "time_ns", "process", "type", "f", "node"])
def test_an_event_that_lacks_what_every_event_has_is_refused(tmp_path: Path, name: str) -> None:
    table = events_to_table(GOOD)
    at = table.schema.get_field_index(name)
    cells = table.column(name).to_pylist()
    column = pa.array([*cells[:3], None, *cells[4:]], table.schema.field(at).type)
    with pytest.raises(MalformedHistory, match=f"column {name} contains a null"):
        write_buckets(table.set_column(at, pa.field(name, column.type), column), tmp_path / "buckets")


def test_a_folder_without_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedHistory, match=r"contains neither history\.parquet nor history\.arrows"):
        seal(tmp_path)


def test_a_file_that_is_no_stream_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.arrows").write_bytes(b"not arrow at all")
    with pytest.raises(MalformedHistory, match="not an Arrow stream"):
        seal(tmp_path)


SEALS = """
import sys
from pathlib import Path
from checkers.sealing.seal import seal
print("now", flush=True)
seal(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_sealing_that_is_interrupted_leaves_every_file_whole_or_not_at_all(tmp_path: Path, how: signal.Signals) -> None:
    events = list(by_construction(Random(9), 30_000, keys=50))
    sound = tmp_path / "sound"
    began = time.monotonic()
    seal(write_stream(sound, events))
    takes_s = time.monotonic() - began
    for share in (0.2, 0.7):
        folder = write_stream(tmp_path / str(share), events)
        sealing = subprocess.Popen(
            [sys.executable, "-c", SEALS, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert sealing.stdout is not None
        assert sealing.stdout.readline() == b"now\n"
        time.sleep(share * takes_s)
        sealing.send_signal(how)
        sealing.communicate(timeout=1000)
        if (folder / "history.parquet").exists():
            assert read_history(folder).equals(events_to_table(events))
        if (folder / "buckets").exists():
            assert contents(folder / "buckets") == contents(sound / "buckets")
        if not (folder / "history.arrows").exists():
            assert (folder / "history.parquet").exists()
            assert (folder / "buckets").exists()
        seal(folder)
        assert contents(folder) == contents(sound)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


KEYS = 200


def in_chunks_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "ROWS_PER_CHUNK", rows)
    monkeypatch.setattr(sealing, "ROWS_PER_CHUNK", rows)


@pytest.mark.parametrize("rows", [61, 700, 2048])
def test_the_size_of_chunks_changes_nothing(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that end in a later chunk than they began, keys that appear late, mismatches, a process number that
    is no index."""
    events = list(by_construction(Random(1), 3_000, keys=KEYS))
    events = [replace(e, process=2**31 - 1) if e.process == 3 else e for e in events]
    whole = in_batches(tmp_path / "whole", events)
    seal(whole)
    in_chunks_of(rows, monkeypatch)
    chunked = in_batches(tmp_path / "chunked", events)
    seal(chunked)
    assert read_history(chunked).to_pylist() == read_history(whole).to_pylist()
    assert contents(chunked / "buckets") == contents(whole / "buckets")
    seal(chunked)
    assert contents(chunked / "buckets") == contents(whole / "buckets"), "made again from history.parquet"


def test_a_fault_of_the_grammar_is_seen_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 0 begins what row 1999 ends, on another key."""
    busy = [replace(e, index=e.index + 1, process=e.process + 1) for e in by_construction(Random(2), 1998, keys=KEYS)]
    first = Event(0, 0, 0, Type.INVOKE, "write", "k1", 1)
    last = Event(1 + len(busy), busy[-1].time_ns, 0, Type.OK, "write", "k2", 1, node="n1")
    in_chunks_of(100, monkeypatch)
    folder = in_batches(tmp_path / "run", [first, *busy, last])
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
    seal(in_batches(tmp_path / "first", long[:600]))  # one-time set-up does not count
    short_bytes = peak_bytes(in_batches(tmp_path / "short", long[:6_000]))
    assert min(peak_bytes(in_batches(tmp_path / f"long{n}", long)) for n in range(3)) < 1.5 * short_bytes


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
