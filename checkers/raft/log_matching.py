"""Log matching: if two logs have an entry of the same epoch at the same offset, they are equal up to this entry.

Ongaro & Ousterhout 2014, figure 3.  The property holds between any two logs at any two times, so every copy of every
node is compared with every other copy.  The copies that were taken before each heal still contain uncommitted tails,
which the final copies no longer contain.

For two logs, let d be the first offset at which their epochs or checksums differ.  The logs match iff they have
different epochs at every offset from d on.  At d itself, equal epochs mean that two entries of one epoch differ.  An
isolated node rightly has a tail of an older epoch: its epochs differ from d on, so it is no violation.

A part is several ranges of offsets over all files; a range is as long as a row group.  Inside a range, logs with
identical content are grouped first, by content and not by hash, so that thirty copies of one correct log cost thirty
comparisons and not 435.  A range yields for each pair of logs the first difference and the last offset of equal epochs;
the minimum and the maximum over all ranges are the result.  A single log must have no gap, and its epochs must never
decrease.

Cost: linear in the entries of all copies; each entry is decoded and compared once.  Memory: one range of every log,
independent of the length of the logs (five logs of ten million entries: 0.3 s of CPU time, 13 MB per range).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Int32, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.stored_rows import LogGroup, log_groups, log_rows, numbers, read_table
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import Validity, Verdict, Witness, conclude
from checkers.kernels.raft import NOWHERE, Slice, compare_all, irregular, slice_of

RANGE = 1 << 17
"""Number of offsets compared at a time.  Row groups of this size are the cheapest to read."""

RANGES_PER_PART = 8

ENTRY_SIZE_BYTES = 20
"""Memory per entry in bytes: offset, epoch and checksum."""

_COLUMNS = ["offset", "epoch", "checksum"]

LogName = tuple[str, int]
"""(node, number of the copy)."""

HOLE, FALL = "log has a hole", "epoch went back"
"""Kinds of violations that a single log can show."""

Row = dict[str, Any]

Columns = tuple[Int64, Int32, Int64]
"""Offsets, epochs, checksums."""


@dataclass(frozen=True, slots=True)
class RangeMatches:
    """The findings on one range of offsets.

    logs: the logs with an entry in the range
    class_of: per log, the number of its class; the logs of a class have identical entries in the range
    compared: (class, class) -> (first offset that differs, last offset of equal epochs); NOWHERE if there is none
    edges: per log, (first offset, last offset, epoch of the first entry, epoch of the last entry)
    holes: (log, offset of the entry after a gap), at most one per log
    falls: (log, offset of an entry with a lower epoch than the entry before it), at most one per log
    entries: number of entries in the range
    first: first offset of the range
    """

    logs: tuple[LogName, ...]
    class_of: tuple[int, ...]
    compared: dict[tuple[int, int], tuple[int, int]]
    edges: tuple[tuple[int, int, int, int], ...]
    holes: tuple[tuple[LogName, int], ...]
    falls: tuple[tuple[LogName, int], ...]
    entries: int
    first: int


def _split(run: StoredRun) -> list[Part]:
    files = node_files(run.log)
    groups = {path: log_groups(pq.read_metadata(path)) for path in files.values()}
    end = max((group.last + 1 for some in groups.values() for group in some), default=0)
    size, parts = RANGE * RANGES_PER_PART, []
    begin = min((group.first for some in groups.values() for group in some), default=0) // size * size
    for first in range(begin, end, size):
        stop = min(end, first + size)
        touched = {path: [g for g in some if g.first < stop and g.last >= first] for path, some in groups.items()}
        wanted = {path: some for path, some in touched.items() if some}
        parts.append(Part(tuple(wanted), {"first": first, "stop": stop, "groups": list(wanted.values())}))
    return parts


def _judge(part: Part, budget: Budget) -> list[RangeMatches]:
    files = {path: pq.ParquetFile(path, memory_map=True) for path in part.paths}
    findings = []
    for first in range(part.params["first"], part.params["stop"], RANGE):
        touched = [
            (path, file, [g for g in groups if g.first < first + RANGE and g.last >= first])
            for (path, file), groups in zip(files.items(), part.params["groups"], strict=True)
        ]
        findings.append(_judge_range(first, touched, budget))
    return findings


def _judge_range(first: int, touched: list[tuple[str, pq.ParquetFile, list[LogGroup]]], budget: Budget) -> RangeMatches:
    """Judge offsets first .. first + RANGE - 1 of all logs."""
    rows = sum(file.metadata.row_group(g.number).num_rows for _, file, groups in touched for g in groups)
    budget.demand(rows * ENTRY_SIZE_BYTES, f"offsets from {first}: {rows} entries")
    names: list[LogName] = []
    slices: list[Slice] = []
    edges, holes, falls = [], [], []
    entries = 0
    for path, file, groups in touched:
        for copy, columns in _logs(file, groups, first):
            name = (Path(path).stem, copy)
            hole, fall, (offsets, epochs, checksums) = _in_order(columns)
            if hole != NOWHERE:
                holes.append((name, int(offsets[hole])))
            if fall != NOWHERE:
                falls.append((name, int(offsets[fall])))
            edges.append((int(offsets[0]), int(offsets[-1]), int(epochs[0]), int(epochs[-1])))
            entries += len(offsets)
            names.append(name)
            slices.append(slice_of(offsets, epochs, checksums, hole == NOWHERE))
    class_of, compared = compare_all(slices)
    return RangeMatches(
        tuple(names), tuple(class_of), compared, tuple(edges), tuple(holes), tuple(falls), entries, first
    )


def _logs(file: pq.ParquetFile, groups: list[LogGroup], first: int) -> Iterator[tuple[int, Columns]]:
    """Yield (number, entries at offsets first .. first + RANGE - 1) of each copy with entries in this range."""
    pieces: dict[int, list[Columns]] = {}
    for group in groups:
        alone = group.copy >= 0
        table = file.read_row_group(group.number, _COLUMNS if alone else ["copy", *_COLUMNS], use_threads=False)
        columns = (numbers(table, "offset"), table["epoch"].to_numpy(), numbers(table, "checksum"))
        if alone and group.first >= first and group.last < first + RANGE:
            pieces.setdefault(group.copy, []).append(columns)
            continue
        inside = (columns[0] >= first) & (columns[0] < first + RANGE)
        copies = np.full(len(inside), group.copy) if alone else numbers(table, "copy")
        for copy in np.unique(copies[inside]).tolist():
            here = inside & (copies == copy)
            pieces.setdefault(copy, []).append((columns[0][here], columns[1][here], columns[2][here]))
    for copy, some in pieces.items():
        if len(some) == 1:
            yield copy, some[0]
        else:
            offsets, epochs, checksums = zip(*some, strict=True)
            yield copy, (np.concatenate(offsets), np.concatenate(epochs), np.concatenate(checksums))


def _in_order(columns: Columns) -> tuple[int, int, Columns]:
    """Return (row after a gap, row with a lower epoch than its predecessor, the entries in offset order).

    A row is NOWHERE if there is none.
    """
    offsets, epochs, checksums = columns
    hole, fall = irregular(offsets, epochs)
    if hole != NOWHERE and np.any(offsets[1:] < offsets[:-1]):
        order = np.argsort(offsets, kind="stable")
        columns = offsets[order], epochs[order], checksums[order]
        hole, fall = irregular(columns[0], columns[1])
    return hole, fall, columns


def _combine(run: StoredRun, parts: Sequence[Sequence[RangeMatches]]) -> Verdict:
    findings = [finding for part in parts for finding in part]
    names = sorted({name for f in findings for name in f.logs})
    different, equal = _join(names, findings)
    unknown = gaps(run, "logs")
    everyone = run.servers
    if len(everyone) == 1 and not unknown:
        words = f"{everyone[0]} is the only server: there is no other log to compare with"
        return Verdict(Validity.NOT_APPLICABLE, reason=words)
    empty = sorted(set(everyone) - set(run.damaged_from) - {node for node, _ in names})
    unknown += [f"no copy of the log of {node} holds an entry" for node in empty]
    owner = np.array([node for node, _ in names])
    met = np.argwhere(((different >= 0) | (equal >= 0)) & (owner[:, None] != owner[None, :]))
    pairs_of_nodes = {frozenset((owner[i], owner[j])) for i, j in met}
    if not pairs_of_nodes:
        unknown.append("no logs of two nodes have an offset in common")
    forked = np.argwhere((different >= 0) & (equal >= different))
    pairs = [(names[i], names[j], int(different[i, j])) for i, j in forked if i < j]
    files = node_files(run.log)
    witnesses = [_fork(files, *pair) for pair in _one_per_nodes(pairs, run)]
    witnesses += _broken(files, findings)
    looked_at = {
        "nodes": len({node for node, _ in names}),
        "copies": len({copy for _, copy in names}),
        "logs": len(names),
        "entries": sum(f.entries for f in findings),
        "pairs of logs": len(names) * (len(names) - 1) // 2,
        "pairs of nodes with entries at equal offsets": len(pairs_of_nodes),
    }
    return conclude(witnesses, looked_at, unknown)


def _join(names: list[LogName], findings: Sequence[RangeMatches]) -> tuple[Any, Any]:
    """Return, per pair of logs, the first offset that differs and the last offset of equal epochs over all ranges."""
    number = {name: i for i, name in enumerate(names)}
    nothing = np.iinfo(np.int64).max
    different = np.full((len(names), len(names)), nothing, np.int64)
    equal = np.full((len(names), len(names)), NOWHERE, np.int64)
    for finding in findings:
        if not finding.logs:
            continue
        size = max(finding.class_of) + 1
        d = np.full((size, size), nothing, np.int64)
        e = np.full((size, size), NOWHERE, np.int64)
        for (a, b), (first, last) in finding.compared.items():
            d[a, b] = d[b, a] = nothing if first == NOWHERE else first
            e[a, b] = e[b, a] = last
        rows = np.array([number[name] for name in finding.logs])
        kinds = np.array(finding.class_of)
        here = np.ix_(rows, rows)
        different[here] = np.minimum(different[here], d[np.ix_(kinds, kinds)])
        equal[here] = np.maximum(equal[here], e[np.ix_(kinds, kinds)])
    different[different == nothing] = NOWHERE
    return different, equal


def _one_per_nodes(pairs: list[tuple[LogName, LogName, int]], run: StoredRun) -> list[tuple[LogName, LogName, int]]:
    """Return the latest pair of copies per offset and pair of nodes whose logs fork there, lowest offset first."""
    latest: dict[tuple[str, str, int], tuple[LogName, LogName, int]] = {}
    for pair in sorted(pairs, key=lambda p: (p[0][1], p[1][1])):
        (a, _), (b, _), d = pair
        latest[min(a, b), max(a, b), d] = pair
    return sorted(latest.values(), key=lambda p: (p[2], p[0], p[1]))


def _fork(files: dict[str, str], a: LogName, b: LogName, different: int) -> Witness:
    """Return the witness for two logs: the two entries that differ, and the next two entries with equal epochs."""
    meeting = _first_equal_epoch(files, a, b, different)
    rows_a = log_rows(files[a[0]], a[1], (different, meeting))
    rows_b = log_rows(files[b[0]], b[1], (different, meeting))
    return fork(a, b, different, meeting, rows_a[-1]["epoch"], tuple(rows_a + rows_b))


def fork(a: LogName, b: LogName, different: int, meeting: int, epoch: int, rows: tuple[Row, ...] = ()) -> Witness:
    """Return the witness of two logs that differ at offset `different` and have equal epochs at offset `meeting`.

    meeting: at least `different`
    """
    same = meeting == different
    where = (
        f"in the same entry of epoch {epoch}" if same else f"though both have an entry of epoch {epoch} at {meeting}"
    )
    return Witness.of(
        "logs differ below an equal epoch",
        f"The logs of {_name(a)} and {_name(b)} differ at offset {different}, {where}.",
        rows,
        nodes=[a[0], b[0]],
        copies=[a[1], b[1]],
        epoch=epoch,
        offset=different,
        equal_epoch_at=meeting,
        why=[
            f"At offset {different} the two logs hold different entries.",
            f"At offset {meeting} both hold an entry that the leader of epoch {epoch} placed there.",
            "A follower appends an entry only if it has the entry before it, so all entries below should be equal.",
        ],
        expected=f"equal logs up to offset {meeting}",
    )


def _name(log: LogName) -> str:
    return f"{log[0]} (copy {log[1]})" if log[1] >= 0 else f"{log[0]} (as it ran)"


def _first_equal_epoch(files: dict[str, str], a: LogName, b: LogName, start: int) -> int:
    def epochs(log: LogName) -> dict[int, int]:
        table = read_table(files[log[0]], ["offset", "epoch"], log[1])
        table = table.filter(pc.greater_equal(table["offset"], start))
        return dict(zip(table["offset"].to_pylist(), table["epoch"].to_pylist(), strict=True))

    of_a, of_b = epochs(a), epochs(b)
    return min(offset for offset, epoch in of_a.items() if of_b.get(offset) == epoch)


def _broken(files: dict[str, str], findings: Sequence[RangeMatches]) -> list[Witness]:
    """Return the witnesses of logs with a gap or a decreasing epoch, inside a range or between two ranges."""
    holes = {log: offset for f in reversed(findings) for log, offset in f.holes}
    falls = {log: offset for f in reversed(findings) for log, offset in f.falls}
    before: dict[LogName, tuple[int, int]] = {}
    behind = 0
    for finding in findings:
        before = before if finding.first == behind else {}  # after a skipped range the last entries are unknown
        behind = finding.first + RANGE
        for log, (first, last, first_epoch, last_epoch) in zip(finding.logs, finding.edges, strict=True):
            if log in before and first != before[log][0] + 1:
                holes.setdefault(log, first)
            if log in before and first_epoch < before[log][1]:
                falls.setdefault(log, first)
            before[log] = (last, last_epoch)
    return [
        wrong_alone(kind, log, offset, rows[-1]["epoch"], tuple(rows))
        for kind, found in ((HOLE, holes), (FALL, falls))
        for log, offset in sorted(found.items())
        for rows in [log_rows(files[log[0]], log[1], (offset - 1, offset))]
    ]


def wrong_alone(kind: str, log: LogName, offset: int, epoch: int, rows: tuple[Row, ...] = ()) -> Witness:
    """Return the witness of a log with a gap just before an offset (HOLE) or a lower epoch at the offset (FALL)."""
    why = "the entry before it is missing" if kind == HOLE else "its epoch is below that of the entry before it"
    summary = f"In the log of {_name(log)}, offset {offset}: {why}."
    of_log: dict[str, Any] = {"nodes": [log[0]], "copies": [log[1]], "epoch": epoch, "offset": offset}
    return Witness.of(kind, summary, rows, expected="offsets without a gap, and rising epochs", **of_log)


LOG_MATCHING = Checker(
    name="log-matching",
    title="Log matching",
    question="Where two logs have an entry of the same epoch at the same offset, are they equal up to there?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"logs"}),
)
