"""The log against a list of batches, and against power losses at every moment."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import Callable
from copy import deepcopy
from itertools import accumulate, count
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from power_loss import PowerLoss

from simulation.disk import VolatileDisk
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import CorruptBatch, read_header
from system_under_test.kraft.log.log import FOLDER, Log, LogRefused, open_log
from system_under_test.kraft.log.segment import file_name
from system_under_test.kraft.log.small_files import EPOCHS, load_epochs
from system_under_test.kraft.node.disk import RealDisk
from system_under_test.kraft.raft.messages import Batch, EpochEnd, LeaderChange

NOW_MS = 1_750_000_000_000


SMALL_SEGMENT_BYTES = 400


class SlowDisk(VolatileDisk):
    """A disk whose fsyncs beside the loop end when the test says so."""

    def __init__(self, before_change: Callable[[], None] = lambda: None) -> None:
        super().__init__(before_change)
        self.syncs: list[Callable[[], None]] = []
        self.on_beside = self.syncs.append

    def end_sync(self) -> None:
        self.syncs.pop(0)()


class Model:
    """What a log should hold: a list of batches, and how many of them are durable."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.flushed = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    @property
    def epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else 0

    def hash_at(self, offset: int) -> int | None:
        value, end = codec.EMPTY, 0
        for batch in self.batches:
            if end >= offset:
                break
            header = read_header(batch.body)
            value, end = codec.extend(value, batch.base_offset, batch.epoch, header.crc), batch.end_offset
        return value if end == offset else None

    def end_for(self, epoch: int) -> EpochEnd:
        known = [b for b in self.batches if b.epoch <= epoch]
        return EpochEnd(known[-1].epoch, known[-1].end_offset) if known else EpochEnd(0, 0)


step = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), st.lists(st.binary(max_size=150), min_size=1, max_size=4)),
    st.tuples(st.just("lead"), st.integers(1, 3)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("begin flush")),
    st.tuples(st.just("end flush")),
    st.tuples(st.just("truncate"), st.integers(0, 12)),
    st.tuples(st.just("reopen")),
)


steps = st.lists(step, max_size=25)


def body_of(log: Log, number: int) -> bytes:
    *_, last = log.batches(0) if number < 0 else list(log.batches(0))[: number + 1]
    assert isinstance(last.body, bytes)
    return last.body


def take(log: Log, model: Model, what: tuple, disk: SlowDisk) -> Log:
    """Do one step to the log and to its model."""
    if what[0] in ("append", "lead"):
        epoch = model.epoch + what[1]
        body = tuple(what[2]) if what[0] == "append" else LeaderChange(1, (1, 2, 3), (1, 2))
        size = len(what[2]) if what[0] == "append" else 1
        log.append([Batch(model.end, epoch, size, body)], NOW_MS)
        model.batches.append(Batch(model.end, epoch, size, body_of(log, -1)))
    elif what[0] == "flush":
        log.flush()
        model.flushed = len(model.batches)
    elif what[0] == "truncate":
        offset = max(0, model.end - what[1])
        log.truncate(offset)
        model.batches = [b for b in model.batches if b.end_offset <= offset]
        model.flushed = min(model.flushed, len(model.batches))
    elif what[0] == "begin flush":
        if not disk.syncs:
            log.begin_flush(lambda end, problem: None)
    elif what[0] == "end flush":
        if disk.syncs:
            disk.end_sync()
    else:
        model.batches = [b for b in model.batches if b.end_offset <= written_end(log, disk)]
        log.close()
        disk.syncs.clear()
        log = open_log(disk, segment_max_bytes=SMALL_SEGMENT_BYTES, cache_max_bytes=200)
        model.flushed = len(model.batches)
    return log


def written_end(log: Log, disk: VolatileDisk) -> int:
    """Where the log ends in its files: what was appended since the last flush began is in memory alone."""
    return open_log(disk.crash("keep", Random(0)), segment_max_bytes=SMALL_SEGMENT_BYTES).end_offset


