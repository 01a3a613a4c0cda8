"""Trace validation: every node's trace, as a whole, is one that KRaft allows.

An executable model of the protocol replays all traces together (`trace_replay.py`).  The first row
that no step of the model explains is the witness.  Other checkers test single rules over the same rows: one leader in
an epoch, one vote, rising marks.  The model decides whether each row could have happened at all after the rows before
it, on its own node and on the others.

Every voter's trace is needed, because a missing row could be the cause of any other.  Where one is missing the verdict
is unknown.  A row that waits for a cause is judged only if
it was written before its node's last copy was taken: all traces were collected after that.

One part: the replay needs all nodes at once.  Budget: ROWS_MAX rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import conclude, gaps, trace_row
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness
from checkers.raft.model.answers import Blocked
from checkers.raft.model.trace_replay import Stop, replay
from checkers.raft.reading import nothing_of
from checkers.raft.trace_row import TraceRow, in_trace

ROWS_MAX = 20_000_000

_COLUMNS = list(TraceRow._fields)


@dataclass(frozen=True, slots=True)
class ReplayFinding:
    """looked_at: counts of what the replay took."""

    witnesses: tuple[Witness, ...] = ()
    looked_at: tuple[tuple[str, int], ...] = ()
    unknown: tuple[str, ...] = ()


def _split(run: StoredRun) -> list[Part]:
    traces = node_files(run.trace)
    if not traces or set(run.servers) - set(traces):
        return []
    until: dict[str, int] = {}
    for copy in run.copies:
        until[copy["node"]] = max(copy["trace_seq"], until.get(copy["node"], -1))
    return [Part(tuple(traces.values()), {"nodes": list(traces), "until": until})]


def _judge(part: Part, budget: Budget) -> ReplayFinding:
    paths = dict(zip(part.params["nodes"], part.paths, strict=True))
    rows = sum(pq.read_metadata(path).num_rows for path in part.paths)
    if rows > min(ROWS_MAX, budget.steps):
        return ReplayFinding(unknown=(f"{rows} trace rows are beyond the budget of {min(ROWS_MAX, budget.steps)}",))
    replayed = replay({node: read_rows(path) for node, path in paths.items()}, part.params["until"])
    model = replayed.model
    witnesses = [_witness(stop, paths[stop.node]) for stop in replayed.stops]
    if not witnesses and not replayed.unknown and (lost := model.lost()) is not None:
        witnesses.append(_lost(*lost, model.quorum.branches[lost[2]].leader))
    counts = {
        "rows explained": replayed.rows,
        "leaders": len(model.quorum.branches) - 1,
        "high watermarks": model.quorum.marks,
    }
    return ReplayFinding(tuple(witnesses), tuple(counts.items()), replayed.unknown)


def read_rows(path: str) -> Iterator[TraceRow]:
    """A trace of schema TRACE in seq order, one row group in memory at a time."""
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, _COLUMNS, use_threads=False)
        yield from map(TraceRow._make, zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True))


def _witness(stop: Stop, path: str) -> Witness:
    row, answer = stop.row, stop.answer
    what = _words(stop)
    if isinstance(answer, Blocked):
        kind, expected = "row without a cause", f"a trace of another node shows {answer.missing}"
        why = f"No trace shows {answer.missing}{': ' if answer.shown else ''}{answer.shown}."
    else:
        kind, expected = answer.kind, answer.expected
        why = f"{answer.why[0].upper()}{answer.why[1:]}."
    rows = [trace_row(path, seq) for seq in (row.seq - 1, row.seq) if seq >= 0]
    return Witness(
        kind=kind,
        summary=f"{what} ({in_trace(rows[-1])}). {why}",
        rows=tuple(rows),
        facts={
            "nodes": [stop.node],
            "epoch": row.epoch,
            "offset": row.offset,
            "why": [
                f"{what} ({in_trace(rows[-1])}).",
                why,
                "The rules of the protocol allow no step that writes this row.",
            ],
            "expected": expected,
        },
    )


def _words(stop: Stop) -> str:
    row, node = stop.row, stop.node
    match row.event:
        case "vote":
            return f"{node} voted for {row.peer} in epoch {row.epoch}"
        case "quorum-state":
            return f"{node} held {f'a vote for {row.peer}' if row.peer else 'no vote'} of epoch {row.epoch} on its disk"
        case "role":
            follows = f" of {row.peer}" if row.role == "follower" else ""
            return f"{node} became {row.role}{follows} in epoch {row.epoch}"
        case "high-watermark":
            return f"{node} reported in epoch {row.epoch} that everything below offset {row.offset} is committed"
        case "disk":
            return f"{node} started with the disk {row.detail}"
        case "start":
            return f"{node} started in epoch {row.epoch} with a log that ends at offset {row.offset}"
        case "snapshot":
            whose = "" if row.peer in (None, node) else f" of {row.peer}"
            return f"{node} reported a snapshot{whose} that ends at offset {row.offset} in epoch {row.epoch}"
        case "append" | "flush":
            article = "an" if row.event == "append" else "a"
            return f"{node} reported {article} {row.event} up to offset {row.offset} in epoch {row.epoch}"
        case "truncate":
            return f"{node} truncated its log to offset {row.offset} in epoch {row.epoch}"
        case "applied":
            return f"{node} had applied everything below offset {row.offset} in epoch {row.epoch}"
        case _:
            return f'{node} reported "{row.event}" in epoch {row.epoch}'


def _lost(epoch: int, mark: int, later: int, leader: str) -> Witness:
    summary = f"Everything below offset {mark} was committed in epoch {epoch}, but {leader}, leader of epoch {later}, "
    facts: dict[str, Any] = {
        "nodes": [leader],
        "epoch": later,
        "offset": mark - 1,
        "why": [f"The log of {leader} in epoch {later} does not begin with what was committed in epoch {epoch}."],
        "expected": "a leader holds every entry committed in an earlier epoch",
    }
    return Witness(kind="leader without a committed entry", summary=f"{summary}did not hold it.", facts=facts)


def _combine(run: StoredRun, findings: Sequence[ReplayFinding]) -> Verdict:
    looked_at = {"nodes": len(node_files(run.trace)), **{k: v for f in findings for k, v in f.looked_at}}
    unknown = [words for f in findings for words in f.unknown] + gaps(run, "traces")
    unknown += nothing_of(looked_at, "rows explained", "leaders", "high watermarks")
    return conclude([w for f in findings for w in f.witnesses], looked_at, unknown)


TRACE_VALIDATION = Checker(
    name="trace-validation",
    title="Every step in the traces is one that KRaft allows",
    question="Does a step of the protocol explain every row of every node's trace?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"traces", "kraft-steps"}),
)
