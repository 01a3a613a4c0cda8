"""Leader completeness: a leader holds, from its first moment, all that was committed in earlier epochs.

Ongaro & Ousterhout 2014, figure 3 and section 5.4.  A leader reports where its log ended when it took office (`role`,
offset = epoch start offset).  Every node reports what was committed in which epoch (`high-watermark`, with the hash of
the prefix).  Epochs order them, so no two clocks are compared.  A leader of epoch e must have, of every mark of an
epoch below e:

- the length: its log reached at least to the mark;
- the content: the same prefix hash there.  Any copy of its log, taken before or after, shows what the log held when it
  took office, as far as nothing was cut in between: up to the smallest end that its own trace reports on the way
  (truncations, restarts, the copy's own end).

If no copy shows the content, only the length is judged; committed-never-lost and log-matching look at the rest.

A part is one node, with the marks of all nodes.  Cost: linear in marks and in the entries of that node's copies;
memory: the distinct marks and one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import BeyondBudget, coded, conclude, gaps, numbers, read_trace, trace_row
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness
from checkers.kernels.raft.compared_rows import NOWHERE
from checkers.kernels.raft.marks import holds
from checkers.kernels.raft.node_logs import shared_prefix
from checkers.raft.commits.committed_evidence import holder_of, parting
from checkers.raft.commits.high_watermarks import ReportedMarks, read_log, reported_marks
from checkers.raft.trace_findings_to_verdict import nothing_of
from checkers.raft.witness_rows import Row, in_trace

_CUTS = ("truncate", "start")


@dataclass(frozen=True, slots=True)
class Lacking:
    """A leader that lacks a mark of an earlier epoch.  copy: the copy that shows it, None if the log was too short."""

    office: Row
    mark: Row
    copy: Row | None = None


@dataclass(frozen=True, slots=True)
class LeaderFinding:
    lacking: tuple[Lacking, ...] = ()
    offices: int = 0
    compared: int = 0
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class _Offices:
    """The terms of office of one node."""

    epoch: Int64
    start: Int64
    seq: Int64


def _split(run: StoredRun) -> list[Part]:
    traces, logs = node_files(run.trace), node_files(run.log)
    copied = [c for c in run.copies if not c["error"]]
    return [
        Part(
            tuple(traces.values()),
            {"trace": path, "log": logs.get(node), "copies": [c for c in copied if c["node"] == node]},
        )
        for node, path in traces.items()
    ]


def _judge(part: Part, budget: Budget) -> LeaderFinding:
    trace = part.params["trace"]
    offices = _offices(trace)
    if len(offices.seq) == 0:
        return LeaderFinding()
    try:
        reported = reported_marks(part.paths, budget)
        lacking = _too_short(trace, offices, reported)
        compared = 0
        if part.params["log"] is not None:
            found, compared = _of_other_content(part, offices, reported, budget)
            lacking += found
    except BeyondBudget as problem:
        return LeaderFinding(offices=len(offices.seq), unknown=str(problem))
    return LeaderFinding(tuple(lacking), len(offices.seq), compared)


def _offices(trace: str) -> _Offices:
    roles = read_trace(trace, ("role",), ("epoch", "offset", "role"))
    leads = coded(roles, "role", {"leader": 1}) == 1
    epoch, start, seq = (numbers(roles, name)[leads] for name in ("epoch", "offset", "seq"))
    known = start >= 0
    return _Offices(epoch[known], start[known], seq[known])


def _too_short(trace: str, offices: _Offices, reported: ReportedMarks) -> list[Lacking]:
    """Find terms of office whose log ended below a mark of an earlier epoch, with the largest such mark."""
    order = np.argsort(reported.marks.epoch, kind="stable")
    highest = np.maximum.accumulate(reported.marks.offset[order])
    place = np.searchsorted(reported.marks.epoch[order], offices.epoch, side="left") - 1
    lacking = []
    for i in np.flatnonzero(place >= 0).tolist():
        if highest[place[i]] > offices.start[i]:
            at = order[int(np.searchsorted(highest, highest[place[i]]))]  # where the maximum was reached
            lacking.append(Lacking(trace_row(trace, int(offices.seq[i])), reported.row(int(at))))
    return lacking


def _of_other_content(
    part: Part, offices: _Offices, reported: ReportedMarks, budget: Budget
) -> tuple[list[Lacking], int]:
    """Find, per term of office, the smallest mark of an earlier epoch that it did not hold according to a copy.

    Returns (findings, how many pairs of office and copy were compared)."""
    cuts = read_trace(part.params["trace"], _CUTS, ("offset",))
    cut_seqs, cut_offsets = numbers(cuts, "seq"), numbers(cuts, "offset")
    found: dict[int, Lacking] = {}
    compared = 0
    for copy in part.params["copies"]:
        shared = [
            shared_prefix(cut_seqs, cut_offsets, (copy["trace_seq"], copy["log_end"]), (int(seq), int(start)))
            for seq, start in zip(offices.seq, offices.start, strict=True)
        ]
        if max(shared) <= 0:
            continue
        lacks = _contradicted(part.params["log"], copy["copy"], reported, budget)
        for i, end in enumerate(shared):
            compared += end > 0
            wrong = np.flatnonzero(lacks & (reported.marks.offset <= end) & (reported.marks.epoch < offices.epoch[i]))
            if len(wrong) and i not in found:
                office = trace_row(part.params["trace"], int(offices.seq[i]))
                found[i] = Lacking(office, reported.row(int(wrong[0])), copy)
    return [found[i] for i in sorted(found)], compared


def _contradicted(path: str, copy: int, reported: ReportedMarks, budget: Budget) -> Bools:
    """Return which marks have a known hash that differs from this copy's hash at the same offset."""
    log = read_log(path, copy, budget)
    return holds(log, reported.marks)[1] & reported.marks.known & (reported.marks.offset <= log.end)


