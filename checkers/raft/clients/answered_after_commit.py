"""An answer rests on committed entries: the answering node knew of the commit before its answer arrived.

A write may be acknowledged only when the answering node's high watermark covers its entry.  A read may return only a
value whose entry lies below that mark (KIP-595).  Both rules compare a time in a trace with a time in the history. That
is sound only on one monotonic clock.  There, the row of a mark is stamped before it is written, the answer leaves
afterwards, and the harness stamps the answer after it has arrived.  So a mark that covers the entry has a time at or
before the completion's.

Not applicable where the servers do not share the harness' clock: another backend than those of one machine, or a Docker
engine in a virtual machine, whose traces have times outside of the test.  On the harness' own kernel such times cannot
be right, so the verdict is unknown.  Nor is it applicable where clients write a value twice, because then no value
names its entry.  A value that stands at several offsets, or at none in the answering node's final log, is left to
other checkers.

A part is one node and some of the keys: one reading of the node's final log and of the history, a chunk at a time.
Memory: 100 bytes for each entry of those keys, and 20 bytes for each mark of the node.  The history's length does not
matter, and a longer log is split into more parts.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.clocks import one_clock, one_kernel
from checkers.base.history import NEMESIS, Type
from checkers.base.run_evidence import (
    conclude,
    gaps,
    log_groups,
    numbers,
    present,
    read_entries,
    read_trace,
)
from checkers.base.stored_run import StoredRun, by_number, node_files
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.raft.client_writes import (
    SIZE_BYTES_PER_NAME,
    WRITES,
    Entries,
    WantedNames,
    function_is,
    offset_ranges,
)
from checkers.raft.reading import nothing_of
from checkers.raft.trace_row import WITNESSES_PER_PART
from checkers.sealing.codes import Words, dictionary_codes
from checkers.sealing.history_rows import chunks_of_groups, read_rows

ENTRIES_PER_PART = 1 << 22

_SHOWN = ("index", "time_ns", "process", "type", "f", "key", "value", "node")

_SLACK_NS = 120_000_000_000
"""The longest time between the last row of the history and the collection of traces."""


@dataclass(frozen=True, slots=True)
class AnswersFinding:
    """answers: of this node that could be judged.  foreign_clock: its trace has times outside of the test."""

    node: str
    witnesses: tuple[Witness, ...] = ()
    answers: int = 0
    foreign_clock: bool = False
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    traces, logs = node_files(run.trace), node_files(run.log)
    final = {c["node"]: c["copy"] for c in run.copies if c["when"] == "final" and not c["error"]}
    if not one_clock(run.header) or not run.history.exists():
        return []
    parts = []
    for node, path in traces.items():
        if node in logs and node in final:
            metadata = pq.read_metadata(logs[node])
            groups = log_groups(metadata, final[node])
            entries = sum(metadata.row_group(group.number).num_rows for group in groups)
            count = -(-max(1, entries) // ENTRIES_PER_PART)
            params = {"node": node, "copy": final[node], "count": count}
            parts += [Part((str(run.history), path, logs[node]), {**params, "number": n}) for n in range(count)]
    return parts


def _judge(part: Part, budget: Budget) -> AnswersFinding:
    (history, trace, log), node = part.paths, part.params["node"]
    marks = read_trace(trace, ("high-watermark",), ("offset", "time_ns"))
    names, offset = _once(log, part)
    needed_bytes = len(names) * SIZE_BYTES_PER_NAME + len(marks) * 20
    if needed_bytes > budget.size_bytes:
        return AnswersFinding(
            node, unknown=f"{log}: {needed_bytes} bytes exceed the budget of {budget.size_bytes} bytes"
        )
    times = numbers(marks, "time_ns")
    covered = _covered_at(numbers(marks, "offset"), times, offset)
    early: list[tuple[int, int, int]] = []  # time of the answer, its row, offset
    first_row = answers = ended_ns = 0
    for rows in chunks_of_groups(history, ("time_ns", "process", "type", "f", "key", "value", "node")):
        answered = numbers(rows, "time_ns")
        ended_ns = max(ended_ns, int(answered.max()))
        number = names.number(rows, _is_answer(rows, node))
        at = np.flatnonzero(number >= 0)
        at = at[offset[number[at]] >= 0]
        name = number[at]
        answers += len(at)
        wrong = covered[name] > answered[at]
        found = zip(answered[at[wrong]], first_row + at[wrong], offset[name[wrong]], strict=True)
        early = sorted([*early, *((int(t), int(r), int(o)) for t, r, o in found)])[:WITNESSES_PER_PART]
        first_row += len(rows)
    if out_of_test(times, ended_ns):
        return AnswersFinding(node, foreign_clock=True)
    events = read_rows(Path(history), [row for _, row, _ in early], _SHOWN) if early else []
    witnesses = [
        _witness(node, {"table": "history", **event, "offset": offset})
        for event, (_, _, offset) in zip(events, early, strict=True)
    ]
    return AnswersFinding(node, tuple(witnesses), answers)


def out_of_test(times_ns: Int64, ended_ns: int) -> bool:
    """Return whether these times of a trace cannot be of the harness' clock.  ended_ns: the last row of the history."""
    return bool(len(times_ns) and (times_ns.min() < 0 or times_ns.max() > ended_ns + _SLACK_NS))


