"""What one node's log held over time, followed through the node's own trace."""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Bools, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.raft.compared_rows import NOWHERE

MARK, APPEND, FLUSH, TRUNCATE, START, OTHER = 0, 1, 2, 3, 4, 5
"""Trace events as numbers; OTHER: any event that reports only the node's epoch."""

_EVERYWHERE = np.iinfo(np.int64).max


@kernel
def keeps(events: Int64, offsets: Int64, holds_mark: Bools) -> tuple[Int64, Int64, Int64]:
    """Follow which committed prefix one node must keep, through its trace in seq order.

    events: as numbered above; offsets: -1 where null.
    holds_mark: after this row the node holds everything below its offset, and this prefix is committed.

    Returns int64 columns, one entry per row, NOWHERE if there is none:
    owed, the row of the largest mark that the node must keep on its disk after this row: one that is flushed;
    removed, the row of the mark that a truncation or start removed although the node had to keep it;
    flushed, the log end that is known durable after this row.
    A truncation must keep every mark, a start only what was flushed.  Entries that a node lost rightly are no longer
    owed.
    """
    count = events.shape[0]
    owed = np.full(count, NOWHERE, np.int64)
    removed = np.full(count, NOWHERE, np.int64)
    durable = np.empty(count, np.int64)
    rising = np.empty(count, np.int64)  # the rows of the marks held, each larger than the one before
    held = 0
    on_disk = 0  # of them, how many are flushed
    top = NOWHERE
    flushed = np.int64(0)
    for i in range(count):
        event, offset = events[i], offsets[i]
        if holds_mark[i] and offset > 0 and (top == NOWHERE or offset >= offsets[top]):
            held -= held > 0 and offsets[rising[held - 1]] == offset
            rising[held] = top = i
            held += 1
        if event == FLUSH:
            flushed = offset
        elif event in (TRUNCATE, START):
            if top != NOWHERE and offset < offsets[top]:
                if event == TRUNCATE or offset < min(flushed, offsets[top]):
                    removed[i] = top
                top = NOWHERE
                held = on_disk = 0
            flushed = min(flushed, offset)
        on_disk = min(on_disk, held)
        while on_disk < held and offsets[rising[on_disk]] <= flushed:
            on_disk += 1
        owed[i] = rising[on_disk - 1] if on_disk else NOWHERE
        durable[i] = flushed
    return owed, removed, durable


@kernel
def reaches(events: Int64, offsets: Int64, epochs: Int64, epoch_count: int) -> tuple[Int64, Int64, np.int64, np.int64]:
    """Follow how far one node durably held its log, by epoch, through its trace in seq order.

    events: as numbered above; offsets: -1 where null.
    epochs: in 0 .. epoch_count - 1, the epoch of the batch for an append, else the node's own epoch.

    Returns four values.  Uncertainty makes them larger, never smaller.
    held, int64[epoch_count]: the largest durable log end while the node was in this epoch or an earlier one;
    own, int64[epoch_count]: the same while the node was in this epoch and its last batch was of this epoch;
    the log end at the first row, or the largest int64 if the trace does not begin with a start;
    the epoch at the first row.
    A recovered log counts as durable.  Entries without an append row count as entries of the node's epoch.
    """
    held = np.full(epoch_count, NOWHERE, np.int64)
    own = np.full(epoch_count, NOWHERE, np.int64)
    stack_epoch = np.empty(epoch_count + 1, np.int64)  # epochs of the batches in the log, ascending
    stack_end = np.empty(epoch_count + 1, np.int64)  # where the batches of each of these epochs end
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
    """Return the length of the prefix that a log certainly kept between two moments of one node's trace.

    cut_seqs, cut_offsets: every truncation and every start, in seq order.  one, other: (seq, log end) of each moment.
    A log end that was copied from disk may be one change ahead of the trace.
    """
    (first, first_end), (last, last_end) = sorted((one, other))
    between = cut_offsets[(cut_seqs > first) & (cut_seqs <= last)]
    return int(min(first_end, last_end, between.min(initial=first_end)))
