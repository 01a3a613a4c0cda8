"""Histories of transactions by session, as the checkers of the field write them, recognised by their content.

    format          from                             form
    DBCop           DBCop, PolySI, VeriStrong        bincode: parameters, then sessions of transactions of events
    Plume text      Plume, IsoVista, AWDIT, PolySI   r(key,value,session,transaction), one operation a line; a
                                                     transaction of -1 is aborted
    AWDIT text      AWDIT's tests                    r key value, one operation a line; ----- ends a transaction, =====
                                                     a session
    Cobra           Cobra, AWDIT, VeriStrong         a folder of binary logs, one for each session
    Chronos         Chronos and Aion (TimeKiller)    JSON: transactions with the system's own time stamps

Such a file has sessions, and no real time: nothing states which transactions of two sessions ran at once.  Where it has
time stamps of the system, they serve as a guess of the order, never as a demand.

*Initial state.*  A read of 0 shows that nothing was written, and in Chronos' files also one of null.  In Cobra's logs
two write ids stand for it.  A transaction that is alone in its session and writes 0 to every key is the initial state.

*Aborted.*  A transaction that the file marks as not successful did not happen.  Of a successful transaction, a write
that failed did not happen either, and a read that failed showed nothing.

Readers bound their memory before they allocate: no count of a file is believed beyond the bytes that are there.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import MalformedHistory, Type
from checkers.formats.read_once import (
    AWDIT,
    CHRONOS,
    COBRA_LOG,
    DBCOP,
    LENGTH,
    PARAMETERS,
    PLUME,
    cobra_logs,
    cobra_records,
    read_once,
    session_format,
)

READ, WRITE = 0, 1

SIZE_FACTOR = 24
"""Reading takes at most so many times the bytes of a file (measured, rounded up)."""

_OK, _FAIL, _INFO = int(Type.OK), int(Type.FAIL), int(Type.INFO)
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class SessionHistory:
    """Transactions as columns; those of a session are in its order.

    format: the name of the format.  lists: whether the operations are appends and reads of lists.
    session: int32 per transaction, any numbers.  status: int8, Type.OK, FAIL or INFO.
    first: int64[transactions + 1]; the operations of t are rows first[t] to first[t + 1].
    kind: int8, READ or WRITE.  key, value: int64 per row.  nothing: bool per row, a read of the initial state.
    list_first, lists: int64; the list that a row read is lists[list_first[row]:list_first[row + 1]].
    zero_is_nothing: whether a read of 0 may show the initial state.
    begin, end: int64 per transaction, ranks of the system's time stamps; empty if there are none.
    """

    format: str
    lists: bool
    session: Int32
    status: Int8
    first: Int64
    kind: Int8
    key: Int64
    value: Int64
    nothing: Bools
    list_first: Int64
    lists_read: Int64
    zero_is_nothing: bool
    begin: Int64
    end: Int64


def read_session_history(content: bytes) -> SessionHistory:
    """The history in the content of a file whose format `session_format` knows.

    Raises MalformedHistory ("line N ..." or "byte N ..."): the content is damaged, or only a part of a history.
    """
    format_name = session_format(content)
    if format_name == COBRA_LOG:
        raise MalformedHistory(
            "byte 0: one log of a Cobra history, whose sessions are one log each: name the folder of the unpacked logs"
        )
    readers = {PLUME: _read_plume, AWDIT: _read_awdit, CHRONOS: _read_chronos, DBCOP: _read_dbcop}
    return readers[format_name or ""](content)


# DBCop

_EVENT = np.dtype([("write", "u1"), ("key", "<u8"), ("value", "<u8"), ("success", "u1")])


class _Bytes:
    """A content that is read from the front."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content = content
        self.at = at

    def length(self, unit_bytes: int, what: str) -> int:
        """A count of what follows, each of at least `unit_bytes`.  Raises MalformedHistory if it cannot be true."""
        if self.at + LENGTH.size > len(self._content):
            raise self._ends(what)
        (count,) = LENGTH.unpack_from(self._content, self.at)
        self.at += LENGTH.size
        if count * unit_bytes > len(self._content) - self.at:
            raise self._ends(f"{what}: it claims {count}")
        return int(count)

    def skip(self, size: int) -> int:
        """The place of the next `size` bytes."""
        began, self.at = self.at, self.at + size
        return began

    def flag(self, what: str) -> bool:
        if self.at >= len(self._content) or self._content[self.at] > 1:
            raise self._ends(what)
        self.at += 1
        return self._content[self.at - 1] == 1

    def _ends(self, what: str) -> MalformedHistory:
        return MalformedHistory(f"byte {self.at}: a DBCop history that is damaged or cut off ({what})")


