"""State machine safety (Ongaro & Ousterhout 2014, figure 3): no two nodes apply different entries at one offset.

Every node reports the hash of its state at the end of each batch it applied, so two nodes meet at equal offsets.  A
leader reports it once more when it begins to decide: this is the state that its decisions rest on.  Nothing is applied
that the same life of the process does not know to be committed, and nothing is applied backwards.  A snapshot that a
node fetched, or found when it started, stands for committed entries; whether it rightly does is another checker's
question.

Cost: n log n in the applied rows of a range of offsets; memory: 40 bytes a row that is looked at, of one node or of one
range (some millions of rows of all nodes).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Bools
from checkers.base.checker import Budget, Part
from checkers.base.run_evidence import coded, numbers, present, read_trace, trace_row, with_offset
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Witness
from checkers.kernels.raft.compared_rows import beyond, disagreements, falls
from checkers.raft.trace_findings_to_verdict import TraceFinding, beyond_budget, part_per_node, trace_checker
from checkers.raft.witness_rows import WITNESSES_PER_PART, Fetch, Row, fetched_from, hash_words, in_trace, pairs, whole

APPLIED_EVENTS = ("high-watermark", "applied", "snapshot")

ROW_SIZE_BYTES = 60

ROWS_PER_RANGE = 4_000_000
"""The approximate number of rows of all traces that are judged for one range of offsets."""


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
        if excess := beyond_budget(path, rows, ROW_SIZE_BYTES, budget):
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
                f"State of {r['node']} after offset {offset - 1}: hash {hash_words(r['hash'])} ({in_trace(r)})."
                for r in (one, two)
            ],
            "expected": "the same entries in the same order lead to the same state",
        },
    )


def _judge_own(part: Part, budget: Budget) -> TraceFinding:
    path = part.paths[0]
    rows = read_trace(path, APPLIED_EVENTS, ("offset", "incarnation", "peer"))
    if excess := beyond_budget(path, len(rows), ROW_SIZE_BYTES, budget):
        return TraceFinding(unknown=excess)
    return TraceFinding(tuple(applied_wrongly(with_offset(rows), fetched_from(path))))


def applied_wrongly(rows: pa.Table, fetch: Fetch = whole) -> list[Witness]:
    """Find entries that one node applied beyond its mark, or backwards.

    rows: its APPLIED_EVENTS with an offset, in seq order.
    """
    is_mark = shows_commitment(rows)
    kept = pa.array(is_mark | is_applied(rows))
    rows, is_mark = rows.filter(kept), is_mark[kept.to_numpy(zero_copy_only=False)]
    offset, incarnation = numbers(rows, "offset"), numbers(rows, "incarnation")
    witnesses = []
    for i in beyond(offset, is_mark, incarnation)[:WITNESSES_PER_PART].tolist():
        earlier = np.flatnonzero(is_mark[:i] & (incarnation[:i] == incarnation[i]))
        witnesses.append(_applied_beyond(fetch(rows, i), [fetch(rows, int(j)) for j in earlier[-1:]]))
    applied = np.flatnonzero(~is_mark)
    for low, top in pairs(falls(offset[applied], incarnation[applied])):
        witnesses.append(_applied_back(fetch(rows, int(applied[top])), fetch(rows, int(applied[low]))))
    return witnesses


def shows_commitment(rows: pa.Table) -> Bools:
    """Which of the APPLIED_EVENTS show what the node may apply: its marks, and snapshots that it loads."""
    event = coded(rows, "event", {"high-watermark": 1, "snapshot": 2})
    shown: Bools = (event == 1) | ((event == 2) & present(rows, "peer"))
    return shown


def is_applied(rows: pa.Table) -> Bools:
    applied: Bools = coded(rows, "event", {"applied": 1}) == 1
    return applied


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
            "why": [f"Before it applied offset {applied['offset']} its mark was {known} ({in_trace(applied)})."],
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
            "why": [f"Everything below offset {r['offset']} was applied ({in_trace(r)})." for r in (high, low)],
            "expected": "each entry is applied once, in order, in one life of a process",
        },
    )


def _needed_of_applied(run: StoredRun) -> list[str]:
    return ["applied states", "offsets compared"] if len(run.servers) > 1 else ["applied states"]


STATE_MACHINE_SAFETY = trace_checker(
    name="state-machine-safety",
    title="State machine safety",
    question="Did all nodes that applied the same entries reach the same state, and apply only what was committed?",
    split=_split_applied,
    judge=_judge_applied,
    needed=_needed_of_applied,
)
