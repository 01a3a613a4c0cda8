"""Judges a run while it is in progress, with the kernels that judge the sealed run (docs/online.md).

The classes do no I/O: each gets new data, and keeps only data that can still matter.  They get only data that never
changes again: events of the history in index order, complete rows of a trace, and entries of a log below a high
watermark that the node had reported before the entries were read.

*Traces.*  `OnlineTraces` and `OnlineMarks` judge the traces of nodes while they grow: they pass every row to the
monitors of Raft's rules.

A trace only grows, and each of these rules forbids two rows that exist.  So a violation in a prefix is also a violation
in the complete trace, and the same monitor finds it in the sealed run.

Two rules need the rows of all nodes in the order of one clock, but traces are read one node after another.  A row that
makes a mark legal was written before the mark was stamped.  So all such rows are known as soon as each voter's trace
has been read once more after the mark was read.  Rows wait until then.  While a voter's trace cannot be read, no mark
is judged.

Three rules cannot be judged while the run is in progress: that nothing was *lost* (a node may not have fetched an entry
yet), that logs contain the writes of the history, and that the cluster recovers.

*Logs.*  `OnlineLogs` judges log matching while logs grow: it applies `checkers.raft.log_matching` to entries that are
certainly stable.

A log that is read while its node writes may mix entries from before and after a truncation.  But a node never removes
entries below a high watermark that it has reported.  So entries below a mark are final if they were read *after* the
trace reported that mark.  (A node that removes such entries breaks another rule, and its trace shows this.)  These
entries form one log per node, which only grows.  A copy taken before a heal is complete.  The tail of the copy above
the stable part forms a short log of its own, which is kept until the end, because the heal will remove the uncommitted
tail from the node.

Two offsets decide whether two logs match: d of their first difference, and e of their last equal epoch.  The two logs
match iff e < d.  New entries can only lower d and raise e.  So each new entry is read once, and compared once with the
entries of other logs at its offset.  Memory: 12 bytes per entry.

*Registers.*  `OnlineKeys` judges the linearizability of a growing history, key by key.

A prefix of a history is a history: operations that had not returned by its end are open.  Take an order that explains
the whole history, and cut it after the last operation that the prefix needs: the part before the cut explains the
prefix.  So if no order explains the prefix, no order explains the whole history.  A violation in a prefix is final, and
may stop the run.

Every key with a new completion is judged again, but not from its beginning.  `kernels/register_unique_values.py` finds
the operations that can never matter again, and these operations are dropped.  The number of open operations bounds the
number of remaining ones, so each second of a run costs the same.  A key without new operations keeps a handful of rows
and costs nothing.  A write of unknown outcome (info) that was never observed is kept by its value until a read observes
the value.

If values repeat on a key, dropping operations is not exact.  Such a key is judged from its beginning: each time while
the key is small, and later each time it has grown by a quarter.  So the total cost is linear in the length of the run,
too.  An `Alarm` is not yet a verdict: the caller judges the whole prefix of the key, as it is on disk, with
`checkers.registers.checker`.

Neither the sealed run nor these checks judge a key whose rows contradict a register (`sealing/walk.py`).  Such a key is
`unfit`, and an earlier finding on the key is void.

`judge_prefix` judges all rows of some keys of a run that is not sealed yet, with the function that judges the sealed
run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Int32, Int64
from checkers.base.checker import Budget
from checkers.base.columns import read_stream
from checkers.base.history import Type
from checkers.base.stored_rows import of_events
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Verdict, Witness
from checkers.kernels import register_unique_values as register
from checkers.kernels.codes import Processes, dictionary_codes
from checkers.kernels.operations import CAS, OTHER, READ, Events, pair_events
from checkers.kernels.raft import ABSENT, NOWHERE, Slice, compare_slices, irregular
from checkers.kernels.register_unique_values import FORGET, UNSEEN, judge_and_forget
from checkers.raft.log_matching import FALL, HOLE, fork, wrong_alone
from checkers.raft.monitor import Monitor
from checkers.raft.reading import rows_of_table
from checkers.raft.rules import TraceRow
from checkers.raft.trace_checkers import TimedMonitor, in_time
from checkers.record.header_and_outcome import OnlineViolation
from checkers.registers.checker import LINEARIZABILITY
from checkers.sealing.seal import write_buckets
from checkers.sealing.sealed_history import numpy_of
from checkers.sealing.walk import ClientRows, RegisterRows


@dataclass(frozen=True, slots=True)
class OnlineFinding:
    """A violation that was found while the run is in progress.

    checker: name of the checker whose rule was violated, as in results.json
    in_logs: True if the evidence is in the logs of the nodes, so that a copy taken now has more of it than a later one
    """

    checker: str
    witness: Witness
    in_logs: bool = False

    def found_at(self, time_ns: int) -> OnlineViolation:
        """Return the finding as the journal stores it; the evidence itself comes from the sealed run.

        time_ns: time when the violation was found
        """
        facts, nodes = self.witness.facts, self.witness.facts.get("nodes")
        return OnlineViolation(
            self.checker,
            self.witness.kind,
            self.witness.summary,
            time_ns,
            key=facts.get("key"),
            nodes=None if nodes is None else tuple(nodes),
            epoch=facts.get("epoch"),
            offset=facts.get("offset"),
        )


CHECKER = "majority-before-mark"


class _Once:
    """Drops repeated findings: a rule is reported only once for the same nodes."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str, tuple[str, ...]]] = set()

    def new(self, found: Iterable[tuple[str, Witness]]) -> list[OnlineFinding]:
        fresh = []
        for checker, witness in found:
            name = (checker, witness.kind, tuple(sorted(witness.facts.get("nodes", ()))))
            if name not in self._reported:
                self._reported.add(name)
                fresh.append(OnlineFinding(checker, witness))
        return fresh


