"""Judges log matching while logs grow: applies `checkers.raft.log_matching` to entries that are certainly stable.

A log that is read while its node writes may mix entries from before and after a truncation.  But a node never removes
entries below a high watermark that it has reported.  So entries below a mark are final if they were read *after* the
trace reported that mark.  (A node that removes them breaks another rule, and its trace shows it.)  Here these
entries form one log per node, which only grows.  A copy taken before a heal is whole.  Its tail beyond the stable part
forms a short log of its own.  This log is kept until the end, because the heal will remove the uncommitted tail.

Two offsets decide whether two logs match: d of their first difference, and e of their last equal epoch.  They match iff
e < d.  New entries can only lower d and raise e.  So each new entry is read once, and compared once with the entries of
other logs at its offset.  Memory: 12 bytes an entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.base.verdict import Witness
from checkers.kernels.raft.aligned_logs import ABSENT, Slice, compare_slices, irregular
from checkers.kernels.raft.compared_rows import NOWHERE
from checkers.online.online_finding import OnlineFinding
from checkers.raft.log_matching import (
    FALL,
    HOLE,
    fork,
    wrong_alone,
)

LIVE = -1
"""Stands in place of a copy's number, for the stable part of a node's log."""


@dataclass(frozen=True, slots=True)
class NewEntries:
    """Successive entries of one log, offsets ascending.  copy: LIVE, or the number of the copy whose tail they are."""

    node: str
    copy: int
    offset: Int64
    epoch: Int32
    checksum: Int64


@dataclass(slots=True)
class _LiveLog:
    """Entries `start` up to `stop`, with room for more.  A hole is ABSENT."""

    name: tuple[str, int]
    start: int
    stop: int = 0
    epochs: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    checksums: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    def slice(self, first: int, stop: int) -> Slice:
        first, stop = max(first, self.start), min(stop, self.stop)
        here = slice(first - self.start, max(first, stop) - self.start)
        return Slice(first, self.epochs[here], self.checksums[here], dense=False)

    def add(self, entries: NewEntries) -> None:
        size = int(entries.offset[-1]) + 1 - self.start
        if size > len(self.epochs):
            more = max(size, 2 * len(self.epochs)) - len(self.epochs)
            self.epochs = np.concatenate([self.epochs, np.full(more, ABSENT, np.int32)])
            self.checksums = np.concatenate([self.checksums, np.zeros(more, np.int64)])
        self.epochs[entries.offset - self.start] = entries.epoch
        self.checksums[entries.offset - self.start] = entries.checksum
        self.stop = self.start + size

    def last(self) -> tuple[Int64, Int32]:
        """Offset and epoch of its last entry, as arrays of one."""
        return np.array([self.stop - 1]), self.epochs[self.stop - 1 - self.start : self.stop - self.start]


class OnlineLogs:
    """Gets the stable entries of each node, in offset order, and the tails of copies.  entries: how many so far.

    Each kind of violation is reported once for the same nodes.
    """

    def __init__(self) -> None:
        self.entries = 0
        self._logs: dict[tuple[str, int], _LiveLog] = {}
        self._met: dict[frozenset[tuple[str, int]], tuple[int, int]] = {}
        self._reported: set[tuple[str, ...]] = set()

    def take(self, entries: NewEntries) -> list[OnlineFinding]:
        """Add entries of one log; returns the violations that they show."""
        if not len(entries.offset):
            return []
        self.entries += len(entries.offset)
        name = (entries.node, entries.copy)
        log = self._logs.get(name) or self._new(name, int(entries.offset[0]))
        witnesses = _wrong_alone(log, entries)
        first = int(entries.offset[0])
        log.add(entries)
        fresh = log.slice(first, log.stop)
        for other in self._logs.values():
            if other is log or other.start >= log.stop or other.stop <= first:
                continue
            witnesses += self._compare(log, other, compare_slices(fresh, other.slice(first, log.stop)))
        return [OnlineFinding("log-matching", w, in_logs=True) for w in witnesses if self._is_new(w)]

    def _new(self, name: tuple[str, int], start: int) -> _LiveLog:
        log = self._logs[name] = _LiveLog(name, start, start)
        return log

    def _compare(self, log: _LiveLog, other: _LiveLog, now: tuple[int, int]) -> list[Witness]:
        pair = frozenset({log.name, other.name})
        different, equal = self._met.get(pair, (NOWHERE, NOWHERE))
        if now[0] != NOWHERE:
            different = now[0] if different == NOWHERE else min(different, now[0])
        self._met[pair] = different, equal = different, max(equal, now[1])
        if different == NOWHERE or equal < different:
            return []
        of_log, of_other = (one.slice(different, min(log.stop, other.stop)) for one in (log, other))
        meeting = int(np.flatnonzero((of_log.epochs == of_other.epochs) & (of_log.epochs != ABSENT))[0])
        return [fork(log.name, other.name, different, different + meeting, int(of_log.epochs[meeting]))]

    def _is_new(self, witness: Witness) -> bool:
        name = (witness.kind, *sorted(set(witness.facts["nodes"])))
        new = name not in self._reported
        self._reported.add(name)
        return new


def _wrong_alone(log: _LiveLog, entries: NewEntries) -> list[Witness]:
    """Witnesses of a hole or a falling epoch among these entries, or between the log and the first of them."""
    offsets, epochs = entries.offset, entries.epoch
    if log.stop > log.start:
        before = log.last()
        offsets, epochs = np.concatenate([before[0], offsets]), np.concatenate([before[1], epochs])
    hole, fall = irregular(offsets, epochs)
    found = []
    for at, kind in ((hole, HOLE), (fall, FALL)):
        if at != NOWHERE:
            found.append(wrong_alone(kind, log.name, int(offsets[at]), int(epochs[at])))
    return found
