"""Reads transactions from a history: payloads of invokes and completions are micro-operations as JSON.

    list-append    [["append", key, value], ["r", key, [value, ...] or null], ...]
    rw-register    [["w", key, value], ["r", key, value or null], ...]

Keys and values may be any JSON; they are numbered in order of appearance.  No transaction may write null to a register,
because a read of null shows that nothing was written.  For a committed transaction, the completion shows its
micro-operations; for every other transaction, the invoke does.

*Columns.*  Kernels read the columns of a history (`kernels/transactions/payloads.py`).  If a kernel does not support a
payload, the history is read event by event.  This is slower, but if a payload is no transaction, the error names the
event and the problem.  `checker.py` reads the columns of a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import CREATE, NEMESIS, Event, Type, paired
from checkers.base.values import canonical, encode, parse
from checkers.formats.rows import HistoryColumns
from checkers.kernels.codes import dense_processes, members
from checkers.kernels.transactions import payloads
from checkers.kernels.transactions.columns import NEVER, NIL_VALUE, READ, WRITE, Transactions
from checkers.kernels.transactions.payloads import Bytes, are_dense, number_values
from checkers.models.model import WrongEvent

Model = Literal["list-append", "rw-register"]

_WRITES = {"list-append": "append", "rw-register": "w"}

Item = TypeVar("Item")


class Lazily(Sequence[Item]):
    """A sequence that makes its items on demand.

    of: a function that returns the item at a position
    """

    def __init__(self, length: int, of: Callable[[int], Item]) -> None:
        self._length, self._of = length, of

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> list[Item]: ...
    def __getitem__(self, at: int | slice) -> Item | list[Item]:
        if isinstance(at, slice):
            return [self._of(each) for each in range(*at.indices(self._length))]
        return self._of(range(self._length)[at])


def with_transactions(txns: Transactions, chosen: Int64) -> Transactions:
    """Return the columns of some transactions alone.  chosen: their numbers, ascending."""
    rows, first = members(txns.first, chosen)
    elements, list_first = members(txns.list_first, rows)
    return Transactions(
        txns.process[chosen],
        txns.status[chosen],
        txns.invoked[chosen],
        txns.completed[chosen],
        first,
        txns.kind[rows],
        txns.key[rows],
        txns.value[rows],
        list_first,
        txns.lists[elements],
    )


def with_rows(txns: Transactions, rows: Bools, elements: Bools) -> Transactions:
    """Return the columns with some of the micro-operations and list elements alone.

    rows: True for each micro-operation to keep
    elements: True for each list element to keep
    """
    stays = elements & np.repeat(rows, np.diff(txns.list_first))
    before = np.concatenate([[0], np.cumsum(stays)]).astype(np.int64)[txns.list_first]
    return txns._replace(
        first=np.concatenate([[0], np.cumsum(rows)])[txns.first].astype(np.int64),
        kind=txns.kind[rows],
        key=txns.key[rows],
        value=txns.value[rows],
        list_first=np.append(before[:-1][rows], before[-1]),
        lists=txns.lists[stays],
    )


@dataclass(frozen=True, slots=True)
class Transcript:
    """A history of transactions as columns, and the names and values that their numbers stand for.

    keys: name of each key
    values: for each key, the value of each value number
    events: for each transaction, its invoke and, if there is one, its completion; empty for columns without events
    event_count: exclusive upper bound of the positions `invoked` and `completed`
    timed: True if `invoked` and `completed` show real time.  If False, all transactions overlap by these positions, and
        the order of `completed` is only a guess of the order of commits
    begin: if `timed` is False, a guess of the starts (int64, positions like `completed`)
    initial: (key, value number) of values that a read may show although no transaction wrote them
    """

    model: Model
    txns: Transactions
    keys: Sequence[Any]
    values: Sequence[Sequence[Any]]
    events: Sequence[tuple[Event, ...]]
    event_count: int
    timed: bool = True
    begin: Int64 | None = None
    initial: frozenset[tuple[int, int]] = frozenset()

    def key_name(self, key: int) -> Any:
        return self.keys[key] if self.keys else key

    def value_name(self, key: int, value: int) -> Any:
        if value < 0:
            return None
        return self.values[key][value] if self.values else value

    def micro_operation(self, row: int) -> list[Any]:
        """Return a micro-operation such as ["r", key, value] in the form of the payload."""
        key = int(self.txns.key[row])
        if self.txns.kind[row] == WRITE:
            return [_WRITES[self.model], self.key_name(key), self.value_name(key, int(self.txns.value[row]))]
        if self.model == "rw-register":
            return ["r", self.key_name(key), self.value_name(key, int(self.txns.value[row]))]
        return ["r", self.key_name(key), self.read_list(row)]

    def micro_rows(self, t: int) -> range:
        """Return the rows of the micro-operations of a transaction."""
        return range(int(self.txns.first[t]), int(self.txns.first[t + 1]))

    def elements(self, row: int) -> Int32:
        """Return the numbers of the values in the list that a row read."""
        return self.txns.lists[int(self.txns.list_first[row]) : int(self.txns.list_first[row + 1])]

    def read_list(self, row: int) -> list[Any]:
        return [self.value_name(int(self.txns.key[row]), int(v)) for v in self.elements(row)]

    def writers(self, key: int, value: int) -> list[int]:
        """Return the transactions that wrote this value to this key, once for each write."""
        txns = self.txns
        rows = ((txns.kind == WRITE) & (txns.key == key) & (txns.value == value)).nonzero()[0]
        return [int(t) for t in txns.first.searchsorted(rows, side="right") - 1]

    def rows(self, t: int) -> list[dict[str, Any]]:
        """Return the transaction's rows of the history, in the form of a witness."""
        if self.events:
            return [event.as_row() for event in self.events[t]]
        done = [self.micro_operation(r) for r in self.micro_rows(t)]
        invoked = [[f, k, None if f == "r" else v] for f, k, v in done]
        status, process = Type(int(self.txns.status[t])), int(self.txns.process[t])
        both = [Event(int(self.txns.invoked[t]), 0, process, Type.INVOKE, "txn", payload=encode(invoked))]
        if self.txns.completed[t] != NEVER:
            payload = encode(done if status is Type.OK else invoked)
            both.append(Event(int(self.txns.completed[t]), 0, process, status, "txn", payload=payload))
        return [event.as_row() for event in both]