def assert_same(log: Log, model: Model) -> None:
    assert list(log.batches(0)) == model.batches
    assert (log.start_offset, log.end_offset, log.last_epoch) == (0, model.end, model.epoch)
    to_flush = model.batches[model.flushed - 1].end_offset if model.flushed else 0
    assert to_flush <= log.flushed_offset <= log.end_offset  # a segment roll flushes without an order
    for offset in range(model.end + 2):
        assert log.prefix_hash_at(offset) == model.hash_at(offset)
    for epoch in range(model.epoch + 2):
        assert log.end_offset_for_epoch(epoch) == model.end_for(epoch)
    for offset in range(model.end + 1):
        expected = [b for b in model.batches if b.end_offset > offset]
        assert list(log.read(offset, 1 << 20)) == expected
        assert list(log.read(offset, 0)) == expected[:1]
        fitting = sum(total <= 150 for total in accumulate(len(batch.body) for batch in expected))
        assert list(log.read(offset, 150)) == expected[: max(1, fitting)]


@given(steps)
def test_it_holds_what_a_list_would(what: list[tuple]) -> None:
    disk, model = SlowDisk(), Model()
    log = open_log(disk, segment_max_bytes=SMALL_SEGMENT_BYTES, cache_max_bytes=200)
    for one in what:
        log = take(log, model, one, disk)
    assert_same(log, model)
    assert load_epochs(disk, FOLDER) in (log._batches.epoch_starts(), [] if model.batches else None)


ROLLED = [("append", 1, [b"x" * 150] * 3), ("append", 0, [b"y" * 150] * 3), ("flush",), ("append", 0, [b"z"])]


"""A segment that is rolled within an epoch: nothing but the roll itself makes the new one's name durable."""


@settings(max_examples=25)
@given(steps, st.randoms(use_true_random=False))
@example(ROLLED, Random(0))
def test_a_power_loss_at_any_moment_leaves_all_that_was_flushed(what: list[tuple], random: Random) -> None:
    """Run the steps once to count the changes of the disk, then again to a power loss before each of them."""
    changes = run_until(what, None)[3]
    for moment in range(changes):
        disk, before, model, _ = run_until(what, moment)
        for kind in ("lose", "keep", "torn", "reorder"):
            survivor = disk.crash(kind, random)
            log = open_log(survivor, segment_max_bytes=SMALL_SEGMENT_BYTES)
            found = list(log.batches(0))
            # Batches flushed by earlier steps remain, unless the interrupted step was to remove them ...
            assert len(found) >= min(before.flushed, model.flushed)
            # ... and anything beyond them is a prefix of the result of that step.
            longest = max((before.batches, model.batches), key=len)
            assert places(found) == places(longest)[: len(found)]
            assert found[: len(before.batches)] == before.batches[: len(found)]
            assert log.flushed_offset == log.end_offset
            again = open_log(survivor.crash("lose", random), segment_max_bytes=SMALL_SEGMENT_BYTES)
            assert (again.end_offset, again.prefix_hash) == (log.end_offset, log.prefix_hash)
            assert again.recovery.torn_bytes == 0


def places(batches: list[Batch]) -> list[tuple[int, int, int]]:
    return [(b.base_offset, b.epoch, b.count) for b in batches]


def run_until(what: list[tuple], moment: int | None) -> tuple[SlowDisk, Model, Model, int]:
    """(disk, model before the step in mid-air, model after it, changes made) with the power lost at that change."""
    counter = count()

    def before_change() -> None:
        if next(counter) == moment:
            raise PowerLoss

    disk, before, after = SlowDisk(before_change), Model(), Model()
    try:
        log = open_log(disk, segment_max_bytes=SMALL_SEGMENT_BYTES)
        for one in what:
            before.batches, before.flushed = list(after.batches), after.flushed
            foresee(after, one)
            log = take(log, deepcopy(before), one, disk)
            after.batches = list(log.batches(0))
            after.flushed = min(after.flushed, len(after.batches))
    except PowerLoss:
        pass
    return disk, before, after, next(counter)


def foresee(model: Model, one: tuple) -> None:
    """What the step will make of the model, bytes aside."""
    if one[0] in ("append", "lead"):
        size = len(one[2]) if one[0] == "append" else 1
        model.batches.append(Batch(model.end, model.epoch + one[1], size, b""))
    elif one[0] == "truncate":
        offset = max(0, model.end - one[1])
        model.batches = [b for b in model.batches if b.end_offset <= offset]
        model.flushed = min(model.flushed, len(model.batches))
    elif one[0] == "flush":
        model.flushed = len(model.batches)


