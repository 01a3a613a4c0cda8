"""The checkers of runs whose clients use transactions, and the reader of their histories.

Each part judges one group of transactions that shares no key with other groups (`groups.py`).  Most histories have one
group, because a cycle may go through any key.  Each part reads the whole file and selects its group.  The usual budget
of a part is meant for one of dozens of parts that are judged in parallel.  Here the parts are few, so each gets several
budgets.

*Reader.*  Reads transactions from `history.parquet`.

The reader checks its memory limit before it allocates.  The footer of a file does not show how much memory its rows
need, because a repeated text is stored once.  So the reader adds up the sizes of the row groups as it reads them, and
computes the size of events before it makes any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.checker import BeyondBudget, Budget, Checker, Part
from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, Event
from checkers.base.stored_rows import over_budget
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.kernels.codes import dictionary_codes
from checkers.kernels.transactions.payloads import Bytes
from checkers.transactions import groups
from checkers.transactions.anomalies import ENDINGS, STRICT_SERIALIZABLE
from checkers.transactions.groups import group_count, groups_of, joined, judge_group
from checkers.transactions.read import Model, Transcript, read_transactions, transcript_of_columns

SHARES = 4
"""Number of ordinary budgets of a part that the part of each group gets."""


def judge(part: Part, budget: Budget) -> Verdict:
    """Judge one group of a history.

    part.params: "model", "consistency" (the required consistency model) and "group" (the number of the group)
    """
    whole = _shares_of(budget)
    try:
        transcript = _read(part, whole)
    except BeyondBudget as problem:
        return Verdict(Validity.UNKNOWN, {"files": len(part.paths)}, str(problem))
    consistency = part.params["consistency"]
    dealt = groups_of(transcript, consistency)
    return judge_group(transcript, dealt, part.params["group"], whole, consistency=consistency)


def _shares_of(budget: Budget) -> Budget:
    return replace(budget, steps=budget.steps * SHARES, size_bytes=budget.size_bytes * SHARES)


def _read(part: Part, budget: Budget) -> Transcript:
    """Read the transactions of a part.  Raises BeyondBudget."""
    if (reason := over_budget(part, budget, COLUMNS)) is not None:
        raise BeyondBudget(reason)
    return read_file(part.paths[0], part.params["model"], budget.size_bytes)


def _parts(whole: Part) -> list[Part]:
    """Return a part for each group of the history.  A history that is small or beyond the budget is one part."""
    only = [replace(whole, params={**whole.params, "group": 0})]
    if pq.read_metadata(whole.paths[0]).num_rows < groups.TRANSACTIONS_MIN:
        return only
    try:
        transcript = _read(whole, _shares_of(Budget()))
    except BeyondBudget:  # the judge reports it
        return only
    count = group_count(groups_of(transcript, whole.params["consistency"]))
    return [replace(whole, params={**whole.params, "group": group}) for group in range(count)]


def combine(run: StoredRun, findings: Sequence[Verdict]) -> Verdict:
    """Join the verdicts on the groups."""
    return joined(findings)


def checker_of(model: Model, title: str, consistency: str = STRICT_SERIALIZABLE, name: str = "") -> Checker:
    """Make a checker of histories of transactions over this model.

    consistency: the required consistency model, one of `anomalies.MODELS`
    name: name of the checker; "" names it after `model`
    """
    question = f"Could a {consistency} database have given these answers?"
    params = {"model": model, "consistency": consistency}

    def split(run: StoredRun) -> list[Part]:
        return _parts(Part((str(run.history),), params))

    return Checker(name or model, title, question, split, judge, combine, frozenset({"history", "model"}))


def _checkers(model: Model, title: str) -> tuple[Checker, ...]:
    """Return the checkers for lists or registers: one for strict serializability, and one for each model of ENDINGS."""
    weaker = (checker_of(model, f"{title}, {level}", level, f"{model}-{end}") for level, end in ENDINGS.items())
    return checker_of(model, title), *weaker


_OF_LISTS = _checkers("list-append", "Transactions over lists")
_OF_REGISTERS = _checkers("rw-register", "Transactions over registers")
LIST_APPEND, RW_REGISTER = _OF_LISTS[0], _OF_REGISTERS[0]
OF_TRANSACTIONS = (*_OF_LISTS, *_OF_REGISTERS)


COLUMNS = ("process", "type", "f", "payload")
"""The columns of a history that this reader reads."""


EVENT_SIZE_BYTES = 1_200
"""Bytes of memory for an event and its share of an operation in Python (measured, rounded up)."""


def read_columns(path: str, size_bytes_max: int) -> pa.Table:
    """Read COLUMNS of a sealed history.  Raises BeyondBudget if they take more than `size_bytes_max` bytes."""
    pieces = []
    with pq.ParquetFile(path) as file:
        size_bytes = rows = 0
        for group in range(file.num_row_groups):
            pieces.append(file.read_row_group(group, list(COLUMNS), use_threads=False))
            size_bytes, rows = size_bytes + pieces[-1].nbytes, rows + len(pieces[-1])
            if size_bytes > size_bytes_max:
                words = f"the first {rows} of {file.metadata.num_rows} rows take {size_bytes} bytes"
                raise BeyondBudget(f"{words}, and the budget is {size_bytes_max}")
    return pa.concat_tables(pieces) if pieces else HISTORY.empty_table().select(COLUMNS)


def demand_room_for_events(rows: int, size_bytes_max: int) -> None:
    """Raise BeyondBudget if reading `rows` rows one by one takes more than `size_bytes_max` bytes."""
    if rows * EVENT_SIZE_BYTES > size_bytes_max:
        words = f"{rows} rows that only the slow reader understands take {rows * EVENT_SIZE_BYTES} bytes"
        raise BeyondBudget(f"{words}, and the budget is {size_bytes_max}")


def read_file(path: str, model: Model, size_bytes_max: int = Budget().size_bytes) -> Transcript:
    """Read the transactions of a sealed history, without the rows of the nemesis and of set-up.

    Raises MalformedHistory if a payload is no list of micro-operations of this model.  Raises BeyondBudget if the
    history takes more than `size_bytes_max` bytes.
    """
    table = read_columns(path, size_bytes_max)
    codes, functions = dictionary_codes(table["f"])
    is_transaction = np.array([f != CREATE for f in functions] or [True])[codes]
    process, type_ = (np.asarray(table[name].combine_chunks()) for name in ("process", "type"))
    payload = [stretch(chunk) for chunk in table["payload"].chunks]
    transcript = transcript_of_columns(process, type_, is_transaction, payload, model, RowsOfFile(path).event)
    if transcript is None:
        demand_room_for_events(len(table), size_bytes_max)
        return read_transactions(_events(pq.read_table(path)), model)
    return transcript


def stretch(chunk: pa.Array) -> tuple[Bytes, Int64]:
    """Return (bytes, position at which the text of each row begins) of some payloads; a null has length 0."""
    _, offsets, data = chunk.buffers()
    bounds = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    # some buffers are writable, but the compiler needs one type for all
    read_only = memoryview(b"" if data is None else data).toreadonly()
    return np.frombuffer(read_only, np.uint8), bounds.astype(np.int64)


class RowsOfFile:
    """The events of a sealed history.  An event is read from the file again whenever a caller requests it."""

    def __init__(self, path: str) -> None:
        self._file = pq.ParquetFile(path)
        metadata = self._file.metadata
        self._first = np.cumsum([0] + [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)])
        self._group = lru_cache(maxsize=2)(self._read_group)

    def event(self, row: int) -> Event:
        """Return the event of a row."""
        group = int(np.searchsorted(self._first, row, side="right")) - 1
        return _events(self._group(group).slice(row - int(self._first[group]), 1))[0]

    def _read_group(self, group: int) -> pa.Table:
        return self._file.read_row_group(group, HISTORY.names, use_threads=False)


def _events(table: pa.Table) -> list[Event]:
    return list(map(Event.of_row, table.select(HISTORY.names).to_pylist()))
