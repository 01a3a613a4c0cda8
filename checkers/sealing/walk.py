"""Walks through a history, chunk by chunk from its first row to its last: verifies the grammar and numbers the words.

Memory: ROWS_PER_CHUNK rows at about 200 bytes each, 150 bytes per distinct key and 24 bytes per process.  It does not
depend on the length of the history.

*Rules.*  The rules for the rows of clients depend on the meaning of functions, which the grammar does not know.

Two rules concern the history as a whole.  Sealing refuses a history that breaks one of them:

 - In a history with a read, write or cas, either every operation of a client has a key, or none has one.  An operation
   without a key would belong to no object.  Histories of other functions follow the rules of their own checkers.
 - Every row is judged: clients create keys only before the main phase, and rows of the nemesis have no key.

The other rules concern one register.  If a key breaks one of them, only this key is not judged:

 - An acknowledged write or cas repeats the values of its invoke.  An answer without a value contradicts nothing.
 - A cas has an expected value, a new value, or both.
 - Values are integers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.columns import HISTORY, StreamReader
from checkers.base.history import CREATE, MISMATCH_ERRORS, NEMESIS, MalformedHistory, Type
from checkers.kernels import history_grammar as grammar
from checkers.kernels.codes import Processes, Words, dictionary_codes
from checkers.kernels.history_grammar import Values
from checkers.kernels.operations import CAS, KINDS, MISMATCH, NIL, OPEN, OTHER, WRITE
from checkers.sealing.manifest import SEALED, STREAM
from checkers.sealing.sealed_history import ROWS_PER_GROUP, History, chunks_of_groups, numpy_of

ROWS_PER_CHUNK = 8 * ROWS_PER_GROUP
"""A million rows, which fill whole row groups of `history.parquet`."""

EVENT = np.dtype(
    [
        ("row", np.int32),
        ("key", np.int32),
        ("process", np.int32),
        ("value", np.int64),
        ("value2", np.int64),
        ("type", np.int8),
        ("kind", np.int8),
        ("out_of_range", np.int8),
    ]
)
"""A client's event on a key while it waits on disk for its bucket.

