"""Compares the history with the log: the answers to clients must agree with the log.

Every log that has caught up at the end contains each acknowledged write exactly once.  No copy of any log contains a
write that certainly failed, a write twice, or a change of an object that no client invoked: each entry has exactly one
cause.  (An entry without a cause is a violation only if the history contains its end mark.  Otherwise the write may be
missing from the history, and the verdict is unknown.)  The order of the log respects real time over all keys: if one
write completed before another write was invoked, the first write comes first in the log.

The check of registers misses these errors.  A register shows only its last value, so the next write hides a lost
acknowledged write.  And a check of each key by itself sees no order between keys.

One join over all copies of all logs finds the write of each entry by (key, value).

*Entries of the system.*  Each entry that no client's write explains has exactly one cause: the start of an epoch, or a
`create`.  A leader opens its epoch with one LeaderChange record, and writes no other record by itself (KIP-595).
Set-up and clients create objects, and a leader does not create an object that its log already contains.  So an object
has at most one batch in a log, however often clients tried, and none if every `create` failed.  In every copy of every
log:

* the first entry of an epoch is not a client's write;
* the number of batches that neither contain a client's write nor open an epoch is at most the number of objects that
  may exist.

A topic that is created twice, a second LeaderChange in an epoch, and a change that no client's function makes each add
one batch too many.

A history without its end may also lack the `create` of an object.  Then an unexplained entry is no violation, and the
verdict is unknown.

If brokers register, the log also contains records about brokers and partitions that no client requested.
`checkers/cluster` judges these records; they are ignored here.

If voters change (KIP-853), the log also contains records of voters, which rows of the traces name, and one record with
the level of `kraft.version` before the first of them.  `quorum-intersection` judges these records; they are ignored
here.

The first entry of a log that begins above offset 0 is not judged, because it is unknown whether this entry opens an
epoch.

Cost: a sort of the entries of all copies.

*Caught up.*  A final log that has caught up contains every entry that was committed before the final copies.

A log has *caught up* if its final copy reaches the largest mark that any node had reported before that node's own final
copy.  The log must also have the mark's hash at the mark's offset, or an entry of the mark's epoch or a later epoch.  A
node that was cut off until the end may have a longer tail of an older epoch; its log has not caught up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkers.base.checker import Budget, Checker, no_finding, no_parts
from checkers.base.columns import CLUSTER
from checkers.base.history import CREATE, Type
from checkers.base.stored_rows import log_rows, numbers, present, read_trace
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import Verdict, Witness, conclude, one_of_each_first
from checkers.raft.reading import NAMED_WRITES, CopiedLog, Marks, holds, nothing_of, operations, read_log
from checkers.sealing.sealed_history import give_files, history_tables

MISSING = "acknowledged write missing from a log"
FAILED = "failed write in a log"
TWICE = "write in a log twice"
DISORDER = "log order against real time"
ORPHAN = "entry that no client wrote"

_ENTRIES = """
CREATE TEMP TABLE entries AS
SELECT node, copy, "offset", logs.key, logs.value, times, row, type, completed
FROM logs JOIN copies USING (node, copy) LEFT JOIN names ON logs.key = names.key AND logs.value = names.value
WHERE logs.key IS NOT NULL"""
"""SQL that makes the table `entries`: each entry about a client's object, with the write of its key and value."""
_PLACES = """
CREATE TEMP TABLE places AS
SELECT node, copy, row, count(*) AS held, min("offset") AS "offset", any_value(completed) AS completed
FROM entries WHERE times = 1 GROUP BY node, copy, row"""
"""SQL that makes the table `places`.

held: number of entries of a write in a log
offset: offset of the first of these entries
"""
_CLASHES: Mapping[str, str] = {
    MISSING: """
        SELECT node, copy, count(*), [min(row)], [] FROM copies, writes
        WHERE caught_up AND type = 1
            AND row NOT IN (SELECT writes.row FROM writes JOIN entries USING (key, value) WHERE times > 1)
            AND NOT EXISTS (FROM places WHERE node = copies.node AND copy = copies.copy AND row = writes.row)
        GROUP BY node, copy""",
    FAILED: """
        SELECT node, copy, count(*), [arg_min(row, "offset")], [min("offset")] FROM entries
        WHERE times = 1 AND type = 2 GROUP BY node, copy""",
    TWICE: """
        SELECT node, copy, count(*), [min(row)], arg_min(offsets, row) FROM (
            SELECT node, copy, row, list("offset" ORDER BY "offset") AS offsets
            FROM entries SEMI JOIN (FROM places WHERE held > 1) USING (node, copy, row) GROUP BY node, copy, row
        ) GROUP BY node, copy""",
    DISORDER: """
        SELECT node, copy, 1, [latest, row], [earlier."offset", late."offset"] FROM (
            SELECT *, max(row) OVER (
                PARTITION BY node, copy ORDER BY "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS latest FROM places
        ) AS late JOIN (SELECT node, copy, row AS latest, "offset" FROM places) AS earlier USING (node, copy, latest)
        WHERE completed < latest
        QUALIFY row_number() OVER (PARTITION BY node, copy ORDER BY late."offset") = 1""",
    ORPHAN: """
        SELECT node, copy, count(*), [], [min("offset")] FROM entries WHERE times IS NULL GROUP BY node, copy""",
}
"""Kind of violation, the worst first -> query for the logs with such violations.

Columns: node, copy, number of violations, and of the first violation the rows of the invokes and the offsets in log
order.
"""
_SHARED = """
SELECT coalesce(sum(times), 0) FROM names SEMI JOIN entries USING (key, value) WHERE times > 1"""
_RANK = {kind: rank for rank, kind in enumerate(_CLASHES)}


