"""A snapshot equals the prefix it stands for.

KIP-630: a snapshot (end, exclusive; epoch) replaces the log below its end.  So

- its state is the state that any node reached by applying everything below that end (state machine safety);
- it ends at or below what is committed: one that a node made itself, at or below that node's own high watermark in the
  same life of its process; one that it fetched, at or below some node's mark;
- what its file holds, read from a copy of the disk, is that state too: it is neither what the node reports of it nor
  what the node's own memory held;
- a log that begins above 0 begins at or below the end of a snapshot that the node has, or entries are missing between
  the two.

Not applicable to a subject without snapshots whose logs all begin at 0.

Parts: each node by itself, and one over all for the states.  Cost: linear in the rows of the traces; memory: the marks
and snapshots of one node, and the applied states at the ends of snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import (
    coded,
    conclude,
    gaps,
    log_groups,
    log_rows,
    numbers,
    present,
    read_trace,
    trace_row,
)
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.kernels.raft.compared_rows import beyond, disagreements
from checkers.raft.witness_rows import Row, copy_row, hash_words, in_trace, pairs

ROW_SIZE_BYTES = 60


@dataclass(frozen=True, slots=True)
class SnapshotFinding:
    """fetched: snapshots a node got from another.  mark: the largest high watermark the node ever reported."""

    witnesses: tuple[Witness, ...] = ()
    snapshots: int = 0
    cut_logs: int = 0
    compared: int = 0
    files: int = 0
    fetched: tuple[Row, ...] = ()
    mark: int = 0
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    traces, logs = node_files(run.trace), node_files(run.log)
    # A log that begins where no snapshot ends cannot be read any further, and it is the violation that is asked for.
    copied = [c for c in run.copies if not c["error"] or c.get("log_start")]
    parts = [
        Part((path,), {"node": node, "log": logs.get(node), "copies": [c for c in copied if c["node"] == node]})
        for node, path in traces.items()
    ]
    files = [
        {"table": "snapshots", "node": copy["node"], "copy": copy["copy"], **snapshot}
        for copy in run.copies
        for snapshot in copy.get("snapshots") or ()
    ]
    return [*parts, Part(tuple(traces.values()), {"node": None, "files": files})] if parts else []


def _judge(part: Part, budget: Budget) -> SnapshotFinding:
    return _judge_states(part, budget) if part.params["node"] is None else _judge_node(part, budget)


def _judge_node(part: Part, budget: Budget) -> SnapshotFinding:
    path = part.paths[0]
    rows = read_trace(path, ("snapshot", "high-watermark"), ("incarnation", "offset", "peer"))
    if len(rows) * ROW_SIZE_BYTES > budget.size_bytes:
        return SnapshotFinding(unknown=f"{path}: {len(rows)} rows are beyond the budget of {budget.size_bytes} bytes")
    rows = rows.filter(pa.array(present(rows, "offset")))
    offset, seq, incarnation = (numbers(rows, name) for name in ("offset", "seq", "incarnation"))
    is_mark = coded(rows, "event", {"high-watermark": 1}) == 1
    own = is_mark | ~present(rows, "peer")
    witnesses = []
    for i in np.flatnonzero(own)[beyond(offset[own], is_mark[own], incarnation[own])].tolist():
        earlier = np.flatnonzero(is_mark[:i] & (incarnation[:i] == incarnation[i]))
        mark = [trace_row(path, int(seq[j])) for j in earlier[-1:]]
        witnesses.append(_beyond_mark(trace_row(path, int(seq[i])), mark))
    begun, cut_logs = _log_starts(part, offset[~is_mark], seq[~is_mark])
    fetched = tuple(trace_row(path, int(s)) for s in seq[~own])
    mark_end = int(offset[is_mark].max(initial=0))
    return SnapshotFinding(
        (*witnesses, *begun), int(np.count_nonzero(~is_mark)), cut_logs, fetched=fetched, mark=mark_end
    )


def _log_starts(part: Part, ends: np.ndarray, seqs: np.ndarray) -> tuple[list[Witness], int]:
    """Return (witnesses of logs that begin above all snapshots of the node, how many logs begin above 0)."""
    path = part.params["log"]
    if path is None:
        return [], 0
    metadata = pq.read_metadata(path)
    witnesses = []
    cut_logs = 0
    for copy in part.params["copies"]:
        start = copy.get("log_start")
        if start is None:
            start = min((group.first for group in log_groups(metadata, copy["copy"])), default=0)
        cut_logs += start > 0
        had = seqs <= copy["trace_seq"]
        on_disk = max((each["end_offset"] for each in copy.get("snapshots") or () if not each["error"]), default=0)
        newest = max(int(ends[had].max(initial=0)), on_disk)
        if start > newest:
            last = seqs[had][ends[had] == newest]
            snapshot = [trace_row(part.paths[0], int(last[0]))] if len(last) else []
            witnesses.append(_begins_late(path, copy, start, newest, snapshot))
    return witnesses, cut_logs


def _judge_states(part: Part, budget: Budget) -> SnapshotFinding:
    """Compare the state of every snapshot with every state that was applied up to its end."""
    snapshots = [read_trace(path, ("snapshot",)) for path in part.paths]
    files = [file for file in part.params["files"] if not file["error"]]
    broken = [f"copy {f['copy']} of {f['node']}: {f['error']}" for f in part.params["files"] if f["error"]]
    of_files = np.array([file["end_offset"] for file in files], np.int64)
    ends = np.unique(np.concatenate([of_files, *(numbers(table, "offset") for table in snapshots)]))
    if len(ends) == 0:
        return SnapshotFinding(unknown="; ".join(broken))
    tables = [table.select(["offset", "hash", "seq"]) for table in snapshots]
    sources = [np.full(len(table), number) for number, table in enumerate(tables)]
    for number, path in enumerate(part.paths):
        applied = read_trace(path, ("applied",), ("offset", "hash"))
        there = applied.filter(np.isin(numbers(applied, "offset"), ends)).select(["offset", "hash", "seq"])
        tables.append(there)
        sources.append(np.full(len(there), number))
    joined = pa.concat_tables(tables)
    if len(joined) * ROW_SIZE_BYTES > budget.size_bytes:
        return SnapshotFinding(unknown=f"{len(joined)} states are beyond the budget of {budget.size_bytes} bytes")
    source = np.concatenate(sources)[present(joined, "hash")]
    joined = joined.filter(pa.array(present(joined, "hash")))
    offset, hashes, seq = (numbers(joined, name) for name in ("offset", "hash", "seq"))
    traced = len(offset)
    offset = np.concatenate([offset, of_files])
    hashes = np.concatenate([hashes, np.array([file["state_hash"] for file in files], np.int64)])

    def mentioned(i: int) -> Row:
        return files[i - traced] if i >= traced else trace_row(part.paths[int(source[i])], int(seq[i]))

    found = [(mentioned(a), mentioned(b)) for a, b in pairs(disagreements(offset, hashes))]
    witnesses = [_differs(*pair) for pair in found if any(map(_is_snapshot, pair))]
    _, states = np.unique(offset, return_counts=True)
    compared = int(np.count_nonzero(states > 1))
    return SnapshotFinding(tuple(witnesses), compared=compared, files=len(files), unknown="; ".join(broken))


def _is_snapshot(row: Row) -> bool:
    return "snapshot" in (row.get("event"), row["table"].rstrip("s"))


def _says(row: Row) -> str:
    """What a row shows of a state, as a sentence."""
    if row["table"] == "snapshots":
        where = f"{row['end_offset']:020d}-{row['epoch']:010d}.checkpoint of copy {row['copy']}"
        return f"{row['node']}, {where}: the hash of the state in this file is {hash_words(row['state_hash'])}."
    state = hash_words(row["hash"])
    return (
        f"{row['node']}, {row['event']} ({in_trace(row)}): the hash of its state at offset {row['offset']} is {state}."
    )


def _differs(one: Row, two: Row) -> Witness:
    snapshot, other = sorted((one, two), key=lambda r: (r["table"] != "snapshots", not _is_snapshot(r)))
    end = snapshot.get("offset", snapshot.get("end_offset"))
    reached = "its own snapshot" if _is_snapshot(other) else "applying everything"
    return Witness(
        kind="snapshot differs from its prefix",
        summary=f"The snapshot of {snapshot['node']} that ends at offset {end} holds another state than the one that "
        f"{other['node']} reached there by {reached}.",
        rows=(snapshot, other),
        facts={
            "nodes": list(dict.fromkeys((snapshot["node"], other["node"]))),
            "epoch": snapshot["epoch"],
            "offset": end,
            "why": [_says(snapshot), _says(other)],
            "expected": "a snapshot is the state after all entries below its end",
        },
    )


def _beyond_mark(snapshot: Row, mark: Sequence[Row]) -> Witness:
    known = f"{mark[0]['offset']}" if mark else "not known yet"
    return Witness(
        kind="snapshot beyond the high watermark",
        summary=f"{snapshot['node']} has a snapshot that ends at offset {snapshot['offset']}; what was known to be "
        f"committed was {known}.",
        rows=(*mark, snapshot),
        facts={
            "nodes": [snapshot["node"]],
            "epoch": snapshot["epoch"],
            "offset": snapshot["offset"],
            "why": [f"Before the snapshot the high watermark was {known} ({in_trace(snapshot)})."],
            "expected": "only committed entries go into a snapshot, for it cannot be truncated",
        },
    )


def _begins_late(path: str, copy: Row, start: int, newest: int, snapshot: Sequence[Row]) -> Witness:
    node = copy["node"]
    has = f"the newest snapshot of {node} ends at {newest}" if snapshot else f"{node} had no snapshot"
    return Witness(
        kind="log begins behind its snapshot",
        summary=f"The log of {node} (copy {copy['copy']}) begins at offset {start}, but {has}.",
        rows=(*snapshot, *log_rows(path, copy["copy"], [start]), copy_row(copy)),
        facts={
            "nodes": [node],
            "copies": [copy["copy"]],
            "epoch": copy["quorum_epoch"],
            "offset": start,
            "why": [f"Entries {newest} to {start - 1} are in no snapshot of {node} and not in its log."],
            "expected": "a log is cut only below the end of a snapshot",
        },
    )


def _combine(run: StoredRun, findings: Sequence[SnapshotFinding]) -> Verdict:
    unknown = [f.unknown for f in findings if f.unknown]
    snapshots, cut_logs = sum(f.snapshots for f in findings), sum(f.cut_logs for f in findings)
    if snapshots == 0 and cut_logs == 0 and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason="no node took a snapshot, and every log begins at offset 0")
    committed = max((f.mark for f in findings), default=0)
    late = [_beyond_mark(r, ()) for f in findings for r in f.fetched if r["offset"] > committed]
    witnesses = [w for f in findings for w in f.witnesses if w.kind == "snapshot differs from its prefix"]
    witnesses += late + [w for f in findings for w in f.witnesses if w.kind != "snapshot differs from its prefix"]
    looked_at = {
        "nodes": len(node_files(run.trace)),
        "snapshots": snapshots,
        "files of snapshots": sum(f.files for f in findings),
        "ends at which states were compared": sum(f.compared for f in findings),
        "logs that begin above 0": cut_logs,
    }
    return conclude(witnesses, looked_at, unknown + gaps(run, "traces"))


SNAPSHOT_PREFIX = Checker(
    name="snapshot-equals-prefix",
    title="Snapshot equals prefix",
    question="Does every snapshot hold what its prefix of the log leads to, and does every log join its snapshot?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"traces"}),
)
