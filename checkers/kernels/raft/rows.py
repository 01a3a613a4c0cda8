"""Kernels over logs, traces and histories side by side: pure functions over arrays, in process and on Spark alike.

Logs are compared aligned by *offset*, never by row number: `align` lays the entries of one log over a range of offsets
and marks what it does not have as ABSENT.  All other kernels here answer one of three questions about columns: do two
rows disagree that must agree, does a value fall that must rise, does one order respect another?
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.jit import kernel

ABSENT = -1
"""Stands for the epoch of an entry that a log does not have; real epochs are >= 0."""

NOWHERE = -1
"""In place of a row or an offset: there is none."""

_EVERYWHERE = np.iinfo(np.int64).max

_BLOCK = 4096


def align(first: int, size: int, offsets: Int64, epochs: Int32, checksums: Int64) -> tuple[Int32, Int64]:
    """The entries of one log laid over offsets first .. first + size - 1; each offset at most once.

    Returns (epochs int32[size], ABSENT where there is no entry; checksums int64[size], 0 there).
    """
    aligned_epochs = np.full(size, ABSENT, np.int32)
    aligned_checksums = np.zeros(size, np.int64)
    aligned_epochs[offsets - first] = epochs
    aligned_checksums[offsets - first] = checksums
    return aligned_epochs, aligned_checksums


@kernel
def irregular(offsets: Int64, epochs: Int32) -> tuple[int, int]:
    """Of one log in file order: (first row whose offset is not the one before plus 1, first row whose epoch is lower
    than the one before); NOWHERE if there is none."""
    hole = NOWHERE
    fall = NOWHERE
    size = offsets.shape[0]
    for start in range(1, size, _BLOCK):
        stop = min(size, start + _BLOCK)
        strange = np.int64(0)
        for i in range(start, stop):
            strange |= (offsets[i] - offsets[i - 1] - 1) | np.int64(epochs[i] < epochs[i - 1])
        if strange == 0:
            continue
        for i in range(start, stop):
            if hole == NOWHERE and offsets[i] != offsets[i - 1] + 1:
                hole = i
            if fall == NOWHERE and epochs[i] < epochs[i - 1]:
                fall = i
        if hole != NOWHERE and fall != NOWHERE:
            break
    return hole, fall


@kernel
def compare(epochs_a: Int32, checksums_a: Int64, epochs_b: Int32, checksums_b: Int64) -> tuple[int, int]:
    """Of two aligned logs: (first position where their entries differ, last position where their epochs are equal).

    Only positions that both logs have count; NOWHERE if there is none.  Two logs match iff the last equal epoch lies
    before the first difference: both are minimum and maximum, so ranges of offsets can be compared apart.
    """
    size = epochs_a.shape[0]
    first = NOWHERE
    for start in range(0, size, _BLOCK):
        stop = min(size, start + _BLOCK)
        different = np.int64(0)
        for i in range(start, stop):
            different |= (checksums_a[i] ^ checksums_b[i]) | np.int64(epochs_a[i] ^ epochs_b[i])
        if different == 0:
            continue
        for i in range(start, stop):
            both = epochs_a[i] != ABSENT and epochs_b[i] != ABSENT
            if both and (epochs_a[i] != epochs_b[i] or checksums_a[i] != checksums_b[i]):
                first = i
                break
        if first != NOWHERE:
            break
    last = NOWHERE
    for i in range(size - 1, -1, -1):
        if epochs_a[i] == epochs_b[i] and epochs_a[i] != ABSENT:
            last = i
            break
    return first, last


class Slice(NamedTuple):
    """One log's entries of a range of offsets: the i-th is at offset `start + i`, ABSENT where the log has a hole.

    dense: there is no hole.
    """

    start: int
    epochs: Int32
    checksums: Int64
    dense: bool

    @property
    def stop(self) -> int:
        """The offset behind the last entry."""
        return self.start + len(self.epochs)


def slice_of(offsets: Int64, epochs: Int32, checksums: Int64, dense: bool) -> Slice:
    """Entries in offset order, each offset at most once; no copy is made of dense ones."""
    start = int(offsets[0])
    if not dense:
        epochs, checksums = align(start, int(offsets[-1]) + 1 - start, offsets, epochs, checksums)
    return Slice(start, epochs, checksums, dense)


def compare_slices(a: Slice, b: Slice) -> tuple[int, int]:
    """`compare` where two slices overlap, as offsets."""
    start, stop = max(a.start, b.start), min(a.stop, b.stop)
    if start >= stop:
        return NOWHERE, NOWHERE
    of_a, of_b = slice(start - a.start, stop - a.start), slice(start - b.start, stop - b.start)
    different, equal = compare(a.epochs[of_a], a.checksums[of_a], b.epochs[of_b], b.checksums[of_b])
    return (
        NOWHERE if different == NOWHERE else start + different,
        NOWHERE if equal == NOWHERE else start + equal,
    )


def compare_all(slices: list[Slice]) -> tuple[list[int], dict[tuple[int, int], tuple[int, int]]]:
    """Group identical slices and compare one of each group with one of every other.

    Returns (class of each slice, (class, class) -> what `compare_slices` says of the two, the later class first).
    Thirty copies of one healthy log cost thirty comparisons, and not 435.
    """
    class_of: list[int] = []
    representatives: list[Slice] = []
    compared: dict[tuple[int, int], tuple[int, int]] = {}
    for one in slices:
        found: list[tuple[int, int]] = []
        for number, other in enumerate(representatives):
            found.append(compare_slices(one, other))
            if found[-1][0] == NOWHERE and _same(one, other):
                class_of.append(number)
                break
        else:
            new = len(representatives)
            class_of.append(new)
            representatives.append(one)
            compared |= {(new, number): pair for number, pair in enumerate(found)}
            compared[new, new] = NOWHERE, one.stop - 1
    return class_of, compared


def _same(a: Slice, b: Slice) -> bool:
    """Of two slices that differ nowhere where both have an entry: whether they have the same ones."""
    if (a.start, a.stop) != (b.start, b.stop):
        return False
    return (a.dense and b.dense) or np.array_equal(a.epochs == ABSENT, b.epochs == ABSENT)


@kernel
def lowest(begins: Int64, values: Int64) -> Int64:
    """The position of the lowest value of each group, the first of several; group i begins at begins[i], the last one
    ends with the values."""
    found = np.empty(begins.shape[0], np.int64)
    for group in range(begins.shape[0]):
        stop = begins[group + 1] if group + 1 < begins.shape[0] else values.shape[0]
        best = begins[group]
        for i in range(begins[group] + 1, stop):
            if values[i] < values[best]:
                best = i
        found[group] = best
    return found


def disagreements(keys: Int64, values: Int64) -> tuple[Int64, Int64]:
    """Rows that have the same key and different values: for each such key, its first row and the first row with
    another value.  Returns (rows, other rows), in order of the key."""
    if len(keys) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    begins = np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1]))
    first_row = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    differs = np.flatnonzero(values[order] != values[first_row])
    _, one_per_key = np.unique(sorted_keys[differs], return_index=True)
    picked = differs[one_per_key]
    return first_row[picked].astype(np.int64), order[picked].astype(np.int64)


@kernel
def falls(values: Int64, groups: Int64) -> tuple[Int64, Int64]:
    """Where a value is below an earlier one of its group; rows of a group stand together.

    Returns (rows that fell, the earlier row with the largest value), at most one pair per group: the first.
    """
    fell = np.empty(values.shape[0], np.int64)
    highest = np.empty(values.shape[0], np.int64)
    count = 0
    top = 0
    reported = False
    for i in range(values.shape[0]):
        if i == 0 or groups[i] != groups[i - 1]:
            top, reported = i, False
        elif values[i] >= values[top]:
            top = i
        elif not reported:
            fell[count], highest[count] = i, top
            count += 1
            reported = True
    return fell[:count], highest[:count]


@kernel
def beyond(offsets: Int64, is_mark: Bools, groups: Int64) -> Int64:
    """Rows that are no mark and whose offset exceeds every earlier mark of their group; the first of each group.

    Rows of a group stand together; before the first mark everything above 0 is beyond.
    """
    found = np.empty(offsets.shape[0], np.int64)
    count = 0
    mark = np.int64(0)
    reported = False
    for i in range(offsets.shape[0]):
        if i == 0 or groups[i] != groups[i - 1]:
            mark, reported = np.int64(0), False
        if is_mark[i]:
            mark = max(mark, offsets[i])
        elif offsets[i] > mark and not reported:
            found[count] = i
            count += 1
            reported = True
    return found[:count]


class Log(NamedTuple):
    """One log as its batches: ends int64[n] ascending (exclusive), prefix hashes at those ends, the log's end offset,
    the epoch of its last entry (ABSENT if it is empty), and its first offset (what is below is in a snapshot)."""

    ends: Int64
    hashes: Int64
    end: int
    last_epoch: int
    start: int = 0


class Marks(NamedTuple):
    """Committed prefixes: everything below offset, with that prefix hash, was committed in `epoch` or earlier.

    known: False where the hash is not known (the mark fell inside a batch).
    """

    offset: Int64
    hash: Int64
    known: Bools
    epoch: Int64


def holds(log: Log, marks: Marks) -> tuple[Bools, Bools]:
    """Per mark: (the log holds exactly this prefix, the log certainly does not hold it).

    Both are False where the log reaches the mark but nothing is known of the hash there; of a log that begins above 0
    no hash is known, for hashes begin with a log.
    """
    reaches = marks.offset <= log.end
    if log.start > 0:
        return np.zeros(len(marks.offset), np.bool_), ~reaches
    if len(log.ends) == 0:
        at_batch_end = np.zeros(len(marks.offset), np.bool_)
        equal = at_batch_end
    else:
        place = np.minimum(np.searchsorted(log.ends, marks.offset), len(log.ends) - 1)
        at_batch_end = log.ends[place] == marks.offset
        equal = at_batch_end & (log.hashes[place] == marks.hash)
    return marks.known & equal, ~reaches | (marks.known & ~equal)


def must_hold(log: Log, marks: Marks) -> Bools:
    """Per mark: whether any correct log with this end and this last epoch holds it.

    A leader of a later epoch holds everything committed before, and a log with an entry of its epoch holds what that
    leader held up to there (leader completeness, log matching).  Within the epoch of the mark itself, a log is a
    prefix of its leader's log, so it must hold the mark once it is as long.
    """
    later = marks.epoch < log.last_epoch
    as_long = (marks.epoch == log.last_epoch) & (marks.offset <= log.end)
    return np.asarray(later | as_long, np.bool_)


def out_of_order(invoked: Int64, completed: Int64) -> tuple[int, int] | None:
    """Of operations in log order: a pair (earlier, later) of positions such that the later one had completed before
    the earlier one was invoked; None if the order respects real time.  An operation that never completed has a
    `completed` beyond every index."""
    if len(invoked) < 2:
        return None
    latest_call = np.maximum.accumulate(invoked)[:-1]
    wrong = np.flatnonzero(completed[1:] < latest_call)
    if len(wrong) == 0:
        return None
    later = int(wrong[0]) + 1
    return int(np.argmax(invoked[:later])), later


MARK, APPEND, FLUSH, TRUNCATE, START, OTHER = 0, 1, 2, 3, 4, 5
"""Trace events as numbers; OTHER: any that only tells the node's epoch."""


