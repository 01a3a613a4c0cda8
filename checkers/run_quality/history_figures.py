"""Counts from the history how much was tested.

Every figure that depends on time is a count over *spans*: each fault in force, all of them together, the main phase,
what of it lies outside faults, and the stretches in which the system must answer (`minimums.py`).  One pass counts
them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from checkers.base.stored_run import StoredRun
from checkers.record.header_and_outcome import one_clock
from checkers.run_quality.leadership import deposed_leaders
from checkers.run_quality.minimums import END_OF_TIME, calm_spans, main_phase, stretches_of, windows
from checkers.sealing.sealed_history import give_spans, history_tables, merged

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
_FOR_SPANS = """
SELECT time_ns, invoked, ok, ok AND writes, invoked AND reads, ok AND reads, timed_out FROM marked"""
"""Columns of `SpanCounts`, of each event."""
_BY_KEY = """
SELECT key, count(*) FILTER (ok AND writes), key IN (FROM concurrent),
    count(*) FILTER (ok AND reads AND time_ns >= ?)
FROM marked WHERE key IS NOT NULL GROUP BY key"""
_CONCURRENT = """
INSERT INTO concurrent SELECT DISTINCT key FROM (
    SELECT key, invoked AND lag(invoked) OVER (PARTITION BY key ORDER BY "index") AS meets FROM marked
    WHERE key IS NOT NULL AND {}
) WHERE meets"""
"""Keys with two operations open at once.  An info ends its operation.

When that first happens on a key, nothing lies between the invokes of the two.  Most keys show it early in a run, and a
check of the first rows avoids the sort of the whole history.
"""
_EARLY_ROWS = 1 << 16
_ROWS_AT_ONCE = 1 << 20
_DEPOSED = """
SELECT count(*), count(*) FILTER (reads)
FROM (FROM marked WHERE ok) JOIN deposed ON node = name AND time_ns >= begin_ns AND time_ns < end_ns"""


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
    """Counts of one key: acknowledged writes, and ok final reads.  concurrent: two operations were open at once."""

    ok_writes: int
    concurrent: bool
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
        """Return the number of keys with two operations open at once."""
        return sum(key.concurrent for key in self.keys.values())

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
    """Count between the bounds of all spans, and add up what lies within each name's spans."""
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
