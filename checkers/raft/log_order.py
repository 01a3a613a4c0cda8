"""Linearizability in the order of the log: every answer about a key agrees with the order of its writes in the log.

Clients know little about an unanswered write: it may have happened at any time, or never.  So answers alone are
compatible with many orders that did not happen, and a search has to try all outcomes.  The logs show these outcomes.  A
write in the committed log happened at its offset; a write in no log never happened.  Then no search is needed:

* A read returns the value at one offset, so each write and each read of a key has a position in the order of the log.
  The answers are linearizable in that order if and only if no operation returned before an operation at an earlier
  position was invoked (Herlihy & Wing 1990; Gibbons & Korach 1997, with the order of writes given).
* A read has no position if it returned a value whose write never happened.

This is stronger than linearizability as clients see it: the order of the log is the one in which the system itself
applied the writes.  The verdict counts the writes of unknown outcome that the log contains, those that no log contains,
and those that stay undecided.  If the logs show no outcomes, the verdict is unknown, with the reason.

*Outcomes from logs.*  A client that gets no answer does not know whether its write happened.  A write in the committed
log happened, at its offset and in its epoch.  A write that is in no log that has caught up did not happen
(`history_against_log.py`), and no client can have read its value: a read returns only committed values, and all entries
that were committed before the final copies were taken are below the largest mark.

The logs show no outcomes in these cases:

* The final copy of a node is missing.  This node may have known a larger mark.
* No final log has caught up.  Logs that begin above offset 0 never count as caught up.
* A log lacks an acknowledged write.  Then the log is incomplete (`history_against_log.py` reports the loss).
* A value was written twice to one key.  Then an entry does not identify its write.

An entry at or above the largest mark does not decide the outcome of its write, because it may still be replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from checkers.base.checker import Checker, no_finding, no_parts
from checkers.base.history import CREATE, Type
from checkers.base.stored_rows import log_rows
from checkers.base.stored_run import FINAL_COPY, StoredRun, gaps, node_files
from checkers.base.verdict import MAX_WITNESSES, Validity, Verdict, Witness, conclude
from checkers.raft.history_against_log import final_logs
from checkers.raft.reading import holds, nothing_of, operations
from checkers.sealing.sealed_history import dicts, give_files, history_tables

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NEVER_MADE = "read of a write that never happened"
DISORDER = "answer against the order of the log"


class CommittedLog(NamedTuple):
    """A final log that has caught up.

    end: offset of the largest mark of all nodes
    reached: (node, copy) of all logs that have caught up
    """

    node: str
    copy: int
    end: int
    reached: Sequence[Mapping[str, object]]


def committed_log(run: StoredRun) -> CommittedLog | str:
    """Return the log that shows the outcomes of writes, or the reason why there is none."""
    known = {copy["node"]: copy for copy in (*run.copies, *run.damaged_copies) if copy["when"] == FINAL_COPY}
    if lacking := sorted(node_files(run.trace).keys() - known.keys()):
        return f"{', '.join(lacking)}: there is no final copy"
    top, logs = final_logs(run, {node: int(copy["trace_seq"]) for node, copy in known.items()})
    if not logs:
        return "no node's final log had caught up with the largest committed mark"
    reached = [{"node": node, "copy": copy} for node, copy in logs]
    # prefer a log that has the mark's hash at the mark's offset
    _, (node, copy) = min((not holds(log, top)[0].any(), name) for name, log in logs.items())
    return CommittedLog(node, copy, int(top.offset[0]), reached)


_OPERATIONS = """
CREATE TEMP TABLE ops AS
SELECT key, f = 'read' AS reads, CASE WHEN f = 'read' THEN answered ELSE value END AS value, "index" AS invoked,
    CASE WHEN type = 1 THEN ended_index END AS completed
FROM operations WHERE key IS NOT NULL AND (f = 'read' AND type = 1 OR f = 'write' AND type IS DISTINCT FROM 2)"""
"""SQL that makes the table `ops` of reads that returned and of writes that did not fail.

