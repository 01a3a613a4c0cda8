"""A leader commits entries of older epochs only together with an entry of its own (Raft, figure 8).

Ongaro & Ousterhout 2014, section 5.4.2; KIP-595.  A majority may hold an entry of an older epoch, and a later leader
may still replace it.  So a leader counts replicas only for entries of its own epoch.  A leader's `role` row shows where
its epoch starts in its log; each entry from there on is of its epoch.  A mark at or below that start covers none of
them.  If such a mark is higher than every mark that the process reported before, the leader has raised it by counting:
a violation.  A process that repeats what it learned as a follower raises nothing.

All rows are of one node, ordered by `seq`: no clock and no other node is compared.

A part is the trace of one node.  Cost and memory: linear in its marks and roles, 60 bytes each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget, Part
from checkers.base.run_evidence import coded, numbers, read_trace
from checkers.base.verdict import Witness
from checkers.raft.trace_findings_to_verdict import TraceFinding, beyond_budget, trace_checker
from checkers.raft.witness_rows import WITNESSES_PER_PART, Fetch, Row, fetched_from, in_trace, whole

EVENTS = {"start": 0, "role": 1, "high-watermark": 2}
_START, _ROLE, _MARK = EVENTS.values()
_ROW_SIZE_BYTES = 60


def _judge(part: Part, budget: Budget) -> TraceFinding:
    path = part.paths[0]
    rows = read_trace(path, EVENTS, ("epoch", "offset", "role"))
    if excess := beyond_budget(path, len(rows), _ROW_SIZE_BYTES, budget):
        return TraceFinding(unknown=excess)
    marks, early = _early(rows)
    counts = {"leaders' high watermarks": marks, **({"violations": len(early)} if early else {})}
    return TraceFinding(tuple(_witnesses(rows, early, fetched_from(path))), counts)


def marks_of_older_epochs(rows: pa.Table) -> list[Witness]:
    """Marks that a leader raised without an entry of its epoch.  rows: those of EVENTS of one node, in seq order."""
    return _witnesses(rows, _early(rows)[1], whole)


def still_needed(rows: pa.Table) -> Sequence[int]:
    """The rows that decide about later marks: the last change of role and, of this process, the highest mark."""
    event, offset = coded(rows, "event", EVENTS), numbers(rows, "offset")
    begin = int(np.flatnonzero(event == _START)[-1]) if (event == _START).any() else 0
    marks = begin + np.flatnonzero(event[begin:] == _MARK)
    changes = np.flatnonzero(event != _MARK)
    kept = [begin, *changes[-1:].tolist()]
    return kept + ([int(marks[np.argmax(offset[marks])])] if len(marks) else [])


def _early(rows: pa.Table) -> tuple[int, list[tuple[int, int]]]:
    """How many marks leaders reported, and (role, mark) of those that cover no entry of their epoch."""
    event, offset = coded(rows, "event", EVENTS), numbers(rows, "offset")
    office = _office(rows, event)
    marks = np.flatnonzero((event == _MARK) & (office >= 0))
    raised = offset[marks] > _highest_before(event, offset)[marks]
    early = marks[raised & (offset[marks] > 0) & (offset[marks] <= offset[office[marks]])]
    return len(marks), list(zip(office[early].tolist(), early.tolist(), strict=True))


def _witnesses(rows: pa.Table, early: Sequence[tuple[int, int]], fetch: Fetch) -> list[Witness]:
    return [_witness(fetch(rows, office), fetch(rows, mark)) for office, mark in early[:WITNESSES_PER_PART]]


def _office(rows: pa.Table, event: Int64) -> Int64:
    """Return, for each row, the row in which the node became leader; -1 if it does not lead or reported no start."""
    leads = (event == _ROLE) & (coded(rows, "role", {"leader": 1}) == 1) & (numbers(rows, "offset") >= 0)
    changes: Bools = event != _MARK
    at = np.arange(len(event))
    last = np.maximum.accumulate(np.where(changes, at, -1)) if len(at) else at
    return np.where((last >= 0) & leads[np.maximum(last, 0)], last, -1)


def _highest_before(event: Int64, offset: Int64) -> Int64:
    """Return, for each row, the highest mark that its process reported before, or -1."""
    highest = np.full(len(event), -1, np.int64)
    starts = np.flatnonzero(event == _START).tolist()
    for first, end in zip([0, *starts], [*starts, len(event)], strict=True):
        marks = np.where(event[first:end] == _MARK, offset[first:end], -1)
        if len(marks) > 1:
            highest[first + 1 : end] = np.maximum.accumulate(marks)[:-1]
    return highest


def _witness(office: Row, mark: Row) -> Witness:
    node, epoch, start = office["node"], office["epoch"], office["offset"]
    return Witness(
        kind="mark without an entry of its epoch",
        summary=f"{node} led epoch {epoch} from offset {start} on, and called everything below offset "
        f"{mark['offset']} committed without an entry of its own epoch.",
        rows=(office, mark),
        facts={
            "nodes": [node],
            "epoch": epoch,
            "offset": mark["offset"],
            "why": [
                f"{node} became leader of epoch {epoch}, which starts at offset {start} ({in_trace(office)}).",
                f"It raised its high watermark to {mark['offset']} ({in_trace(mark)}): all entries below are older.",
            ],
            "expected": "a leader commits older entries only together with one of its own epoch: a later leader may "
            "still replace them",
        },
    )


COMMITS_OWN_EPOCH = trace_checker(
    name="commit-own-epoch",
    title="A leader commits an entry of its own epoch first",
    question="Did every leader commit older entries only together with one of its own epoch?",
    judge=_judge,
    needed=lambda run: ["leaders' high watermarks"],
)
