"""Replay equals live: a fresh replay of a node's own log yields every state that the node reported.

A node keeps the state that its committed entries lead to in memory, and reports the hash of this state when it applies
a batch.
State machine safety compares nodes with each other.  So it finds neither an error that all nodes share nor an error in
a cluster of one node.  For this checker, one copy of each node's log, the last that begins at 0, was replayed into an
empty state machine (schema REPLAYED).  The hashes of the node and of the replay must be equal at each offset that both
report, in every incarnation of the process.

A log that begins after a snapshot is not replayed.  Of a very long log only the beginning is replayed.

A part is one node.  Cost: linear in its rows of applied states; memory: 32 bytes per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools
from checkers.base.checker import Budget, Checker, Part
from checkers.base.stored_rows import coded, numbers, present, read_trace, trace_row
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import Validity, Verdict, Witness, conclude
from checkers.raft.reading import disks_by_row, nothing_of
from checkers.raft.rules import WITNESSES_PER_PART, Row, hash_words, in_trace

KIND = "a replay of the log leads to another state"
ROW_SIZE_BYTES = 32


@dataclass(frozen=True, slots=True)
class ReplayedFinding:
    """Finding on one node.

    applied: number of states that the node reported
    compared: number of these states that the replay shows, too
    replayed: number of states of the replay that the node had applied when its log was copied
    unknown: reason if nothing was compared, or ""
    """

    witnesses: tuple[Witness, ...] = ()
    applied: int = 0
    compared: int = 0
    replayed: int = 0
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    logs = node_files(run.replayed)
    return [
        Part(
            (path, *([logs[node]] if node in logs else [])),
            {"node": node, "copies": [c for c in run.copies if c["node"] == node and not c["error"]]},
        )
        for node, path in node_files(run.trace).items()
    ]


def _judge(part: Part, budget: Budget) -> ReplayedFinding:
    path = part.paths[0]
    copies: list[Row] = part.params["copies"]
    # the log was not replayed; if the node has no readable copy, other checkers report that
    if len(part.paths) == 1:
        return ReplayedFinding(unknown=f"the log of {part.params['node']} was not replayed" if copies else "")
    reports = read_trace(path, ("applied", "disk"), ("offset", "hash", "detail"))
    states = pq.read_table(part.paths[1], columns=["copy", "offset", "hash"], partitioning=None)
    count = len(reports) + len(states)
    budget.demand(count * ROW_SIZE_BYTES, f"{path}: {count} rows")
    replayed_copy = next((c for c in copies if len(states) and c["copy"] == states["copy"][0].as_py()), None)
    if replayed_copy is None:  # the log is empty, starts after a snapshot, or cannot be read
        return ReplayedFinding(applied=int(_is_applied(reports).sum()))
    states = states.filter(pc.less_equal(states["offset"], _applied_when_copied(reports, replayed_copy)))
    rows = reports.filter(pa.array(_is_applied(reports) & present(reports, "hash")))
    offset, seqs, ends = numbers(rows, "offset"), numbers(rows, "seq"), numbers(states, "offset")
    both = np.flatnonzero(np.isin(offset, ends))
    place = np.searchsorted(ends, offset[both])
    expected = numbers(states, "hash")[place]
    differs = np.flatnonzero(expected != numbers(rows, "hash")[both])
    _, first = np.unique(offset[both[differs]], return_index=True)
    witnesses = [
        _witness(trace_row(path, int(seqs[both[at]])), int(expected[at]), replayed_copy["copy"])
        for at in differs[first][:WITNESSES_PER_PART].tolist()
    ]
    return ReplayedFinding(tuple(witnesses), len(rows), len(both), len(states))


def _is_applied(reports: pa.Table) -> Bools:
    is_applied: Bools = coded(reports, "event", {"applied": 1}) == 1
    return is_applied


def _applied_when_copied(reports: pa.Table, copy: Row) -> int:
    """Return the largest offset that the node had applied when this copy of its disk was made; 0 if none."""
    disks = disks_by_row(reports)
    before = (numbers(reports, "seq") <= copy["trace_seq"]) & (disks.number == disks.of_copy(copy))
    return int(numbers(reports, "offset")[before & _is_applied(reports)].max(initial=0))


def _witness(row: Row, replayed: int, copy: int) -> Witness:
    node, offset = row["node"], row["offset"]
    return Witness.of(
        KIND,
        f"{node} applied everything below offset {offset}, and is in another state than a replay of its log.",
        (row,),
        nodes=[node],
        epoch=row["epoch"],
        offset=offset,
        why=[
            f"State of {node} after offset {offset - 1}: hash {hash_words(row['hash'])} ({in_trace(row)}).",
            f"A replay of the log in copy {copy} of {node} leads to hash {hash_words(replayed)} there.",
        ],
        expected="the state follows from the log alone",
    )


def _combine(run: StoredRun, findings: Sequence[ReplayedFinding]) -> Verdict:
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs", "traces")
    if not unknown and not any(f.replayed for f in findings):
        return Verdict(Validity.NOT_APPLICABLE, reason="no copied log begins at offset 0 and holds a committed entry")
    looked_at = {
        "applied states": sum(f.applied for f in findings),
        "states compared": sum(f.compared for f in findings),
    }
    unknown += nothing_of(looked_at, "states compared")
    return conclude([w for f in findings for w in f.witnesses], looked_at, unknown)


REPLAY_EQUALS_LIVE = Checker(
    name="replay-equals-live",
    title="A replay of the log leads to the live state",
    question="Does a fresh replay of each node's own log lead to every state that the node reported?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"logs", "traces", "kraft-steps"}),
)
