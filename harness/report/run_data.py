"""A run folder as one value, `ReportData`, complete or not.

A report is needed most after a failure, so no file is required here.  Each missing, torn or invalid file adds a
sentence to `missing`, and the page says what it cannot show.

A history is a list of events, but readers think in operations.  So every invoke is paired with its completion
(`OperationColumns`).  Whole columns are paired at once, because a nightly run has hundreds of thousands of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.columns import HISTORY_SIZE_BYTES_MAX, LOG, events_to_table, read_history
from checkers.base.history import MalformedHistory, Type
from checkers.base.results import NO_RESULTS, RESULTS, CheckerResult, Results, read_results
from checkers.base.stored_run import StoredRun
from checkers.base.values import decode
from checkers.record.faults import FaultRecord
from checkers.record.files import BrokenFile, regular
from checkers.record.header_and_outcome import Header, RunOutcome
from checkers.record.run_record import JOURNAL, TEST, RunRecord, sequence
from checkers.sealing.sealed_history import paired_rows
from harness.plain_words import natural
from harness.story.findings import Leadership, leadership_of

NS = 1_000_000_000
_T = TypeVar("_T")

ROWS_SHOWN_MAX = 5_000_000
"""Maximum length of a history whose operations the page shows: all of them are kept in memory, at 200 bytes each."""


@dataclass(frozen=True)
class ReportData:
    """All data from which the page is made.

    header: None without test.json
    results: NO_RESULTS if they are missing
    outcome: an empty outcome if the journal does not end properly
    traces: node -> table of schema TRACE
    copies: rows of schema COPIES
    missing: one sentence for each missing piece of data
    """

    folder: Path
    header: Header | None
    results: Results
    outcome: RunOutcome
    faults: Sequence[FaultRecord]
    operations: OperationColumns
    traces: Mapping[str, pa.Table]
    copies: list[Mapping[str, Any]]
    event_count: int
    missing: tuple[str, ...] = field(default_factory=tuple)

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.header.spec if self.header is not None else {}

    @property
    def seed(self) -> int | None:
        return self.header.seed if self.header is not None else None

    @property
    def declares(self) -> Mapping[str, Any]:
        """Return the capabilities of the subject; a run that does not state its capabilities is assumed to have all."""
        everything = {"nodes": True, "logs": True, "traces": True, "elections": True, "faults": True}
        return {**everything, **self.outcome.declares}

    @cached_property
    def leadership(self) -> Leadership:
        return leadership_of(self.folder)

    @property
    def checkers(self) -> Mapping[str, CheckerResult]:
        return self.results.checkers

    @cached_property
    def end_ns(self) -> int:
        """Return the end of the time axis: the last action of a client, a fault or a node before collection."""
        ends = [int(self.operations.end_ns.max())] if len(self.operations) else []
        ends += [fault.healed_ns for fault in self.faults]
        ends += [p.end_ns for p in self.outcome.phases if p.name in ("main", "recovery", "final reads")]
        return max([*ends, NS])

    @property
    def main_start_ns(self) -> int:
        """Return the start of the main phase; the seconds of a schedule count from there."""
        main = self.outcome.phase("main")
        return main.start_ns if main is not None else 0

    @cached_property
    def servers(self) -> tuple[str, ...]:
        """Return the names of the servers, in natural order, from all files that name them."""
        named = self.spec.get("nodes")
        if isinstance(named, list):
            return tuple(sorted({str(n) for n in named}, key=natural))
        names = set(self.traces) | {str(c.get("node")) for c in self.copies}
        names |= {leader.node for leader in self.outcome.leaders}
        if isinstance(named, int) and self.declares["nodes"]:
            names |= {f"n{i + 1}" for i in range(named)}
        return tuple(sorted(names, key=natural))

    def log_rows(self, node: str, copy: int, offsets: Collection[int]) -> list[dict[str, Any]]:
        """Return rows of schema LOG of one node's copy at these offsets; [] if there is no readable file."""
        return self._rows_of_log(node, [("copy", "=", copy), ("offset", "in", sorted(offsets))], LOG)

    def entry_of(self, key: str, written: int) -> tuple[int, int] | None:
        """Return (offset, epoch) of the entry that writes a value to a key, in the newest copy of any log that contains
        this entry.
        """
        for node in self.servers:
            if rows := self._rows_of_log(node, [("key", "=", key), ("value", "=", written)]):
                newest = max(rows, key=lambda row: row["copy"])
                return int(newest["offset"]), int(newest["epoch"])
        return None

    def _rows_of_log(
        self, node: str, filters: Sequence[tuple[str, str, Any]], schema: pa.Schema | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows; [] if there is no readable file."""
        path = StoredRun(self.folder).log / f"{node}.parquet"
        try:
            return list(pq.read_table(path, schema=schema, filters=filters).to_pylist())
        except (pa.ArrowInvalid, OSError):
            return []


def load(folder: Path) -> ReportData:
    """Load a run folder.  Raises FileNotFoundError only if the folder itself does not exist."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such run folder")
    files, record = StoredRun(folder), RunRecord(folder)
    missing: list[str] = []
    history = _history(folder, missing)
    return ReportData(
        folder=folder,
        header=_read(TEST, lambda: record.header, missing, "the specification of the test"),
        results=_read(RESULTS, lambda: read_results(folder), missing, "the verdicts") or NO_RESULTS,
        outcome=_read(JOURNAL, lambda: record.outcome, missing, "phases, rates, recovery and deaths") or RunOutcome(),
        faults=_read(JOURNAL, lambda: record.faults, missing, "the faults") or (),
        operations=none() if history is None else OperationColumns(history),
        traces=_traces(files.trace, missing),
        copies=_copies(files.copies_table, missing),
        event_count=_row_count(files) if history is None else len(history),
        missing=tuple(missing),
    )


