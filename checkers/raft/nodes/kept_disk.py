"""A node has another disk than before only where a fault took the one that it had (KIP-853).

All checkers of traces take a node whose directory id changed for another replica, which owes nothing of what the one
before it voted, held or reported (`raft/disks_by_row.py`).  So the change itself needs a reason.  A node that formats
its disk anew at a start loses its vote and its log, and no other checker would object.

A change is explained by a fault that wipes disks or damages data, was carried out on this node, and was in force at
some time between the last row of the old disk and the first row of the new one.  A fault that damages data stays in
force.  Where the nodes have clocks of their own, such times cannot be compared: any such fault on the node explains it.

The same holds for a copy of a disk that no row of the trace names, because no row of the trace is compared with it.

Not applicable where no trace names a disk.  One part per node.  Cost: linear in the rows of a trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from checkers.base.checker import Budget, Checker, Part
from checkers.base.clocks import one_clock
from checkers.base.columns import TRACE_EVENTS
from checkers.base.run_evidence import numbers, read_trace
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.raft.disks_by_row import EVENT, UNKNOWN, disks_by_row
from checkers.raft.trace_findings_to_verdict import TraceFinding, beyond_budget, conclude_traces, part_per_node
from checkers.raft.witness_rows import WITNESSES_PER_PART, Fetch, Row, copy_row, fetched_from, in_trace, whole
from checkers.record.faults import FaultRecord

KIND = "disk replaced without a fault"
ROW_SIZE_BYTES = 40
NAMED, REPLACED = "disks named", "disks replaced"
_FOREVER_NS = 2**62
Span = tuple[int, int]
"""From when to when a fault may have taken a disk, in ns since the test began; both ends are included."""


def spans_of_loss(faults: Sequence[FaultRecord], node: str) -> list[Span]:
    """When faults may have taken the disk of this node."""
    return [
        (fault.began_ns, _FOREVER_NS if fault.damages_data else fault.end_ns(_FOREVER_NS))
        for fault in faults
        if fault.carried_out and node in fault.nodes and (fault.wipes_disks or fault.damages_data)
    ]


def _split(run: StoredRun) -> list[Part]:
    comparable = one_clock(run.header)
    anytime = (-_FOREVER_NS, _FOREVER_NS)
    parts = part_per_node(run)
    taken_ns = {(copy.copy, copy.node): copy.taken_ns for copy in run.copies_index}
    for part in parts:
        part.params["taken_ns"] = {c["copy"]: taken_ns.get((c["copy"], c["node"]), -1) for c in part.params["copies"]}
        spans = spans_of_loss(run.faults, part.params["node"])
        part.params["spans"] = spans if comparable else [anytime for _ in spans]
    return parts


def _judge(part: Part, budget: Budget) -> TraceFinding:
    path = part.paths[0]
    rows = read_trace(path, TRACE_EVENTS, ("time_ns", "detail"))
    if excess := beyond_budget(path, len(rows), ROW_SIZE_BYTES, budget):
        return TraceFinding(unknown=excess)
    spans, fetch = part.params["spans"], fetched_from(path)
    in_copies = unexplained_copies(rows, part.params["copies"], part.params["taken_ns"], spans, fetch)
    found = unexplained_starts(rows, spans, fetch)
    return replace(found, witnesses=(*found.witnesses, *in_copies))


def unexplained_starts(rows: pa.Table, spans: Sequence[Span], fetch: Fetch = whole) -> TraceFinding:
    """Find the starts with a disk that replaced another one for no known reason.  rows: of one node, in seq order."""
    disks, time_ns = disks_by_row(rows), numbers(rows, "time_ns")
    firsts = np.flatnonzero(np.diff(disks.number) > 0) + 1
    witnesses = []
    for new in firsts.tolist():
        if not _explained(spans, int(time_ns[new - 1]), int(time_ns[new])):
            named = int(np.flatnonzero(disks.is_report[:new])[-1])
            row = fetch(rows, new)
            witnesses.append(_witness(fetch(rows, named), row, row["detail"], f"at a start ({in_trace(row)})"))
    counts = {NAMED: int(disks.is_report.sum()), REPLACED: len(firsts)}
    return TraceFinding(tuple(witnesses[:WITNESSES_PER_PART]), counts)


def unexplained_copies(
    rows: pa.Table, copies: Sequence[Row], taken_ns: Mapping[int, int], spans: Sequence[Span], fetch: Fetch = whole
) -> list[Witness]:
    """Find the copies of a disk that no row names, for no known reason.

    rows: of one node, in seq order.  copies: rows of COPIES of this node.  taken_ns: number of a copy -> when it was
    complete; -1 if that is not known."""
    disks, seq, time_ns = disks_by_row(rows), numbers(rows, "seq"), numbers(rows, "time_ns")
    witnesses = []
    for copy in copies:
        named = np.flatnonzero(disks.is_report & (seq <= copy["trace_seq"]))
        if copy.get("disk") is None or disks.of_copy(copy) != UNKNOWN or len(named) == 0:
            continue
        last = int(np.searchsorted(seq, copy["trace_seq"], side="right")) - 1
        taken = taken_ns.get(copy["copy"], -1)
        if not _explained(spans, int(time_ns[last]), taken if taken >= 0 else _FOREVER_NS):
            row = copy_row(copy)
            where = f"in copy {copy['copy']} ({copy['when']})"
            witnesses.append(_witness(fetch(rows, int(named[-1])), row, copy["disk"], where))
    return witnesses[:WITNESSES_PER_PART]


def _explained(spans: Sequence[Span], gone_ns: int, there_ns: int) -> bool:
    """gone_ns: the last sign of the old disk.  there_ns: the first sign of the new one."""
    return any(from_ns <= there_ns and to_ns >= gone_ns for from_ns, to_ns in spans)


def _witness(named: Row, new: Row, disk: str, where: str) -> Witness:
    """named: the row that names the old disk.  new: the row of the new one."""
    node = named["node"]
    return Witness(
        kind=KIND,
        summary=f"{node} had the disk {named['detail']} and then the disk {disk}, and no fault had taken its disk.",
        rows=(named, new),
        facts={
            "nodes": [node],
            "epoch": named["epoch"],
            "offset": None,
            "why": [
                f"{node} named the disk {named['detail']} ({in_trace(named)}).",
                f"It had the disk {disk} {where}.",
                f"No fault that wipes disks or damages data was in force on {node} in between.",
            ],
            "expected": "a node keeps the directory id of its disk, and with it its vote and its log",
        },
    )


def _combine(run: StoredRun, findings: Sequence[TraceFinding]) -> Verdict:
    if not any(f.unknown or f.counts.get(NAMED) for f in findings):
        return Verdict(Validity.NOT_APPLICABLE, reason="no trace names a disk")
    return conclude_traces(run, findings)


KEPT_DISK = Checker(
    name="kept-disk",
    title="Nodes keep their disks",
    question=f"Did the directory id of a node's disk (its `{EVENT}` rows) change only where a fault took the disk?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"traces"}),
)