class OnlineTraces:
    """Judges complete rows of each node's trace, in seq order.

    rows: number of rows so far
    """

    def __init__(self) -> None:
        self._monitor, self._once = Monitor(), _Once()

    @property
    def rows(self) -> int:
        return self._monitor.rows

    def take(self, more: Sequence[pa.Table]) -> list[OnlineFinding]:
        """Add rows, and return the violations that these rows show.

        more: one table of schema TRACE for each node with new rows
        """
        rows = (row for table in more for row in rows_of_table(table))
        return self._once.new(found for row in rows for found in self._monitor.take(row))


class _Read(NamedTuple):
    """Rows that one reading of the traces has found.

    looks: voter -> number of times that its trace had been read by then
    """

    rows: list[TraceRow]
    looks: Mapping[str, int]


class OnlineMarks:
    """Judges high watermarks in the order of one clock.  Each leader is reported at most once.

    voters: names of all voters
    """

    def __init__(self, voters: Sequence[str]) -> None:
        self._looks = dict.fromkeys(voters, 0)
        self._reads: list[_Read] = []
        self._monitor = TimedMonitor(voters)
        self._reported: set[str] = set()

    @property
    def judged(self) -> int:
        """Return the number of high watermarks judged so far."""
        return self._monitor.marks

    def take(self, more: Mapping[str, pa.Table]) -> list[OnlineFinding]:
        """Add the new rows of each node whose trace could be read.  Returns the violations that are certain.

        more: node -> all rows of its trace since the last call, which may be none.
        """
        known = {name: rows for name, rows in more.items() if name in self._looks}
        for name in known:
            self._looks[name] += 1
        rows = [row for table in known.values() for row in rows_of_table(of_events(table, TimedMonitor.EVENTS))]
        self._reads.append(_Read(rows, dict(self._looks)))
        found = [broken for row in in_time(self._certain()) for broken in self._monitor.take(row)]
        fresh = []
        for broken in found:
            leader = broken.evidence.rows[-1].node
            if broken.rule.checker == CHECKER and leader not in self._reported:
                self._reported.add(leader)
                fresh.append(OnlineFinding(CHECKER, broken.witness()))
        return fresh

    def _certain(self) -> list[TraceRow]:
        """Remove and return the rows up to the latest time after which every voter's trace was read again."""
        sure = [read for read in self._reads if all(self._looks[name] > before for name, before in read.looks.items())]
        until_ns = max((row.time_ns for read in sure for row in read.rows), default=-1)
        certain = [row for read in self._reads for row in read.rows if row.time_ns <= until_ns]
        left = (_Read([row for row in read.rows if row.time_ns > until_ns], read.looks) for read in self._reads)
        self._reads = [read for read in left if read.rows]
        return certain


