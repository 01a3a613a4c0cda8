"""Counts from the history how much was tested.

Every figure that depends on time is a count over *spans*: each fault in force, all faults together, the main phase, the
parts of the main phase outside faults, and the stretches in which the system must answer (`minimums.py`).  One pass
counts all figures.

*The checker `statistics`.*  It counts the invocations and outcomes of each function and measures the latencies, with
and without faults.

This checker judges the test, not the system.  If a function was invoked but never succeeded, nothing can be concluded
about it, so the verdict is *unknown*.  All times are from the clock of the harness.

Client nodes also measure the latency of each operation with their own clocks.  A recorder that records invokes early,
or completions late, lengthens every operation and hides stale answers.  So the verdict is unknown if the medians differ
by more than delays of the harness' event loop explain.

Errors are counted by their text without its numbers, the most frequent first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkers.base.checker import checker_of_run
from checkers.base.history import CREATE
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.record.header_and_outcome import one_clock
from checkers.run_quality.leadership import deposed_leaders
from checkers.run_quality.minimums import END_OF_TIME, calm_spans, main_phase, stretches_of, windows
from checkers.sealing.sealed_history import dicts, give_spans, history_tables, merged

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


NOT_KNOWN = -1

_MARKED = r"""
CREATE TEMP TABLE marked AS SELECT "index", time_ns, f, key, node, type = 0 AS invoked, type = 1 AS ok,
    coalesce(reads, false) AS reads,
    coalesce(writes AND NOT (reads AND payload LIKE '[%' AND NOT regexp_matches(payload, getvariable('writing_step'))),
        writes, false) AS writes,
    coalesce(regexp_matches(error, '(?i)time.?out|timed out'), false) AS timed_out
FROM events LEFT JOIN functions USING (f)"""
"""Query that marks each event.  For a function that also reads, `writes` is true if a transaction's step writes."""
_WRITING_STEP = r'\[\s*"(?:[^r"]|r[^"])'
"""Pattern of a step that is no read, such as ["append", "x", 1], in the payload of a transaction."""
_FOR_SPANS = """
SELECT time_ns, invoked, ok, ok AND writes, invoked AND reads, ok AND reads, timed_out FROM marked"""
"""Query for the time and the columns of `SpanCounts` of each event."""
_BY_KEY = """
SELECT key, count(*) FILTER (ok AND writes), key IN (FROM concurrent),
    count(*) FILTER (ok AND reads AND time_ns >= ?)
FROM marked WHERE key IS NOT NULL GROUP BY key"""
_CONCURRENT = """
INSERT INTO concurrent SELECT DISTINCT key FROM (
    SELECT key, invoked AND lag(invoked) OVER (PARTITION BY key ORDER BY "index") AS meets FROM marked
    WHERE key IS NOT NULL AND {}
) WHERE meets"""
"""Query for keys on which two operations were open at once.  An info ends its operation.

When this first happens on a key, no other event of the key lies between the two invokes.  It happens early in a run for
most keys, so a check of the first rows avoids sorting the whole history.
"""
_EARLY_ROWS = 1 << 16
_ROWS_AT_ONCE = 1 << 20
_DEPOSED = """
SELECT count(*), count(*) FILTER (reads)
FROM (FROM marked WHERE ok) JOIN deposed ON node = name AND time_ns >= begin_ns AND time_ns < end_ns"""


class SpanCounts(NamedTuple):
    """Numbers of operations in a span of time: invoked, ok, ok with writes, invoked and ok with reads, timed out."""

    invoked: int = 0
    ok: int = 0
    ok_writes: int = 0
    reads: int = 0
    ok_reads: int = 0
    timed_out: int = 0


_NOTHING = SpanCounts()


