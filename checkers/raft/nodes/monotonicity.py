"""What only goes forward: epochs, high watermarks, and the states that applied entries lead to.

Epochs never go back, restarts included, because a node writes them to disk before it uses them.  So at the end the
quorum-state file holds an epoch at least as large as any the node reported, and as that of its log's last entry.  The
high watermark is not persisted.  It never goes back within one life of a process (an *incarnation*), and a new
leader's is unknown (null), not 0.

State machine safety (Ongaro & Ousterhout 2014, figure 3): no two nodes apply different entries at one offset.  Every
node reports the hash of its state at the end of each batch it applied, so two nodes meet at equal offsets.  A leader
reports it once more when it begins to decide: this is the state that its decisions rest on.  Nothing is applied that
the same life of the process does not know to be committed, and nothing is applied backwards.

Cost: linear in the rows of a trace, and for the states n log n in the applied rows of a range of offsets; memory: 40
bytes a row that is looked at, of one node or of one range (some millions of rows of all nodes).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Part
from checkers.base.run_evidence import (
    CURRENT_EPOCH_EVENTS,
    coded,
    log_groups,
    log_rows,
    numbers,
    present,
    read_trace,
    trace_row,
)
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Witness
from checkers.kernels.raft.compared_rows import beyond, disagreements, falls
from checkers.raft.trace_findings_to_verdict import TraceFinding, part_per_node, trace_checker
from checkers.raft.witness_rows import WITNESSES_PER_PART, Fetch, Row, copy_row, fetched_from, hash_words, pairs, whole

APPLIED_EVENTS = ("high-watermark", "applied")

ROW_SIZE_BYTES = 60

ROWS_PER_RANGE = 4_000_000
"""The approximate number of rows of all traces that are judged for one range of offsets."""


def _split_monotonicity(run: StoredRun) -> list[Part]:
    logs = node_files(run.log)
    parts = part_per_node(run)
    return [Part((*p.paths, *([logs[p.params["node"]]] if p.params["node"] in logs else [])), p.params) for p in parts]


def _judge_monotonicity(part: Part, budget: Budget) -> TraceFinding:
    """Judge the trace of one node, and its log if it has one."""
    path = part.paths[0]
    reports = read_trace(path, CURRENT_EPOCH_EVENTS, ("epoch", "offset", "incarnation"))
    if excess := _beyond(path, len(reports), budget):
        return TraceFinding(unknown=excess)
    copied: list[Row] = part.params["copies"]
    fetch = fetched_from(path)
    is_mark = (coded(reports, "event", {"high-watermark": 1}) == 1) & present(reports, "offset")
    marks = reports.filter(pa.array(is_mark))
    witnesses = epochs_fell(reports, fetch) + marks_fell(marks, fetch)
    witnesses += _quorum_state_behind_trace(path, (numbers(reports, "epoch"), numbers(reports, "seq")), copied)
    if copied and len(part.paths) > 1:
        witnesses += _quorum_state_behind_log(part.paths[1], copied[-1])
    present_files = sum(copy["quorum_epoch"] >= 0 for copy in copied)
    counts = {"epochs reported": len(reports), "high watermarks": len(marks), "quorum-state files": present_files}
    missing = [c for c in copied if c["quorum_epoch"] < 0 and _epoch_before(reports, c["trace_seq"]) > 0]
    return TraceFinding(tuple(witnesses), counts, "; ".join(_no_quorum_state(copy) for copy in missing))


def _epoch_before(reports: pa.Table, seq: int) -> int:
    """Return the largest epoch in the trace up to a row, or 0."""
    return int(numbers(reports, "epoch")[numbers(reports, "seq") <= seq].max(initial=0))


def _no_quorum_state(copy: Row) -> str:
    return f"copy {copy['copy']} of {copy['node']} ({copy['when']}) holds no quorum-state file"


def epochs_fell(reports: pa.Table, fetch: Fetch = whole) -> list[Witness]:
    """Find epochs that fell.  reports: one node's rows of CURRENT_EPOCH_EVENTS, in seq order."""
    fell = falls(numbers(reports, "epoch"), np.zeros(len(reports), np.int64))
    return [_fell(fetch(reports, top), fetch(reports, low), "epoch") for low, top in pairs(fell)]