LIVE = -1
"""Number that stands for the stable part of a node's log, instead of a copy's number."""


@dataclass(frozen=True, slots=True)
class NewEntries:
    """Successive entries of one log, in ascending order of offset.

    copy: LIVE for the stable part of the log, or the number of the copy to whose tail the entries belong
    """

    node: str
    copy: int
    offset: Int64
    epoch: Int32
    checksum: Int64


@dataclass(slots=True)
class _LiveLog:
    """Entries of a log at offsets start .. stop - 1, with room for more.  A missing entry has epoch ABSENT."""

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
        """Return (offset, epoch) of the last entry, as arrays of one element."""
        return np.array([self.stop - 1]), self.epochs[self.stop - 1 - self.start : self.stop - self.start]


class OnlineLogs:
    """Judges log matching on the stable entries of each node, in offset order, and on the tails of copies.

    entries: number of entries so far
    Each kind of violation is reported only once for the same nodes.
    """

    def __init__(self) -> None:
        self.entries = 0
        self._logs: dict[tuple[str, int], _LiveLog] = {}
        self._met: dict[frozenset[tuple[str, int]], tuple[int, int]] = {}
        self._once = _Once()

    def take(self, entries: NewEntries) -> list[OnlineFinding]:
        """Add entries of one log, and return the violations that these entries show."""
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
        found = self._once.new(("log-matching", witness) for witness in witnesses)
        return [replace(each, in_logs=True) for each in found]

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


def _wrong_alone(log: _LiveLog, entries: NewEntries) -> list[Witness]:
    """Return witnesses of a gap or a decreasing epoch among these entries, or between the log and the first of them."""
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


WHOLE_ALWAYS_BELOW = 2_000
"""Maximum number of events of a key with repeated values that is judged each time; a larger key is judged each time it
has grown by the factor GROWTH.
"""
GROWTH = 1.25

_ROW = np.dtype(
    [
        *(("index", np.int64), ("process", np.int32), ("type", np.int8), ("kind", np.int8)),
        *(("value", np.int64), ("value2", np.int64), ("out_of_range", np.int8)),
    ]
)
Rows = npt.NDArray[np.void]