class KeyCounts(NamedTuple):
    """Counts of one key: acknowledged writes and ok final reads.

    concurrent: True if two operations were open at once
    """

    ok_writes: int
    concurrent: bool
    final_reads: int


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """Figures of a history.

    in_faults: counts during all faults that were installed
    in_main: counts of the main phase
    in_calm: counts of the parts of the main phase outside faults and their aftermath
    by_fault: counts during each installed fault
    by_stretch: for each stretch, (operations that were invoked early in it, ok answers)
    answering: nodes with an ok answer
    read_at_end: for each node, the keys of its ok final reads
    invoked_by_function, ok_by_function: number of operations by function, including set-up and final reads
    deposed, deposed_reads: number of ok operations, and of ok reads, that deposed leaders answered; NOT_KNOWN without
        traces
    """

    ok: int = 0
    in_faults: SpanCounts = _NOTHING
    in_main: SpanCounts = _NOTHING
    in_calm: SpanCounts = _NOTHING
    by_fault: tuple[SpanCounts, ...] = ()
    by_stretch: tuple[tuple[int, int], ...] = ()
    answering: frozenset[str] = frozenset()
    read_at_end: Mapping[str, frozenset[str]] = field(default_factory=dict)
    invoked_by_function: Mapping[str, int] = field(default_factory=Counter)
    ok_by_function: Mapping[str, int] = field(default_factory=Counter)
    keys: Mapping[str, KeyCounts] = field(default_factory=dict)
    deposed: int = NOT_KNOWN
    deposed_reads: int = NOT_KNOWN

    @property
    def concurrent_keys(self) -> int:
        """Return the number of keys with two operations open at once."""
        return sum(key.concurrent for key in self.keys.values())

    @property
    def keys_read_at_end(self) -> int:
        return sum(key.final_reads > 0 for key in self.keys.values())

    def keys_with_writes(self, keys: Sequence[str], least: int) -> int:
        """Return the number of these keys that have at least `least` acknowledged writes."""
        return sum(self.keys[key].ok_writes >= least for key in keys if key in self.keys)


def figures_of(run: StoredRun) -> HistoryFigures:
    """Count the sealed history of a run."""
    reads, writes = run.demands.reads, run.demands.writes
    functions = [{"f": f, "reads": f in reads, "writes": f in writes} for f in sorted(reads | writes | {""})]
    final = run.outcome.phase("final reads")
    final_ns = final.start_ns if final is not None else END_OF_TIME
    deposed_spans = deposed_leaders(run) if one_clock(run.header) else None
    with history_tables(run.history) as sql:
        sql.register("functions", pa.Table.from_pylist(functions))
        sql.execute("SET VARIABLE writing_step = ?", [_WRITING_STEP])
        sql.execute(_MARKED)
        spans = _by_span(sql, [*_spans(run)])
        sql.execute("CREATE TEMP TABLE concurrent (key VARCHAR)")
        for chosen in (f'"index" < {_EARLY_ROWS}', "key NOT IN (FROM concurrent)"):
            sql.execute(_CONCURRENT.format(chosen))
        by_key = {key: KeyCounts(*counts) for key, *counts in sql.execute(_BY_KEY, [final_ns]).fetchall()}
        by_function = sql.execute("SELECT f, count(*) FILTER (invoked), count(*) FILTER (ok) FROM marked GROUP BY f")
        counted = by_function.fetchall()
        deposed = NOT_KNOWN, NOT_KNOWN
        if deposed_spans is not None:
            give_spans(sql, "deposed", deposed_spans)
            [deposed] = sql.execute(_DEPOSED).fetchall()
        answering, read_at_end = _answers_of_nodes(sql, final_ns)
    return HistoryFigures(
        ok=sum(ok for *_, ok in counted),
        in_faults=spans.get("faults", _NOTHING),
        in_main=spans.get("main", _NOTHING),
        in_calm=spans.get("calm", _NOTHING),
        by_fault=tuple(spans.get(f"fault {i}", _NOTHING) for i in range(len(windows(run.faults)))),
        by_stretch=tuple(
            (spans.get(f"early {i}", _NOTHING).invoked, spans.get(f"stretch {i}", _NOTHING).ok)
            for i in range(len(stretches_of(run)))
        ),
        answering=answering,
        read_at_end=read_at_end,
        invoked_by_function=Counter({f: invoked for f, invoked, _ in counted if invoked}),
        ok_by_function=Counter({f: ok for f, _, ok in counted}),
        keys=by_key,
        deposed=deposed[0],
        deposed_reads=deposed[1],
    )