def marks_fell(marks: pa.Table, fetch: Fetch = whole) -> list[Witness]:
    """Find high watermarks that fell.  marks: those of one node, in seq order, none of them null."""
    fell = falls(numbers(marks, "offset"), numbers(marks, "incarnation"))
    return [_fell(fetch(marks, top), fetch(marks, low), "offset") for low, top in pairs(fell)]


def with_offset(table: pa.Table) -> pa.Table:
    """Return the rows that have an offset."""
    return table.filter(pa.array(present(table, "offset")))


def _beyond(path: str, rows: int, budget: Budget) -> str:
    """Return why so many rows are not judged, or "" if they fit the budget."""
    if rows * ROW_SIZE_BYTES <= budget.size_bytes:
        return ""
    return f"{path}: {rows} rows are beyond the budget of {budget.size_bytes} bytes"


def _fell(high: Row, low: Row, column: str) -> Witness:
    what = "its epoch" if column == "epoch" else "its high watermark"
    return Witness(
        kind="epoch went back" if column == "epoch" else "high watermark went back",
        summary=f"{low['node']}: {what} fell from {high[column]} to {low[column]}.",
        rows=(high, low),
        facts={
            "nodes": [low["node"]],
            "epoch": low["epoch"],
            "offset": low["offset"],
            "why": [f"{r['node']} reported at seq {r['seq']} that {what} was {r[column]}." for r in (high, low)],
            "expected": "an epoch never goes back, restarts included"
            if column == "epoch"
            else "a high watermark never goes back in one life of a process; a new leader's is unknown, not lower",
        },
    )


def _quorum_state_behind_trace(path: str, reports: tuple[Int64, Int64], copied: Sequence[Row]) -> list[Witness]:
    """Find the first copy whose quorum-state has a lower epoch than the node reported.  reports: (epochs, seqs)."""
    epoch, seq = reports
    highest = np.maximum.accumulate(epoch)
    for copy in copied:
        before = int(np.searchsorted(seq, copy["trace_seq"], side="right"))
        if copy["quorum_epoch"] < 0 or before == 0 or highest[before - 1] <= copy["quorum_epoch"]:
            continue
        top = trace_row(path, int(seq[np.argmax(epoch[:before])]))
        why = f"{copy['node']} reported at seq {top['seq']} that it was in epoch {top['epoch']}."
        return [_quorum_state_behind(copy, top, why)]
    return []


def _quorum_state_behind_log(path: str, copy: Row) -> list[Witness]:
    if copy["quorum_epoch"] < 0:
        return []
    at, epoch = 0, -1
    file = pq.ParquetFile(path)
    for group in log_groups(file.metadata, copy["copy"]):
        table = file.read_row_group(group.number, ["copy", "offset", "epoch"], use_threads=False)
        epochs = np.where(numbers(table, "copy") == copy["copy"], numbers(table, "epoch"), -1)
        if len(epochs) and epochs.max() > epoch:
            at, epoch = int(numbers(table, "offset")[np.argmax(epochs)]), int(epochs.max())
    if epoch <= copy["quorum_epoch"]:
        return []
    why = f"The log of {copy['node']} has an entry of epoch {epoch} at offset {at}."
    return [_quorum_state_behind(copy, log_rows(path, copy["copy"], [at])[0], why)]


