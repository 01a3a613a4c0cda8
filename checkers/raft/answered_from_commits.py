"""Two checkers: each answer reflects all entries that were known to be committed, and no uncommitted entry.

*All known entries.*  An answer reflects all entries that any node knew to be committed when its operation was invoked.

KIP-595 and Ongaro & Ousterhout 2014, section 8: a leader confirms that it still leads before it answers from its state.
Suppose that a node reported a mark (a high watermark) before an operation was invoked.  Then a leader that can still
confirm its leadership has all entries below that mark, and its answer must reflect these entries.  So a value that an
entry below the mark overwrote is stale, unless a later entry writes the value again and is committed before the answer
arrives.

Answers alone prove less.  A write without an answer explains many stale answers, and a repeated value explains nearly
all.  Here the log decides which value the register held.

The rule compares times in traces with times in the history.  This is sound only on one monotonic clock: a mark is
stamped when the node knows it, and an invocation before it is sent.  The checker uses the log of one node: among the
nodes whose final copy reaches their own largest mark, the node with the largest mark.  An answer that may reflect
entries beyond this log is not judged.

If the recorder's clock ran faster or slower than the nodes' clocks, the checker would report hundreds of correct
answers.  Two observations reveal such a clock; then this checker and all others that depend on times are unknown.
First, a write cannot be committed before it is invoked if it is the only write of its value.  Second, the time by which
acknowledgements precede their commits cannot grow steadily from the first tenth of a run to its last.

*Nothing uncommitted.*  The answering node knew of the commit before its answer arrived.

A write may be acknowledged only when the answering node's high watermark covers its entry.  A read may return only a
value whose entry lies below that mark (KIP-595).  Both rules compare a time in a trace with a time in the history,
which is sound only on one monotonic clock.  A node stamps the row of a mark before it writes the row, and sends the
answer afterwards; the harness stamps the answer after it has arrived.  So the time of a mark that covers the entry is
not after the time of the completion.

Not applicable if the servers do not share the harness' clock: on a backend with several machines, or with a Docker
engine in a virtual machine, whose traces have times outside of the test.  On the harness' own kernel such times cannot
be right, so the verdict is unknown.  The checker is not applicable either if clients write a value twice, because then
a value does not identify its entry.  Other checkers judge a value that the answering node's final log has at several
offsets or not at all.

One join of the history with the final logs and the marks of their nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Int64
from checkers.base.checker import Checker, no_finding, no_parts
from checkers.base.stored_rows import log_rows, log_start
from checkers.base.stored_run import StoredRun, by_number, gaps, node_files
from checkers.base.values import span_in_words
from checkers.base.verdict import DOUBTED, MAX_WITNESSES, VIOLATIONS_BY_KIND, Validity, Verdict, Witness, conclude
from checkers.raft.reading import NAMED_WRITES, WRITES, nothing_of
from checkers.record.header_and_outcome import one_clock, one_kernel
from checkers.sealing.sealed_history import dicts, give_files, history_tables, read_rows

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WRITES_IN_TENTH_MIN = 10
"""Minimum number of writes in a tenth of a run for comparing the pace of two clocks."""
DRIFT_NS_MIN = 10_000_000
FROM_THE_PAST = "answer from the past"
_SHOWN = ("index", "time_ns", "process", "type", "f", "key", "value", "node")

_MARKS = """
CREATE TEMP TABLE marks AS SELECT node, seq, time_ns, "offset" AS mark, epoch FROM traces
WHERE event = 'high-watermark' AND "offset" IS NOT NULL;
CREATE TEMP TABLE largest AS SELECT time_ns, max(mark) OVER (ORDER BY time_ns) AS mark FROM marks"""
"""SQL that makes the tables `marks` (all high watermarks) and `largest` (the largest one reported up to each time)."""
_ANSWERED = """
CREATE TEMP TABLE answers AS
SELECT operations.key, answered AS value, invoked_ns, ended_ns AS answered_ns, ended_index AS row,
    "index" AS invoke_row, coalesce(f = 'write' AND times = 1, false) AS only_write
