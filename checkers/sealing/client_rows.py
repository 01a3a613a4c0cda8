"""Rules for the rows of clients.  They depend on the meaning of functions, which the grammar does not know.

Two rules concern the whole history.  Sealing refuses a history that breaks one of them:

 - In a history with a read, write or cas, either every operation of a client has a key, or none has one.  An operation
   without a key belongs to no object.  Histories of other functions follow the rules of their own checkers.
 - No row escapes judgement: clients create keys only before the main phase, and rows of the nemesis have no key.

The other rules concern one register.  A key that breaks one of them is not judged, and the other keys are:

 - An acknowledged write or cas repeats the values of its invoke.  An answer without a value contradicts nothing.
 - A cas has an expected value, a new value, or both.
 - Values are whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Bools, Int8, Int32
from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, NEMESIS, Type
from checkers.kernels.history import agreement
from checkers.kernels.history.agreement import Values
from checkers.kernels.operations import CAS, KINDS, OTHER, WRITE
from checkers.sealing.history_rows import History, chunks_of_groups

Row = Mapping[str, Any]


class ClientRows:
    """State that these rules need to remember of a history that is read chunk by chunk.

    main_row: the first row of the main phase; None: the history has no phases."""

    def __init__(self, main_row: int | None = None) -> None:
        self._main_row = main_row
        self._keyed = self._keyless = self._register_keyed = self._register_keyless = -1
        self._invoked = agreement.nothing_invoked(64)

    def first_fault(
        self, chunk: pa.Table, first: int, process: Int32, f: Int32, functions: list[str], key: Int32
    ) -> tuple[int, str] | None:
        """The first row that breaks a rule for the whole history, and what is wrong with it; None if there is none.

        first: number of the chunk's first row.  f: number of each row's function in `functions`.
        key: number of each row's key, -1 if it has none.
        """
        type_ = np.asarray(chunk.column("type").combine_chunks())
        faults = [self._keys_of_nemesis(process, key), self._without_key(first, process, type_, f, functions, key)]
        faults.append(self._created_late(first, process, f, functions))
        found = [(first + row if row >= 0 else -1 - row, words) for row, words in filter(None, faults)]
        return min(found) if found else None

    def _keys_of_nemesis(self, process: Int32, key: Int32) -> tuple[int, str] | None:
        rows = np.flatnonzero((process == NEMESIS) & (key >= 0))
        return (int(rows[0]), "the nemesis has no keys, but this row of process -1 has one") if len(rows) else None

    def _without_key(
        self, first: int, process: Int32, type_: Int8, f: Int32, functions: list[str], key: Int32
    ) -> tuple[int, str] | None:
        """The first row that breaks the rule, and what is wrong with it.

        A row of this chunk is counted from the start of the chunk.  A row of an earlier chunk is returned as -1 - row.
        """
        client = np.array([name != CREATE for name in functions], bool)[f] & (type_ == Type.INVOKE) & (process >= 0)
        register = np.array([name in KINDS for name in functions], bool)[f] & client
        self._keyed = _first(self._keyed, first, client & (key >= 0))
        self._keyless = _first(self._keyless, first, client & (key < 0))
        self._register_keyed = _first(self._register_keyed, first, register & (key >= 0))
        self._register_keyless = _first(self._register_keyless, first, register & (key < 0))
        if min(self._keyed, self._keyless) < 0 or max(self._register_keyed, self._register_keyless) < 0:
            return None
        row = self._keyless - first if self._keyless >= first else -1 - self._keyless
        return row, f"this operation has no key, but the operation of row {self._keyed} has one"

    def _created_late(self, first: int, process: Int32, f: Int32, functions: list[str]) -> tuple[int, str] | None:
        if CREATE not in functions or self._main_row is None:
            return None
        since = max(0, self._main_row - first)
        late = np.flatnonzero((process[since:] >= 0) & (f[since:] == functions.index(CREATE)))
        words = f"this {CREATE} is not in set-up but in or after the main phase, and no checker judges it"
        return (since + int(late[0]), words) if len(late) else None

    def unfit_for_registers(
        self, chunk: pa.Table, process: Int32, dense: Int32, kind: Int8, values: Values, processes: int
    ) -> Bools:
        """Return whether each row contradicts a register.

        kind, values: as in `operations.Events`.  dense: the process of each row as a number below `processes`.
        """
        if processes > len(self._invoked.value):
            self._invoked = agreement.with_more(self._invoked, max(processes, 2 * len(self._invoked.value)))
        type_ = np.asarray(chunk.column("type").combine_chunks())
        has_value = ~(_is_null(chunk, "value") & _is_null(chunk, "value2"))
        clients = process >= 0
        wrong = clients & (kind == CAS) & (type_ == Type.INVOKE) & ~has_value
        if chunk.column("payload").null_count < len(chunk):
            shows_values = (type_ == Type.INVOKE) | (type_ == Type.OK)
            wrong |= clients & (kind != OTHER) & shows_values & ~_is_null(chunk, "payload")
        mine = clients & ((kind == WRITE) | (kind == CAS)) & (has_value | (type_ != Type.OK))
        agreement.mark_contradictions(mine, dense, type_, values, self._invoked, wrong)
        return np.asarray(wrong, bool)


def _first(known: int, first: int, chosen: Bools) -> int:
    """`known` if it is a row, else the number of the first chosen row, else -1.  first: number of the first row."""
    if known >= 0 or not chosen.any():
        return known
    return first + int(np.argmax(chosen))


def _is_null(chunk: pa.Table, name: str) -> Bools:
    nulls: Bools = np.asarray(chunk.column(name).is_null().combine_chunks(), bool)
    return nulls


def contradiction(history: History, key: str) -> str:
    """One sentence about the first row of a key that contradicts a register; "" if there is none.

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
        return f"the value of this {f} is {row['payload']:.40}, and registers hold whole numbers"
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