def _read_dbcop(content: bytes) -> SessionHistory:
    reader = _Bytes(content, PARAMETERS.size)
    for text in ("the text about it", "its begin", "its end"):
        reader.skip(reader.length(1, text))
    spans: list[tuple[int, int]] = []
    session, success = [], []
    for number in range(reader.length(LENGTH.size, "sessions")):
        for _ in range(reader.length(LENGTH.size + 1, "transactions of a session")):
            count = reader.length(_EVENT.itemsize, "events of a transaction")
            spans.append((reader.skip(count * _EVENT.itemsize), count))
            success.append(reader.flag("whether a transaction succeeded"))
            session.append(number)
    if reader.at != len(content):
        raise MalformedHistory(f"byte {reader.at}: {len(content) - reader.at} bytes follow the end of a DBCop history")
    counts = np.array([count for _, count in spans], np.int64)
    rows = np.frombuffer(b"".join(content[at : at + count * _EVENT.itemsize] for at, count in spans), _EVENT)
    for name in ("write", "success"):
        if (rows[name] > 1).any():
            raise MalformedHistory("byte 0: a DBCop history with a flag that is neither 0 nor 1")
    owner = np.repeat(np.arange(len(spans)), counts)
    committed = np.array(success, np.bool_)
    failed = committed[owner] & (rows["success"] == 0)
    kept = ~failed
    columns = _columns(
        DBCOP,
        np.array(session, np.int32),
        np.where(committed, _OK, _FAIL).astype(np.int8),
        np.bincount(owner[kept], minlength=len(spans)),
        _RowColumns(rows["write"][kept].astype(np.int8), _signed(rows["key"][kept]), _signed(rows["value"][kept])),
    )
    lost = failed & (rows["write"] == 1)
    return _with_aborted(
        columns, np.array(session, np.int32)[owner[lost]], _signed(rows["key"][lost]), _signed(rows["value"][lost])
    )


def _signed(numbers: np.ndarray[Any, Any]) -> Int64:
    return numbers.astype(np.uint64).view(np.int64)


class _RowColumns(NamedTuple):
    """Columns of `SessionHistory` with one entry per row."""

    kind: Int8
    key: Int64
    value: Int64


def _columns(name: str, session: Int32, status: Int8, sizes: np.ndarray[Any, Any], rows: _RowColumns) -> SessionHistory:
    """A history over registers, in which 0 may be the initial state, without time stamps."""
    nowhere = np.empty(0, np.int64)
    return SessionHistory(
        name,
        False,
        session,
        status,
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        *rows,
        np.zeros(len(rows.kind), np.bool_),
        np.zeros(len(rows.kind) + 1, np.int64),
        nowhere,
        True,
        nowhere,
        nowhere,
    )


def _with_aborted(history: SessionHistory, session: Int32, key: Int64, value: Int64) -> SessionHistory:
    """The history and, at its end, an aborted transaction for each of these writes."""
    count = len(session)
    if not count:
        return history
    return _columns(
        history.format,
        np.concatenate([history.session, session]).astype(np.int32),
        np.concatenate([history.status, np.full(count, _FAIL, np.int8)]),
        np.concatenate([np.diff(history.first), np.ones(count, np.int64)]),
        _RowColumns(
            np.concatenate([history.kind, np.full(count, WRITE, np.int8)]),
            np.concatenate([history.key, key]),
            np.concatenate([history.value, value]),
        ),
    )