FROM operations LEFT JOIN names ON names.key = operations.key AND names.value = answered
WHERE operations.type = 1 AND f IN ('read', 'write') AND operations.key IS NOT NULL AND answered IS NOT NULL"""
"""SQL that makes the table `answers` of answered reads and writes of a value.

only_write: True for the only write of its value to its key
"""
_OF_LOG = """
CREATE TEMP TABLE entries AS SELECT key, value, "offset", epoch FROM logs
WHERE node = $node AND copy = $copy AND key IS NOT NULL AND "offset" < $end"""
_JUDGED = """
CREATE TEMP TABLE judged AS
WITH known AS (
    SELECT answers.*, least(coalesce(early.mark, 0), $end) AS since, coalesce(late.mark, 0) AS until FROM answers
    ASOF LEFT JOIN largest AS early ON invoked_ns >= early.time_ns
    ASOF LEFT JOIN largest AS late ON answered_ns >= late.time_ns
)
SELECT known.*, held.value AS held, held."offset" AS held_at,
    coalesce(held.value = known.value, false) OR coalesce(again."offset" < least(until, $end), false) AS explained
FROM known
ASOF LEFT JOIN entries AS held ON known.key = held.key AND since > held."offset"
ASOF LEFT JOIN entries AS again
    ON known.key = again.key AND known.value = again.value AND since <= again."offset"
WHERE explained OR until <= $end"""
"""SQL that makes the table `judged`.

since: offset; all entries below it were known to be committed when the operation was invoked
until: offset; all entries below it were known to be committed when the answer arrived
held, held_at: the value of the key after the entries below `since`, and the offset of its entry
explained: True if the answer equals `held`, or if a later entry wrote its value and was committed before the answer
"""
_STALE = "SELECT row, invoke_row, key, held, held_at, since FROM judged WHERE NOT explained ORDER BY row"
_COMMITS = """
WITH jumps AS (
    SELECT mark, min(time_ns) AS time_ns, first(epoch ORDER BY time_ns, node) AS epoch
    FROM (SELECT *, max(mark) OVER (ORDER BY time_ns) AS most FROM marks) WHERE mark = most GROUP BY mark
), once AS (
    SELECT key, value, any_value("offset") AS "offset", any_value(epoch) AS epoch
    FROM entries WHERE value IS NOT NULL GROUP BY key, value HAVING count(*) = 1
)
SELECT jumps.time_ns, invoked_ns, answered_ns FROM (SELECT * FROM answers JOIN once USING (key, value) WHERE only_write)
    AS answer ASOF JOIN jumps ON answer."offset" < jumps.mark WHERE jumps.epoch >= answer.epoch"""
"""Query for the times at which each write was committed, invoked and answered.

