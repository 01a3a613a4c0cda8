"""Counts how often each operation was invoked, how it ended and how long it took, with and without faults.

This judges the test and not the system.  If a function was invoked and never succeeded, nothing can be concluded about
it, so the verdict is *unknown*.  All times are of the clock of the harness.

Client nodes measure by their own clocks, too, what each operation took.  A recorder that notes invokes early, or
completions late, widens every operation and hides stale answers.  So medians that differ by more than the harness' own
loop explains make the verdict unknown.

Errors are counted by their text without its numbers, the most frequent first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checkers.base.checker import checker_of_run
from checkers.base.history import CREATE
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.run_quality.minimums import END_OF_TIME
from checkers.sealing.sealed_history import dicts, give_spans, history_tables, merged

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

RECORDED_LATE_MS = 250.0
LATE_LOOPS = 4
"""An operation may take so much longer by the harness, and so many times the median delay of its loop in addition."""
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
_ERROR_CHARACTERS = 150
ERRORS_MAX = 20
"""Different errors that are listed."""
_VARYING = r"0x[0-9a-fA-F]+|\d{4,}|\d+\.\d+"
"""Differences between two texts of one error: addresses, ports, times."""
REFUSED_CONNECTION = "ConnectionRefusedError"
"""Beginning of the error of a refused connection, as a client of one's own reports it."""

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
    """Return why the recorded times of a function cannot be right; "" if client nodes measured about the same.

    Set-up is left out: its few operations wait for clients that start, and no checker judges when they happened."""
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
