"""What only goes forward: epochs, high watermarks, and the states that applied entries lead to.

Epochs never go back, restarts included, for they are on disk before anybody hears of them: so at the end the
quorum-state file holds an epoch at least as large as any the node had said, and as that of its log's last entry.  The
high watermark is not persisted: it never goes back within one life of a process (an *incarnation*), and a new
leader's is unknown (null), not 0.

State machine safety (Ongaro & Ousterhout 2014, figure 3): no two nodes apply different entries at one offset.  Every
node says the hash of its state at the end of each batch it applied, so two nodes meet at equal offsets.  Nothing is
applied that the same life of the process does not know to be committed, and nothing is applied backwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.checker import Budget, Checker, Part, RunFiles
from checkers.evidence import (
    CURRENT_EPOCH_EVENTS,
    node_files,
    not_judged,
    numbers,
    over_budget,
    present,
    read_table,
    read_trace,
    row,
    words,
)
from checkers.kernels.raft import beyond, disagreements, falls
from checkers.raft_traces import Row, TraceFinding, conclude_traces, copy_row, pairs, part_per_node
from checkers.verdict import Verdict, Witness

APPLIED_EVENTS = ("high-watermark", "applied")


def _split_monotonicity(run: RunFiles) -> list[Part]:
    logs = node_files(run.log)
    parts = part_per_node(run)
    return [Part((*p.paths, *([logs[p.params["node"]]] if p.params["node"] in logs else [])), p.params) for p in parts]


def _judge_monotonicity(part: Part, budget: Budget) -> TraceFinding:
    """Of one node: its trace, and its log where it has one."""
    if excess := over_budget(part, budget, ("event", "epoch", "offset", "seq", "incarnation", "copy")):
        return TraceFinding(unknown=excess)
    said = read_trace(part.paths[0], CURRENT_EPOCH_EVENTS)
    marks = with_offset(read_trace(part.paths[0], ("high-watermark",)))
    copied: list[Row] = part.params["copies"]
    witnesses = epochs_fell(said) + marks_fell(marks)
    witnesses += [w for copy in copied for w in _quorum_state_behind_trace(said, copy)][:1]
    if copied and len(part.paths) > 1:
        witnesses += _quorum_state_behind_log(part.paths[1], copied[-1])
    counts = {"epochs said": len(said), "high watermarks": len(marks), "quorum-state files": len(copied)}
    return TraceFinding(tuple(witnesses), counts)


def epochs_fell(said: pa.Table) -> list[Witness]:
    """said: one node's rows of CURRENT_EPOCH_EVENTS, in seq order."""
    fell = falls(numbers(said, "epoch"), np.zeros(len(said), np.int64))
    return [_fell(row(said, top, "trace"), row(said, low, "trace"), "epoch") for low, top in pairs(fell)]


def marks_fell(marks: pa.Table) -> list[Witness]:
    """marks: one node's high watermarks, in seq order, none of them null."""
    fell = falls(numbers(marks, "offset"), numbers(marks, "incarnation"))
    return [_fell(row(marks, top, "trace"), row(marks, low, "trace"), "offset") for low, top in pairs(fell)]


def with_offset(table: pa.Table) -> pa.Table:
    """The rows that name an offset."""
    return table.filter(pa.array(present(table, "offset")))


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
            "why": [f"{r['node']} said at seq {r['seq']} that {what} was {r[column]}." for r in (high, low)],
            "expected": "an epoch never goes back, restarts included"
            if column == "epoch"
            else "a high watermark never goes back in one life of a process; a new leader's is unknown, not lower",
        },
    )


def _quorum_state_behind_trace(said: pa.Table, copy: Row) -> list[Witness]:
    epochs = numbers(said, "epoch")
    before = np.flatnonzero(numbers(said, "seq") <= copy["trace_seq"])
    if len(before) == 0:
        return []
    top = int(before[np.argmax(epochs[before])])
    if epochs[top] <= max(copy["quorum_epoch"], 0):
        return []
    highest = row(said, top, "trace")
    why = f"{copy['node']} said at seq {highest['seq']} that it was in epoch {highest['epoch']}."
    return [_quorum_state_behind(copy, highest, why)]