If the first mark above an entry has an earlier epoch, this mark covered another entry at that offset.  Then the system
lost committed entries, and the times show nothing about clocks.
"""
_TWO_LED = """
SELECT epoch FROM traces WHERE event = 'role' AND role = 'leader' GROUP BY epoch HAVING count(DISTINCT node) > 1"""
"""Query for epochs with two leaders, in which offset and epoch do not identify an entry."""


def judge_answers(sql: DuckDBPyConnection, end: int) -> None:
    """Make the table `judged` from the tables `answers`, `largest` and `entries`.

    end: offset below which `entries` contains the entries of the log
    """
    sql.execute(_JUDGED, {"end": end})


_FIRST = "SELECT node, time_ns FROM marks WHERE mark > ? ORDER BY time_ns, node LIMIT 1"
_WROTE = """
SELECT row, ended_index FROM names JOIN operations ON row = "index"
WHERE names.key = ? AND names.value = ? AND times = 1"""


def _stale(run: StoredRun, sql: DuckDBPyConnection, log: tuple[str, int], found: Sequence[Any]) -> Witness:
    """Return the witness of a stale answer.

    log: (node, copy) of the log that shows the newer value
    found: a row of _STALE
    """
    row, invoke_row, key, held, offset, since = found
    wrote = [each for both in sql.execute(_WROTE, [key, held]).fetchall() for each in both if each is not None]
    *writer, invoke, answer = rows = read_rows(run.history, [*wrote, invoke_row, row], _SHOWN)
    node, value, new = answer["node"], answer["value"], "no value" if held is None else held
    if offset is None:
        clause = f"although no write of {value} was committed by then"
        why = f"No entry below offset {since} writes to {key}, and none that was committed before the answer does."
    else:
        [(knew, known_ns)] = sql.execute(_FIRST, [offset]).fetchall()
        before = f"{knew} had reported {span_in_words(invoke['time_ns'] - known_ns)} before it was invoked"
        clause = f"although {before} that {new} is committed"
        why = f"The log holds {new} for {key} at offset {offset}, and {before} that it is committed."
    what = f"answered a read of {key} with {value}" if answer["f"] == "read" else f"acknowledged {value} for {key}"
    letters = {str(row["index"]): letter for row, letter in zip([*writer[:1], invoke], "AB"[not writer :], strict=True)}
    return Witness.of(
        FROM_THE_PAST,
        f"At {answer['time_ns'] / 1e9:.3f} s {node} {what}, {clause}.",
        [] if offset is None else log_rows(node_files(run.log)[log[0]], log[1], [offset]),
        ({"table": "history", **event} for event in rows),
        nodes=[node],
        offset=since - 1 if offset is None else offset,
        key=key,
        value=value,
        letters=letters,
        culprit="B",
        why=[why, f"No entry from there to the answer writes {value} to {key} again."],
        expected="the answer of a leader reflects all entries that were committed before the invocation",
    )


def other_pace_of_recorder(committed: Int64, invoked: Int64, answered: Int64) -> str:
    """Return the evidence that the clock of the history runs at another rate than that of the traces, or "".

    committed, invoked, answered: times of writes in ns
    """
    if early := int(np.sum(committed < invoked)):
        most_ms = int((invoked - committed).max()) / 1e6
        return (
            f"{early} of {len(committed)} writes were committed up to {most_ms:.0f} ms before they were invoked: the "
            "clock of the recorder runs ahead of the nodes'"
        )
    ahead = [
        float(np.median(tenth))
        for tenth in np.array_split((answered - committed)[np.argsort(answered)], 10)
        if len(tenth) >= WRITES_IN_TENTH_MIN
    ]
    rises = int(np.sum(np.diff(ahead) >= 0))
    if len(ahead) < 10 or rises > 1 or ahead[-1] >= 0 or ahead[0] - ahead[-1] < DRIFT_NS_MIN:
        return ""
    return (
        "the times by which acknowledgements of writes precede their commits grew during the run, at last to "
        f"{-ahead[-1] / 1e6:.0f} ms: the clock of the recorder runs slower than the nodes'"
    )


def _reference(run: StoredRun, sql: DuckDBPyConnection) -> tuple[str, int, int] | None:
    """Return (node, number of the final copy, largest mark of the node) with the largest mark.

    Only copies that begin at offset 0 and reach the largest mark of their own node are considered.
    """
    known = "SELECT max(mark) FROM marks WHERE node = ? AND seq <= ?"
    logs, found = node_files(run.log), list[tuple[int, int, str, int]]()
    for node, copy in run.final_copies.items():
        [(mark,)] = sql.execute(known, [node, copy["trace_seq"]]).fetchall()
        reached = node in logs and mark is not None and copy["log_end"] >= mark
        if reached and log_start(logs[node], copy["copy"]) == 0:
            found.append((int(mark), -len(found), node, int(copy["copy"])))
    return (max(found)[2], max(found)[3], max(found)[0]) if found else None


def _combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    traces = node_files(run.trace)
    if (verdict := other_clock(run, ())) is not None or not run.history.exists() or not traces:
        return verdict or conclude(
            (), {"answers": 0}, [*gaps(run, "logs", "traces"), "there were no answers to look at"]
        )
    answers, witnesses, pace, unknown = 0, list[Witness](), "", list[str]()
    looked_at = {"answers": 0}
    with history_tables(run.history) as sql:
        give_files(sql, "traces", traces.values())
        sql.execute(_MARKS)
        if (verdict := other_clock(run, _strangers(sql))) is not None:
            return verdict
        sql.execute(NAMED_WRITES)
        sql.execute(_ANSWERED)
        [(answers,)] = sql.execute("SELECT count(*) FROM answers").fetchall()
        reference = _reference(run, sql)
        if answers and reference is None:
            unknown.append("no final log reaches from offset 0 to what its node knew to be committed")
        elif answers and reference is not None:
            node, copy, end = reference
            give_files(sql, "logs", [node_files(run.log)[node]])
            sql.execute(_OF_LOG, {"node": node, "copy": copy, "end": end})
            if not sql.execute(_TWO_LED).fetchall():
                times = sql.execute(_COMMITS).fetchnumpy()
                pace = other_pace_of_recorder(*(np.asarray(times[name], np.int64) for name in times))
            if not pace:
                judge_answers(sql, end)
                counted = "SELECT count(*), count(*) FILTER (NOT explained) FROM judged"
                [(looked_at["answers"], stale)] = sql.execute(counted).fetchall()
                looked_at |= {"violations": stale} if stale else {}
                first = sql.execute(_STALE).fetchall()[:MAX_WITNESSES]
                witnesses = [_stale(run, sql, (node, copy), found) for found in first]
    unknown = [*filter(None, [pace]), *unknown, *gaps(run, "logs", "traces")]
    if not answers and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason="no read or write of a single value was answered")
    unknown += [] if pace else nothing_of(looked_at, "answers")
    details: dict[str, Any] = {DOUBTED: {"times": pace}} if pace else {}
    if witnesses:
        details[VIOLATIONS_BY_KIND] = {FROM_THE_PAST: looked_at["violations"]}
    return conclude(witnesses, looked_at, unknown, details)


def _strangers(sql: DuckDBPyConnection) -> list[str]:
    """Return the nodes that reported marks at times before the test began or after it ended."""
    spans = "SELECT node, min(time_ns), max(time_ns) FROM marks GROUP BY node"
    [(ended_ns,)] = sql.execute("SELECT coalesce(max(time_ns), 0) FROM history").fetchall()
    found = [n for n, *span in sql.execute(spans).fetchall() if min(span) < 0 or max(span) > ended_ns + _SLACK_NS]
    return sorted(found, key=by_number)


ANSWERED_FROM_COMMITS = Checker(
    name="answers-from-commits",
    title="Answers reflect what was committed",
    question="Did every answer reflect all that any node knew to be committed when the operation was invoked?",
    split=no_parts,
    judge=no_finding,
    combine=_combine,
    needs=frozenset({"history", "logs", "traces", "kraft-steps"}),
    rests_on=frozenset({"times", "answerers"}),
)


_SLACK_NS = 120_000_000_000
"""Maximum time in ns between the last row of the history and the collection of traces."""

_ENTRIES_AND_COMMITS = """
CREATE TEMP TABLE commits AS
SELECT node, mark, min(time_ns) OVER (PARTITION BY node ORDER BY mark DESC) AS known_ns FROM marks;
CREATE TEMP TABLE entries AS
SELECT entry.*, known_ns FROM (
    SELECT node, key, value, any_value("offset") AS "offset" FROM logs SEMI JOIN final USING (node, copy)
    WHERE key IS NOT NULL AND value IS NOT NULL GROUP BY node, key, value HAVING count(*) = 1
) AS entry ASOF LEFT JOIN commits ON entry.node = commits.node AND entry."offset" < commits.mark"""
"""SQL that makes two tables.