class Clash(NamedTuple):
    """Disagreements of one kind between one log and the history.

    times: number of disagreements
    writes: rows of the invokes in the first disagreement
    offsets: offsets in the first disagreement, in log order
    """

    kind: str
    node: str
    copy: int
    times: int
    writes: list[int]
    offsets: list[int]


def _combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    whole, unknown = run.history_is_whole, gaps(run, "logs", "traces")
    copied, logs = [c for c in run.copies if not c["error"]], node_files(run.log)
    last = max((copy["copy"] for copy in copied), default=-1)
    until = {node: int(copy["trace_seq"]) for node, copy in run.final_copies.items() if copy["copy"] == last}
    _, reached = final_logs(run, until)
    if not reached:
        unknown.append("no node's final log had caught up with the largest committed mark")
    copies = [
        {"node": c["node"], "copy": c["copy"], "caught_up": (c["node"], c["copy"]) in reached}
        for c in copied
        if c["node"] in logs
    ]
    with history_tables(run.history) as sql:
        give_files(sql, "logs", logs.values())
        sql.register("copies", pa.Table.from_pylist(copies, _COPIES))
        sql.execute(NAMED_WRITES)
        sql.execute(_ENTRIES)
        sql.execute(_PLACES)
        clashes = [
            Clash(kind, *found)
            for kind, query in _CLASHES.items()
            for found in sql.execute(f"{query} ORDER BY node, copy").fetchall()
        ]
        [(acknowledged,)] = sql.execute("SELECT count(*) FROM writes WHERE type = 1").fetchall()
        [(repeated,)] = sql.execute(_SHARED).fetchall()
    if repeated:
        unknown.append(
            f"{repeated} writes share their key and value with another, so no log entry shows which of them made it"
        )
    orphans = max((clash.times for clash in clashes if clash.kind == ORPHAN), default=0)
    if orphans and not whole:
        words = f"no write in the history explains {orphans} entries of a log, and the history lacks its end"
        unknown.append(words)
        clashes = [clash for clash in clashes if clash.kind != ORPHAN]
    looked_at = {
        "acknowledged writes": acknowledged,
        "logs": len(copies),
        "logs caught up at the end": len(reached),
    }
    counts = {kind: sum(clash.times for clash in clashes if clash.kind == kind) for kind in _RANK}
    looked_at |= {f"{kind} (all logs)": count for kind, count in counts.items() if count}
    unknown += nothing_of(looked_at, "acknowledged writes", "logs")
    return conclude([_witness(run, c) for c in _one_per_write(clashes)], looked_at, unknown)


