"""Which logs hold which committed prefixes, and which logs must hold them.

A mark is a committed prefix of the log: an end offset, the prefix hash there, and the epoch of the commit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int64


class CopiedLog(NamedTuple):
    """One log as its batches.

    ends: int64[n], ascending, exclusive.  hashes: prefix hashes at those ends.  end: the log end offset.
    last_epoch: the epoch of the last entry, ABSENT if the log is empty.  start: the first offset; a snapshot covers
    everything below.
    """

    ends: Int64
    hashes: Int64
    end: int
    last_epoch: int
    start: int = 0


class Marks(NamedTuple):
    """Committed prefixes: everything below `offset`, with this prefix hash, was committed in `epoch` or earlier.

    known: False if the hash is unknown, because the mark lies inside a batch.
    """

    offset: Int64
    hash: Int64
    known: Bools
    epoch: Int64


def holds(log: CopiedLog, marks: Marks) -> tuple[Bools, Bools]:
    """Return, per mark, (whether the log holds exactly this prefix, whether it certainly does not hold it).

    Both are False if the log reaches the mark but the hash there is unknown.  No hash is known for a log that begins
    above 0, because a prefix hash starts at offset 0.
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


def must_hold(log: CopiedLog, marks: Marks) -> Bools:
    """Return, per mark, whether every correct log with this end and this last epoch holds it.

    A leader of a later epoch holds everything committed before (leader completeness).  A log with an entry of that
    epoch holds what the leader held up to there (log matching).  Within the epoch of the mark itself, a log is a prefix
    of the leader's log.  So it must hold the mark if it is long enough.
    """
    later = marks.epoch < log.last_epoch
    as_long = (marks.epoch == log.last_epoch) & (marks.offset <= log.end)
    return np.asarray(later | as_long, np.bool_)
