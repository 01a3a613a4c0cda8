"""Replay equals live: a fresh replay of a node's own log leads to every state that the node reported.

A node keeps the state of its committed log in memory and reports its hash as it applies batches.  State machine safety
compares nodes with each other, so it is silent about what is wrong on all of them, or on one that is alone.  Here the
subject has replayed one copy of each node's log, the last that begins at 0, into a state machine that knows nothing
else (schema REPLAYED).  At each offset that both show, the hashes must be equal, in every life of the process.

A log that begins behind a snapshot is not replayed, and of a very long one only the beginning is.

A part is one node.  Cost: linear in its rows of applied states; memory: 24 bytes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import conclude, gaps, not_judged, numbers, present, read_trace
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.raft.trace_findings_to_verdict import beyond_budget, nothing_of
from checkers.raft.witness_rows import WITNESSES_PER_PART, Row, fetched_from, hash_words, in_trace

KIND = "a replay of the log leads to another state"
ROW_SIZE_BYTES = 24


@dataclass(frozen=True, slots=True)
class ReplayedFinding:
    """applied: the states that the node reported.  compared: those of them that the replay shows.  replayed: states
    of the replay."""

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
            {"node": node, "copies": [c["copy"] for c in run.copies if c["node"] == node and not c["error"]]},
        )
        for node, path in node_files(run.trace).items()
    ]


def _judge(part: Part, budget: Budget) -> ReplayedFinding:
    path, copies = part.paths[0], part.params["copies"]
    if len(part.paths) == 1:  # its disk shows nothing, which others report, or this is missing
        return ReplayedFinding(unknown=f"the log of {part.params['node']} was not replayed" if copies else "")
    rows = read_trace(path, ("applied",), ("offset", "hash"))
    states = pq.read_table(part.paths[1], columns=["copy", "offset", "hash"], partitioning=None)
    if unknown := beyond_budget(path, len(rows) + len(states), ROW_SIZE_BYTES, budget):
        return ReplayedFinding(unknown=unknown)
    states = states.filter(pc.is_in(states["copy"], pa.array(copies, pa.int16())))
    rows = rows.filter(pa.array(present(rows, "hash")))
    offset, ends = numbers(rows, "offset"), numbers(states, "offset")
    both = np.flatnonzero(np.isin(offset, ends))
    place = np.searchsorted(ends, offset[both])
    expected = numbers(states, "hash")[place]
    differs = np.flatnonzero(expected != numbers(rows, "hash")[both])
    _, first = np.unique(offset[both[differs]], return_index=True)
    fetch = fetched_from(path)
    witnesses = [
        _witness(fetch(rows, int(both[at])), int(expected[at]), states["copy"][0].as_py())
        for at in differs[first][:WITNESSES_PER_PART].tolist()
    ]
    return ReplayedFinding(tuple(witnesses), len(rows), len(both), len(states))


def _witness(row: Row, replayed: int, copy: int) -> Witness:
    node, offset = row["node"], row["offset"]
    return Witness(
        kind=KIND,
        summary=f"{node} applied everything below offset {offset}, and is in another state than a replay of its log.",
        rows=(row,),
        facts={
            "nodes": [node],
            "epoch": row["epoch"],
            "offset": offset,
            "why": [
                f"State of {node} after offset {offset - 1}: hash {hash_words(row['hash'])} ({in_trace(row)}).",
                f"A replay of the log in copy {copy} of {node} leads to hash {hash_words(replayed)} there.",
            ],
            "expected": "the state follows from the log alone",
        },
    )


def _combine(run: StoredRun, findings: Sequence[ReplayedFinding]) -> Verdict:
    if (verdict := not_judged(run, "logs", "traces")) is not None:
        return verdict
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs", "traces")
    if not unknown and not any(f.replayed for f in findings):
        return Verdict(Validity.NOT_APPLICABLE, reason="every log is empty, or begins behind a snapshot")
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