Columns are as in `operations.Events`.  Keys and processes are numbered over the whole history.  If a cas failed as a
mismatch, its completion has the kind MISMATCH, and its invoke still has the kind CAS.  A row that contradicts a
register has the kind OTHER, so its key is not judged.
"""

_NEVER_NULL = ("index", "time_ns", "process", "type", "f", "node")


_WITH_NULLS = pa.schema([field.with_nullable(True) for field in HISTORY])


class Walk:
    """State of a walk through a history after the chunks read so far.

    named: name of the history in messages
    main_row: first row of the main phase; None: the history has no phases

    keys: names of all keys, in order of first appearance
    sizes: int64, number of events that go to a bucket, for each key
    """

    def __init__(self, named: str, main_row: int | None = None) -> None:
        self._named = named
        self._rows = 0
        self._processes, self._functions, self._keys = Processes(), Words(), Words()
        self._open = grammar.no_process_yet(64)
        self._clients = ClientRows(main_row)
        self.sizes = np.zeros(0, np.int64)

    @property
    def keys(self) -> list[str]:
        return self._keys.words

    @property
    def process_count(self) -> int:
        return self._processes.count

    def verify(self, chunk: pa.Table, gaps: bool = False) -> tuple[Int32, Int32, Int32]:
        """Verify the next rows.  Returns process, f and key of each row as numbers.

        gaps: True if indices may have gaps and need not begin at 0

        Raises MalformedHistory if a column is corrupt or contains text that is not UTF-8.  Raises it also for the first
        row that breaks the grammar or a rule for clients, and names the row.
        """
        try:
            chunk.validate(full=True)
        except pa.ArrowInvalid as problem:
            raise MalformedHistory(f"{self._named}: the rows from {self._rows} on are corrupt ({problem})") from problem
        for name in _NEVER_NULL:
            if chunk.column(name).null_count:
                raise MalformedHistory(f"{self._named}: column {name} contains a null, but every row must have a value")
        first, self._rows = self._rows, self._rows + len(chunk)
        if self._rows >= OPEN:
            raise MalformedHistory(f"{self._named}: it has more than {OPEN - 1} events, which is the maximum")
        process, type_ = numpy_of(chunk, "process"), numpy_of(chunk, "type")
        dense = self._processes.dense(process)
        if self._processes.count > len(self._open.row):
            self._open = grammar.with_more(
                self._open, grammar.no_process_yet(max(self._processes.count, 2 * len(self._open.row)))
            )
        f, key = self._functions.codes(chunk.column("f")), self._keys.codes(chunk.column("key"))
        index = _read_only(np.arange(first, self._rows)) if gaps else numpy_of(chunk, "index")
        rows = grammar.GrammarColumns(index, process, dense, type_, f, key)
        rule, row, earlier = grammar.first_fault(first, rows, self._open)
        if rule != grammar.SOUND:
            event = chunk.slice(row - first, 1).to_pylist()[0]
            raise MalformedHistory(f"{self._named}, row {row}: {_WRONG[rule].format(**event, earlier=earlier)}")
        if (fault := self._clients.first_fault(chunk, first, process, f, self._functions.words, key)) is not None:
            raise MalformedHistory(f"{self._named}, row {fault[0]}: {fault[1]}")
        return dense, f, key

    def events(self, chunk: pa.Table, gaps: bool = False) -> npt.NDArray[Any]:
        """Verify the next rows, and return the events (dtype EVENT) among them that go to a bucket.

        These are the clients' events that have a key, except those of set-up.  Raises like `verify`.
        """
        first = self._rows
        dense, f, key = self.verify(chunk, gaps)
        rows = RegisterRows.of(chunk, self._clients, dense, len(self._open.row), f, self._functions.words)
        _mark_mismatches(chunk, rows.kind)
        mine = np.flatnonzero(rows.mine & (key >= 0))
        events = np.empty(len(mine), EVENT)
        events["row"], events["key"] = first + mine, key[mine]
        rows.fill(events, mine)
        found = np.bincount(events["key"], minlength=len(self.keys))
        found[: len(self.sizes)] += self.sizes
        self.sizes = found
        return events


def chunks_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Regroup the rows into tables of ROWS_PER_CHUNK rows.  The last table may be shorter, and none is empty."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        while rows >= ROWS_PER_CHUNK:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, ROWS_PER_CHUNK)
            waiting = table.slice(ROWS_PER_CHUNK).to_batches()
            rows -= ROWS_PER_CHUNK
    if rows:
        yield pa.Table.from_batches(waiting)


def history_batches(run_folder: Path) -> Iterable[pa.RecordBatch]:
    """Return the history of a run, sealed or not, in index order.  Raises MalformedHistory if there is none."""
    sealed, stream = run_folder / SEALED, run_folder / STREAM
    if sealed.exists():
        return sealed_batches(sealed)
    if stream.exists():
        return StreamReader(stream)
    raise MalformedHistory(f"{run_folder}: contains neither {SEALED} nor {STREAM}")


def sealed_batches(history: Path) -> Iterator[pa.RecordBatch]:
    """Read `history.parquet`, row group by row group.  Raises MalformedHistory if the file cannot be read."""
    try:
        with pq.ParquetFile(history) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group, HISTORY.names).cast(_WITH_NULLS).to_batches()
    except (ValueError, OSError, KeyError) as problem:  # Arrow's own errors in this block are ValueErrors
        raise MalformedHistory(f"{history}: not a Parquet history ({str(problem).splitlines()[0]})") from problem


def _read_only(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make a column read-only, like the columns of Arrow.  For writable arrays, kernels would be compiled once more."""
    column.setflags(write=False)
    return column


def _mark_mismatches(chunk: pa.Table, kind: Int8) -> None:
    """Set the kind of every cas that failed as a mismatch to MISMATCH."""
    failed = np.flatnonzero((numpy_of(chunk, "type") == Type.FAIL) & (kind == CAS))
    if len(failed):
        error, errors = dictionary_codes(chunk.column("error"))
        answers = [-1] + [code for code, text in enumerate(errors) if text in MISMATCH_ERRORS]
        kind[failed[np.isin(error[failed], answers)]] = MISMATCH


