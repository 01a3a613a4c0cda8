"""Every entry that no client's write explains has exactly one cause: the start of an epoch, or a `create`.

A leader opens its epoch with one LeaderChange record, and writes no other record by itself (KIP-595).  Set-up and
clients create objects, and a leader creates none that its log holds already.  So an object has at most one batch in a
log, however often clients tried, and none if every `create` failed.  In every copy of every log:

* the first entry of an epoch is no client's write;
* the batches without a client's write that do not open an epoch are no more than the objects that may exist.

A topic that is created twice, a second LeaderChange in an epoch, and a change that no function of the client makes are
each one batch too many.  (`history_against_log.py` looks at the entries that set or remove a client's object.)

A history that lacks its end may lack the create of an object, too.  Then an unexplained entry is no violation, and the
verdict is unknown.

Where brokers register, the log also holds records about brokers and partitions that no client asked for.  They are
judged by `checkers/cluster`, and left out here.

Where voters change (KIP-853), the log also holds their records, which a row of some trace names, and before the first
of them one with the level of `kraft.version`.  `quorum-intersection` judges them; they are left out here.

The first entry of a log that begins above offset 0 is not judged, because it is unknown whether it opens an epoch.

Cost: a sort of the entries of all copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from checkers.base.checker import Checker, no_finding, no_parts
from checkers.base.columns import CLUSTER, log_rows, numbers, read_trace
from checkers.base.history import CREATE
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import Verdict, Witness, conclude
from checkers.raft.reading import nothing_of
from checkers.sealing.tables import give_files, history_tables

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
"""A kind that a batch with the level of a feature holds besides: eligible leaders need one `min.insync.replicas`."""
_CREATES = f"""
SELECT count(*) FROM (
    SELECT key FROM events WHERE f = '{CREATE}' GROUP BY key
    HAVING count(*) FILTER (type = 0) > count(*) FILTER (type = 2)
)"""
"""Number of objects with a create that was invoked and did not fail."""


_BY_BROKERS = f"""
CREATE TEMP TABLE unasked AS SELECT node, copy, "offset" FROM cluster
WHERE kind IN {BY_ITSELF} OR (kind = '{WITH_A_FEATURE}' AND (node, copy, batch_offset) IN (
    SELECT (node, copy, batch_offset) FROM cluster WHERE kind = 'feature'
))"""
"""Records about brokers and partitions that no client requested."""
_ENTRIES = """
CREATE TEMP TABLE entries AS
SELECT *, bool_or(opens) OVER (PARTITION BY node, copy, batch_offset) AS opening FROM (
    SELECT node, copy, "offset", batch_offset, key IS NOT NULL AS client,
        coalesce(epoch <> lag(epoch) OVER before, "offset" = 0) AS opens,
        lag(epoch) OVER before IS NOT NULL OR "offset" = 0 AS known
    FROM logs SEMI JOIN copies USING (node, copy) WINDOW before AS (PARTITION BY node, copy ORDER BY "offset")
)"""
_COPIES = """
SELECT node, copy, count(*) AS entries, count(*) FILTER (opens) AS opened,
    coalesce(min("offset") FILTER (opens AND client), -1) AS wrong,
    coalesce(list(DISTINCT batch_offset ORDER BY batch_offset) FILTER (NOT client AND known AND NOT opening
        AND NOT list_contains(?, "offset") AND (node, copy, "offset") NOT IN (FROM unasked)), []) AS others
FROM entries GROUP BY node, copy ORDER BY node, copy"""


class CopyOfLog(NamedTuple):
    """One copy.  entries: how many.  opened: how many of them open an epoch.  wrong: offset of the first that opens one
    and is a client's write, -1 if there is none.  others: offsets of batches without a client's write that open none.
    """

    node: str
    copy: int
    entries: int
    opened: int
    wrong: int
    others: list[int]


def _of_voters(run: StoredRun) -> list[int]:
    """Return the offsets of the records that name voters, and of the record of `kraft.version` before the first of
    them.
    """
    traces = node_files(run.trace).values()
    named = {o for path in traces for o in numbers(read_trace(path, ("voters",), ("offset",)), "offset").tolist()}
    offsets = sorted(named - {-1})
    return [*(offset - 1 for offset in offsets[:1]), *offsets]


def _read(run: StoredRun, copies: Sequence[Mapping[str, object]]) -> tuple[int, list[CopyOfLog]]:
    """Return (number of objects with a create that did not fail, content of each copy)."""
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
        sql.execute(_ENTRIES)
        return creates, [CopyOfLog(*row) for row in sql.execute(_COPIES, [_of_voters(run)]).fetchall()]


def _combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    logs = node_files(run.log)
    readable = [{"node": c["node"], "copy": c["copy"]} for c in run.copies if not c["error"] and c["node"] in logs]
    creates, copies = _read(run, readable)
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
    # the same entry is in many copies: show the last one
    kept = {(witness.kind, witness.facts["offset"]): witness for witness in witnesses}
    return conclude([*kept.values()], looked_at, unknown)


def _unopened(run: StoredRun, copy: CopyOfLog) -> Witness:
    summary = f"In the log of {copy.node} an epoch begins at offset {copy.wrong} with a client's write."
    return _against(NO_OPENING, run, copy, copy.wrong, [summary], "a leader opens its epoch with one LeaderChange")


def _without_cause(run: StoredRun, copy: CopyOfLog, creates: int) -> Witness:
    """Show the first batch beyond the creates: any of them may be the one without a cause."""
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
    combine=_combine,
    needs=frozenset({"history", "logs", "kraft-steps"}),
)
