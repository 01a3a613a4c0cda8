"""Answers rest on what is committed: the answering node knew of the commit before its answer arrived.

A write may be acknowledged only when the answering node's high watermark covers its entry.  A read may return only a
value whose entry lies below that mark (KIP-595).  Both rules compare a time in a trace with a time in the history. That
is sound only on one monotonic clock.  There, the row of a mark is stamped before it is written, the answer leaves
afterwards, and the harness stamps the answer after it has arrived.  So a mark that covers the entry has a time at or
before the completion's.

Not applicable where the servers do not share the harness' clock: another backend than those of one machine, or traces
with times outside of the test.  A value that stands at several offsets, or at none in the answering node's final log,
is left to other checkers.

A part is one node.  Cost: n log n in its marks, its entries and the history; memory: 40 bytes of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import NEMESIS, Type
from checkers.base.run_evidence import conclude, gaps, not_judged, numbers, over_budget, read_entries, read_trace
from checkers.base.run_evidence import row as row_of
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.raft.trace_checks import WITNESSES_PER_PART, nothing_of

BACKENDS_OF_ONE_MACHINE = frozenset({"docker", "namespaces"})

_SLACK_NS = 120_000_000_000
"""Traces are collected this long after the last row of the history at most."""


@dataclass(frozen=True, slots=True)
class AnswersFinding:
    """answers: of this node that could be judged.  foreign_clock: its trace has times outside of the test."""

    witnesses: tuple[Witness, ...] = ()
    answers: int = 0
    foreign_clock: bool = False
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    traces, logs = node_files(run.trace), node_files(run.log)
    final = {c["node"]: c["copy"] for c in run.copies if c["when"] == "final" and not c["error"]}
    if not _one_machine(run) or not run.history.exists():
        return []
    return [
        Part((str(run.history), path, logs[node]), {"node": node, "copy": final[node]})
        for node, path in traces.items()
        if node in logs and node in final
    ]


def _one_machine(run: StoredRun) -> bool:
    spec = run.test.get("spec")
    return isinstance(spec, dict) and spec.get("backend") in BACKENDS_OF_ONE_MACHINE


def _judge(part: Part, budget: Budget) -> AnswersFinding:
    if excess := over_budget(part, budget, ("time_ns", "process", "type", "key", "value", "offset")):
        return AnswersFinding(unknown=excess)
    history, trace, log = part.paths
    answers, ended_ns = _answers(history, part.params["node"])
    marks = read_trace(trace, ("high-watermark",), ("offset", "time_ns"))
    times = numbers(marks, "time_ns")
    if len(times) and (times.min() < 0 or times.max() > ended_ns + _SLACK_NS):
        return AnswersFinding(foreign_clock=True)
    entries = read_entries(log, part.params["copy"], columns=("key", "value"))
    joined = answers.join(_once(entries), keys=["key", "value"], join_type="inner", use_threads=False)
    offset, answered = numbers(joined, "offset"), numbers(joined, "time_ns")
    covered = _covered_at(numbers(marks, "offset"), times, offset)
    early = np.flatnonzero(covered > answered)
    early = early[np.argsort(answered[early], kind="stable")][:WITNESSES_PER_PART]
    witnesses = [_witness(part.params["node"], joined, int(i)) for i in early]
    return AnswersFinding(tuple(witnesses), len(joined))


def _answers(history: str, node: str) -> tuple[pa.Table, int]:
    """(reads and writes of one value that this node answered; the time of the last row of the history)."""
    columns = ["index", "time_ns", "process", "type", "f", "key", "value", "node"]
    table = pq.read_table(history, columns=columns, use_threads=False)
    ended_ns = int(numbers(table, "time_ns").max(initial=0))
    mine = pc.and_(pc.equal(table["type"], int(Type.OK)), pc.not_equal(table["process"], NEMESIS))
    mine = pc.and_(mine, pc.equal(pc.cast(table["node"], pa.string()), node))
    mine = pc.and_(mine, pc.and_(pc.is_valid(table["key"]), pc.is_valid(table["value"])))
    known = pc.is_in(pc.cast(table["f"], pa.string()), value_set=pa.array(["read", "write"]))
    table = table.filter(pc.and_(mine, known))
    plain = [pc.cast(table[name], pa.string()) if name in ("f", "key", "node") else table[name] for name in columns]
    return pa.table(plain, names=columns), ended_ns


def _once(entries: pa.Table) -> pa.Table:
    """(key, value, offset) of each value that stands at one offset only."""
    there = entries.filter(pc.and_(pc.is_valid(entries["key"]), pc.is_valid(entries["value"])))
    plain = pa.table([pc.cast(there["key"], pa.string()), there["value"], there["offset"]], ["key", "value", "offset"])
    grouped = plain.group_by(["key", "value"], use_threads=False).aggregate([("offset", "min"), ("offset", "count")])
    alone = grouped.filter(pc.equal(grouped["offset_count"], 1))
    return pa.table([alone["key"], alone["value"], alone["offset_min"]], ["key", "value", "offset"])


def _covered_at(marks: Int64, times: Int64, offsets: Int64) -> Int64:
    """When the node first reported a mark above each offset; the largest int64 where it never did."""
    never = np.iinfo(np.int64).max
    order = np.argsort(marks, kind="stable")
    first = np.append(np.minimum.accumulate(times[order][::-1])[::-1], never)
    return np.asarray(first[np.searchsorted(marks[order], offsets, side="right")], np.int64)


def _witness(node: str, answers: pa.Table, i: int) -> Witness:
    answer = row_of(answers, i, "history")
    what = "acknowledged a write of" if answer["f"] == "write" else "answered a read with"
    why = (
        f"{node} {what} {answer['value']} to {answer['key']} before it reported that offset {answer['offset']}, "
        "where that value stands, is committed."
    )
    return Witness(
        kind="acknowledged before it was committed" if answer["f"] == "write" else "read of an uncommitted value",
        summary=why,
        events=(answer,),
        facts={
            "nodes": [node],
            "epoch": None,
            "offset": answer["offset"],
            "key": answer["key"],
            "value": answer["value"],
            "why": [why],
            "expected": "an answer leaves after the node's mark covers the entry that it rests on",
        },
    )


def _combine(run: StoredRun, findings: Sequence[AnswersFinding]) -> Verdict:
    if (verdict := not_judged(run, "logs", "traces")) is not None:
        return verdict
    if not _one_machine(run) or any(f.foreign_clock for f in findings):
        return Verdict(Validity.NOT_APPLICABLE, reason="the servers do not share a monotonic clock with the harness")
    looked_at = {"nodes": len(findings), "answers": sum(f.answers for f in findings)}
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs", "traces")
    unknown += nothing_of(looked_at, "answers")
    return conclude([w for f in findings for w in f.witnesses], looked_at, unknown)


ANSWERED_AFTER_COMMIT = Checker(
    name="answers-after-commit",
    title="Answers rest on committed entries",
    question="Did every answering node know that the entry was committed before its answer arrived?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"history", "logs", "traces"}),
)