def _spans(run: StoredRun) -> Iterator[tuple[str, int, int]]:
    held, stretches = windows(run.faults), stretches_of(run)
    spans = {"faults": merged(held), "main": main_phase(run), "calm": calm_spans(run)}
    yield from ((name, *span) for name, some in spans.items() for span in some)
    yield from ((f"fault {i}", *span) for i, span in enumerate(held))
    yield from ((f"stretch {i}", each.begin_ns, each.end_ns) for i, each in enumerate(stretches))
    yield from ((f"early {i}", each.begin_ns, each.early_ns) for i, each in enumerate(stretches))


def _by_span(sql: DuckDBPyConnection, spans: Sequence[tuple[str, int, int]]) -> dict[str, SpanCounts]:
    """Count between the bounds of all spans, and add up the counts within the spans of each name."""
    bounds = np.unique(np.array([at for _, *span in spans for at in span], np.int64))
    between = np.zeros((len(SpanCounts._fields), len(bounds) + 1), np.int64)
    for rows in sql.sql(_FOR_SPANS).to_arrow_reader(_ROWS_AT_ONCE):
        time_ns, *kinds = (column.to_numpy(zero_copy_only=False) for column in rows.columns)
        place = np.searchsorted(bounds, time_ns, "right")
        between += [np.bincount(place[kind], minlength=len(bounds) + 1) for kind in kinds]
    found: dict[str, SpanCounts] = {}
    for name, *span in spans:
        first, end = np.searchsorted(bounds, span, "right")
        counts = between[:, first:end].sum(axis=1).tolist()
        found[name] = SpanCounts(*map(add, found.get(name, _NOTHING), counts))
    return found


def _answers_of_nodes(sql: DuckDBPyConnection, final_ns: int) -> tuple[frozenset[str], dict[str, frozenset[str]]]:
    """Return (nodes with an ok answer, node -> the keys of its ok final reads)."""
    query = """
        SELECT node, list(DISTINCT coalesce(key, '')) FILTER (reads AND time_ns >= ?)
        FROM marked WHERE ok AND node <> '' GROUP BY node"""
    found = sql.execute(query, [final_ns]).fetchall()
    return frozenset(node for node, _ in found), {node: frozenset(keys) for node, keys in found if keys}


RECORDED_LATE_MS = 250.0
LATE_LOOPS = 4
"""Maximum ms, and additional median delays of the harness' loop, by which recorded latencies exceed measured ones."""
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
_ERROR_CHARACTERS = 150
ERRORS_MAX = 20
"""Maximum number of different errors that are listed."""
_VARYING = r"0x[0-9a-fA-F]+|\d{4,}|\d+\.\d+"
"""Pattern of the parts in which two texts of one error may differ: addresses, ports, times."""
REFUSED_CONNECTION = "ConnectionRefusedError"
"""Prefix of the error of a refused connection, as clients in Python report it."""

_COUNTS = """
SELECT f, count(*) AS invoked, count(*) FILTER (type = 1) AS ok, count(*) FILTER (type = 2) AS fail,
    count(*) FILTER (type = 3) AS info, count(*) FILTER (type IS NULL) AS open
FROM operations GROUP BY f ORDER BY f"""
_LATENCIES = f"""
SELECT f, CASE WHEN end_ns >= invoked_ns THEN 'under faults' ELSE 'without faults' END AS moment, count(*),
    quantile_cont(ended_ns - invoked_ns, {list(QUANTILES.values())})
FROM operations ASOF LEFT JOIN faults ON begin_ns <= ended_ns WHERE type = 1
GROUP BY ALL ORDER BY f, moment DESC"""
_ERRORS = f"""
SELECT error, count(*) FILTER (type = 2) AS fail, count(*) FILTER (type = 3) AS info
FROM (
    SELECT "index", type, left(regexp_replace(error, '{_VARYING}', '#', 'g'), {_ERROR_CHARACTERS}) AS error
    FROM events WHERE type IN (2, 3)
) WHERE error <> '' GROUP BY error ORDER BY count(*) DESC, min("index") LIMIT {ERRORS_MAX}"""
_LAST_ERRORS = """SELECT f, arg_max(coalesce(error, ''), "index") FROM events WHERE type IN (2, 3) GROUP BY f"""