@kernel
def keeps(events: Int64, offsets: Int64, holds_mark: Bools) -> tuple[Int64, Int64, Int64]:
    """Follow what one node must keep, through its trace in seq order.

    events: as numbered above; offsets: -1 where null.
    holds_mark: after this row the node holds everything below its offset, and that is committed.

    Returns int64 per row: (owed, the row of the largest mark the node owes after this row; removed, for a truncation or
    a start that removed something owed, the row of that mark; flushed, the log end known durable after this row).
    NOWHERE otherwise.  A start is held only to what was flushed; what was rightly lost is owed no longer.
    """
    count = events.shape[0]
    owed = np.full(count, NOWHERE, np.int64)
    removed = np.full(count, NOWHERE, np.int64)
    durable = np.empty(count, np.int64)
    top = NOWHERE
    flushed = np.int64(0)
    for i in range(count):
        event, offset = events[i], offsets[i]
        if holds_mark[i] and offset > 0 and (top == NOWHERE or offset >= offsets[top]):
            top = i
        if event == FLUSH:
            flushed = offset
        elif event in (TRUNCATE, START):
            if top != NOWHERE and offset < offsets[top]:
                if event == TRUNCATE or offset < min(flushed, offsets[top]):
                    removed[i] = top
                top = NOWHERE
            flushed = min(flushed, offset)
        owed[i] = top
        durable[i] = flushed
    return owed, removed, durable