def _quorum_state_behind_log(path: str, copy: Row) -> list[Witness]:
    log = read_table(path, copy=copy["copy"])
    if len(log) == 0:
        return []
    last = row(log, int(np.argmax(numbers(log, "epoch"))), "log")
    if last["epoch"] <= max(copy["quorum_epoch"], 0):
        return []
    why = f"The log of {copy['node']} has an entry of epoch {last['epoch']} at offset {last['offset']}."
    return [_quorum_state_behind(copy, last, why)]


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
            "expected": "an epoch is on disk before anybody hears of it, and before an entry of it is written",
        },
    )


def _combine_monotonicity(run: RunFiles, findings: Sequence[TraceFinding]) -> Verdict:
    return not_judged(run, "traces") or conclude_traces(run, findings)


def _split_applied(run: RunFiles) -> list[Part]:
    """One part per node against its own marks, and one over all nodes for equal offsets."""
    everyone = tuple(node_files(run.trace).values())
    return [*part_per_node(run), *([Part(everyone, {"node": None})] if everyone else [])]


def _judge_applied(part: Part, budget: Budget) -> TraceFinding:
    if excess := over_budget(part, budget, ("event", "offset", "hash", "seq", "incarnation")):
        return TraceFinding(unknown=excess)
    return _judge_across(part) if part.params["node"] is None else _judge_own(part)


def _judge_across(part: Part) -> TraceFinding:
    tables = [with_offset(read_trace(path, ("applied",))) for path in part.paths]
    applied = pa.concat_tables(tables, promote_options="default")
    applied = applied.filter(pa.array(present(applied, "hash")))
    _, nodes_there = np.unique(numbers(applied, "offset"), return_counts=True)
    counts = {"applied states": len(applied), "offsets compared": int(np.count_nonzero(nodes_there > 1))}
    return TraceFinding(tuple(states_differ(applied)), counts)


def states_differ(applied: pa.Table) -> list[Witness]:
    """One witness for each offset at which two rows name different states.  applied: rows with offset and hash."""
    found = disagreements(numbers(applied, "offset"), numbers(applied, "hash"))
    return [_states_differ(row(applied, a, "trace"), row(applied, b, "trace")) for a, b in pairs(found)]


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
                f"State of {r['node']} after offset {offset - 1}: hash {r['hash']} (seq {r['seq']})."
                for r in (one, two)
            ],
            "expected": "the same entries in the same order lead to the same state",
        },
    )


def _judge_own(part: Part) -> TraceFinding:
    return TraceFinding(tuple(applied_wrongly(with_offset(read_trace(part.paths[0], APPLIED_EVENTS)))))


def applied_wrongly(rows: pa.Table) -> list[Witness]:
    """What one node applied beyond its mark, or backwards.  rows: its APPLIED_EVENTS with an offset, in seq order."""
    is_mark = np.array([event == "high-watermark" for event in words(rows, "event")], np.bool_)
    incarnations = numbers(rows, "incarnation")
    witnesses = []
    for i in beyond(numbers(rows, "offset"), is_mark, incarnations).tolist():
        earlier = np.flatnonzero(is_mark[:i] & (incarnations[:i] == incarnations[i]))
        witnesses.append(_applied_beyond(row(rows, i, "trace"), [row(rows, int(j), "trace") for j in earlier[-1:]]))
    applied = rows.filter(pc.invert(pa.array(is_mark)))
    for low, top in pairs(falls(numbers(applied, "offset"), numbers(applied, "incarnation"))):
        witnesses.append(_applied_back(row(applied, top, "trace"), row(applied, low, "trace")))
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


def _combine_applied(run: RunFiles, findings: Sequence[TraceFinding]) -> Verdict:
    return not_judged(run, "traces") or conclude_traces(run, findings)


MONOTONICITY = Checker(
    name="monotonicity",
    title="Epochs and marks only rise",
    question="Did epochs never go back, and high watermarks never within one life of a process?",
    split=_split_monotonicity,
    judge=_judge_monotonicity,
    combine=_combine_monotonicity,
)

STATE_MACHINE_SAFETY = Checker(
    name="state-machine-safety",
    title="State machine safety",
    question="Did all nodes that applied the same entries reach the same state, and apply only what was committed?",
    split=_split_applied,
    judge=_judge_applied,
    combine=_combine_applied,
)