def _quorum_state_behind(copy: Row, higher: Row, why: str) -> Witness:
    node, epoch = copy["node"], copy["quorum_epoch"]
    return Witness(
        kind="epoch went back",
        summary=f"{node} had reached epoch {higher['epoch']}, but its quorum-state holds epoch {epoch}.",
        rows=(higher, copy_row(copy)),
        facts={
            "nodes": [node],
            "epoch": higher["epoch"],
            "offset": higher["offset"],
            "why": [why, f"Copy {copy['copy']} ({copy['when']}) finds epoch {epoch} in its quorum-state."],
            "expected": "an epoch is on disk before another node learns of it, and before an entry of it is written",
        },
    )


def _split_applied(run: StoredRun) -> list[Part]:
    """Make one part per node, for its own marks, and one part per range of offsets over all nodes."""
    everyone = list(node_files(run.trace).values())
    spans = {path: _spans(path) for path in everyone}
    rows = sum(count for some in spans.values() for _, _, count in some)
    end = max((last + 1 for some in spans.values() for _, last, _ in some), default=0)
    size = max(1, -(-end // max(1, -(-rows // ROWS_PER_RANGE))))
    ranges = []
    for first in range(0, end, size):
        groups = [
            [i for i, (low, high, count) in enumerate(spans[path]) if count and low < first + size and high >= first]
            for path in everyone
        ]
        ranges.append(Part(tuple(everyone), {"node": None, "first": first, "stop": first + size, "groups": groups}))
    return [*part_per_node(run), *ranges]


def _spans(path: str) -> list[tuple[int, int, int]]:
    """Return (lowest offset, highest offset, number of rows with an offset) of each row group of a trace."""
    metadata = pq.read_metadata(path)
    at = metadata.schema.names.index("offset")
    spans = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(at).statistics
        if statistics is None or (not statistics.has_min_max and statistics.null_count != group.num_rows):
            raise ValueError(f"{path}: row group {number} has no statistics of its offsets; write it with statistics")
        low, high = (statistics.min, statistics.max) if statistics.has_min_max else (0, -1)
        spans.append((low, high, group.num_rows - (statistics.null_count or 0)))
    return spans


def _judge_applied(part: Part, budget: Budget) -> TraceFinding:
    return _judge_across(part, budget) if part.params["node"] is None else _judge_own(part, budget)


def _judge_across(part: Part, budget: Budget) -> TraceFinding:
    """Compare what all nodes applied in a range of offsets."""
    first, stop = part.params["first"], part.params["stop"]
    tables = []
    rows = 0
    for number, (path, groups) in enumerate(zip(part.paths, part.params["groups"], strict=True)):
        applied = read_trace(path, ("applied",), ("offset", "hash"), groups)
        offset = numbers(applied, "offset")
        here = (offset >= first) & (offset < stop) & present(applied, "hash")
        table = applied.filter(pa.array(here)).select(["offset", "hash", "seq"])
        tables.append(table.append_column("source", pa.repeat(pa.scalar(number), len(table))))
        rows += len(table)
        if excess := _beyond(path, rows, budget):
            return TraceFinding(unknown=excess)

    def fetch(table: pa.Table, i: int) -> Row:
        return trace_row(part.paths[table["source"][i].as_py()], table["seq"][i].as_py())

    states = pa.concat_tables(tables)
    ordered = np.sort(numbers(states, "offset"), kind="stable")
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    compared = int(np.count_nonzero(np.diff(ordered[again], prepend=-1)))
    return TraceFinding(tuple(states_differ(states, fetch)), {"applied states": rows, "offsets compared": compared})


def states_differ(applied: pa.Table, fetch: Fetch = whole) -> list[Witness]:
    """Make a witness for each offset at which two rows have different states.  applied: rows with offset and hash."""
    found = disagreements(numbers(applied, "offset"), numbers(applied, "hash"))
    return [_states_differ(fetch(applied, a), fetch(applied, b)) for a, b in pairs(found)]


def _states_differ(one: Row, two: Row) -> Witness:
    offset = one["offset"]
    nodes = list(dict.fromkeys((one["node"], two["node"])))
    return Witness(
        kind="applied states differ",
        summary=f"{' and '.join(nodes)} applied everything below offset {offset} and are in different states.",
        rows=(one, two),
        facts={
            "nodes": nodes,
            "epoch": two["epoch"],
            "offset": offset,
            "why": [
                f"State of {r['node']} after offset {offset - 1}: hash {hash_words(r['hash'])} (seq {r['seq']})."
                for r in (one, two)
            ],
            "expected": "the same entries in the same order lead to the same state",
        },
    )


def _judge_own(part: Part, budget: Budget) -> TraceFinding:
    path = part.paths[0]
    rows = read_trace(path, APPLIED_EVENTS, ("offset", "incarnation"))
    if excess := _beyond(path, len(rows), budget):
        return TraceFinding(unknown=excess)
    return TraceFinding(tuple(applied_wrongly(with_offset(rows), fetched_from(path))))


def applied_wrongly(rows: pa.Table, fetch: Fetch = whole) -> list[Witness]:
    """Find entries that one node applied beyond its mark, or backwards.

    rows: its APPLIED_EVENTS with an offset, in seq order.
    """
    is_mark = coded(rows, "event", {"high-watermark": 1}) == 1
    offset, incarnation = numbers(rows, "offset"), numbers(rows, "incarnation")
    witnesses = []
    for i in beyond(offset, is_mark, incarnation)[:WITNESSES_PER_PART].tolist():
        earlier = np.flatnonzero(is_mark[:i] & (incarnation[:i] == incarnation[i]))
        witnesses.append(_applied_beyond(fetch(rows, i), [fetch(rows, int(j)) for j in earlier[-1:]]))
    applied = np.flatnonzero(~is_mark)
    for low, top in pairs(falls(offset[applied], incarnation[applied])):
        witnesses.append(_applied_back(fetch(rows, int(applied[top])), fetch(rows, int(applied[low]))))
    return witnesses


def _applied_beyond(applied: Row, mark: list[Row]) -> Witness:
    known = f"{mark[0]['offset']}" if mark else "not known yet"
    return Witness(
        kind="applied beyond the high watermark",
        summary=f"{applied['node']} applied up to offset {applied['offset']}; its high watermark was {known}.",
        rows=(*mark, applied),
        facts={
            "nodes": [applied["node"]],
            "epoch": applied["epoch"],
            "offset": applied["offset"],
            "why": [f"Before it applied offset {applied['offset']} (seq {applied['seq']}) its mark was {known}."],
            "expected": "only committed entries are applied",
        },
    )


def _applied_back(high: Row, low: Row) -> Witness:
    return Witness(
        kind="applied offset went back",
        summary=f"{low['node']} applied up to offset {high['offset']}, and later only up to {low['offset']}.",
        rows=(high, low),
        facts={
            "nodes": [low["node"]],
            "epoch": low["epoch"],
            "offset": low["offset"],
            "why": [f"At seq {r['seq']} everything below offset {r['offset']} was applied." for r in (high, low)],
            "expected": "each entry is applied once, in order, in one life of a process",
        },
    )


def _needed_of_applied(run: StoredRun) -> list[str]:
    return ["applied states", "offsets compared"] if len(run.servers) > 1 else ["applied states"]


MONOTONICITY = trace_checker(
    name="monotonicity",
    title="Epochs and marks only rise",
    question="Did epochs never go back, and high watermarks never within one life of a process?",
    split=_split_monotonicity,
    judge=_judge_monotonicity,
    needed=lambda run: ["epochs reported", "high watermarks"],
)

STATE_MACHINE_SAFETY = trace_checker(
    name="state-machine-safety",
    title="State machine safety",
    question="Did all nodes that applied the same entries reach the same state, and apply only what was committed?",
    split=_split_applied,
    judge=_judge_applied,
    needed=_needed_of_applied,
)