def _combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    spans = merged((f.injected_ns, f.end_ns(END_OF_TIME)) for f in run.faults if f.carried_out)
    with history_tables(run.history) as sql:
        give_spans(sql, "faults", [("", *span) for span in spans])
        functions = {str(row.pop("f")): row for row in dicts(sql, _COUNTS)}
        if not functions:
            return Verdict(Validity.NOT_APPLICABLE, reason="no client invoked anything")
        for row in functions.values():
            row["latency_ms"] = {}
        for f, moment, count, quantiles in sql.execute(_LATENCIES).fetchall():
            values = {name: round(ns / 1e6, 3) for name, ns in zip(QUANTILES, quantiles, strict=True)}
            functions[f]["latency_ms"][moment] = {"count": count, **values}
        [(first, last)] = sql.execute("SELECT min(time_ns), max(time_ns) FROM events").fetchall()
        refused = f"SELECT count(*) FROM events WHERE type = 3 AND starts_with(error, '{REFUSED_CONNECTION}')"
        counted = {"refused_connections": sql.execute(refused).fetchall()[0][0], "errors": dicts(sql, _ERRORS)}
        last_errors = dict(sql.execute(_LAST_ERRORS).fetchall())
        late = [words for f in functions if (words := _recorded_late(run, sql, f))]
    details = {"functions": functions, **{name: found for name, found in counted.items() if found}}
    in_faults_ns = sum(max(0, min(end, last) - max(start, first)) for start, end in spans)
    totals = {name: sum(row[name] for row in functions.values()) for name in ("invoked", "ok", "fail", "info", "open")}
    looked_at: dict[str, int | float | str] = {"operations": totals.pop("invoked"), **totals}
    looked_at["seconds"] = round((last - first) / 1e9, 3)
    looked_at["seconds_under_faults"] = round(in_faults_ns / 1e9, 3)
    if last > first:
        looked_at["ok_per_second"] = round(totals["ok"] / ((last - first) / 1e9), 2)
    never = [f for f, row in functions.items() if not row["ok"]]
    reason = f"no {' and no '.join(never)} ever succeeded, so the run shows nothing about it" if never else ""
    for f in never:
        reason += f"; the last {f} ended with {error[:_ERROR_CHARACTERS]}" if (error := last_errors.get(f)) else ""
    unknown = "; ".join(filter(None, [reason, *late]))
    return Verdict(Validity.UNKNOWN if unknown else Validity.VALID, looked_at, unknown, details=details)


def _recorded_late(run: StoredRun, sql: DuckDBPyConnection, f: str) -> str:
    """Return the reason why recorded times of a function cannot be right; "" if client nodes measured about the same.

    Set-up is left out, because its few operations wait for clients to start, and no checker judges their times."""
    measured_ms = run.outcome.took_ms.get(f)
    if measured_ms is None or f == CREATE:
        return ""
    median = "SELECT median(ended_ns - invoked_ns) / 1e6 FROM operations WHERE type = 1 AND f = ?"
    [(recorded_ms,)] = sql.execute(median, [f]).fetchall()
    allowed_ms = measured_ms + RECORDED_LATE_MS + LATE_LOOPS * run.outcome.loop_late_ms.get("p50", 0.0)
    if recorded_ms is None or recorded_ms <= allowed_ms:
        return ""
    words = f"{recorded_ms:.0f} ms in the history, and {measured_ms:.0f} ms by the clocks of the client nodes (medians)"
    return f"{f} took {words}: the recorder noted invokes early or answers late, which hides stale answers"


STATISTICS = checker_of_run(
    "statistics", "Statistics", "How often did each operation succeed, and how long did it take?", _combine
)