def _read(name: str, read: Callable[[], _T | None], missing: list[str], holds: str) -> _T | None:
    try:
        value = read()
    except (BrokenFile, OSError) as problem:
        missing.append(f"{name} cannot be read ({problem}), so {holds} cannot be shown.")
        return None
    if value is None:
        missing.append(f"{name} is not there, so {holds} cannot be shown.")
    return value


def _row_count(files: StoredRun) -> int:
    """Return the number of rows in the sealed history; 0 if it cannot be read."""
    try:
        return int(pq.read_metadata(regular(files.history, HISTORY_SIZE_BYTES_MAX)).num_rows)
    except (pa.ArrowInvalid, OSError, BrokenFile):
        return 0


def _history(folder: Path, missing: list[str]) -> pa.Table | None:
    if (rows := _row_count(StoredRun(folder))) > ROWS_SHOWN_MAX:
        words = f"The history has {rows:,} rows, and this page shows at most {ROWS_SHOWN_MAX:,}"
        missing.append(f"{words}: verdicts and witnesses are complete, but no operation is drawn here.")
        return None
    try:
        return read_history(folder)
    except MalformedHistory as problem:
        text = str(problem).replace(f"{folder}: ", "this run ").replace(f"{folder}/", "")
        missing.append(f"There is no history to show operations from: {text}.")
        return None


def _traces(folder: Path, missing: list[str]) -> dict[str, pa.Table]:
    tables = {}
    for path in sorted(folder.glob("*.parquet"), key=lambda p: natural(p.stem)):
        try:
            tables[path.stem] = pq.read_table(regular(path, HISTORY_SIZE_BYTES_MAX))
        except (pa.ArrowInvalid, OSError, BrokenFile) as problem:
            missing.append(f"The trace of {path.stem} cannot be read ({problem}).")
    return tables


def _copies(path: Path, missing: list[str]) -> list[Mapping[str, Any]]:
    if not path.is_file():
        return []
    try:
        return list(pq.read_table(path).to_pylist())
    except (pa.ArrowInvalid, OSError) as problem:
        missing.append(f"copies.parquet cannot be read ({problem}).")
        return []


NEVER = -1
"""`complete_row` of an operation whose completion is not in the history."""