completed: row of the completion; null if the outcome is unknown
"""
_OTHERS = f"""
SELECT count(*) FROM operations
WHERE key IS NOT NULL AND f <> '{CREATE}' AND (f NOT IN ('read', 'write') OR payload IS NOT NULL OR answer IS NOT NULL
    OR (f = 'write' AND type = 1 AND answered <> value))"""
_ENTRIES = """
CREATE TEMP TABLE entries AS
SELECT key, value, CASE WHEN "offset" < $end THEN "offset" END AS "offset"
FROM logs SEMI JOIN reached USING (node, copy)
WHERE key IS NOT NULL AND ("offset" >= $end OR (node = $node AND copy = $copy))"""
"""SQL that makes the table `entries`: committed entries with their offsets, and entries that may still be replaced,
with offset null.
"""
_SETTLED = """
CREATE TEMP TABLE names AS
SELECT key, value, max("offset") AS "offset", count("offset") AS times
FROM entries WHERE value IS NOT NULL GROUP BY key, value;
CREATE TEMP TABLE settled AS
SELECT ops.*, "offset", times, NOT reads AND completed IS NULL AS unknown FROM ops LEFT JOIN names USING (key, value)"""
"""SQL that makes the table `settled`: operations with the offsets of their entries.

times: number of committed entries with this key and value; null if no log that has caught up has such an entry
"""
_COUNTS = """
SELECT count(DISTINCT key) AS keys, count(*) FILTER (reads) AS reads,
    count(*) FILTER (unknown) AS "writes of unknown outcome",
    count(*) FILTER (unknown AND "offset" IS NOT NULL) AS "unknown writes found in the log",
    count(*) FILTER (unknown AND times IS NULL) AS "unknown writes not in the log",
    count(*) FILTER (unknown AND "offset" IS NULL AND times IS NOT NULL) AS "left open"
FROM settled"""
_LACKING = "SELECT count(*) FROM settled WHERE NOT reads AND completed IS NOT NULL AND times IS NULL"
_REPEATED = """
SELECT coalesce(sum(writes), 0) FROM (
    SELECT count(*) AS writes FROM ops WHERE NOT reads GROUP BY key, value HAVING count(*) > 1
)"""
_CLASHES = {
    NEVER_MADE: """
        SELECT key, answer.invoked, maker.invoked, [] FROM settled AS answer JOIN settled AS maker USING (key, value)
        WHERE answer.reads AND maker.unknown AND maker.times IS NULL
        QUALIFY row_number() OVER (PARTITION BY key ORDER BY answer.completed) = 1""",
    DISORDER: """
        SELECT key, latest, invoked, [p // 2 FOR p IN [latest_place, place] IF p >= 0] FROM (
            SELECT *, max(last) OVER before AS latest, arg_max(place, last) OVER before AS latest_place FROM (
                SELECT key, coalesce(2 * "offset" + reads::INT, -1) AS place, max(invoked) AS last,
                    min(completed) AS completed, arg_min(invoked, completed) AS invoked
                FROM settled
                WHERE times = 1 OR (reads AND value IS NULL AND NOT EXISTS (FROM entries WHERE value IS NULL))
                GROUP BY ALL
            ) WINDOW before AS (
                PARTITION BY key ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            )
        ) WHERE completed < latest QUALIFY row_number() OVER (PARTITION BY key ORDER BY completed) = 1""",
}
"""Kind of violation -> query for the contradicting answer that returned first, per key: key, rows of the invokes of two
operations, and offsets of the entries that these operations wrote or read.