def read_transactions(events: Sequence[Event], model: Model) -> Transcript:
    """Read the transactions among the events, without events of the nemesis and of set-up.

    Raises MalformedHistory if a payload is no list of micro-operations of this model.
    """
    reader = _ColumnsReader(model)
    ours = ((p, event) for p, event in enumerate(events) if event.process != NEMESIS and event.f != CREATE)
    pairs = [
        [each for each in pair if each is not None]
        for pair in paired(ours, lambda each: each[1].type, lambda each: each[1].process)
    ]
    for pair in pairs:
        reader.add(pair)
    return reader.transcript([tuple(e for _, e in pair) for pair in pairs], len(events))


def _question(micro_operation: list[Any]) -> str:
    """Return, as JSON, the part of a micro-operation that the invoke contains: a write, or a read without answer."""
    fixed = micro_operation[:2] if micro_operation[:1] == ["r"] else micro_operation
    return canonical(fixed)


class _ColumnsReader:
    """A reader that appends one event after another to growing columns."""

    def __init__(self, model: Model) -> None:
        self._model: Model = model
        self._like = f"[[:{_WRITES[model]} 1 5] [:r 2 nil]]"
        self._keys: dict[Any, int] = {}
        self._key_names: list[Any] = []
        self._values: list[dict[Any, int]] = []
        self._value_names: list[list[Any]] = []
        self._of_txns: list[tuple[int, int, int, int]] = []
        self._first = [0]
        self._rows: list[tuple[int, int, int]] = []
        self._list_first = [0]
        self._lists: list[int] = []

    def add(self, pair: list[tuple[int, Event]]) -> None:
        invoked, invoke = pair[0]
        completed, done = pair[-1]
        status = done.type if len(pair) == 2 else Type.INFO
        event = done if status is Type.OK else invoke
        if status is Type.OK:
            self._demand_agreement(invoke, done)
        for micro_operation in self._parse(event):
            self._add_row(event, micro_operation, committed=status is Type.OK)
        self._first.append(len(self._rows))
        ended = NEVER if status is Type.INFO else completed
        self._of_txns.append((invoke.process, int(status), invoked, ended))

    def _demand_agreement(self, invoke: Event, done: Event) -> None:
        """Raise MalformedHistory unless the answer repeats the invoked micro-operations, except for the values read."""
        if invoke.payload is None:
            return
        before, after = self._parse(invoke), self._parse(done)
        for number, (old, new) in enumerate(zip(before, after, strict=False)):
            if isinstance(old, list) and isinstance(new, list) and _question(old) != _question(new):
                words = f"micro-operation {number + 1} was invoked as {old!r:.60} and completed as {new!r:.60}"
                raise WrongEvent(done.index, words)
        if len(before) != len(after):
            words = f"{len(before)} micro-operations were invoked and {len(after)} completed"
            raise WrongEvent(done.index, words)

    def _parse(self, event: Event) -> list[Any]:
        try:
            parts = parse(event.payload) if event.payload is not None else None
        except ValueError as problem:
            raise WrongEvent(event.index, f"the payload is not JSON ({problem})") from problem
        if not isinstance(parts, list):
            raise WrongEvent(
                event.index, f"the value of a transaction must be a list of micro-operations like {self._like}"
            )
        return parts

    def _add_row(self, event: Event, part: Any, *, committed: bool) -> None:
        write = _WRITES[self._model]
        if not isinstance(part, list) or len(part) != 3 or part[0] not in ("r", write):
            words = f'which are ["{write}", key, value] and ["r", key, answer]'
            raise WrongEvent(event.index, f"{part!r:.60} is no micro-operation of {self._model}, {words}")
        f, key_name, answer = part
        key = self._number(self._keys, self._key_names, key_name)
        if key == len(self._values):
            self._values.append({})
            self._value_names.append([])
        number, elements = NIL_VALUE, []
        if f == "w" and answer is None:
            words = f"a write of key {key_name!r:.60} needs a value; null means that nothing was written"
            raise WrongEvent(event.index, words)
        if f == write:
            number = self._number(self._values[key], self._value_names[key], answer)
        elif committed and self._model == "list-append":
            if not (answer is None or isinstance(answer, list)):
                raise WrongEvent(event.index, f"a read of key {key_name!r:.60} must show a list or null")
            elements = [self._number(self._values[key], self._value_names[key], v) for v in answer or []]
        elif committed and answer is not None:
            number = self._number(self._values[key], self._value_names[key], answer)
        self._rows.append((WRITE if f == write else READ, key, number))
        self._lists += elements
        self._list_first.append(len(self._lists))

    @staticmethod
    def _number(numbers: dict[Any, int], names: list[Any], name: Any) -> int:
        hashable = canonical(name) if isinstance(name, list | dict) else (type(name), name)
        number = numbers.setdefault(hashable, len(names))
        if number == len(names):
            names.append(name)
        return number

    def transcript(self, events: list[tuple[Event, ...]], event_count: int) -> Transcript:
        of_txns = np.array(self._of_txns, np.int64).reshape(-1, 4)
        rows = np.array(self._rows, np.int64).reshape(-1, 3)
        txns = Transactions(
            process=of_txns[:, 0].astype(np.int32),
            status=of_txns[:, 1].astype(np.int8),
            invoked=of_txns[:, 2].copy(),
            completed=of_txns[:, 3].copy(),
            first=np.array(self._first, np.int64),
            kind=rows[:, 0].astype(np.int8),
            key=rows[:, 1].astype(np.int32),
            value=rows[:, 2].astype(np.int32),
            list_first=np.array(self._list_first, np.int64),
            lists=np.array(self._lists, np.int32),
        )
        return Transcript(self._model, txns, self._key_names, self._value_names, events, event_count)


