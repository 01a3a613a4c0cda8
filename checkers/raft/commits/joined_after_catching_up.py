"""A voter joins only after it has caught up: its log had reached the leader's before the record that adds it (KIP-853).

Ongaro 2014, section 4.2.1.  A voter that joins with an empty log endangers no entry, but it may be needed for every
majority while it fetches the rest, and nothing commits until then.  So a leader adds a replica that has reached the
end of its log in this epoch, at most CAUGHT_UP_WITHIN_S before.

Servers of one machine share one monotonic clock.  There, a replica stamps its `flush` row before its next Fetch leaves,
and the leader stamps its `voters` row after that Fetch arrived.  So at the time of the leader's row the log of the
replica durably reached at least:

* the first entry of the leader's epoch, and
* everything that the leader's log held CAUGHT_UP_WITHIN_S before.

A replica without a trace counts as one that has caught up.  Not applicable where the servers do not share a clock, or
where no voter joined.  One part.  Cost: linear; memory: 60 bytes a row of all traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.clocks import one_clock
from checkers.base.run_evidence import coded, conclude, gaps, numbers, present, read_trace
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.raft.trace_findings_to_verdict import beyond_budget
from checkers.raft.witness_rows import WITNESSES_PER_PART, Fetch, Row, fetched_from, in_trace

KIND = "voter joined before it had caught up"
CAUGHT_UP_WITHIN_S = 5.0
"""Of the bundled KRaft (`raft.changes`)."""
ROW_SIZE_BYTES = 60

_START, _APPEND, _FLUSH, _TRUNCATE, _SNAPSHOT, _ROLE, _VOTERS = range(7)
EVENTS = {
    "start": _START,
    "append": _APPEND,
    "flush": _FLUSH,
    "truncate": _TRUNCATE,
    "snapshot": _SNAPSHOT,
    "role": _ROLE,
    "voters": _VOTERS,
}
_COLUMNS = ("epoch", "offset", "time_ns", "peer", "role", "detail", "node")


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a log ended, change by change, in the order of time."""

    time_ns: Int64
    end: Int64

    def at(self, time_ns: int) -> int:
        """The last end that was reported by then; 0 before the first."""
        place = int(np.searchsorted(self.time_ns, time_ns, side="right"))
        return int(self.end[place - 1]) if place else 0


@dataclass(frozen=True, slots=True)
class Join:
    """A leader names a voter that its log did not name before.  row: its place in the leader's rows."""

    row: int
    time_ns: int
    voter: str
    epoch: int
    epoch_start: int


@dataclass(frozen=True, slots=True)
class NodeRows:
    """One node's rows of EVENTS in seq order.  written, durable: where its log ended, and as far as it was flushed."""

    rows: pa.Table
    fetch: Fetch
    written: Ends
    durable: Ends


def node_rows(rows: pa.Table, fetch: Fetch) -> NodeRows:
    """rows: as `NodeRows.rows`, with all columns of _COLUMNS."""
    event, time_ns, offset = coded(rows, "event", EVENTS), numbers(rows, "time_ns"), numbers(rows, "offset")
    fetched = (event == _SNAPSHOT) & present(rows, "peer")
    cut = np.isin(event, (_START, _TRUNCATE)) | fetched
    written, durable = cut | (event == _APPEND), cut | (event == _FLUSH)
    return NodeRows(rows, fetch, Ends(time_ns[written], offset[written]), Ends(time_ns[durable], offset[durable]))


def joins(rows: pa.Table) -> Iterator[Join]:
    """The voters that this node added while it led."""
    columns = [rows[name].to_pylist() for name in ("event", "epoch", "offset", "time_ns", "role", "detail")]
    latest: tuple[int, frozenset[str]] | None = None
    start: int | None = None
    for at, (event, epoch, offset, time_ns, role, detail) in enumerate(zip(*columns, strict=True)):
        if event == "start":
            latest, start = None, None
        elif event == "role":
            start = offset if role == "leader" else None
        elif event == "voters":
            names = frozenset((detail or "").split())
            if start is not None and latest is not None and offset is not None and offset > latest[0]:
                for voter in sorted(names - latest[1]):
                    yield Join(at, time_ns, voter, epoch, start)
            latest = None if offset is None else (offset, names)


@dataclass(frozen=True, slots=True)
class JoinFinding:
    """joined: how many voters were judged."""

    witnesses: tuple[Witness, ...] = ()
    joined: int = 0
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    files = node_files(run.trace)
    return [Part(tuple(files.values()), {"nodes": list(files)})] if files and one_clock(run.header) else []


def _judge(part: Part, budget: Budget) -> JoinFinding:
    nodes: dict[str, NodeRows] = {}
    count = 0
    for node, path in zip(part.params["nodes"], part.paths, strict=True):
        rows = read_trace(path, EVENTS, _COLUMNS)
        count += len(rows)
        if unknown := beyond_budget(path, count, ROW_SIZE_BYTES, budget):
            return JoinFinding(unknown=unknown)
        nodes[node] = node_rows(rows, fetched_from(path))
    return judge_nodes(nodes)


def judge_nodes(nodes: dict[str, NodeRows]) -> JoinFinding:
    """Judge every voter that joined."""
    witnesses: list[Witness] = []
    joined = 0
    for leader in nodes.values():
        for join in joins(leader.rows):
            replica = nodes.get(join.voter)
            if replica is None:
                continue
            joined += 1
            before = leader.written.at(join.time_ns - round(CAUGHT_UP_WITHIN_S * 1e9))
            needed, reached = max(join.epoch_start + 1, before), replica.durable.at(join.time_ns)
            if reached < needed and len(witnesses) < WITNESSES_PER_PART:
                witnesses.append(_witness(leader.fetch(leader.rows, join.row), join, reached, needed))
    return JoinFinding(tuple(witnesses), joined)


def _witness(row: Row, join: Join, reached: int, needed: int) -> Witness:
    leader = row["node"]
    return Witness(
        kind=KIND,
        summary=f"{leader}, leader of epoch {join.epoch}, made {join.voter} a voter while its log ended at "
        f"offset {reached}; everything below {needed} had been there for it to fetch.",
        rows=(row,),
        facts={
            "nodes": [leader, join.voter],
            "epoch": join.epoch,
            "offset": row["offset"],
            "why": [
                f"{leader} named {row['detail']} as voters at offset {row['offset']} ({in_trace(row)}).",
                f"By then the log of {join.voter} durably ended at offset {reached}.",
                f"Epoch {join.epoch} began at offset {join.epoch_start}, and the log of {leader} reached {needed} "
                f"by {CAUGHT_UP_WITHIN_S:g} s before or with its first entry.",
            ],
            "expected": "a replica becomes a voter once it has caught up, or nothing may commit until it has",
        },
    )


def _combine(run: StoredRun, findings: Sequence[JoinFinding]) -> Verdict:
    if not one_clock(run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason="the servers do not share a monotonic clock")
    joined = sum(f.joined for f in findings)
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "traces")
    if not joined and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason="no voter joined")
    return conclude([w for f in findings for w in f.witnesses], {"voters that joined": joined}, unknown)


JOINED_AFTER_CATCHING_UP = Checker(
    name="voters-caught-up",
    title="Voters join once they have caught up",
    question="Had every voter that joined fetched the leader's log before it counted?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"traces", "kraft-steps"}),
)
