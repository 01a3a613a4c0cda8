"""Compares the history with the log: the answers to clients must agree with the log.

Every log that has caught up at the end contains each acknowledged write exactly once.  No copy of any log contains a
write that certainly failed, a write twice, or a change of an object that no client invoked: each entry has exactly one
cause.  (An entry without a cause is a violation only if the history shows its own end.  Otherwise the write may be
missing from the history, and the verdict is unknown.)  The order of the log respects real time over all keys: if one
write completed before another was invoked, it comes first in the log.

This finds what the check of registers misses.  A register shows only its last value, so the next write hides a lost
acknowledged write.  And a judgement key by key shows no order between keys.

A part is either a node, to decide whether its log has caught up, or a range of offsets of all logs.
Except for a few bits for each row of the history, memory grows neither with the history nor with the logs.

*Ranges.*  Copies of healthy logs hold the same entries, so equal copies are judged together.  A finding contains what
other ranges need: which writes are in this range (one bit for each row of the history), the write that was invoked
last, and the write that completed first.  `_Joined` joins the ranges.

Cost: the entries of all copies in the range, and one reading of the history.  Memory: SIZE_BYTES_PER_ENTRY for each
distinct entry in the range, a chunk of the history, and a few bits for each of its rows.

*Caught up.*  Decides which final logs hold everything that was ever committed.

A log has *caught up* if its final copy reaches the largest mark that any node had reported before that node's own final
copy.  It must also hold exactly that prefix, or have an entry of the mark's epoch or a later one.  A node that was cut
off until the end may have a longer tail of an older epoch; its log has not caught up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Int8, Int32, Int64, UInt8
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import Type
from checkers.base.run_evidence import (
    BeyondBudget,
    conclude,
    gaps,
    log_rows,
    numbers,
    present,
    read_entries,
    read_trace,
)
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness
from checkers.kernels.raft import OPEN, out_of_order
from checkers.raft.client_writes import (
    SIZE_BYTES_PER_NAME,
    Entries,
    WantedNames,
    WritesInHistory,
    offset_ranges,
    operations,
    read_writes,
)
from checkers.raft.committed import CopiedLog, Marks, holds, read_log
from checkers.raft.reading import nothing_of
from checkers.sealing.codes import Words
from checkers.sealing.history_rows import read_rows

SIZE_BYTES_PER_ENTRY = 30 + SIZE_BYTES_PER_NAME

MISSING = "acknowledged write missing from a log"
FAILED = "failed write in a log"
TWICE = "write in a log twice"
DISORDER = "log order against real time"
ORPHAN = "entry that no client wrote"

Log = tuple[str, int]
"""Node and number of the copy."""

Found = tuple[str, int, tuple[int, ...], tuple[int, ...]]
"""A kind of clash, how often, and of the first: rows of the invokes, and offsets in log order."""


@dataclass(frozen=True, slots=True)
class Bits:
    """A set of rows: one bit each, the lowest first, from row 8 * `start` on."""

    start: int
    content: bytes

    @staticmethod
    def of(rows: Int64) -> Bits:
        if len(rows) == 0:
            return Bits(0, b"")
        start = int(rows.min()) >> 3
        flags = np.zeros(8 * ((int(rows.max()) >> 3) + 1 - start), np.bool_)
        flags[rows - 8 * start] = True
        return Bits(start, np.packbits(flags, bitorder="little").tobytes())

    @staticmethod
    def trimmed(whole: UInt8) -> Bits:
        used = np.flatnonzero(whole)
        return Bits(int(used[0]), whole[used[0] : used[-1] + 1].tobytes()) if len(used) else Bits(0, b"")

    def into(self, whole: UInt8) -> UInt8:
        """The part of a larger set that these bits lie in; a view."""
        return whole[self.start : self.start + len(self.content)]

    def array(self) -> UInt8:
        return np.frombuffer(self.content, np.uint8)


@dataclass(frozen=True, slots=True)
class Border:
    """Facts that later or earlier ranges of the same log have to know.

    called: (row of the invoke, offset) of the write that was invoked last; (-1, -1) if there is none.
    returned: (row of the completion, row of the invoke, offset) of the one that had completed first; OPEN if none has.
    """

    called: tuple[int, int] = (-1, -1)
    returned: tuple[int, int, int] = (OPEN, -1, -1)


@dataclass(frozen=True, slots=True)
class RangeContent:
    """Content that some logs hold in the range, all the same.  writes: rows of their invokes."""

    logs: tuple[Log, ...]
    found: tuple[Found, ...]
    orphans: int
    writes: Bits
    border: Border


@dataclass(frozen=True, slots=True)
class RangeFinding:
    """first: offset of the range.  acknowledged: writes in the whole history; with their rows in `answered` if this is
    the first range.  shared: writes that share their name with another one, `repeated` of them.  rows: of the history.
    whole: no operation is missing from the history."""

    first: int
    contents: tuple[RangeContent, ...] = ()
    rows: int = 0
    acknowledged: int = 0
    answered: Bits | None = None
    shared: Bits = Bits(0, b"")
    repeated: int = 0
    unknown: str = ""


def judge_range(part: Part, budget: Budget) -> RangeFinding:
    """params: logs (path, node, copy); first and end, offsets; answered, whether to say which writes were acknowledged.

    Raises BeyondBudget.
    """
    history, params = part.paths[0], part.params
    keys = Words()
    contents, owners = _distinct(params["logs"], params["first"], params["end"], keys, budget)
    names, name_of = WantedNames.of(contents, keys)
    written = read_writes(history, names)
    fates = written.fates
    judged = [
        _content(tuple(owner), entries, name, written)
        for owner, entries, name in zip(owners, contents, name_of, strict=True)
    ]
    return RangeFinding(
        params["first"],
        tuple(judged),
        written.rows,
        written.acknowledged,
        Bits.trimmed(fates.acknowledged) if params["answered"] else None,
        Bits.trimmed(fates.shared),
        int(fates.times[fates.times > 1].sum()),
    )


def _distinct(
    logs: Sequence[tuple[str, str, int]], first: int, end: int, keys: Words, budget: Budget
) -> tuple[list[Entries], list[list[Log]]]:
    """The distinct contents of the range, and which logs have each."""
    contents: list[Entries] = []
    owners: list[list[Log]] = []
    for path, node, copy in logs:
        entries = Entries.of(read_entries(path, copy, first, ("key", "value"), end), keys)
        for other, owner in zip(contents, owners, strict=True):
            if entries.same_as(other):
                owner.append((node, copy))
                break
        else:
            contents.append(entries)
            owners.append([(node, copy)])
        needed_bytes = sum(map(len, contents)) * SIZE_BYTES_PER_ENTRY
        if needed_bytes > budget.size_bytes:
            raise BeyondBudget(f"logs that differ need {needed_bytes} bytes, the budget is {budget.size_bytes}")
    return contents, owners


def _content(logs: tuple[Log, ...], entries: Entries, name: Int32, written: WritesInHistory) -> RangeContent:
    fates = written.fates
    there = np.where(name >= 0, fates.times[name], 0) if len(fates.times) else np.zeros(len(name), np.int32)
    once = there == 1
    write, offset = name[once], entries.offset[once]
    row, completed, outcome = fates.row[write], fates.completed[write], fates.outcome[write]
    found = _clashes(row, completed, outcome, offset)
    alone = entries.offset[there == 0]
    if len(alone):
        found.append((ORPHAN, len(alone), (), (int(alone[0]),)))
    return RangeContent(logs, tuple(found), len(alone), Bits.of(row), _border(row, completed, offset))


def _clashes(row: Int64, completed: Int64, outcome: Int8, offset: Int64) -> list[Found]:
    """Return, of each kind in which entries disagree with the writes that they are; all columns in offset order."""
    found: list[Found] = []
    failed = np.flatnonzero(outcome == Type.FAIL)
    found += [(FAILED, len(failed), (int(row[i]),), (int(offset[i]),)) for i in failed[:1].tolist()]
    distinct, first, times = np.unique(row, return_index=True, return_counts=True)
    twice = distinct[times > 1]
    found += [(TWICE, len(twice), (i,), tuple(offset[row == i].tolist())) for i in twice[:1].tolist()]
    first.sort()
    disorder = out_of_order(row[first], completed[first])
    if disorder is not None:
        at = [int(first[i]) for i in disorder]
        found.append((DISORDER, 1, tuple(int(row[i]) for i in at), tuple(int(offset[i]) for i in at)))
    return found


def _border(row: Int64, completed: Int64, offset: Int64) -> Border:
    if len(row) == 0:
        return Border()
    last, first = int(np.argmax(row)), int(np.argmin(completed))
    return Border((int(row[last]), int(offset[last])), (int(completed[first]), int(row[first]), int(offset[first])))


_RANK = {MISSING: 0, FAILED: 1, TWICE: 2, DISORDER: 3, ORPHAN: 4}


@dataclass(frozen=True, slots=True)
class Clash:
    """One disagreement of one log with the history.  writes: rows of the invokes.  offsets: in log order."""

    kind: str
    node: str
    copy: int
    writes: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogFinding:
    """The finding on one node.  copies: the number of copies of its log.  caught_up: those that caught up."""

    node: str
    copies: int = 0
    caught_up: tuple[int, ...] = ()
    unknown: str = ""


Finding = LogFinding | RangeFinding


def _split(run: StoredRun) -> list[Part]:
    logs = node_files(run.log)
    if not logs or not run.history.exists():
        return []
    copied = [c for c in run.copies if not c["error"]]
    last = max((c["copy"] for c in copied), default=-1)
    final_seq = {c["node"]: c["trace_seq"] for c in copied if c["copy"] == last and c["when"] == "final"}
    parts = [
        Part(
            (path, *node_files(run.trace).values()),
            {"node": node, "copies": [c for c in copied if c["node"] == node], "final_seq": final_seq},
        )
        for node, path in logs.items()
    ]
    of_all = [(logs[c["node"]], c["node"], c["copy"]) for c in copied if c["node"] in logs]
    for number, (first, end) in enumerate(offset_ranges(logs.values())):
        params = {"logs": of_all, "first": first, "end": end, "answered": number == 0}
        parts.append(Part((str(run.history), *logs.values()), params))
    return parts


def _judge(part: Part, budget: Budget) -> Finding:
    try:
        return _judge_log(part, budget) if "node" in part.params else judge_range(part, budget)
    except BeyondBudget as problem:
        if "node" in part.params:
            return LogFinding(part.params["node"], unknown=str(problem))
        return RangeFinding(part.params["first"], unknown=str(problem))


def _judge_log(part: Part, budget: Budget) -> LogFinding:
    log_path, *traces = part.paths
    copies = part.params["copies"]
    top = largest_marks(traces, part.params["final_seq"])
    final = [c["copy"] for c in copies if c["when"] == "final"]
    reached = tuple(copy for copy in final if caught_up(read_log(log_path, copy, budget), top))
    return LogFinding(part.params["node"], len(copies), reached)


def _combine(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    logs = [f for f in findings if isinstance(f, LogFinding)]
    ranges = sorted((f for f in findings if isinstance(f, RangeFinding)), key=lambda f: f.first)
    whole = bool(ranges) and run.history_is_whole
    unknown = list(dict.fromkeys(f.unknown for f in findings if f.unknown)) + gaps(run, "logs", "traces")
    if not run.history.exists():
        unknown.append("there is no sealed history")
    elif not any(f.caught_up for f in logs):
        unknown.append("no node's final log had caught up with the largest committed mark")
    if repeated := sum(f.repeated for f in ranges):
        unknown.append(
            f"{repeated} writes share their key and value with another, so no log entry shows which of them made it"
        )
    joined = _Joined(ranges, len(offset_ranges(node_files(run.log).values())))
    if joined.orphans and not whole:
        words = f"no write in the history explains {joined.orphans} entries of a log, and the history lacks its end"
        unknown.append(words)
    counts = dict.fromkeys(_RANK, 0)
    clashes = []
    for node, copy, kind, count, writes, offsets in joined.clashes({f.node: f.caught_up for f in logs}):
        if kind != ORPHAN or whole:
            counts[kind] += count
            clashes.append(Clash(kind, node, copy, writes, offsets or _offsets(run, node, copy, kind, writes)))
    looked_at = {
        "acknowledged writes": max((f.acknowledged for f in ranges), default=0),
        "logs": sum(f.copies for f in logs),
        "logs caught up at the end": sum(len(f.caught_up) for f in logs),
    }
    looked_at |= {f"{kind} (all logs)": count for kind, count in counts.items() if count}
    unknown += nothing_of(looked_at, "acknowledged writes", "logs")
    return conclude([_witness(run, c) for c in _one_per_write(clashes)], looked_at, unknown)


OfLog = tuple[str, int, str, int, tuple[int, ...], tuple[int, ...]]
"""Node, number of the copy, and a clash as `Found`."""


class _Joined:
    """All ranges of all logs.

    expected: the number of ranges; if some are missing, they may contain a write that is not in the others.
    orphans: the largest number of entries without a cause in one log."""

    def __init__(self, ranges: Sequence[RangeFinding], expected: int) -> None:
        self._ranges = [f for f in ranges if not f.unknown]
        self._size = -(-max((f.rows for f in ranges), default=0) // 8)
        self._of_log: dict[tuple[str, int], list[tuple[int, RangeContent]]] = {}
        for at, finding in enumerate(self._ranges):
            for content in finding.contents:
                for log in content.logs:
                    self._of_log.setdefault(log, []).append((at, content))
        self.orphans = max((sum(c.orphans for _, c in contents) for contents in self._of_log.values()), default=0)
        self._answered = self._set([f.answered for f in self._ranges if f.answered is not None])
        self._shared = self._set([f.shared for f in self._ranges])
        self._all_there = len(self._ranges) == expected

    def clashes(self, caught_up: Mapping[str, Sequence[int]]) -> Iterator[OfLog]:
        """Every clash of every log.  caught_up: numbers of the copies, by node."""
        known: dict[tuple[int, ...], tuple[UInt8, list[Found]]] = {}
        for (node, copy), contents in self._of_log.items():
            name = tuple(id(content) for _, content in contents)
            if name not in known:
                known[name] = self._across([content for _, content in contents])
            there, found = known[name]
            if self._all_there and copy in caught_up.get(node, ()):
                missing = self._answered & ~there & ~self._shared
                if (row := _first(missing)) >= 0:
                    found = [*found, (MISSING, _count(missing), (row,), ())]
            for kind, count, writes, offsets in found:
                yield node, copy, kind, count, writes, offsets

    def _across(self, contents: Sequence[RangeContent]) -> tuple[UInt8, list[Found]]:
        """Return (the writes in any of these ranges of one log, the clashes inside them and across them)."""
        there = np.zeros(self._size, np.uint8)
        totals: dict[str, Found] = {}
        called = (-1, -1)
        for content in contents:
            found = list(content.found)
            part, mine = content.writes.into(there), content.writes.array()
            again = part & mine
            if (row := _first(again)) >= 0:
                found.append((TWICE, _count(again), (8 * content.writes.start + row,), ()))
            completed, row, offset = content.border.returned
            if completed < called[0]:
                found.append((DISORDER, 1, (called[0], row), (called[1], offset)))
            called = max(called, content.border.called)
            part |= mine
            for kind, count, writes, offsets in found:
                before = totals.get(kind, (kind, 0, writes, offsets))
                totals[kind] = (kind, 1 if kind == DISORDER else before[1] + count, *before[2:])
        return there, list(totals.values())

    def _set(self, pieces: Sequence[Bits]) -> UInt8:
        whole = np.zeros(self._size, np.uint8)
        for bits in pieces:
            part = bits.into(whole)
            part |= bits.array()
        return whole


def _first(bits: UInt8) -> int:
    """Return the lowest row whose bit is set, or -1."""
    used = int(np.argmax(bits != 0)) if len(bits) else 0
    if len(bits) == 0 or bits[used] == 0:
        return -1
    byte = int(bits[used])
    return 8 * used + (byte & -byte).bit_length() - 1


def _count(bits: UInt8) -> int:
    return int(np.bitwise_count(bits).sum())


def _offsets(run: StoredRun, node: str, copy: int, kind: str, writes: Sequence[int]) -> tuple[int, ...]:
    """Return the offsets of a write that is in several ranges of a log."""
    if kind != TWICE:
        return ()
    [write] = read_rows(run.history, writes[:1], ("key", "value"))
    path, found = node_files(run.log)[node], []
    for first, end in offset_ranges([path]):
        entries = read_entries(path, copy, first, ("key", "value"), end)
        mine = pc.and_(pc.equal(entries["key"], write["key"]), pc.equal(entries["value"], write["value"]))
        found += numbers(entries.filter(pc.fill_null(mine, False)), "offset").tolist()
    return tuple(found)


def _one_per_write(clashes: list[Clash]) -> list[Clash]:
    """Return the latest copy for each kind and write; the first of each kind precedes any second one."""
    latest = {(c.kind, c.writes or c.offsets): c for c in sorted(clashes, key=lambda c: (c.copy, c.node))}
    seen: dict[str, int] = {}
    ranked = []
    for clash in sorted(latest.values(), key=lambda c: c.writes):
        seen[clash.kind] = seen.get(clash.kind, -1) + 1
        ranked.append((seen[clash.kind], _RANK[clash.kind], clash))
    return [clash for _, _, clash in sorted(ranked, key=lambda r: r[:2])]


def _witness(run: StoredRun, clash: Clash) -> Witness:
    events = operations(str(run.history), clash.writes) if clash.writes else []
    path = node_files(run.log)[clash.node]
    rows = log_rows(path, clash.copy, clash.offsets) if clash.offsets else []
    log = f"the log of {clash.node} (copy {clash.copy})"
    calls = [e for e in events if e["type"] == Type.INVOKE]
    named = {e["index"]: f"the write of {e['value']} to {e['key']}" for e in calls}
    if clash.kind == ORPHAN:
        entry = rows[0]
        why = [f"{log} sets {entry['key']} to {entry['value']} at offset {clash.offsets[0]}, and no client wrote that."]
        expected = "each entry has exactly one cause: a client's operation, set-up, or the system's own record"
    else:
        first = named[clash.writes[0]]
        why, expected = _words(clash, first, named.get(clash.writes[-1], first), log)
    return Witness(
        kind=clash.kind,
        summary=why[-1][0].upper() + why[-1][1:],
        events=tuple(events),
        rows=tuple(rows),
        facts={
            "nodes": [clash.node],
            "copies": [clash.copy],
            "epoch": rows[0]["epoch"] if rows else None,
            "offset": clash.offsets[0] if clash.offsets else None,
            "offsets": list(clash.offsets),
            "key": (calls or rows)[0]["key"],
            "value": (calls or rows)[0]["value"],
            "why": why,
            "expected": expected,
        },
    )


def _words(clash: Clash, first: str, last: str, log: str) -> tuple[list[str], str]:
    """Return (what happened as sentences, the last of which is the summary; what was expected)."""
    at = [str(offset) for offset in clash.offsets]
    if clash.kind == MISSING:
        return [f"{first} was acknowledged, but {log}, which has caught up, does not have it."], "it stands there once"
    if clash.kind == FAILED:
        return [f"{first} failed for certain, but it stands in {log} at offset {at[0]}."], "it stands in no log"
    if clash.kind == TWICE:
        return [f"{first} stands in {log} {len(at)} times, at offsets {', '.join(at)}."], "a write stands in a log once"
    return [
        f"{last} had completed before {first} was invoked, but in {log} it stands after it ({at[1]} after {at[0]})."
    ], "the log keeps the order that clients could observe"


HISTORY_LOG = Checker(
    name="history-against-log",
    title="History against log",
    question="Does every log hold each acknowledged write once, no failed one, and in an order clients could observe?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"history", "logs", "traces", "unique-values", "client-records"}),
)


def caught_up(log: CopiedLog, top: Marks) -> bool:
    """Return whether this final log reaches the largest committed mark, and not by a tail of an older epoch.

    A log that begins above 0 has not, because its lower entries are in a snapshot and cannot be compared.
    """
    if len(top.offset) == 0 or log.end < top.offset[0] or log.start > 0:
        return False
    return bool(holds(log, top)[0].any() or log.last_epoch >= top.epoch.min())


def largest_marks(traces: Sequence[str], until: Mapping[str, int]) -> Marks:
    """Return the marks of the largest offset that any node reported up to its final copy.  until: node -> seq."""
    found: list[tuple[int, int, bool, int]] = []
    for path in traces:
        marks = read_trace(path, ("high-watermark",), ("offset", "hash", "epoch"))
        offsets = np.where(numbers(marks, "seq") <= until.get(Path(path).stem, -1), numbers(marks, "offset"), 0)
        largest = np.flatnonzero((offsets > 0) & (offsets == offsets.max(initial=0)))
        rows = marks.take(pa.array(largest))
        columns = (numbers(rows, "offset"), numbers(rows, "hash", 0), present(rows, "hash"), numbers(rows, "epoch"))
        found += zip(*(column.tolist() for column in columns), strict=True)
    end = max((offset for offset, *_ in found), default=0)
    rows_there = [mark for mark in found if mark[0] == end]
    offset, hashes, known, epoch = (np.array([mark[i] for mark in rows_there]) for i in range(4))
    return Marks(offset, hashes, known.astype(np.bool_), epoch)