def read_history(history: HistoryColumns, model: Model) -> Transcript:
    """Read the transactions of a history in memory.

    Raises MalformedHistory if a payload is no list of micro-operations of this model.
    """
    rows = history.rows
    transcript = transcript_of_columns(
        rows.process,
        rows.type,
        rows.f != history.code(CREATE),
        history.payloads,
        model,
        lambda row: history.events([row])[0],
    )
    return transcript or read_transactions(history.events(), model)


def transcript_of_columns(
    process: Int32,
    type_: Int8,
    is_transaction: Bools,
    stretches: Sequence[tuple[Bytes, Int64]],
    model: Model,
    event_of: Callable[[int], Event],
) -> Transcript | None:
    """Read the columns.  Returns None if a payload needs the slower reader, or if an answer contradicts its invoke.

    event_of: a function that returns the event of a row
    """
    dense, process_count = dense_processes(process)
    pairs = payloads.pair(process, dense, process_count, type_, (process >= 0) & is_transaction)
    owner = np.full(len(process), -1, np.int32)
    owner[pairs.described] = np.arange(len(pairs.described), dtype=np.int32)
    keys, lists = payloads.new_texts(), model == "list-append"
    read = _columns_of(stretches, owner, pairs.status, keys, lists)
    if read is None or not _agree(pairs, read, len(owner), stretches, lists):
        return None
    columns, keys = read
    names = _key_names(keys)
    values: Sequence[Sequence[Any]] = ()
    if not are_dense(columns, len(names)):
        base, known = _with_numbers(columns, len(names))
        values = Lazily(len(names), lambda key: known[base[key] : base[key + 1]].tolist())
    txns = Transactions._make([*pairs[:4], *columns])
    return Transcript(model, txns, names, values, paired_events(pairs, event_of), len(owner))