class OperationColumns:
    """One element per client operation, in order of invocation; every array has the same length.

    invoke_row, complete_row: history indices; `NEVER` if no completion was recorded
    start_ns, end_ns: ns since the test began; an operation without a completion ends with the history
    type: `checkers.base.history.Type` of the completion; INFO if there is none
    f, key, node, error: indices into the tuple of the same name with `s` appended; key and error are -1 for null
    touched: (places of transactions, indices of keys), a pair for each key that a transaction names; the `key` of a
        transaction is -1, because its row in the history names the whole database
    value, value2: int64, valid only where `has_value` and `has_value2` are True: the answer of a read, the value of a
        write, the expected and the new value of a cas
    """

    def __init__(self, history: pa.Table) -> None:
        """history: of schema HISTORY.  Events that violate its grammar, such as a completion without an invoke, are
        omitted: the report shows what it can, and checkers report the error.
        """
        table = history.filter(pc.greater_equal(history["process"], 0))
        index, process, kind = (_ints(table, name) for name in ("index", "process", "type"))
        first, last = paired_rows(index, process, kind)
        answered = last >= 0
        last = np.where(answered, last, first)
        time = _ints(table, "time_ns")
        end_of_history = int(time.max()) if len(time) else 0
        f, self.fs = _codes(table, "f")
        is_transaction = np.isin(f, [i for i, name in enumerate(self.fs) if name == "txn"])
        self.key, self.keys, self.touched = _keys(table, first, is_transaction)
        node, self.nodes = _codes(table, "node")
        error, self.errors = _codes(table, "error")
        self.invoke_row, self.complete_row = index[first], np.where(answered, index[last], NEVER)
        self.start_ns, self.end_ns = time[first], np.where(answered, time[last], end_of_history)
        self.process, self.f, self.node = process[first], f[first], node[last]
        self.type = np.where(answered, kind[last], Type.INFO).astype(np.int8)
        self.error = np.where(answered, error[last], -1)
        read = np.isin(self.f, [i for i, name in enumerate(self.fs) if name == "read"])
        says = np.where(read, last, first)
        (value, has_value), (value2, has_value2) = _nullable(table, "value"), _nullable(table, "value2")
        self.value, self.value2, self.has_value2 = value[says], value2[says], has_value2[says]
        self.has_value = has_value[says] & ~(read & ~answered)

    def __len__(self) -> int:
        return len(self.invoke_row)

    @property
    def latency_ns(self) -> np.ndarray:
        return np.asarray(self.end_ns - self.start_ns)

    def is_f(self, *names: str) -> np.ndarray:
        """Return a mask of the operations with one of these functions (`f`)."""
        return np.asarray(np.isin(self.f, [i for i, name in enumerate(self.fs) if name in names]))

    def on(self, key: str) -> np.ndarray:
        """Return a mask of the operations on one key, including transactions that name it."""
        code = self.keys.index(key) if key in self.keys else len(self.keys)
        mask = self.key == code
        mask[self.touched[0][self.touched[1] == code]] = True
        return np.asarray(mask)

    def matched(self) -> np.ndarray:
        """Return a mask of the answered operations: every ok, and every cas that was answered with `mismatch`."""
        mismatch = [i for i, text in enumerate(self.errors) if text == "mismatch"]
        return np.asarray((self.type == Type.OK) | ((self.type == Type.FAIL) & np.isin(self.error, mismatch)))


def _keys(
    table: pa.Table, first: np.ndarray, is_transaction: np.ndarray
) -> tuple[np.ndarray, tuple[str, ...], tuple[np.ndarray, np.ndarray]]:
    """Return `key`, `keys` and `touched` of the operations whose invokes are in the rows `first`."""
    codes, names = _codes(table, "key")
    if not is_transaction.any():
        return codes[first], names, (np.zeros(0, np.int64), np.zeros(0, np.int64))
    database, known = {-1, *codes[is_transaction].tolist()}, dict[str, int]()
    keys = [-1 if code in database else known.setdefault(names[code], len(known)) for code in codes[first].tolist()]
    key, places = np.array(keys, np.int64), np.flatnonzero(is_transaction[first])
    named = [
        (place, known.setdefault(name, len(known)))
        for place, payload in zip(places, table["payload"].take(pa.array(first[places])).to_pylist(), strict=True)
        for name in dict.fromkeys(str(part[1]) for part in _micro_operations(payload) if len(part) > 1)
    ]
    pairs = np.array(named, np.int64).reshape(-1, 2)
    return key, tuple(known), (pairs[:, 0], pairs[:, 1])


def _micro_operations(payload: str | None) -> list[Sequence[Any]]:
    """Return the micro-operations of a transaction; [] if its row contains none."""
    try:
        parts = decode(payload or "[]")
    except (ValueError, RecursionError):
        return []
    return [part for part in sequence(parts) if isinstance(part, tuple | list)]


def none() -> OperationColumns:
    """Return the operations of a run without a history."""
    return OperationColumns(events_to_table([]))


def _ints(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def _nullable(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    column = table[name]
    return pc.fill_null(column, 0).to_numpy().astype(np.int64), pc.is_valid(column).to_numpy()


def _codes(table: pa.Table, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the codes of a column (−1 for null), and the names for which they stand."""
    column = table[name]
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    array = column.unify_dictionaries().combine_chunks()
    chunk = array if isinstance(array, pa.DictionaryArray) else array.chunk(0)
    codes = pc.fill_null(chunk.indices, -1).to_numpy().astype(np.int64)
    return codes, tuple(str(name) for name in chunk.dictionary.to_pylist())