_COPIES = pa.schema([("node", pa.string()), ("copy", pa.int16()), ("caught_up", pa.bool_())])


def final_logs(run: StoredRun, until: Mapping[str, int]) -> tuple[Marks, dict[tuple[str, int], CopiedLog]]:
    """Return (the largest marks, (node, copy) -> each final log that has caught up with them).

    until: node -> the last seq of its trace whose marks count
    """
    top, logs = largest_marks(list(node_files(run.trace).values()), until), node_files(run.log)
    final = [(node, int(copy["copy"])) for node, copy in run.final_copies.items() if node in logs]
    read = {(node, copy): read_log(logs[node], copy, Budget()) for node, copy in final}
    return top, {name: log for name, log in read.items() if caught_up(log, top)}


def _one_per_write(clashes: list[Clash]) -> list[Clash]:
    """Return the clash in the latest copy for each kind and write; the first of each kind precedes all second ones."""
    latest = {(c.kind, *(c.writes or c.offsets)): c for c in sorted(clashes, key=lambda c: (c.copy, c.node))}
    in_order = sorted(sorted(latest.values(), key=lambda c: c.writes), key=lambda c: _RANK[c.kind])
    return one_of_each_first(in_order, lambda c: c.kind)


_WORDS = {
    MISSING: "{first} was acknowledged, but {log}, which has caught up, does not contain this write.",
    FAILED: "{first} failed for certain, but it stands in {log} at offset {at}.",
    TWICE: "{first} stands in {log} more than once, at offsets {at}.",
    DISORDER: "{last} had completed before {first} was invoked, but {log} has them in reverse order (offsets {at}).",
    ORPHAN: "{log} sets {entry} at offset {at}, and no client wrote this value.",
}


def _witness(run: StoredRun, clash: Clash) -> Witness:
    events = operations(run.history, clash.writes) if clash.writes else []
    rows = log_rows(node_files(run.log)[clash.node], clash.copy, clash.offsets) if clash.offsets else []
    calls = {event["index"]: event for event in events if event["type"] == Type.INVOKE}
    named = [f"the write of {calls[row]['value']} to {calls[row]['key']}" for row in clash.writes]
    entry = [*calls.values(), *rows][0]
    values = {"first": named[0], "last": named[-1]} if named else {"entry": f"{entry['key']} to {entry['value']}"}
    log, at = f"the log of {clash.node} (copy {clash.copy})", ", ".join(map(str, clash.offsets))
    summary = _WORDS[clash.kind].format(log=log, at=at, **values)
    return Witness.of(
        clash.kind,
        summary[0].upper() + summary[1:],
        rows,
        events,
        nodes=[clash.node],
        copies=[clash.copy],
        epoch=rows[0]["epoch"] if rows else None,
        offset=clash.offsets[0] if clash.offsets else None,
        offsets=list(clash.offsets),
        key=entry["key"],
        value=entry["value"],
        expected="each acknowledged write once, nothing else of clients, and in an order that clients could observe",
    )


HISTORY_LOG = Checker(
    name="history-against-log",
    title="History against log",
    question="Does every log hold each acknowledged write once, no failed one, and in an order clients could observe?",
    split=no_parts,
    judge=no_finding,
    combine=_combine,
    needs=frozenset({"history", "logs", "traces", "unique-values", "client-records"}),
)


def caught_up(log: CopiedLog, top: Marks) -> bool:
    """Return True if this final log reaches the largest mark, and not only by a tail of an older epoch.

    A log that begins above 0 never counts as caught up, because its lower entries are in a snapshot and cannot be
    compared.
    """
    if len(top.offset) == 0 or log.end < top.offset[0] or log.start > 0:
        return False
    return bool(holds(log, top)[0].any() or log.last_epoch >= top.epoch.min())