Why = Literal["not linearizable", "values repeat"]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A key whose whole prefix should be judged now.

    why: the kernel found a violation, or values repeat so that the key cannot be judged here
    """

    key: str
    why: Why


@dataclass(slots=True)
class _LiveKey:
    """State of one key.

    window: rows that can still matter, in index order
    shelf: value -> rows of its write, if the outcome is unknown and the value was not observed yet
    events: number of events so far
    whole: True if values repeat, so that the key is judged from its beginning
    judged_at: number of events when the key was last judged from its beginning
    over: True if the key is not judged any more
    """

    window: Rows = field(default_factory=lambda: np.empty(0, _ROW))
    shelf: dict[int, Rows] = field(default_factory=dict)
    events: int = 0
    whole: bool = False
    judged_at: int = 0
    over: bool = False


class OnlineKeys:
    """Judges the registers of one run; it gets the events in index order as they are recorded.

    judged: number of completions judged so far
    kept: number of events in memory now
    unfit: keys that the sealed run does not judge
    """

    def __init__(self) -> None:
        self._keys: dict[str, _LiveKey] = {}
        self._clients, self._processes = ClientRows(), Processes()
        self.judged = 0
        self.unfit: set[str] = set()

    @property
    def keys(self) -> int:
        return len(self._keys)

    @property
    def kept(self) -> int:
        return sum(len(k.window) + sum(map(len, k.shelf.values())) for k in self._keys.values())

    def take(self, events: pa.Table) -> list[Alarm]:
        """Add events (columns of HISTORY), and return the alarms that they raise, in order of key."""
        touched = {}
        for name, rows in self._by_key(events).items():
            key = self._keys.setdefault(name, _LiveKey())
            key.events += len(rows)
            if (rows["kind"] == OTHER).any() or rows["out_of_range"].any():
                self.unfit.add(name)
                self.close(name)
                continue
            if not key.over:
                touched[name] = (key, rows)
                self._add(key, rows)
        completed = {n: k for n, (k, rows) in touched.items() if not k.whole and (rows["type"] != Type.INVOKE).any()}
        self.judged += sum(int((rows["type"] != Type.INVOKE).sum()) for _, rows in touched.values())
        alarms = self._judge(completed)
        alarms += [Alarm(name, "values repeat") for name, (key, _) in touched.items() if _due(key)]
        return sorted(alarms, key=lambda alarm: alarm.key)

    def close(self, key: str) -> None:
        """Stop judging this key, because a violation was found or the key is unfit."""
        self._keys[key] = _LiveKey(over=True)

    def _add(self, key: _LiveKey, rows: Rows) -> None:
        if key.whole:
            return
        pulled = [some for value in _named(rows) for some in _take_down(key.shelf, value)] if key.shelf else []
        key.window = np.concatenate([_with(key.window, pulled), rows])

    def _by_key(self, events: pa.Table) -> dict[str, Rows]:
        """Return key -> rows of the clients' events in index order, without those of set-up.

        A row that contradicts a register has kind OTHER, as in the sealed run.
        """
        codes, names = dictionary_codes(events.column("key"))
        functions, function_names = dictionary_codes(events.column("f"))
        dense = self._processes.dense(numpy_of(events, "process"))
        found = RegisterRows.of(events, self._clients, dense, self._processes.count, functions, function_names)
        mine = np.flatnonzero(found.mine & (codes >= 0))
        order = mine[np.argsort(codes[mine], kind="stable")]
        rows = np.empty(len(order), _ROW)
        rows["index"] = numpy_of(events, "index")[order]
        found.fill(rows, order)
        bounds = np.flatnonzero(np.diff(codes[order], prepend=-1, append=-1))
        return {names[codes[order[low]]]: rows[low:high] for low, high in pairwise(bounds)}

    def _judge(self, keys: dict[str, _LiveKey]) -> list[Alarm]:
        if not keys:
            return []
        names, states = list(keys), list(keys.values())
        rows = np.concatenate([k.window for k in states])
        bounds = np.cumsum([0, *(len(k.window) for k in states)])
        number = np.repeat(np.arange(len(states), dtype=np.int32), np.diff(bounds))
        processes, process = np.unique(rows["process"], return_inverse=True)
        under_way = _under_way(rows, process)
        horizons = np.full(len(states), len(rows), np.int64)
        np.minimum.at(horizons, number[under_way], np.flatnonzero(under_way))
        operations = pair_events(_as_events(rows, number, process), len(states), len(processes))
        code, fate = judge_and_forget(operations, horizons)
        keep = under_way.copy()
        aside = np.zeros(len(rows), np.bool_)
        completed = operations.completed >= 0
        for mask, wanted in ((keep, (fate != FORGET) & (fate != UNSEEN)), (aside, fate == UNSEEN)):
            mask[operations.invoked[wanted]] = True
            mask[operations.completed[wanted & completed]] = True
        alarms = []
        for k, (name, key) in enumerate(zip(names, states, strict=True)):
            here = slice(int(bounds[k]), int(bounds[k + 1]))
            if code[k] == register.LINEARIZABLE:
                _tidy(key, rows[here], keep[here], aside[here])
            elif code[k] >= register.FIRST_INVALID:
                alarms.append(Alarm(name, "not linearizable"))
            elif code[k] == register.UNFIT:
                self.close(name)
            else:
                key.whole, key.window, key.shelf = True, key.window[:0], {}
        return alarms


def _due(key: _LiveKey) -> bool:
    """Return True if values repeat on a key and the key must be judged now; then update its `judged_at`."""
    if not key.whole or key.over or (key.events > WHOLE_ALWAYS_BELOW and key.events < GROWTH * key.judged_at):
        return False
    key.judged_at = key.events
    return True


def _tidy(key: _LiveKey, rows: Rows, keep: npt.NDArray[np.bool_], aside: npt.NDArray[np.bool_]) -> None:
    """Drop the rows that `keep` does not mark.

    aside: marks rows of writes of unknown outcome whose values were not observed.  They move to the shelf, unless a cas
    expects such a value.
    """
    for i in np.flatnonzero(aside & (rows["type"] == Type.INVOKE)).tolist():
        value = int(rows["value2" if rows["kind"][i] == CAS else "value"][i])
        key.shelf[value] = rows[aside & (rows["process"] == rows["process"][i])]
    key.window = rows[keep]
    expected = np.unique(key.window["value"][key.window["kind"] == CAS]) if key.shelf else ()
    key.window = _with(key.window, [some for value in expected for some in _take_down(key.shelf, int(value))])


def _with(rows: Rows, more: list[Rows]) -> Rows:
    return np.sort(np.concatenate([rows, *more]), order="index") if more else rows


def _take_down(shelf: dict[int, Rows], value: int | None) -> list[Rows]:
    """Remove from the shelf, and return, the operation that produces a value.

    If this operation is a cas, also the operation that produces its expected value, and so on.
    """
    found = []
    while value is not None and (rows := shelf.pop(value, None)) is not None:
        found.append(rows)
        value = int(rows["value"][0]) if rows["kind"][0] == CAS else None
    return found


def _named(rows: Rows) -> list[int]:
    """Return all values that these events read, expect or write."""
    kind = rows["kind"]
    first = (kind != READ) | (rows["type"] == Type.OK)
    return np.unique(np.concatenate([rows["value"][first], rows["value2"][kind == CAS]])).tolist()  # type: ignore[no-any-return]


def _under_way(rows: Rows, process: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Mark the invokes without a completion; such an invoke is the last row of its process.

    rows: rows of all keys; those of each key are in index order
    """
    last = np.full(int(process.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(last, process, rows["index"])
    return np.asarray((rows["type"] == Type.INVOKE) & (rows["index"] == last[process]))


def _as_events(rows: Rows, number: npt.NDArray[np.int32], process: npt.NDArray[np.intp]) -> Events:
    columns = (np.ascontiguousarray(rows[name]) for name in ("type", "kind", "value", "value2", "out_of_range"))
    return Events(number, process.astype(np.int32), *columns)


BUDGET = Budget(steps=50_000_000, size_bytes=500_000_000)
"""Budget of one call of `judge_prefix`.  A key that needs more is judged only in the sealed run."""


def judge_prefix(stream: Path, keys: Collection[str]) -> Verdict:
    """Judge the linearizability of some keys from all events that an Arrow stream (`history.arrows`) contains so far.

    Raises MalformedHistory if there is no such stream.
    """
    history = read_stream(stream)
    wanted = history.filter(pc.is_in(history["key"], value_set=pa.array(sorted(keys), pa.string())))
    # if the harness is killed, this folder remains in the run folder
    with tempfile.TemporaryDirectory(prefix=".online-", dir=stream.parent) as name:
        files = StoredRun(Path(name))
        pq.write_table(wanted, files.history)
        write_buckets(wanted, files.buckets)
        findings = [LINEARIZABILITY.judge(part, BUDGET) for part in LINEARIZABILITY.split(files)]
        verdict = LINEARIZABILITY.combine(files, findings)
        return replace(verdict, witnesses=tuple(_so_far(witness) for witness in verdict.witnesses))


def _so_far(witness: Witness) -> Witness:
    """Return the witness without a claim that only the complete history can prove: that a value was *never* read."""
    if witness.kind != "lost write":
        return witness
    facts = {name: fact for name, fact in witness.facts.items() if name not in ("guilty", "so_far")}
    so_far = witness.facts["so_far"]
    return replace(witness, kind=so_far["kind"], summary=so_far["summary"], facts=facts)
