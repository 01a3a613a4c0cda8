"""Rules for the rows of clients that need to know what functions mean; the grammar knows none of them.

Two of them concern the whole history, and sealing refuses a history that breaks them:

 - either all reads, writes and cas of clients have a key, or none has: without its key an operation belongs to no
   object;
 - nothing hides from the judge: clients create keys only before the main phase, and the nemesis has no key.

The others concern one register.  Its key cannot be judged then, and the other keys are:

 - an acknowledged write or cas repeats the values that were invoked.  An answer without a value contradicts nothing;
 - a cas names what it expects, what it puts there, or both; values are whole numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base import ledger
from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, NEMESIS, Type
from checkers.kernels.history import agreement
from checkers.kernels.operations import CAS, KINDS, OTHER, WRITE
from checkers.sealing.history_rows import chunks_of_groups

MAIN = json.dumps("main")
"""Payload of the row with which the main phase begins."""

Row = Mapping[str, Any]


class ClientRows:
    """What is known of a history up to here; rows are handed in piece by piece."""

    def __init__(self) -> None:
        self._keyed = self._keyless = -1
        self._main_began = False
        self._invoked = agreement.nothing_invoked(64)

    def first_fault(
        self, chunk: pa.Table, first: int, process: Int32, f: Int32, functions: list[str], key: Int32
    ) -> tuple[int, str] | None:
        """The first row that hides from the judge, and what is wrong with it.

        first: number of the chunk's first row.  f, key: numbers, key -1 where there is none.
        """
        type_ = np.asarray(chunk.column("type").combine_chunks())
        faults = [self._keys_of_nemesis(process, key), self._without_key(first, process, type_, f, functions, key)]
        faults.append(self._created_late(chunk, process, type_, f, functions))
        found = [(first + row if row >= 0 else -1 - row, words) for row, words in filter(None, faults)]
        return min(found) if found else None

    def _keys_of_nemesis(self, process: Int32, key: Int32) -> tuple[int, str] | None:
        rows = np.flatnonzero((process == NEMESIS) & (key >= 0))
        return (int(rows[0]), "the nemesis has no keys, but this row of process -1 has one") if len(rows) else None

    def _without_key(
        self, first: int, process: Int32, type_: Int8, f: Int32, functions: list[str], key: Int32
    ) -> tuple[int, str] | None:
        """A fault of a row of an earlier piece has the number -1 - row."""
        of_register = np.array([name in KINDS for name in functions], bool)[f]
        mine = (type_ == Type.INVOKE) & (process >= 0) & of_register
        if self._keyed < 0 and len(rows := np.flatnonzero(mine & (key >= 0))):
            self._keyed = first + int(rows[0])
        if self._keyless < 0 and len(rows := np.flatnonzero(mine & (key < 0))):
            self._keyless = first + int(rows[0])
        if self._keyed < 0 or self._keyless < 0:
            return None
        row = self._keyless - first if self._keyless >= first else -1 - self._keyless
        return row, f"an operation without a key, in a history whose operations have keys (row {self._keyed})"

    def _created_late(
        self, chunk: pa.Table, process: Int32, type_: Int8, f: Int32, functions: list[str]
    ) -> tuple[int, str] | None:
        since = 0 if self._main_began else len(f)
        if not self._main_began and ledger.PHASE in functions:
            begins = (process == NEMESIS) & (type_ == Type.INVOKE) & (f == functions.index(ledger.PHASE))
            rows = np.flatnonzero(begins)
            named = chunk.column("payload").take(pa.array(rows)).to_pylist()
            if MAIN in named:
                self._main_began, since = True, int(rows[named.index(MAIN)])
        if CREATE not in functions:
            return None
        late = np.flatnonzero((process[since:] >= 0) & (f[since:] == functions.index(CREATE)))
        words = f"{CREATE} in or after the main phase: it belongs to set-up, and no checker judges it"
        return (since + int(late[0]), words) if len(late) else None

    def unfit_for_registers(
        self, chunk: pa.Table, process: Int32, dense: Int32, kind: Int8, value: Int64, value2: Int64, processes: int
    ) -> Bools:
        """The rows that contradict a register.

        kind, value, value2: as in `operations.Events`.  dense: processes as numbers below `processes`.
        """
        if processes > len(self._invoked.value):
            self._invoked = agreement.with_more(self._invoked, max(processes, 2 * len(self._invoked.value)))
        type_ = np.asarray(chunk.column("type").combine_chunks())
        says = ~(_is_null(chunk, "value") & _is_null(chunk, "value2"))
        clients = process >= 0
        wrong = clients & (kind == CAS) & (type_ == Type.INVOKE) & ~says
        if chunk.column("payload").null_count < len(chunk):
            tells = (type_ == Type.INVOKE) | (type_ == Type.OK)
            wrong |= clients & (kind != OTHER) & tells & ~_is_null(chunk, "payload")
        mine = clients & ((kind == WRITE) | (kind == CAS))
        agreement.mark_contradictions(mine, dense, type_, value, value2, says, self._invoked, wrong)
        return np.asarray(wrong, bool)


def _is_null(chunk: pa.Table, name: str) -> Bools:
    nulls: Bools = np.asarray(chunk.column(name).is_null().combine_chunks(), bool)
    return nulls


def contradiction(history: Path, key: str) -> str:
    """The first row of a key that contradicts a register, in words; "" if there is none.

    One pass over the history, and a second over the rows of this key, as dicts.
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
        return f"a {f} of {row['payload']:.40}, and registers hold whole numbers"
    values = row["value"], row["value2"]
    if type_ == Type.INVOKE:
        open_of[row["process"]] = row
        return "a cas needs [expected new], not nil" if f == "cas" and values == (None, None) else ""
    invoked = open_of.pop(row["process"], row)
    if f == "read" or values == (None, None) or values == (invoked["value"], invoked["value2"]):
        return ""
    words = f"{_told(invoked)} was acknowledged as {_told(row)}"
    return f"process {row['process']}: {f} of {words} (invoked in row {invoked['index']})"


def _told(row: Row) -> str:
    value, value2 = ("nil" if row[name] is None else str(row[name]) for name in ("value", "value2"))
    return value if row["f"] == "write" and row["value2"] is None else f"[{value} {value2}]"