def test_batches_that_do_not_join_are_refused_and_nothing_is_written() -> None:
    log = open_log(VolatileDisk())
    log.append([Batch(0, 3, 1, (b"a",))], NOW_MS)
    raw = body_of(log, -1)
    damaged = raw[:-2] + b"zz"
    for batches, error in (
        ([Batch(2, 3, 1, (b"gap",))], LogRefused),
        ([Batch(0, 3, 1, (b"again",))], LogRefused),
        ([Batch(1, 2, 1, (b"falling epoch",))], LogRefused),
        ([Batch(1, 3, 1, (b"fine",)), Batch(3, 3, 1, (b"gap",))], LogRefused),
        ([Batch(0, 3, 1, damaged)], CorruptBatch),
    ):
        with pytest.raises(error):
            log.append(batches, NOW_MS)
        assert (log.end_offset, log._segments[-1].size_bytes) == (1, len(raw))


def test_epochs_are_made_anew(tmp_path: Path) -> None:
    log = open_log(RealDisk(tmp_path))
    log.append([Batch(0, 1, 1, (b"x",))], NOW_MS)
    log.flush()
    log.close()
    (tmp_path / FOLDER / EPOCHS).write_text("0\n1\n7 7\n")
    open_log(RealDisk(tmp_path)).close()
    assert load_epochs(RealDisk(tmp_path), FOLDER) == [(1, 0)]


@pytest.mark.parametrize("kept", [0, 1, 7, 20, 21, 49])
def test_a_cut_leaves_a_log_that_was_never_longer(tmp_path: Path, kept: int) -> None:
    for name, count_of in (("cut", 50), ("short", kept)):
        (tmp_path / name).mkdir()
        log = open_log(RealDisk(tmp_path / name))
        for number in range(count_of):
            log.append([Batch(log.end_offset, 1, 1, (b"x" * 700,))], NOW_MS + number % 7)
        log.truncate(kept)
        log.append([Batch(log.end_offset, 1, 1, (b"y" * 5000,)), Batch(log.end_offset + 1, 1, 1, (b"z",))], NOW_MS)
        log.flush()
        log.close()
    cut, short = (tmp_path / name / FOLDER / file_name(0) for name in ("cut", "short"))
    assert cut.read_bytes() == short.read_bytes()


def test_a_cut_reads_nothing() -> None:
    """One batch cut off a million blocked the loop for six seconds."""
    log = open_log(VolatileDisk())
    for _ in range(20):
        log.append([Batch(log.end_offset + n, 1, 1, (b"x" * 100,)) for n in range(500)], NOW_MS)
    read = []
    file = log._segments[0]._log
    read_at = file.read_at
    file.read_at = lambda offset, size_bytes: read.append(size_bytes) or read_at(offset, size_bytes)  # type: ignore[method-assign]
    log.truncate(9_999)
    assert log.end_offset == 9_999
    assert not read


def test_an_old_segment_is_rolled() -> None:
    log = open_log(VolatileDisk())
    log.append([Batch(0, 1, 1, (b"a",))], NOW_MS)
    log.append([Batch(1, 1, 1, (b"b",))], NOW_MS + 8 * 24 * 3600 * 1000)
    assert [s.base_offset for s in log._segments] == [0, 1]


def test_the_prefix_hash_is_the_documented_one() -> None:
    """Pinned: a change of the formula would break every reader of traces and logs that exist."""
    first = codec.extend(codec.EMPTY, 0, 1, 0xDEADBEEF)
    by_the_words = hashlib.blake2b(bytes(8) + bytes(8) + b"\0\0\0\x01" + b"\xde\xad\xbe\xef", digest_size=8)
    assert first == int.from_bytes(by_the_words.digest(), "big", signed=True)
    assert first == 8068176980279933523
    assert codec.extend(first, 1, 1, 7) == -8660655707311474905
    assert codec.extend(first, 1, 2, 7) != -8660655707311474905


def slow_log(**options: int) -> tuple[SlowDisk, Log, list[tuple[int, Exception | None]]]:
    """A log, and where the ends of its flushes are told."""
    disk = SlowDisk()
    return disk, open_log(disk, **options), []


def grow(log: Log, *values: bytes) -> None:
    log.append([Batch(log.end_offset, 1, len(values), values)], NOW_MS)