The position of a write is twice its offset; the position of a read is one more than that of the write that it returned,
or -1 if it returned nil and no entry removes a key.  Operations at one position may be in any order.  Only two
operations per position matter: the one that was invoked last and the one that returned first.  So the query compares
positions, not operations.
"""


class OrderClash(NamedTuple):
    """One answer that contradicts the order of the log.

    operations: rows of the invokes of two operations.  NEVER_MADE: the read, then the write.  DISORDER: the operation
    at the earlier position first.
    offsets: offsets of the entries that these operations wrote or read
    """

    kind: str
    key: str
    operations: tuple[int, int]
    offsets: tuple[int, ...]


def order_clashes(sql: DuckDBPyConnection) -> list[OrderClash]:
    """Return the contradictions between the tables `ops` and `entries`, at most one per kind and key."""
    sql.execute(_SETTLED)
    return [
        OrderClash(kind, key, (one, other), tuple(offset for offset in offsets if offset is not None))
        for kind, query in _CLASHES.items()
        for key, one, other, offsets in sql.execute(f"{query} ORDER BY key").fetchall()
    ]


def _combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    if run.demands.reads != {"read"} or run.demands.writes != {"write"}:
        return Verdict(Validity.NOT_APPLICABLE, reason="clients do more than read and write registers")
    lacks, log = gaps(run, "logs", "traces"), committed_log(run)
    if isinstance(log, str):
        return conclude((), {}, [log, *lacks])
    with history_tables(run.history) as sql:
        if sql.execute(_OTHERS).fetchall() != [(0,)]:
            return conclude((), {}, ["the history holds operations that are neither reads nor writes", *lacks])
        give_files(sql, "logs", node_files(run.log).values())
        sql.register("reached", pa.Table.from_pylist([*log.reached]))
        sql.execute(_OPERATIONS)
        sql.execute(_ENTRIES, {"node": log.node, "copy": log.copy, "end": log.end})
        clashes = order_clashes(sql)
        [counts] = dicts(sql, _COUNTS)
        [(lacking,), (repeated,)] = (sql.execute(query).fetchall()[0] for query in (_LACKING, _REPEATED))
    if lacking:
        what = "an acknowledged write" if lacking == 1 else f"{lacking} acknowledged writes"
        lacks.append(f"the log lacks {what}, so it settles nothing")
    if repeated:
        lacks.append(f"{repeated} writes share their key and value with another, so logs settle nothing")
    if lacking or repeated:
        clashes = []
    if clashes:
        counts["violations"] = len(clashes)
    clashes.sort(key=lambda clash: max(clash.operations))
    unknown = lacks or nothing_of(counts, "keys", "reads")
    return conclude([_witness(run, log, clash) for clash in clashes[:MAX_WITNESSES]], counts, unknown)


class _LoggedOperation(NamedTuple):
    """One operation in words.

    words: a clause, such as "Process 7 wrote 3 to k2 (index 368)"
    node: name of the node that answered
    value: the value that it read or wrote
    returned: history index of its completion; None if there is none
    """

    words: str
    node: str
    value: int | None
    returned: int | None


def _operation(events: Sequence[dict[str, Any]], called: int) -> _LoggedOperation:
    """Describe one operation.

    events: rows from `reading.operations`
    called: history index of the invoke
    """
    call = next(event for event in events if event["index"] == called)
    own = [event for event in events if event["process"] == call["process"] and event["index"] > called]
    answer = own[0] if own else call
    returned = answer["index"] if answer["type"] == Type.OK else None
    value = answer["value"] if call["f"] == "read" else call["value"]
    did = "read {} from" if call["f"] == "read" else "wrote {} to"
    what = did.format("nil" if value is None else value)
    words = f"Process {call['process']} {what} {call['key']} (index {called})"
    return _LoggedOperation(words, answer["node"], value, returned)


def _witness(run: StoredRun, committed: CommittedLog, clash: OrderClash) -> Witness:
    events = operations(run.history, clash.operations)
    rows = log_rows(node_files(run.log)[committed.node], committed.copy, clash.offsets) if clash.offsets else []
    one, other = (_operation(events, index) for index in clash.operations)
    log = f"the log of {committed.node}"
    if clash.kind == NEVER_MADE:
        why = [
            f"{other.words} and got no answer.",
            f"No log that has caught up ({log} is one of them) contains this write, so the write never happened.",
        ]
        summary = f"{one.words}, but no log contains the write of this value."
    else:
        places = " and ".join(f"{row['value']} at offset {row['offset']}" for row in rows)
        why = [f"{other.words}, and returned at index {other.returned}.", f"For {clash.key}, {log} holds {places}."]
        later = f"{one.words[0].lower()}{one.words[1:]}"
        summary = f"{other.words}, and then {later}, but {log} holds the two values in the reverse order."
    return Witness.of(
        clash.kind,
        summary,
        rows,
        events,
        nodes=[one.node or committed.node],
        copies=[committed.copy],
        epoch=rows[0]["epoch"] if rows else None,
        offset=clash.offsets[0] if clash.offsets else None,
        key=clash.key,
        value=one.value,
        why=[*why, summary],
        expected="an operation takes effect between its invoke and its completion, in the order of the log",
    )


LOG_ORDER = Checker(
    name="log-order",
    title="Linearizability in the order of the log",
    question="Do all answers about each key fit the order in which the committed log holds its writes?",
    split=no_parts,
    judge=no_finding,
    combine=_combine,
    needs=frozenset({"history", "logs", "traces", "unique-values", "client-records"}),
)
