"""A history as columns, and the grammar that every history must follow.

  * A process has at most one open operation.
  * A completion needs an invoke with the same key.  A completion without a key has the key of its invoke.
  * After an `info` a process is retired.
  * An `:index` may have gaps (some tools leave them), but it always rises.  (-1 stands for none, as in Jepsen.)

The first row that violates a rule is found on whole columns: every row before it is valid, so the previous row of the
same process shows the state of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import CREATE, NEMESIS, Event, MalformedHistory, Type
from checkers.base.values import decode, in_words
from checkers.kernels import history_text
from checkers.kernels.history_text import Table, number_texts
from checkers.kernels.transactions.payloads import Bytes, Texts, new_texts

LINE, ROW = "line", "row"
"""Unit of the position in an error message: a line of a text, or a row of a table."""

TRANSACTION = "txn"
"""Function (`f`) of operations that have none or nil, as in histories of Elle."""


class OperationRows(NamedTuple):
    """Operations as columns, one row per event.

    number: line of a text, or row of a table
    stated: the operation's :index, or NO_INDEX
    flags: see `history_text`
    f, key, error: index of a text; -1 if there is none
    """

    number: Int64
    stated: Int64
    time: Int64
    process: Int32
    type: Int8
    flags: npt.NDArray[np.int16]
    f: Int32
    key: Int32
    error: Int32
    value: Int64
    value2: Int64


_DTYPES = (np.int64, np.int64, np.int64, np.int32, np.int8, np.int16, np.int32, np.int32, np.int32, np.int64, np.int64)
_TYPES = tuple(Type)
_N = TypeVar("_N", bound=Hashable)


class Line(NamedTuple):
    """An event and its position in the file (from 1 in a text), for error messages.

    flags, stated: as in `OperationRows`.
    """

    number: int
    event: Event
    flags: int = history_text.HAS_VALUE | history_text.HAS_TIME
    stated: int = history_text.NO_INDEX


@dataclass
class HistoryColumns:
    """A history as columns.

    f, key, error (in `rows`): index into `f`, `keys` and `errors`; -1 if there is none
    index: position of each event; of a table, its index column
    payloads: for consecutive rows, (bytes, bounds of each row's payload); an empty payload stands for none
    """

    rows: OperationRows
    index: Int64
    f: Sequence[str]
    keys: Sequence[str]
    errors: Sequence[str]
    payloads: Sequence[tuple[Bytes, Int64]]
    nodes: Sequence[str] | None = None

    def flag(self, bit: int) -> Bools:
        """Return a mask of the rows that have a flag."""
        return np.asarray((self.rows.flags & bit) != 0)

    def code(self, f: str) -> int:
        """Return the number of a function; -2 if no row has it."""
        return self.f.index(f) if f in self.f else -2

    def key_name(self, row: int) -> str:
        """Return the key of a row, or "None" if the row has none."""
        return self.keys[self.rows.key[row]] if self.rows.key[row] >= 0 else "None"

    def value_in_words(self, row: int) -> str:
        """Return the beginning of the value of a row."""
        (event,) = self.events([row])
        return f"{in_words(event.value if event.payload is None else decode(event.payload)):.40}"

    @cached_property
    def has_payload(self) -> Bools:
        return np.concatenate([np.diff(bounds) > 0 for _, bounds in self.payloads] or [np.empty(0, bool)])

    @cached_property
    def _first_rows(self) -> Int64:
        return np.cumsum([0] + [len(bounds) - 1 for _, bounds in self.payloads])

    def payload(self, row: int) -> str | None:
        """Return the payload of a row."""
        part = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        data, bounds = self.payloads[part]
        begin, end = bounds[row - self._first_rows[part] :][:2]
        return data[begin:end].tobytes().decode() if end > begin else None

    def events(self, which: Sequence[int] | None = None) -> list[Event]:
        """Return the events of these rows, or of all rows."""
        rows = [np.asarray(column if which is None else column[list(which)]).tolist() for column in self.rows]
        _, _, time, process, type_, flags, f, key, error, value, value2 = rows
        index = (self.index if which is None else self.index[list(which)]).tolist()
        numbers = range(len(index)) if which is None else which
        payloads = self._texts() if which is None else self._payloads(which)
        return [
            Event(
                index[i],
                time[i],
                process[i],
                _TYPES[type_[i]],
                self.f[f[i]],
                self.keys[key[i]] if key[i] >= 0 else None,
                value[i] if flags[i] & history_text.VALUE_SET else None,
                value2[i] if flags[i] & history_text.VALUE2_SET else None,
                payload,
                self.errors[error[i]] if error[i] >= 0 else None,
                self.nodes[numbers[i]] if self.nodes is not None else "",
            )
            for i, payload in enumerate(payloads)
        ]

    def _payloads(self, which: Sequence[int]) -> Iterator[str | None]:
        for row, has in zip(which, self.has_payload[list(which)].tolist(), strict=True):
            yield self.payload(row) if has else None

    def _texts(self) -> Iterator[str | None]:
        for data, bounds in self.payloads:
            text = data[bounds[0] : bounds[-1]].tobytes()
            first = int(bounds[0])
            for begin, end in pairwise((bounds - first).tolist()):
                yield text[begin:end].decode() if end > begin else None


def columns_of(events: Sequence[Event]) -> HistoryColumns:
    """Convert events to columns."""
    joined = Joined(nodes=[event.node for event in events], indices=[event.index for event in events])
    joined.add_lines([Line(event.index, event) for event in events])
    return joined.columns(str)[0]


_ODD = 1 << 30
"""Smallest code of a text in a row that Python read, not a kernel."""


@dataclass
class Joined:
    """HistoryColumns under construction, from rows that a kernel read and from lines that Python read."""

    parts: list[OperationRows] = field(default_factory=list)
    payloads: list[tuple[Bytes, Int64]] = field(default_factory=list)
    nodes: list[str] | None = None
    indices: list[int] | None = None
    count: int = 0
    _texts: list[Texts] = field(default_factory=list)
    _codes: tuple[dict[str, int], dict[tuple[str, bool], int], dict[str, int]] = field(
        default_factory=lambda: ({}, {}, {})
    )

    def add_table(self, table: Table, first: int, payload_bytes: Bytes, text: Bytes) -> None:
        """Append rows that a kernel wrote, from row `first` on.  text: bytes from which the kernel read them."""
        if first == len(table):
            return
        self._texts = self._texts or [new_texts(), new_texts(), new_texts()]
        flags = table[first:, history_text.FLAGS]
        kinds = (flags * 0, flags & history_text.TEXT_KEY, flags & history_text.TEXT_ERROR)
        codes = []
        for n, (at, within) in enumerate(
            zip((history_text.F, history_text.KEY, history_text.ERROR), kinds, strict=True)
        ):
            places = np.ascontiguousarray(table[first:, at : at + 2])  # same array type as for a single row
            self._texts[n], found = number_texts(text, places, within, self._texts[n])
            codes.append(found)
        plain = (
            history_text.NUMBER,
            history_text.INDEX,
            history_text.TIME,
            history_text.PROCESS,
            history_text.TYPE,
            history_text.FLAGS,
        )
        values = (table[first:, n] for n in (history_text.VALUE, history_text.VALUE2))
        columns: list[npt.NDArray[Any]] = [*(table[first:, n] for n in plain), *codes, *values]
        self.parts.append(OperationRows._make(c.astype(t) for c, t in zip(columns, _DTYPES, strict=True)))
        begin = table[first - 1, history_text.END] if first else 0
        written = payload_bytes.view()
        written.flags.writeable = False  # read-only like Arrow's arrays, so that kernels are compiled for one type
        self.payloads.append((written, np.concatenate([[begin], table[first:, history_text.END]])))
        self.count += len(table) - first

    def add_lines(self, lines: Sequence[Line]) -> None:
        """Append rows that Python read."""
        if not lines:
            return
        f, keys, errors = self._codes
        records = []
        for number, e, flags, stated in lines:
            key = (e.key or "", bool(flags & history_text.TEXT_KEY))
            flags |= history_text.VALUE_SET if e.value is not None else 0
            flags |= history_text.VALUE2_SET if e.value2 is not None else 0
            records.append(
                (
                    *(number, stated, e.time_ns, e.process, int(e.type), flags),
                    _ODD + f.setdefault(e.f, len(f)),
                    -1 if e.key is None else _ODD + keys.setdefault(key, len(keys)),
                    -1 if e.error is None else _ODD + errors.setdefault(e.error, len(errors)),
                    *(e.value or 0, e.value2 or 0),
                )
            )
        self.parts.append(
            OperationRows._make(np.array(c, t) for c, t in zip(zip(*records, strict=True), _DTYPES, strict=True))
        )
        texts = [line.event.payload.encode() if line.event.payload is not None else b"" for line in lines]
        bounds = np.cumsum([0, *map(len, texts)])
        self.payloads.append((np.frombuffer(b"".join(texts), np.uint8), bounds))
        self.count += len(lines)

    def columns(self, error_of: Callable[[str], str]) -> tuple[HistoryColumns, list[tuple[str, int, int]]]:
        """Return all rows, and the keys that occur both as a text and as a value: (name, both indices in `keys`).

        error_of: function that returns the text of an error written in EDN or JSON
        """
        empty = (np.empty(0, dtype) for dtype in _DTYPES)
        rows = OperationRows._make(np.concatenate(c) for c in zip(empty, *self.parts, strict=True))
        of_f, of_key, of_error = map(_texts_of, self._texts) if self._texts else ([], [], [])
        f_known, key_known, error_known = self._codes
        f, f_codes = _numbered([*(text for text, _ in of_f), *f_known, TRANSACTION])
        keys, key_codes = _numbered([*((text, bool(kind)) for text, kind in of_key), *key_known])
        errors, error_codes = _numbered([*(t if is_text else error_of(t) for t, is_text in of_error), *error_known])
        rows = rows._replace(
            f=np.where(rows.f < 0, f_codes[-1], _coded(rows.f, f_codes, len(of_f))),
            key=_coded(rows.key, key_codes, len(of_key)),
            error=_coded(rows.error, error_codes, len(of_error)),
        )
        place = {key: code for code, key in enumerate(keys)}
        twice = [(n, place[n, True], code) for (n, text), code in place.items() if not text and (n, True) in place]
        index = np.arange(len(rows.type)) if self.indices is None else np.array(self.indices, np.int64)
        columns = HistoryColumns(rows, index, f, [name for name, _ in keys], errors, self.payloads, self.nodes)
        return columns, twice


def _numbered(names: Sequence[_N]) -> tuple[list[_N], Int32]:
    """Return (distinct names, the index of each name among them)."""
    codes: dict[_N, int] = {}
    numbers = [codes.setdefault(name, len(codes)) for name in names]
    return list(codes), np.array(numbers, np.int32)


def _coded(column: Int32, codes: Int32, kernel_count: int) -> Int32:
    """Replace the codes of a column, from kernels and from Python (>= _ODD), by indices of distinct names."""
    places = np.where(column >= _ODD, column - _ODD + kernel_count, column)
    return np.where(column < 0, -1, np.append(codes, -1)[places]).astype(np.int32)


def _texts_of(texts: Texts) -> list[tuple[str, int]]:
    text, count = texts.text.tobytes(), int(texts.counts[0])
    bounds, kinds = texts.first[: count + 1].tolist(), texts.within[:count].tolist()
    return [(text[begin:end].decode(), kind) for (begin, end), kind in zip(pairwise(bounds), kinds, strict=True)]


_Rule = tuple[Bools, Callable[[int], str]]
"""(Mask of the rows that violate a rule, function that describes the violation in such a row)."""


def check_grammar(
    columns: HistoryColumns, twice: Sequence[tuple[str, int, int]], unit: str, *, whole: bool = True
) -> HistoryColumns:
    """Verify the grammar.  Returns the history, with the keys of invokes added to their completions.

    twice: second result of `Joined.columns`
    whole: True if no rows follow

    Raises MalformedHistory, which names the first line or row that breaks the grammar.
    """
    rows = columns.rows
    if not len(columns.index) and whole:
        raise MalformedHistory(f"{unit} 1: the file contains no operation")
    before = _row_before(rows.process)
    doing = np.where(before >= 0, rows.type[before], -1)
    client = rows.process != NEMESIS
    answers = client & (rows.type != Type.INVOKE) & (doing == Type.INVOKE)
    _demand([*_of_values(columns, twice, unit, before, answers), *_of_processes(columns, unit, before)], columns, unit)
    if whole:
        created = client & (rows.f == columns.code(CREATE))
        of_clients = np.bincount(rows.f[client & ~created], minlength=len(columns.f)) > 0
        foreign = ~client & of_clients[rows.f]
        words = f"is invoked by clients in this history, but here by process {NEMESIS}, which is not a client"
        _demand([(foreign, lambda row: f"{columns.f[rows.f[row]]} {words}")], columns, unit)
    timed = bool((columns.flag(history_text.HAS_TIME) | ~client).all())
    key = np.where(answers & (rows.key < 0), rows.key[before], rows.key)
    return replace(columns, rows=rows._replace(key=key, time=rows.time if timed else np.zeros_like(rows.time)))


def _demand(rules: Sequence[_Rule], columns: HistoryColumns, unit: str) -> None:
    """Raise MalformedHistory for the first row that breaks a rule; if the row breaks several, for the first."""
    broken = [(int(np.argmax(wrong)), order, words) for order, (wrong, words) in enumerate(rules) if wrong.any()]
    if broken:
        row, _, words = min(broken, key=lambda each: each[:2])
        raise MalformedHistory(f"{unit} {columns.rows.number[row]}: {words(row)}")


def _of_values(
    columns: HistoryColumns, twice: Sequence[tuple[str, int, int]], unit: str, before: Int64, answers: Bools
) -> Iterator[_Rule]:
    """Yield the rules about indices, values and keys."""
    rows, count = columns.rows, len(columns.index)
    highest = np.maximum.accumulate(np.maximum(rows.stated, -1))
    highest = np.concatenate([[-1], highest[:-1]])[:count]
    yield (
        (rows.stated != history_text.NO_INDEX) & (rows.stated <= highest) & ((rows.stated >= 0) | (highest >= 0)),
        lambda row: _wrong_index(int(rows.stated[row]), int(highest[row])),
    )
    ok, has_value = answers & (rows.type == Type.OK), columns.flag(history_text.HAS_VALUE)
    is_nil = columns.flag(history_text.STATES_NIL)
    yield (
        ok & ~has_value & is_nil[before],
        lambda _: "the invoke has :value nil, and the answer has no :value; write :value nil if that was the answer",
    )
    split = columns.flag(history_text.KEY_IN_VALUE)
    yield (
        ok & has_value & ~is_nil & (rows.key < 0) & ~split & split[before],
        lambda row: (
            f"the invoke was [key value], but the answer {columns.value_in_words(row)} has no key; "
            "write it as [key answer]"
        ),
    )
    for name, one, other in twice:
        used_twice = np.arange(count) == max(int(np.argmax(rows.key == each)) for each in (one, other))
        yield used_twice, partial(_two_objects, name)
    client = rows.process != NEMESIS
    created = client & (rows.f == columns.code(CREATE))
    if unit == LINE:
        words = f"{CREATE} is reserved for set-up in Krucible's own histories, and no model judges it"
        yield created, lambda _: words
    elif created.any():
        first_use = np.full(len(columns.keys) + 1, count)
        np.minimum.at(first_use, rows.key[client & ~created] + 1, np.flatnonzero(client & ~created))
        yield (
            created & (rows.type == Type.INVOKE) & (first_use[rows.key + 1] < np.arange(count)),
            lambda row: f"{CREATE} of key {columns.key_name(row)}, on which clients had already invoked operations",
        )


def _of_processes(columns: HistoryColumns, unit: str, before: Int64) -> Iterator[_Rule]:
    """Yield the rules about what a process may do, given the previous row of the process."""
    number, type_, f, key = columns.rows.number, columns.rows.type, columns.rows.f, columns.rows.key
    doing = np.where(before >= 0, type_[before], -1)
    client, invokes = columns.rows.process != NEMESIS, type_ == Type.INVOKE
    answers = client & ~invokes & (doing == Type.INVOKE)

    def process(row: int) -> str:
        return f"process {columns.rows.process[row]}"

    def name(row: int) -> str:
        return f"{columns.f[f[row]]:.40}"

    def named_key(row: int) -> str:
        return f"key {columns.key_name(row):.40}" if key[row] >= 0 else "no key"

    yield (
        client & invokes & (doing == Type.INVOKE),
        lambda row: f"{process(row)} invokes {name(row)} while its {name(before[row])} is open",
    )
    yield (
        client & invokes & (doing == Type.INFO),
        lambda row: f"{process(row)} was retired by the info of {unit} {number[_retired_by(row, before, type_)]}",
    )
    yield (
        client & ~invokes & ~answers & ~((doing == Type.INFO) & (type_ == Type.INFO)),
        lambda row: (
            f"{process(row)} completes {name(row)} that it never invoked; "
            "every completion needs an invoke, which shows which operations overlapped"
        ),
    )
    yield (
        answers & (key >= 0) & (key != key[before]),
        lambda row: f"{process(row)} invoked on {named_key(before[row])} but completes on {named_key(row)}",
    )
    yield (
        answers & (f != f[before]),
        lambda row: f"{process(row)} invoked {name(before[row])} but completes {name(row)}",
    )


def _row_before(process: Int32) -> Int64:
    """Return, for each row, the previous row of the same process; -1 if there is none."""
    narrow = process if len(process) == 0 or process.max() > 32_000 else process.astype(np.int16)
    order = np.argsort(narrow, kind="stable")  # 16-bit numbers are sorted in O(rows)
    before = np.full(len(process), -1, np.int64)
    same = process[order[1:]] == process[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _wrong_index(index: int, highest: int) -> str:
    if index < 0:
        return no_place(index)
    if index < highest:
        return f":index {index} comes after :index {highest}, so the lines are out of order, or from two histories"
    return f":index {index} comes twice, so a line was copied, or the lines are from two histories"


def _two_objects(name: str, _: int) -> str:
    words = f"a key occurs as the text {name!r} and as the value {name}, which are two objects"
    return f"{words}: rename one of them"


def no_place(index: object) -> str:
    """Return a sentence about an `:index` that is not a valid position."""
    words = f":index {in_words(index):.40} is not an integer of 0 or more, so the order of the lines is not certain"
    return f"{words}; leave :index out if the lines are in order"


def _retired_by(row: int, before: Int64, type_: Int8) -> int:
    """Return the first of the infos that retired the process of this row."""
    row = int(before[row])
    while type_[before[row]] == Type.INFO:
        row = int(before[row])
    return row