def values_of(chunk: pa.Table, name: str) -> tuple[Int64, Bools]:
    """Return a value column with NIL for null, and for each row whether it contains the number NIL itself."""
    column = chunk.column(name)
    if column.null_count == len(column):
        return _read_only(np.full(len(column), NIL, np.int64)), np.zeros(len(column), bool)
    values = _read_only(np.asarray(pc.fill_null(column, NIL).combine_chunks()))
    if np.count_nonzero(values == NIL) == column.null_count:
        return values, np.zeros(len(values), bool)
    return values, ~np.asarray(column.is_null().combine_chunks()) & (values == NIL)


_WRONG = {
    grammar.INDEX_GAP: "its index is {index}; indices count from 0 without gaps",
    grammar.UNKNOWN_TYPE: "type {type} is none of 0 invoke, 1 ok, 2 fail, 3 info",
    grammar.BAD_PROCESS: "process {process} is neither a client (0 or more) nor the nemesis (-1)",
    grammar.INVOKE_WHILE_OPEN: "process {process} invokes although its operation of row {earlier} is still open",
    grammar.COMPLETION_WITHOUT_INVOKE: "process {process} completes an operation that it never invoked",
    grammar.PROCESS_REUSED: "process {process} has another row although the info of row {earlier} retired it",
    grammar.OTHER_FUNCTION: "process {process} completes {f!r}, but it had invoked another function in row {earlier}",
    grammar.OTHER_KEY: "process {process} completes on key {key!r}, but it had invoked on another key in row {earlier}",
}
"""Rule of the grammar -> the sentence about the row that breaks the rule."""


class RegisterRows(NamedTuple):
    """Columns of a chunk.

    mine: True for rows of clients, except those of set-up
    process: number of the process, counted densely
    The other columns are as in EVENT.
    """

    mine: Bools
    process: Int32
    type: Int8
    kind: Int8
    value: Int64
    value2: Int64
    out_of_range: Bools

    @classmethod
    def of(
        cls, chunk: pa.Table, clients: ClientRows, dense: Int32, processes: int, f: Int32, functions: list[str]
    ) -> RegisterRows:
        """Read the next chunk.

        dense: the process of each row as a number below `processes`
        f: the function of each row as an index into `functions`
        """
        process = numpy_of(chunk, "process")
        kind = np.array([KINDS.get(name, OTHER) for name in functions], np.int8)[f]
        (value, wrong), (value2, wrong2) = (values_of(chunk, name) for name in ("value", "value2"))
        kind[clients.unfit_for_registers(chunk, process, dense, kind, Values(value, value2), processes)] = OTHER
        mine = (process >= 0) & ~_among((CREATE,), functions)[f]
        return cls(mine, dense, numpy_of(chunk, "type"), kind, value, value2, wrong | wrong2)

    def fill(self, target: npt.NDArray[Any], rows: Int64) -> None:
        """Copy these rows into an array with fields of the same names."""
        for name in self._fields[1:]:
            target[name] = getattr(self, name)[rows]


Row = Mapping[str, Any]


