"""Counts from the history how much was tested.

Every figure that depends on time is a count over *spans*: each fault in force, all of them together, the main phase,
what of it lies outside faults, and the stretches in which the system must answer (`minimums.py`).  One query counts
them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from checkers.base.clocks import one_clock
from checkers.base.stored_run import StoredRun
from checkers.run_quality.leadership import terms_of_leaders
from checkers.run_quality.minimums import END_OF_TIME, calm_spans, main_phase, stretches_of, windows
from checkers.sealing.tables import give_spans, history_tables, merged

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
"""writes: of a function that reads, too, whether a step of the transaction writes."""
_WRITING_STEP = r'\[\s*"(?:[^r"]|r[^"])'
"""In the payload of a transaction: a step that is no read, such as ["append", "x", 1]."""
_BY_SPAN = """
SELECT name, count(*) FILTER (invoked), count(*) FILTER (ok), count(*) FILTER (ok AND writes),
    count(*) FILTER (invoked AND reads), count(*) FILTER (ok AND reads), count(*) FILTER (timed_out)
FROM marked JOIN spans ON time_ns >= begin_ns AND time_ns < end_ns GROUP BY name"""
_BY_KEY = """
SELECT key, count(*) FILTER (ok AND writes), max(open), count(*) FILTER (ok AND reads AND time_ns >= ?)
FROM (
    SELECT *, sum(CASE WHEN invoked THEN 1 ELSE -1 END) OVER (PARTITION BY key ORDER BY "index") AS open
    FROM marked WHERE key IS NOT NULL
) GROUP BY key"""
_DEPOSED = """
WITH highest AS (SELECT time_ns, max(epoch) OVER (ORDER BY time_ns) AS highest FROM terms),
own AS (SELECT node, time_ns, arg_max(epoch, seq) AS epoch FROM terms GROUP BY node, time_ns)
SELECT count(*), count(*) FILTER (reads) FROM (SELECT * FROM marked WHERE ok) AS answer
ASOF JOIN own ON answer.node = own.node AND answer.time_ns >= own.time_ns
ASOF JOIN highest ON answer.time_ns >= highest.time_ns
WHERE epoch >= 0 AND epoch < highest"""
"""It still led by its own trace, and another node led a higher epoch.  own: the last of the roles of one moment."""


class SpanCounts(NamedTuple):
    """Operations of a span of time: invoked, ok, ok ones that wrote, invoked and ok ones of reading functions, and
    those that ended by a time-out."""

    invoked: int = 0
    ok: int = 0
    ok_writes: int = 0
    reads: int = 0
    ok_reads: int = 0
    timed_out: int = 0


_NOTHING = SpanCounts()


class KeyCounts(NamedTuple):
    """Counts of one key: acknowledged writes, operations that were open at once, and ok final reads.  An info ends its
    operation."""

    ok_writes: int
    peak: int
    final_reads: int


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """Figures of a history.

    in_faults, in_main, in_calm: counts of all faults that were installed, of the main phase, and of what of it lies
    outside faults and their aftermath.  by_fault: of each such fault.
    by_stretch: of each stretch, operations that were invoked early in it, and its ok answers.
    answering: nodes with an ok answer.  read_at_end: for each node, the keys of its ok final reads.
    invoked_by_function, ok_by_function: operations of each function, set-up and final reads included.
    deposed, deposed_reads: ok operations, and reads among them, of deposed leaders; NOT_KNOWN without traces.
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
        """The number of keys with two operations open at once."""
        return sum(key.peak > 1 for key in self.keys.values())

    @property
    def keys_read_at_end(self) -> int:
        return sum(key.final_reads > 0 for key in self.keys.values())

    def keys_with_writes(self, keys: Sequence[str], least: int) -> int:
        """Return how many of these keys have at least `least` acknowledged writes."""
        return sum(self.keys[key].ok_writes >= least for key in keys if key in self.keys)


def figures_of(run: StoredRun) -> HistoryFigures:
    """Count the sealed history of a run."""
    reads, writes = run.demands.reads, run.demands.writes
    functions = [{"f": f, "reads": f in reads, "writes": f in writes} for f in sorted(reads | writes | {""})]
    final = run.outcome.phase("final reads")
    final_ns = final.start_ns if final is not None else END_OF_TIME
    terms = terms_of_leaders(run) if one_clock(run.header) else None
    with history_tables(run.history) as sql:
        sql.register("functions", pa.Table.from_pylist(functions))
        sql.execute("SET VARIABLE writing_step = ?", [_WRITING_STEP])
        sql.execute(_MARKED)
        give_spans(sql, "spans", _spans(run))
        spans = {name: SpanCounts(*counts) for name, *counts in sql.execute(_BY_SPAN).fetchall()}
        by_key = {key: KeyCounts(*counts) for key, *counts in sql.execute(_BY_KEY, [final_ns]).fetchall()}
        by_function = sql.execute("SELECT f, count(*) FILTER (invoked), count(*) FILTER (ok) FROM marked GROUP BY f")
        counted = by_function.fetchall()
        deposed = NOT_KNOWN, NOT_KNOWN
        if terms is not None:
            sql.register("terms", terms)
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


def _answers_of_nodes(sql: DuckDBPyConnection, final_ns: int) -> tuple[frozenset[str], dict[str, frozenset[str]]]:
    """Return (nodes with an ok answer, node -> the keys of its ok final reads)."""
    query = """
        SELECT node, list(DISTINCT coalesce(key, '')) FILTER (reads AND time_ns >= ?)
        FROM marked WHERE ok AND node <> '' GROUP BY node"""
    found = sql.execute(query, [final_ns]).fetchall()
    return frozenset(node for node, _ in found), {node: frozenset(keys) for node, keys in found if keys}