def _with_numbers(columns: payloads.Columns, key_count: int) -> tuple[Int64, Int64]:
    """Replace values by numbers, those of writes first; returns `base` and `names` as `number_values` does."""
    wrote = columns.kind == WRITE
    chosen = [np.flatnonzero(wrote), np.flatnonzero(~wrote & (columns.value >= 0))]
    keys = [*(columns.key[rows] for rows in chosen), np.repeat(columns.key, np.diff(columns.list_first))]
    values = [*(columns.value[rows] for rows in chosen), columns.lists]
    numbers, base, names = number_values(np.concatenate(keys).astype(np.int64), np.concatenate(values), key_count)
    ends = np.cumsum([len(each) for each in values])
    for rows, part in zip(chosen, np.split(numbers, ends[:2]), strict=False):
        columns.value[rows] = part
    columns.lists[:] = numbers[ends[1] :]
    return base, names


def _columns_of(
    stretches: Sequence[tuple[Bytes, Int64]], owner: Int32, status: Int8, keys: payloads.Texts, lists: bool
) -> tuple[payloads.Columns, payloads.Texts] | None:
    """Return (the micro-operations of rows that have an owner, all keys known so far).

    Returns None if the kernel does not support a payload.
    """
    count = len(status)
    sizes, elements = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    first_row = 0
    for data, bounds in stretches:
        if payloads.count(data, bounds, first_row, owner, sizes[1:], elements[1:]):
            return None
        first_row += len(bounds) - 1
    first, element_first = np.cumsum(sizes), np.cumsum(elements)
    rows = int(first[-1])
    columns = payloads.Columns(
        first,
        np.empty(rows, np.int8),
        np.empty(rows, np.int32),
        np.empty(rows, np.int32),
        np.full(rows + 1, element_first[-1], np.int64),
        np.empty(int(element_first[-1]), np.int32),
    )
    first_row = 0
    for data, bounds in stretches:
        keys, strange = payloads.write(data, bounds, first_row, owner, status, element_first, lists, keys, columns)
        if strange:
            return None
        first_row += len(bounds) - 1
    return columns, keys


def _agree(
    pairs: payloads.Pairs,
    read: tuple[payloads.Columns, payloads.Texts],
    row_count: int,
    stretches: Sequence[tuple[Bytes, Int64]],
    lists: bool,
) -> bool:
    """Return True if every answer repeats the invoked micro-operations, except for the results of reads.

    An invoke without a payload allows any answer.  Returns False also if the kernel does not support an invoke.
    """
    columns, keys = read
    rows_invoked = np.where(pairs.described != pairs.invoked, pairs.invoked, -1)
    size_bytes = np.concatenate([np.diff(bounds) for _, bounds in stretches] or [np.empty(0, np.int64)])
    chosen = np.flatnonzero((rows_invoked >= 0) & (size_bytes[rows_invoked] > 0))
    owner = np.full(row_count, -1, np.int32)
    owner[rows_invoked[chosen]] = np.arange(len(chosen), dtype=np.int32)
    not_answered = np.full(len(chosen), int(Type.INFO), np.int8)
    invoked = _columns_of(stretches, owner, not_answered, keys, lists)
    if invoked is None:
        return False
    before = invoked[0]
    rows, first = members(columns.first, chosen)
    if not np.array_equal(before.first, first):
        return False
    writes = before.kind == WRITE
    return (
        np.array_equal(before.kind, columns.kind[rows])
        and np.array_equal(before.key, columns.key[rows])
        and np.array_equal(before.value[writes], columns.value[rows][writes])
    )


def _key_names(keys: payloads.Texts) -> list[Any]:
    text, first = keys.text.tobytes(), keys.first.tolist()
    return [json.loads(text[first[n] : first[n + 1]]) for n in range(int(keys.counts[0]))]


def paired_events(pairs: payloads.Pairs, event_of: Callable[[int], Event]) -> Sequence[tuple[Event, ...]]:
    """Return a lazy sequence of the events of each transaction.  It is lazy because a witness needs few of them.

    event_of: a function that returns the event of a row
    """

    def of(t: int) -> tuple[Event, ...]:
        rows = [int(pairs.invoked[t]), int(pairs.ended[t])]
        return tuple(event_of(row) for row in rows if row >= 0)

    return Lazily(len(pairs.described), of)