class ClientRows:
    """State of the rules for the rows of clients, for a history that is read chunk by chunk.

    main_row: first row of the main phase; None: the history has no phases"""

    def __init__(self, main_row: int | None = None) -> None:
        self._main_row = main_row
        self._keyed = self._keyless = -1
        self._has_registers = False
        self._invoked = grammar.nothing_invoked(64)

    def first_fault(
        self, chunk: pa.Table, first: int, process: Int32, f: Int32, functions: list[str], key: Int32
    ) -> tuple[int, str] | None:
        """Return the first row that breaks a rule for the history as a whole, and what is wrong with the row.

        Returns None if there is no such row.

        first: number of the chunk's first row
        f: index of each row's function in `functions`
        key: number of each row's key, -1 if it has none
        """
        clients, created, known = process >= 0, _among((CREATE,), functions)[f], _among(KINDS, functions)[f]
        invokes = clients & ~created & (numpy_of(chunk, "type") == Type.INVOKE)
        self._has_registers = self._has_registers or bool((known & invokes).any())
        self._keyed = _first(self._keyed, first, invokes & (key >= 0))
        self._keyless = _first(self._keyless, first, invokes & (key < 0))
        late = clients & created
        late[: len(late) if self._main_row is None else max(0, self._main_row - first)] = False
        faults = {
            _first(-1, first, (process == NEMESIS) & (key >= 0)): (
                "the nemesis has no keys, but this row of process -1 has one"
            ),
            _first(-1, first, late): (
                f"this {CREATE} is not in set-up but in or after the main phase, and no checker judges it"
            ),
        }
        if self._has_registers and self._keyed >= 0:
            faults[self._keyless] = f"this operation has no key, but the operation of row {self._keyed} has one"
        return min(((row, words) for row, words in faults.items() if row >= 0), default=None)

    def unfit_for_registers(
        self, chunk: pa.Table, process: Int32, dense: Int32, kind: Int8, values: Values, processes: int
    ) -> Bools:
        """Return, for each row, whether it contradicts a register.

        kind, values: as in `operations.Events`
        dense: the process of each row as a number below `processes`
        """
        if processes > len(self._invoked.value):
            self._invoked = grammar.with_more(
                self._invoked, grammar.nothing_invoked(max(processes, 2 * len(self._invoked.value)))
            )
        type_ = numpy_of(chunk, "type")
        has_value = ~(_is_null(chunk, "value") & _is_null(chunk, "value2"))
        clients = process >= 0
        wrong = clients & (kind == CAS) & (type_ == Type.INVOKE) & ~has_value
        if chunk.column("payload").null_count < len(chunk):
            shows_values = (type_ == Type.INVOKE) | (type_ == Type.OK)
            wrong |= clients & (kind != OTHER) & shows_values & ~_is_null(chunk, "payload")
        mine = clients & ((kind == WRITE) | (kind == CAS)) & (has_value | (type_ != Type.OK))
        grammar.mark_contradictions(mine, dense, type_, values, self._invoked, wrong)
        return np.asarray(wrong, bool)


def _among(names: Container[str], functions: list[str]) -> Bools:
    return np.array([name in names for name in functions], bool)


def _first(known: int, first: int, chosen: Bools) -> int:
    """Return `known` if it is a row, else the number of the first chosen row, or -1 if there is none.

    first: number of the chunk's first row
    """
    if known >= 0 or not chosen.any():
        return known
    return first + int(np.argmax(chosen))


def _is_null(chunk: pa.Table, name: str) -> Bools:
    nulls: Bools = np.asarray(chunk.column(name).is_null().combine_chunks(), bool)
    return nulls


def contradiction(history: History, key: str) -> str:
    """Return a sentence about the first row of a key that contradicts a register; "" if there is none.

    Reads the whole history once.
    """
    open_of: dict[int, Row] = {}
    for rows in chunks_of_groups(history, HISTORY.names):
        mine = pc.fill_null(pc.equal(pc.cast(rows["key"], pa.string()), key), False)
        for row in rows.filter(pc.and_(mine, pc.greater_equal(rows["process"], 0))).to_pylist():
            if words := _contradiction_of(row, open_of):
                return f"row {row['index']}: {words}"
    return ""


def _contradiction_of(row: Row, open_of: dict[int, Row]) -> str:
    f, type_ = row["f"], row["type"]
    if f not in KINDS or type_ not in (Type.INVOKE, Type.OK):
        return ""
    if row["payload"] is not None:
        return f"the value of this {f} is {row['payload']:.40}, but registers hold integers"
    values = row["value"], row["value2"]
    if type_ == Type.INVOKE:
        open_of[row["process"]] = row
        return "a cas needs [expected new], not nil" if f == "cas" and values == (None, None) else ""
    invoked = open_of.pop(row["process"], row)
    if f == "read" or values == (None, None) or values == (invoked["value"], invoked["value2"]):
        return ""
    words = f"{_values_in_words(invoked)} was acknowledged as {_values_in_words(row)}"
    return f"process {row['process']}: {f} of {words} (invoked in row {invoked['index']})"


def _values_in_words(row: Row) -> str:
    value, value2 = ("nil" if row[name] is None else str(row[name]) for name in ("value", "value2"))
    return value if row["f"] == "write" and row["value2"] is None else f"[{value} {value2}]"