def survivor(disk: VolatileDisk) -> Log:
    return open_log(disk.crash("lose", Random(0)))


def test_what_is_appended_while_a_flush_goes_on_waits_for_the_next_one() -> None:
    disk, log, told = slow_log()
    grow(log, b"a")
    log.begin_flush(lambda *end: told.append(end))
    grow(log, b"b", b"c")
    assert [batch.base_offset for batch in log.batches(0)] == [0, 1], "readable at once"
    assert (log.flushed_offset, survivor(disk).end_offset) == (0, 0)
    disk.end_sync()
    assert (told, log.flushed_offset, survivor(disk).end_offset) == ([(1, None)], 1, 1)
    assert open_log(disk.crash("keep", Random(0))).end_offset == 1, "one write at a time is not durable"
    log.begin_flush(lambda *end: told.append(end))
    disk.end_sync()
    assert (told[-1], log.flushed_offset, survivor(disk).end_offset) == ((3, None), 3, 3)


def test_a_flush_that_cannot_wait_overtakes_the_one_that_goes_on() -> None:
    disk, log, told = slow_log()
    grow(log, b"a")
    log.begin_flush(lambda *end: told.append(end))
    grow(log, b"b")
    log.flush()
    assert (log.flushed_offset, survivor(disk).end_offset) == (2, 2)
    disk.end_sync()
    assert (told, log.flushed_offset) == ([(1, None)], 2)


def test_a_flush_whose_tail_was_cut_off_makes_nothing_durable_in_its_place() -> None:
    disk, log, told = slow_log()
    grow(log, b"a")
    log.flush()
    grow(log, b"b", b"c")
    log.begin_flush(lambda *end: told.append(end))
    log.truncate(1)
    log.append([Batch(1, 2, 2, (b"d", b"e"))], NOW_MS)
    disk.end_sync()
    assert (told, log.flushed_offset, survivor(disk).end_offset) == ([(3, None)], 1, 1)


@pytest.mark.parametrize("cut_to", [1, 2, 3])
def test_a_cut_of_what_is_not_written_yet(cut_to: int) -> None:
    disk, log, told = slow_log()
    for value in (b"a", b"b", b"c"):
        grow(log, value)
        if value == b"a":
            log.begin_flush(lambda *end: told.append(end))
    log.truncate(cut_to)
    kept = list(log.batches(0))
    disk.end_sync()
    log.flush()
    assert len(kept) == cut_to
    assert list(survivor(disk).batches(0)) == kept
    assert told == [(1, None)]


def test_a_segment_that_goes_while_its_flush_goes_on_is_closed_after_it() -> None:
    disk, log, told = slow_log(segment_max_bytes=SMALL_SEGMENT_BYTES)
    grow(log, b"x" * 300)
    log.flush()
    grow(log, b"y" * 300)
    grow(log, b"z" * 300)
    log.begin_flush(lambda *end: told.append(end))
    log.truncate(1)
    disk.end_sync()
    grow(log, b"w")
    log.flush()
    assert (told, survivor(disk).end_offset) == ([(3, None)], 2)


@pytest.mark.parametrize(("fails", "flushed"), [("fsync", 0), ("write", 1)])
def test_a_disk_that_fails_in_or_behind_an_fsync_is_reported_to_who_waits_for_it(fails: str, flushed: int) -> None:
    """The fsync itself fails, or to note the new recovery point."""
    disk, log, told = slow_log()
    grow(log, b"a")
    log.begin_flush(lambda *end: told.append(end))
    disk.failing = {fails: errno.EIO}
    disk.end_sync()
    [(end, problem)] = told
    assert (end, log.flushed_offset) == (1, flushed)
    assert isinstance(problem, OSError)


async def test_the_real_disk_syncs_beside_the_loop(tmp_path: Path) -> None:
    disk, loop = RealDisk(tmp_path), asyncio.get_running_loop()
    hold, begun, done = threading.Event(), asyncio.Event(), loop.create_future()

    def slow_sync() -> None:
        loop.call_soon_threadsafe(begun.set)
        hold.wait()

    disk.beside(slow_sync, lambda problem: None)
    disk.beside(lambda: os.fsync(1 << 20), done.set_result)
    await begun.wait()
    assert not done.done(), "the loop goes on, and the second waits for the first"
    hold.set()
    assert isinstance(await done, OSError)