def largest_marks(traces: Sequence[str], until: Mapping[str, int]) -> Marks:
    """Return the marks at the largest offset that any node reported before its final copy.

    until: node -> the last seq of its trace before its final copy
    """
    found: list[tuple[int, int, bool, int]] = []
    for path in traces:
        marks = read_trace(path, ("high-watermark",), ("offset", "hash", "epoch"))
        offsets = np.where(numbers(marks, "seq") <= until.get(Path(path).stem, -1), numbers(marks, "offset"), 0)
        largest = np.flatnonzero((offsets > 0) & (offsets == offsets.max(initial=0)))
        rows = marks.take(pa.array(largest))
        columns = (numbers(rows, "offset"), numbers(rows, "hash", 0), present(rows, "hash"), numbers(rows, "epoch"))
        found += zip(*(column.tolist() for column in columns), strict=True)
    end = max((offset for offset, *_ in found), default=0)
    offset, hashes, known, epoch = (np.array([mark[i] for mark in found if mark[0] == end]) for i in range(4))
    return Marks(offset, hashes, known.astype(np.bool_), epoch)


# Entries of the system

NO_OPENING = "epoch without its opening entry"
NO_CAUSE = "entry without a cause"

BY_ITSELF = (
    "register broker",
    "unregister broker",
    "fence broker",
    "unfence broker",
    "change broker",
    "change partition",
    "register controller",
    "unregister controller",
    "feature",
    "producer ids",
    "no-op",
)
"""Kinds of records in schema CLUSTER that a controller writes for brokers, or by itself."""
WITH_A_FEATURE = "config"
"""Kind of a record that a controller adds to the batch with the level of a feature: the feature of eligible leader
replicas needs a value of `min.insync.replicas`.
"""
_CREATES = f"""
SELECT count(*) FROM (
    SELECT key FROM events WHERE f = '{CREATE}' GROUP BY key
    HAVING count(*) FILTER (type = 0) > count(*) FILTER (type = 2)
)"""
"""Query for the number of objects with at least one `create` that was invoked and did not fail."""


_BY_BROKERS = f"""
CREATE TEMP TABLE unasked AS SELECT node, copy, "offset" FROM cluster
WHERE kind IN {BY_ITSELF} OR (kind = '{WITH_A_FEATURE}' AND (node, copy, batch_offset) IN (
    SELECT (node, copy, batch_offset) FROM cluster WHERE kind = 'feature'
))"""
"""SQL that makes the table `unasked` of records about brokers and partitions that no client requested."""
_ALL_ENTRIES = """
CREATE TEMP TABLE entries AS
SELECT *, bool_or(opens) OVER (PARTITION BY node, copy, batch_offset) AS opening FROM (
    SELECT node, copy, "offset", batch_offset, key IS NOT NULL AS client,
        coalesce(epoch <> lag(epoch) OVER before, "offset" = 0) AS opens,
        lag(epoch) OVER before IS NOT NULL OR "offset" = 0 AS known
    FROM logs SEMI JOIN copies USING (node, copy) WINDOW before AS (PARTITION BY node, copy ORDER BY "offset")
)"""
_UNEXPLAINED = """
SELECT node, copy, count(*) AS entries, count(*) FILTER (opens) AS opened,
    coalesce(min("offset") FILTER (opens AND client), -1) AS wrong,
    coalesce(list(DISTINCT batch_offset ORDER BY batch_offset) FILTER (NOT client AND known AND NOT opening
        AND NOT list_contains(?, "offset") AND (node, copy, "offset") NOT IN (FROM unasked)), []) AS others
FROM entries GROUP BY node, copy ORDER BY node, copy"""


class CopyOfLog(NamedTuple):
    """Content of one copy of a log.

    entries: number of entries
    opened: number of entries that open an epoch
    wrong: offset of the first entry that opens an epoch although it is a client's write; -1 if there is none
    others: offsets of the batches that neither contain a client's write nor open an epoch
    """

    node: str
    copy: int
    entries: int
    opened: int
    wrong: int
    others: list[int]


def _of_voters(run: StoredRun) -> list[int]:
    """Return the offsets of all records of voters, and of the record of `kraft.version` before the first of them."""
    traces = node_files(run.trace).values()
    named = {o for path in traces for o in numbers(read_trace(path, ("voters",), ("offset",)), "offset").tolist()}
    offsets = sorted(named - {-1})
    return [*(offset - 1 for offset in offsets[:1]), *offsets]


