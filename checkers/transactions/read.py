"""Reads transactions from the events of a history: payloads of invokes and completions are micro-operations as JSON.

    list-append    [["append", key, value], ["r", key, [value, ...] or null], ...]
    rw-register    [["w", key, value], ["r", key, value or null], ...]

Keys and values may be any JSON; they are numbered in order of appearance.  A register cannot be written null, because a
read of null shows that nothing was written.  The completion of a committed transaction shows what it did.  The invoke
shows it for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.base.history import CREATE, NEMESIS, Event, Type, paired
from checkers.base.values import canonical, encode, parse
from checkers.kernels.codes import members
from checkers.kernels.transactions.columns import NEVER, NIL_VALUE, READ, WRITE, Transactions
from checkers.models.answers import WrongEvent

Model = Literal["list-append", "rw-register"]

_WRITES = {"list-append": "append", "rw-register": "w"}

Item = TypeVar("Item")


class Lazily(Sequence[Item]):
    """A sequence whose items are made when they are needed.  of: the item of a place."""

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
    """Return the columns with some of the micro-operations alone.  elements: those of the lists that stay as well."""
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

    keys: name of each key.  values: per key, the value of each value number.
    events: per transaction, its events (invoke, and completion if there is one); empty for columns without events.
    event_count: the upper bound of the positions `invoked` and `completed`.
    timed: whether `invoked` and `completed` show what ran at once.  If not, all transactions overlap in them, and their
    order is only a guess of the order of commits; `begin` is one of the starts (int64, positions like `completed`).
    initial: elements (key, value number) that a read may show although nothing was written.
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
    """Read the transactions among the events; events of the nemesis and of set-up are skipped.

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
    """Return, as JSON, the part of a micro-operation that its invoke fixes: a whole write, or a read without answer."""
    fixed = micro_operation[:2] if micro_operation[:1] == ["r"] else micro_operation
    return canonical(fixed)


class _ColumnsReader:
    """Columns as they grow."""

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
                event.index, f"a transaction needs a list of micro-operations in its value, like {self._like}"
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
            words = f"a write of key {key_name!r:.60} needs a value; a read of null shows that nothing was written"
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