commits: high watermarks of each node; known_ns: time in ns when the node first reported this or a larger one
entries: entries of each node's own final log whose value only one entry writes; known_ns: time in ns when the node
first reported a high watermark above the entry
"""
_ANSWERS = """
SELECT {} FROM events JOIN entries USING (node, key, value) WHERE type = 1 AND list_contains(?, f)"""
_EARLY = "(known_ns IS NULL OR known_ns > time_ns)"
_COLUMNS = ", ".join(f'"{name}"' for name in (*_SHOWN, "offset"))


def other_clock(run: StoredRun, strangers: Sequence[str]) -> Verdict | None:
    """Return the verdict if times of traces and of the history cannot be compared, or None.

    strangers: nodes with times outside of the test
    """
    if strangers and one_kernel(run.header):
        reason = f"times in the trace of {', '.join(strangers)} lie outside of the test, and there is only one clock"
        return Verdict(Validity.UNKNOWN, reason=reason)
    if strangers or not one_clock(run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason="the servers do not share a monotonic clock with the harness")
    return None


def kind(answer: dict[str, Any]) -> str:
    """Return the kind of violation for an answer before its commit."""
    return "acknowledged before it was committed" if answer["f"] in WRITES else "read of an uncommitted value"


def _early_answer(answer: dict[str, Any]) -> Witness:
    node = answer["node"]
    what = "acknowledged a write of" if answer["f"] in WRITES else "answered a read with"
    why = (
        f"{node} {what} {answer['value']} to {answer['key']} before it reported that offset {answer['offset']}, "
        "whose entry has this value, is committed."
    )
    of_answer = {name: answer[name] for name in ("offset", "key", "value")}
    expected = "a node answers only after its high watermark covers the entry on which the answer depends"
    return Witness.of(kind(answer), why, (), (answer,), nodes=[node], expected=expected, **of_answer)


def _combine_after_commit(run: StoredRun, _: Sequence[Any]) -> Verdict:
    traces, logs = node_files(run.trace), node_files(run.log)
    copies = [{"node": n, "copy": c["copy"]} for n, c in run.final_copies.items() if n in logs and n in traces]
    nodes, functions = [copy["node"] for copy in copies], ["read", *WRITES]
    if not one_clock(run.header) or not nodes:
        answers, early, verdict = 0, [], other_clock(run, ())
    else:
        with history_tables(run.history) as sql:
            give_files(sql, "logs", [logs[node] for node in nodes])
            give_files(sql, "traces", [traces[node] for node in nodes])
            sql.execute(_MARKS)
            verdict = other_clock(run, _strangers(sql))
            sql.register("final", pa.Table.from_pylist(copies))
            sql.execute(_ENTRIES_AND_COMMITS)
            counts = _ANSWERS.format(f"count(*), count(*) FILTER ({_EARLY})")
            [(answers, violations)] = sql.execute(counts, [functions]).fetchall()
            shown = f'{_ANSWERS.format(_COLUMNS)} AND {_EARLY} ORDER BY "index"'
            early = dicts(sql, shown, [functions]) if violations else []
    if verdict is not None:
        return verdict
    looked_at = {"nodes": len(nodes), "answers": answers}
    if early:
        looked_at["violations"] = len(early)
    unknown = gaps(run, "logs", "traces") + nothing_of(looked_at, "answers")
    witnesses = [_early_answer({"table": "history", **row}) for row in early[:MAX_WITNESSES]]
    by_kind = {VIOLATIONS_BY_KIND: dict(Counter(map(kind, early)))} if early else {}
    return conclude(witnesses, looked_at, unknown, by_kind)


ANSWERED_AFTER_COMMIT = Checker(
    name="answers-after-commit",
    title="Answers rest on committed entries",
    question="Did every answering node know that the entry was committed before its answer arrived?",
    split=no_parts,
    judge=no_finding,
    combine=_combine_after_commit,
    needs=frozenset({"history", "logs", "traces", "unique-values", "client-records"}),
    rests_on=frozenset({"times", "answerers"}),
)