def _unexplained(run: StoredRun, copies: Sequence[Mapping[str, object]]) -> tuple[int, list[CopyOfLog]]:
    """Return (number of objects with a `create` that did not fail, content of each copy)."""
    with history_tables(run.history) as sql:
        [(creates,)] = sql.execute(_CREATES).fetchall()
        if not copies:
            return creates, []
        give_files(sql, "logs", node_files(run.log).values())
        sql.register("copies", pa.Table.from_pylist(copies))
        of_brokers = node_files(run.cluster) if run.demands.registers_brokers else {}
        if of_brokers:
            give_files(sql, "cluster", of_brokers.values())
        else:
            sql.register("cluster", CLUSTER.empty_table())
        sql.execute(_BY_BROKERS)
        sql.execute(_ALL_ENTRIES)
        return creates, [CopyOfLog(*row) for row in sql.execute(_UNEXPLAINED, [_of_voters(run)]).fetchall()]


def _combine_system(run: StoredRun, _: Sequence[Any]) -> Verdict:
    logs = node_files(run.log)
    readable = [{"node": c["node"], "copy": c["copy"]} for c in run.copies if not c["error"] and c["node"] in logs]
    creates, copies = _unexplained(run, readable)
    looked_at = {
        "logs": len(readable),
        "entries": sum(copy.entries for copy in copies),
        "epochs opened": sum(copy.opened for copy in copies),
        "creates": creates,
    }
    lacking = gaps(run, "traces")
    unknown = gaps(run, "logs") + nothing_of(looked_at, "entries")
    witnesses = [_unopened(run, copy) for copy in copies if copy.wrong >= 0]
    beyond = [copy for copy in copies if len(copy.others) > creates]
    if run.history_is_whole and not lacking:
        witnesses += [_without_cause(run, copy, creates) for copy in beyond]
    elif beyond:
        most = max(len(copy.others) - creates for copy in beyond)
        lacks = "traces are missing" if lacking else "the history lacks its end"
        unknown.append(f"no create in the history explains {most} entries of a log, and {lacks}")
    # many copies contain the same entry: show the last copy
    kept = {(witness.kind, witness.facts["offset"]): witness for witness in witnesses}
    return conclude([*kept.values()], looked_at, unknown)


def _unopened(run: StoredRun, copy: CopyOfLog) -> Witness:
    summary = f"In the log of {copy.node} an epoch begins at offset {copy.wrong} with a client's write."
    return _against(NO_OPENING, run, copy, copy.wrong, [summary], "a leader opens its epoch with one LeaderChange")


def _without_cause(run: StoredRun, copy: CopyOfLog, creates: int) -> Witness:
    """Return the witness of a copy that has more unexplained batches than objects.

    Any of these batches may be the one without a cause; the witness shows the first one beyond the number of objects.
    """
    beyond = copy.others[creates:]
    summary = (
        f"The log of {copy.node} holds {len(copy.others)} batches that no write explains and that open no epoch, but "
        f"at most {creates} objects may have been created."
    )
    last = f"The last {len(beyond)} of these batches begin at offset {', '.join(map(str, beyond[:8]))}."
    expected = "each entry has exactly one cause: a client's operation, set-up, or the start of an epoch"
    return _against(NO_CAUSE, run, copy, beyond[0], [summary, last], expected)


def _against(kind: str, run: StoredRun, copy: CopyOfLog, offset: int, why: list[str], expected: str) -> Witness:
    [row] = log_rows(node_files(run.log)[copy.node], copy.copy, [offset])
    of_copy: dict[str, Any] = {"nodes": [copy.node], "copies": [copy.copy], "epoch": row["epoch"], "offset": offset}
    return Witness.of(kind, why[0], (row,), why=why, expected=expected, **of_copy)


SYSTEM_ENTRIES = Checker(
    name="system-entries",
    title="Entries of the system have a cause",
    question="Does each entry that no client wrote open an epoch, or follow from a create?",
    split=no_parts,
    judge=no_finding,
    combine=_combine_system,
    needs=frozenset({"history", "logs", "kraft-steps"}),
)