# Plume's text

_PLUME_LINE = re.compile(rb"[rw]\(\d+,\d+,\d+,-?\d+\)")


def _read_plume(content: bytes) -> SessionHistory:
    import pyarrow as pa
    import pyarrow.csv as csv

    text = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").strip(b"\n") + b"\n"
    lines = text.count(b"\n")
    opened = (b"\n" + text).count(b"\nr(") + (b"\n" + text).count(b"\nw(")
    if opened != lines or text.count(b"(") != lines or text.count(b")\n") != lines or text.count(b")") != lines:
        raise _damaged_line(text, _PLUME_LINE, "r(key,value,session,transaction) of Plume")
    numbers = text.replace(b"r(", b"0,").replace(b"w(", b"1,").replace(b")", b"")
    names = ["kind", "key", "value", "session", "txn"]
    try:
        table = csv.read_csv(
            io.BytesIO(numbers),
            csv.ReadOptions(column_names=names, use_threads=False),
            csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pa.int64()), null_values=[]),
        )
    except (pa.ArrowException, OSError) as problem:
        raise _damaged_line(text, _PLUME_LINE, "r(key,value,session,transaction) of Plume") from problem
    kind, key, value, session, txn = (np.asarray(table[name]) for name in names)
    if len(unknown := np.flatnonzero(txn < -1)):
        words = f"transaction {txn[unknown[0]]}: a number from 0 on, or -1 of an aborted transaction"
        raise MalformedHistory(f"line {unknown[0] + 1}: {words}")
    aborted = txn == -1
    lost = aborted & (kind == WRITE)
    kind, key, value, session, txn = (column[~aborted] for column in (kind, key, value, session, txn))
    found, first_row, number = np.unique(txn, return_index=True, return_inverse=True)
    if len(other := np.flatnonzero(session != session[first_row][number])):
        row = int(np.flatnonzero(~aborted)[other[0]])
        raise MalformedHistory(f"line {row + 1}: transaction {txn[other[0]]} belongs to two sessions")
    by_appearance = np.argsort(first_row, kind="stable")
    rank = np.empty(len(found), np.int64)
    rank[by_appearance] = np.arange(len(found))
    owner = rank[number]
    rows = np.argsort(owner, kind="stable")
    table_session = np.asarray(table["session"])
    _, dense = np.unique(np.concatenate([session[first_row[by_appearance]], table_session[lost]]), return_inverse=True)
    history = _columns(
        PLUME,
        dense[: len(found)].astype(np.int32),
        np.full(len(found), _OK, np.int8),
        np.bincount(owner, minlength=len(found)),
        _RowColumns(kind[rows].astype(np.int8), key[rows], value[rows]),
    )
    all_keys, all_values = np.asarray(table["key"]), np.asarray(table["value"])
    return _with_aborted(history, dense[len(found) :].astype(np.int32), all_keys[lost], all_values[lost])


def _damaged_line(text: bytes, line: re.Pattern[bytes], form: str) -> MalformedHistory:
    for number, each in enumerate(text.removesuffix(b"\n").split(b"\n"), 1):
        shown = each[:60].decode("utf-8", "replace")
        if not line.fullmatch(each):
            return MalformedHistory(f"line {number}: {shown!r} is not an operation {form}")
        if any(int(digits) >= 1 << 63 for digits in re.findall(rb"\d+", each)):
            return MalformedHistory(f"line {number}: {shown!r} has a number of more than 64 bits")
    return MalformedHistory(f"line 1: the form is {form}")


# AWDIT's text

_AWDIT_LINE = re.compile(r"([rw])\s+(\d{1,19})\s+(\d{1,19})")