def _combine(run: StoredRun, findings: Sequence[LeaderFinding]) -> Verdict:
    lacking = [x for f in findings for x in f.lacking]
    witnesses = [_witness(run, x) for x in sorted(lacking, key=lambda x: (x.office["epoch"], x.copy is not None))]
    looked_at = {
        "nodes": len(node_files(run.trace)),
        "terms of office": sum(f.offices for f in findings),
        "copies compared with the log a leader began with": sum(f.compared for f in findings),
    }
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs", "traces")
    unknown += nothing_of(looked_at, "terms of office")
    return conclude(witnesses, looked_at, unknown)


def _witness(run: StoredRun, lacking: Lacking) -> Witness:
    office, mark, copy = lacking.office, lacking.mark, lacking.copy
    leader, epoch, start = office["node"], office["epoch"], office["offset"]
    committed = (
        f"{mark['node']} reported in epoch {mark['epoch']} that everything below offset {mark['offset']} is committed"
    )
    rows: list[Row] = [mark, office]
    at, copies_shown, nodes = start, [], [leader, mark["node"]]
    if copy is None:
        lack = f"its log ended at offset {start}"
    else:
        at, shown, other = _parting(run, mark, (leader, copy["copy"]))
        rows += shown
        copies_shown = [copy["copy"]]
        lack = f"copy {copy['copy']} ({copy['when']}) shows that its log held something else there"
        if at != NOWHERE and other is not None:
            nodes.append(other)
            lack += f", from offset {at} on"
    return Witness(
        kind="leader without a committed entry",
        summary=f"{leader} became leader of epoch {epoch} without what was committed before: {committed}, but {lack}.",
        rows=tuple(rows),
        facts={
            "nodes": list(dict.fromkeys(nodes)),
            "copies": copies_shown,
            "epoch": epoch,
            "offset": at if at != NOWHERE else mark["offset"] - 1,
            "committed_below": mark["offset"],
            "why": [
                f"{committed} ({in_trace(mark)}).",
                f"{leader} became leader of the later epoch {epoch} ({in_trace(office)}), and {lack}.",
            ],
            "expected": "a leader holds every entry committed in an earlier epoch: a majority holds it, and a majority "
            "votes only for a log as complete as its own",
        },
    )


def _parting(run: StoredRun, mark: Row, leader: tuple[str, int]) -> tuple[int, list[Row], str | None]:
    """Return (offset where the leader's log differs from one that holds the mark, the rows there, that log's node).

    The offset is NOWHERE if no copy holds the mark."""
    holder = holder_of(run, mark["offset"], mark["hash"])
    if holder is None:
        return NOWHERE, [], None
    at, rows = parting(run, holder, leader)
    return at, rows, holder[0]


LEADER_COMPLETENESS = Checker(
    name="leader-completeness",
    title="Leader completeness",
    question="Did every leader hold, when it took office, all that was committed in earlier epochs?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"logs", "traces"}),
)