@kernel
def reaches(events: Int64, offsets: Int64, epochs: Int64, epoch_count: int) -> tuple[Int64, Int64, np.int64, np.int64]:
    """How far one node durably held its log, by epoch, through its trace in seq order.

    events: as numbered above; offsets: -1 where null; epochs: of the batch for an append, else the node's own; all in
    0 .. epoch_count - 1.

    Returns (held, int64[epoch_count]: the largest durable log end while the node was in an epoch up to this one;
    own, int64[epoch_count]: the largest durable log end while the node was in this epoch and the last batch of its log
    was of it; the log end with which the trace begins, the largest int64 if it does not begin with a start; the epoch
    with which it begins).  Uncertainty makes them larger, never smaller.  A recovered log counts as durable.  Entries
    that no row mentions count as entries of the node's epoch.
    """
    held = np.full(epoch_count, NOWHERE, np.int64)
    own = np.full(epoch_count, NOWHERE, np.int64)
    stack_epoch = np.empty(epoch_count + 1, np.int64)  # epochs of the batches in the log, ascending, and their ends
    stack_end = np.empty(epoch_count + 1, np.int64)
    depth = 0
    now = np.int64(0)
    end = np.int64(0)
    durable = np.int64(0)
    base_end = np.int64(0)
    base_epoch = np.int64(NOWHERE)
    for i in range(events.shape[0]):
        event, offset = events[i], offsets[i]
        now = max(now, epochs[i])
        if i == 0:
            base_end = offset if event == START else np.int64(_EVERYWHERE)
            base_epoch = now
        if event == APPEND or (event in (START, FLUSH) and offset > end):
            epoch = epochs[i] if event == APPEND else now
            while depth > 0 and stack_epoch[depth - 1] >= epoch:
                depth -= 1
            stack_epoch[depth], stack_end[depth] = epoch, offset
            depth += 1
            end = offset
        elif event in (TRUNCATE, START):
            while depth > 1 and stack_end[depth - 2] >= offset:
                depth -= 1
            if depth > 0:
                stack_end[depth - 1] = min(stack_end[depth - 1], offset)
            end = offset
        if event in (START, FLUSH):
            durable = offset
        elif event == TRUNCATE:
            durable = min(durable, offset)
        held[now] = max(held[now], durable)
        if depth > 0 and stack_epoch[depth - 1] == now:
            own[now] = max(own[now], durable)
    for epoch in range(1, epoch_count):
        held[epoch] = max(held[epoch], held[epoch - 1])
    return held, own, base_end, base_epoch


def shared_prefix(cut_seqs: Int64, cut_offsets: Int64, one: tuple[int, int], other: tuple[int, int]) -> int:
    """How long a log stayed the same between two moments of one node's trace.

    cut_seqs, cut_offsets: every truncation and every start, in seq order.  one, other: (seq, log end) of each moment;
    a log end of what was copied from disk may be ahead of the trace by one change.
    """
    (first, first_end), (last, last_end) = sorted((one, other))
    between = cut_offsets[(cut_seqs > first) & (cut_seqs <= last)]
    return int(min(first_end, last_end, between.min(initial=first_end)))