class _Rows:
    """Operations as they are read, for formats whose histories are small."""

    def __init__(self) -> None:
        self.session: list[int] = []
        self.status: list[int] = []
        self.first = [0]
        self.rows: list[tuple[int, int, int, bool]] = []
        self.list_first = [0]
        self.lists: list[int] = []

    def add(self, kind: int, key: int, value: int, nothing: bool = False, shown: Sequence[int] = ()) -> None:
        self.rows.append((kind, key, value, nothing))
        self.lists += shown
        self.list_first.append(len(self.lists))

    def end(self, session: int, status: int) -> None:
        """The rows since the last end are a transaction."""
        self.session.append(session)
        self.status.append(status)
        self.first.append(len(self.rows))

    def history(
        self, name: str, *, lists: bool = False, zero: bool = True, stamps: Int64 | None = None
    ) -> SessionHistory:
        """stamps: int64[transactions, 2], begin and end."""
        columns = [np.array([row[i] for row in self.rows]) for i in range(4)]
        nowhere = np.empty(0, np.int64)
        return SessionHistory(
            name,
            lists,
            np.array(self.session, np.int32),
            np.array(self.status, np.int8),
            np.array(self.first, np.int64),
            columns[0].astype(np.int8),
            columns[1].astype(np.int64),
            columns[2].astype(np.int64),
            columns[3].astype(np.bool_),
            np.array(self.list_first, np.int64),
            np.array(self.lists, np.int64),
            zero,
            nowhere if stamps is None else stamps[:, 0],
            nowhere if stamps is None else stamps[:, 1],
        )


def _read_awdit(content: bytes) -> SessionHistory:
    rows, session = _Rows(), 0
    separators: dict[str, str] = {}
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as problem:
        raise MalformedHistory("line 1: a text that is not UTF-8") from problem
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if set(text) in ({"-"}, {"="}):
            if text != separators.setdefault(text[0], text):
                raise MalformedHistory(
                    f"line {number}: {text[:60]!r} is not as long as the lines of {text[0]} before it"
                )
            if len(rows.rows) > rows.first[-1]:
                rows.end(session, _OK)
            session += text[0] == "="
            continue
        match = _AWDIT_LINE.fullmatch(text)
        if match is None or int(match[2]) not in _INT64 or int(match[3]) not in _INT64:
            raise MalformedHistory(f"line {number}: {text[:60]!r} is not an operation r key value of AWDIT")
        rows.add(WRITE if match[1] == "w" else READ, int(match[2]), int(match[3]))
    if len(rows.rows) > rows.first[-1]:
        rows.end(session, _OK)
    return rows.history(AWDIT)


# Cobra's logs

_INITIAL = (0xBEBEEBEE, 0xDEADBEEF)
"""Write ids of the initial state, and of a key that is not there."""
_OF_COLLECTION = (0x23332333, 0x66666666)
"""Write ids that garbage collection reads."""


def read_cobra_folder(folder: Path) -> SessionHistory:
    """The history in a folder of Cobra's logs.  Raises MalformedHistory ("byte N of T1.log ...") and OSError."""
    logs = cobra_logs(folder)
    if not logs:
        raise MalformedHistory("byte 0: a folder without a log of Cobra")
    rows = _Rows()
    for session, path in enumerate(logs):
        _read_cobra_log(read_once(path), session, path.name, rows)
    return rows.history(COBRA_LOG, zero=False)