def other_clock(run: StoredRun, strangers: Sequence[str]) -> Verdict | None:
    """Return the verdict if times cannot be compared.  strangers: nodes with times outside of the test."""
    if strangers and one_kernel(run.header):
        reason = f"times in the trace of {', '.join(strangers)} lie outside of the test, and there is only one clock"
        return Verdict(Validity.UNKNOWN, reason=reason)
    if strangers or not one_clock(run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason="the servers do not share a monotonic clock with the harness")
    return None


def _is_answer(rows: pa.Table, node: str) -> Bools:
    """Return which rows are reads and writes of one value that this node answered."""
    nodes, words = dictionary_codes(rows["node"])
    mine = (nodes == words.index(node)) if node in words else np.zeros(len(rows), np.bool_)
    mine &= (numbers(rows, "type") == Type.OK) & (numbers(rows, "process") != NEMESIS)
    return np.asarray(mine & present(rows, "key") & present(rows, "value") & function_is(rows, "read", *WRITES))


def _once(log: str, part: Part) -> tuple[WantedNames, Int64]:
    """Return (the values that entries of the part's keys set, the offset of each or -1 if it has several)."""
    keys = Words()
    pieces = []
    for first, end in offset_ranges([log]):
        rows = read_entries(log, part.params["copy"], first, ("key", "value"), end)
        entries = Entries.of(rows, keys)
        mine = np.array([zlib.crc32(key.encode()) % part.params["count"] for key in keys.words], np.int64)
        pieces.append(entries.taken(np.flatnonzero((mine[entries.key] == part.params["number"]) & entries.has_value)))
    names, name_of = WantedNames.of(pieces, keys)
    offset, times = np.full(len(names), -1, np.int64), np.zeros(len(names), np.int64)
    for entries, name in zip(pieces, name_of, strict=True):
        offset[name] = entries.offset
        times += np.bincount(name, minlength=len(names))
    return names, np.where(times == 1, offset, -1)


def _covered_at(marks: Int64, times: Int64, offsets: Int64) -> Int64:
    """Return when the node first reported a mark above each offset; the largest int64 if it never did."""
    never = np.iinfo(np.int64).max
    order = np.argsort(marks, kind="stable")
    first = np.append(np.minimum.accumulate(times[order][::-1])[::-1], never)
    return np.asarray(first[np.searchsorted(marks[order], offsets, side="right")], np.int64)


def _witness(node: str, answer: dict[str, Any]) -> Witness:
    what = "acknowledged a write of" if answer["f"] in WRITES else "answered a read with"
    why = (
        f"{node} {what} {answer['value']} to {answer['key']} before it reported that offset {answer['offset']}, "
        "where that value stands, is committed."
    )
    return Witness(
        kind="acknowledged before it was committed" if answer["f"] in WRITES else "read of an uncommitted value",
        summary=why,
        events=(answer,),
        facts={
            "nodes": [node],
            "epoch": None,
            "offset": answer["offset"],
            "key": answer["key"],
            "value": answer["value"],
            "why": [why],
            "expected": "an answer leaves after the node's mark covers the entry that it rests on",
        },
    )


def _combine(run: StoredRun, findings: Sequence[AnswersFinding]) -> Verdict:
    strangers = sorted({f.node for f in findings if f.foreign_clock}, key=by_number)
    if (verdict := other_clock(run, strangers)) is not None:
        return verdict
    looked_at = {"nodes": len({f.node for f in findings}), "answers": sum(f.answers for f in findings)}
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs", "traces")
    unknown += nothing_of(looked_at, "answers")
    return conclude([w for f in findings for w in f.witnesses], looked_at, unknown)


ANSWERED_AFTER_COMMIT = Checker(
    name="answers-after-commit",
    title="Answers rest on committed entries",
    question="Did every answering node know that the entry was committed before its answer arrived?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"history", "logs", "traces", "unique-values", "client-records"}),
    rests_on=frozenset({"times", "answerers"}),
)