def _read_cobra_log(content: bytes, session: int, name: str, rows: _Rows) -> None:
    """A transaction whose end the log lacks has an unknown outcome."""
    if not content:
        return
    sizes = cobra_records(content, len(content))
    if sizes is None:
        raise MalformedHistory(f"byte 0 of {name}: a log of Cobra that is damaged")
    at, running = 0, False
    while at < len(content):
        size = sizes.get(content[at], len(content))
        if at + 1 + size > len(content):
            break
        tag, numbers = chr(content[at]), struct.unpack_from(f">{size // 8}q", content, at + 1)
        if running == (tag == "S"):
            raise MalformedHistory(f"byte {at} of {name}: a record {tag} where no such record can stand")
        if tag == "S":
            running = True
        elif tag in "CA":
            rows.end(session, _OK if tag == "C" else _FAIL)
            running = False
        elif tag == "W":
            rows.add(WRITE, numbers[1], numbers[0])
        elif numbers[1] not in _OF_COLLECTION:
            rows.add(READ, numbers[2], numbers[1], nothing=numbers[1] in _INITIAL)
        at += 1 + size
    if running:
        rows.end(session, _INFO)


# Chronos' JSON


class _Stamp(msgspec.Struct):
    p: int
    l: int = 0  # noqa: E741 (its name in the file)


class _StampedOperation(msgspec.Struct, forbid_unknown_fields=True):
    """A field with another name may be a damaged one: what was read must not turn into nothing."""

    t: str
    k: int
    v: int | list[int] | None = None


class _StampedTransaction(msgspec.Struct):
    tid: int | str
    sid: int | str
    sts: _Stamp
    cts: _Stamp
    ops: list[_StampedOperation]


def _read_chronos(content: bytes) -> SessionHistory:
    try:
        found = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"), type=list[_StampedTransaction])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise MalformedHistory(f"line 1: a history of Chronos that is damaged ({problem})") from problem
    lists = any(op.t.lower() in ("a", "append") or isinstance(op.v, list) for txn in found for op in txn.ops)
    rows, sessions = _Rows(), dict[int | str, int]()
    known: set[int | str] = set()
    for txn in found:
        if txn.tid in known:
            words = "its tid stands twice, so a transaction was copied, or another was lost"
            raise MalformedHistory(f"transaction {txn.tid!r:.40}: {words}")
        known.add(txn.tid)
        for operation in txn.ops:
            _add_stamped(rows, txn, operation, lists)
        rows.end(sessions.setdefault(txn.sid, len(sessions)), _OK)
    return rows.history(CHRONOS, lists=lists, stamps=_ranks(list(_stamps(found))))


def _add_stamped(rows: _Rows, txn: _StampedTransaction, operation: _StampedOperation, lists: bool) -> None:
    name, value = operation.t.lower(), operation.v
    for number in (operation.k, *(value if isinstance(value, list) else () if value is None else (value,))):
        if number not in _INT64:
            words = f"a number of more than 64 bits: {number!r:.40}"
            raise MalformedHistory(f"transaction {txn.tid!r:.40}: {words}")
    if name in ("r", "read") and (value is None or isinstance(value, list) == lists):
        shown = value if isinstance(value, list) else []
        rows.add(READ, operation.k, value if isinstance(value, int) else 0, value is None or value == [], shown)
    elif name in (("a", "append") if lists else ("w", "write")) and isinstance(value, int):
        rows.add(WRITE, operation.k, value)
    else:
        raise MalformedHistory(f"transaction {txn.tid!r:.40}: no operation of a history of Chronos: {operation!r:.80}")


def _stamps(found: Sequence[_StampedTransaction]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for txn in found:
        yield (txn.sts.p, txn.sts.l), (txn.cts.p, txn.cts.l)


def _ranks(stamps: list[tuple[tuple[int, int], tuple[int, int]]]) -> Int64:
    """int64[transactions, 2]: the places of begin and end among all time stamps.  At equal ones, ends come first."""
    rank = {stamp: number for number, stamp in enumerate(sorted({each for pair in stamps for each in pair}))}
    ranks = np.array([[2 * rank[begin] + 1, 2 * rank[end]] for begin, end in stamps], np.int64).reshape(-1, 2)
    ranks[:, 1] = np.maximum(ranks[:, 1], ranks[:, 0] + 1)
    return ranks
