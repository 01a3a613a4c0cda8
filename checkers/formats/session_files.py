"""Reads histories of transactions by session in the formats of known checkers, recognized by their content.

    format          from form
    DBCop           DBCop, PolySI, VeriStrong bincode: parameters, then sessions of transactions of events
    Plume text      Plume, IsoVista, AWDIT, PolySI r(key,value,session,transaction), one operation a line; a transaction
                                                     of -1 is aborted
    AWDIT text      AWDIT's tests r key value, one operation a line; ----- ends a transaction, ===== a session
    Cobra           Cobra, AWDIT, VeriStrong a folder of binary logs, one for each session
    Chronos         Chronos and Aion (TimeKiller) JSON: transactions with the system's own time stamps

Such a file has sessions, and no real time: it does not show which transactions of two sessions overlapped.  Time stamps
of the system, if there are any, are only a guess at the order: a valid history need not follow them.

*Initial state.*  A read of 0 may show the initial state; in Chronos's files, so does a read of null.  In Cobra's logs,
two write ids represent it.  A transaction that is alone in its session and writes 0 to every key is the initial state.

*Aborted.*  A transaction that the file marks as not successful did not happen.  Within a successful transaction, a
failed write did not happen either, and a failed read showed nothing.

Readers compare each count in a file with the remaining bytes before they allocate memory for it.
"""

from __future__ import annotations

import io
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import MalformedHistory, Type
from checkers.formats import read_once

READ, WRITE = 0, 1

SIZE_FACTOR = 24
"""Maximum memory of reading, as a multiple of the file's size (measured, rounded up)."""

_OK, _FAIL, _INFO = int(Type.OK), int(Type.FAIL), int(Type.INFO)
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class SessionHistory:
    """Transactions as columns.  The transactions of a session are in its order.

    format: name of the format
    lists: True if the operations are appends and reads of lists
    session: int32 per transaction, an arbitrary number of its session
    status: int8 per transaction, Type.OK, FAIL or INFO
    first: int64[transactions + 1]; the operations of t are rows first[t] to first[t + 1] - 1
    kind: int8 per row, READ or WRITE
    key, value: int64 per row
    nothing: bool per row, True for a read of the initial state
    list_first, lists_read: int64; the list that a row read is lists_read[list_first[row]:list_first[row + 1]]
    zero_is_nothing: True if a read of 0 may show the initial state
    begin, end: int64 per transaction, ranks of the system's time stamps; empty if there are none
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
    """Read the history in a file's content, whose format `session_format` must know.

    Raises MalformedHistory ("line N ..." or "byte N ...") if the content is corrupt, or only a part of a history.
    """
    format_name = read_once.session_format(content)
    if format_name == read_once.COBRA_LOG:
        raise MalformedHistory(
            "byte 0: a Cobra history has one log per session, and this is one: name the folder of the unpacked logs"
        )
    readers = {
        read_once.PLUME: _read_plume,
        read_once.AWDIT: _read_awdit,
        read_once.CHRONOS: _read_chronos,
        read_once.DBCOP: _read_dbcop,
    }
    return readers[format_name or ""](content)


_Write = tuple[int, int, int]
"""(session, key, value)."""


class _Rows:
    """Columns of a `SessionHistory` under construction."""

    def __init__(self) -> None:
        self.session, self.status, self.first = array("q"), array("b"), array("q", [0])
        self.kind, self.key, self.value, self.nothing = array("b"), array("q"), array("q"), array("b")
        self.lists, self.list_first = array("q"), array("q", [0])

    def add(self, kind: int, key: int, value: int, nothing: bool = False, shown: Sequence[int] = ()) -> None:
        self.kind.append(kind)
        self.key.append(key)
        self.value.append(value)
        self.nothing.append(nothing)
        self.lists.extend(shown)
        self.list_first.append(len(self.lists))

    def end(self, session: int, status: int) -> None:
        """End a transaction, which consists of the rows since the last call."""
        self.session.append(session)
        self.status.append(status)
        self.first.append(len(self.kind))

    def history(
        self,
        name: str,
        *,
        lists: bool = False,
        zero: bool = True,
        stamps: Int64 | None = None,
        lost: Sequence[_Write] = (),
    ) -> SessionHistory:
        """Return the history.

        stamps: int64[transactions, 2], begin and end
        lost: writes that failed; each becomes an aborted transaction
        """
        for session, key, value in lost:
            self.add(WRITE, key, value)
            self.end(session, _FAIL)
        nowhere = np.empty(0, np.int64)
        return SessionHistory(
            name,
            lists,
            np.array(self.session, np.int32),
            np.array(self.status, np.int8),
            np.array(self.first, np.int64),
            np.array(self.kind, np.int8),
            np.array(self.key, np.int64),
            np.array(self.value, np.int64),
            np.array(self.nothing, np.bool_),
            np.array(self.list_first, np.int64),
            np.array(self.lists, np.int64),
            zero,
            nowhere if stamps is None else stamps[:, 0],
            nowhere if stamps is None else stamps[:, 1],
        )


# DBCop

_EVENT = struct.Struct("<BqqB")
"""(write, key, value, success)."""


class _Bytes:
    """Bytes that are read from front to back."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content = content
        self.at = at

    def length(self, unit_bytes: int, what: str) -> int:
        """Read the count of the following items, each of at least `unit_bytes`.

        Raises MalformedHistory if the content is too short for so many items.
        """
        if self.at + read_once.LENGTH.size > len(self._content):
            raise self._ends(what)
        (count,) = read_once.LENGTH.unpack_from(self._content, self.at)
        self.at += read_once.LENGTH.size
        if count * unit_bytes > len(self._content) - self.at:
            raise self._ends(f"{what}: it claims {count}")
        return int(count)

    def skip(self, size: int) -> int:
        """Skip the next `size` bytes.  Returns the position of the first of them."""
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
    reader, rows, lost = _Bytes(content, read_once.PARAMETERS.size), _Rows(), list[_Write]()
    for text in ("its description", "its begin", "its end"):
        reader.skip(reader.length(1, text))
    for session in range(reader.length(read_once.LENGTH.size, "sessions")):
        for _ in range(reader.length(read_once.LENGTH.size + 1, "transactions of a session")):
            size = _EVENT.size * reader.length(_EVENT.size, "events of a transaction")
            begin = reader.skip(size)
            committed = reader.flag("success flag of a transaction")
            for write, key, value, success in _EVENT.iter_unpack(content[begin : begin + size]):
                if write > 1 or success > 1:
                    raise MalformedHistory("byte 0: a DBCop history with a flag that is neither 0 nor 1")
                if success or not committed:
                    rows.add(WRITE if write else READ, key, value)
                elif write:
                    lost.append((session, key, value))
            rows.end(session, _OK if committed else _FAIL)
    if reader.at != len(content):
        raise MalformedHistory(f"byte {reader.at}: {len(content) - reader.at} bytes follow the end of a DBCop history")
    return rows.history(read_once.DBCOP, lost=lost)


# Plume's text

_PLUME_LINE = re.compile(rb"([rw])\(" + b",".join([rb"(-?\d{1,99})"] * 4) + rb"\)\n?")


def _read_plume(content: bytes) -> SessionHistory:
    text = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").strip(b"\n")
    rows, lost, sessions = _Rows(), list[_Write](), dict[int, int]()
    transactions: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
    for number, line in enumerate(io.BytesIO(text), 1):
        match = _PLUME_LINE.fullmatch(line)
        if match is None:
            shown = line.rstrip(b"\n")[:60].decode("utf-8", "replace")
            words = "is not an operation r(key,value,session,transaction) of Plume"
            raise MalformedHistory(f"line {number}: {shown!r} {words}")
        f, *texts = match.groups()
        key, value, named, txn = numbers = [*map(int, texts)]
        if max(numbers) not in _INT64 or min(numbers) not in _INT64:
            raise MalformedHistory(f"line {number}: {line.rstrip()[:60].decode()!r} has a number of more than 64 bits")
        if txn < -1:
            words = "it must be 0 or more, or -1 for an aborted transaction"
            raise MalformedHistory(f"line {number}: transaction {txn}: {words}")
        session, is_write = sessions.setdefault(named, len(sessions)), f == b"w"
        if txn == -1:
            lost += [(session, key, value)] * is_write
            continue
        own, operations = transactions.setdefault(txn, (session, []))
        if own != session:
            raise MalformedHistory(f"line {number}: transaction {txn} belongs to two sessions")
        operations.append((WRITE if is_write else READ, key, value))
    for session, operations in transactions.values():
        for operation in operations:
            rows.add(*operation)
        rows.end(session, _OK)
    return rows.history(read_once.PLUME, lost=lost)


# AWDIT's text

_AWDIT_LINE = re.compile(r"([rw])\s+(\d{1,19})\s+(\d{1,19})")


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
                    f"line {number}: {text[:60]!r} differs in length from the lines of {text[0]} before it"
                )
            if len(rows.kind) > rows.first[-1]:
                rows.end(session, _OK)
            session += text[0] == "="
            continue
        match = _AWDIT_LINE.fullmatch(text)
        if match is None or int(match[2]) not in _INT64 or int(match[3]) not in _INT64:
            raise MalformedHistory(f"line {number}: {text[:60]!r} is not an operation r key value of AWDIT")
        rows.add(WRITE if match[1] == "w" else READ, int(match[2]), int(match[3]))
    if len(rows.kind) > rows.first[-1]:
        rows.end(session, _OK)
    return rows.history(read_once.AWDIT)


# Cobra's logs

_INITIAL = (0xBEBEEBEE, 0xDEADBEEF)
"""Write ids that stand for the initial state, and for a missing key."""
_OF_COLLECTION = (0x23332333, 0x66666666)
"""Write ids that garbage collection reads."""


def read_cobra_folder(folder: Path) -> SessionHistory:
    """Return the history in a folder of Cobra's logs.  Raises MalformedHistory ("byte N of T1.log ...") and OSError."""
    logs = read_once.cobra_logs(folder)
    if not logs:
        raise MalformedHistory("byte 0: a folder without a log of Cobra")
    rows = _Rows()
    for session, path in enumerate(logs):
        _read_cobra_log(read_once.read_pieces(path).whole(), session, path.name, rows)
    return rows.history(read_once.COBRA_LOG, zero=False)


def _read_cobra_log(content: bytes, session: int, name: str, rows: _Rows) -> None:
    """Read the log of one session.  A transaction without an end in the log has an unknown outcome."""
    if not content:
        return
    sizes = read_once.cobra_records(content, len(content))
    if sizes is None:
        raise MalformedHistory(f"byte 0 of {name}: a log of Cobra that is damaged")
    at, running = 0, False
    while at < len(content):
        size = sizes.get(content[at], len(content))
        if at + 1 + size > len(content):
            break
        tag, numbers = chr(content[at]), struct.unpack_from(f">{size // 8}q", content, at + 1)
        if running == (tag == "S"):
            raise MalformedHistory(f"byte {at} of {name}: a record {tag} is not possible here")
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
    """An operation of a Chronos history.  An unknown field is an error, so that a corrupt operation is not ignored."""

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
            words = "its tid occurs twice, so a transaction was copied, or another was lost"
            raise MalformedHistory(f"transaction {txn.tid!r:.40}: {words}")
        known.add(txn.tid)
        for operation in txn.ops:
            _add_stamped(rows, txn, operation, lists)
        rows.end(sessions.setdefault(txn.sid, len(sessions)), _OK)
    return rows.history(read_once.CHRONOS, lists=lists, stamps=_ranks(list(_stamps(found))))


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
        raise MalformedHistory(f"transaction {txn.tid!r:.40}: not an operation of a Chronos history: {operation!r:.80}")


def _stamps(found: Sequence[_StampedTransaction]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for txn in found:
        yield (txn.sts.p, txn.sts.l), (txn.cts.p, txn.cts.l)


def _ranks(stamps: list[tuple[tuple[int, int], tuple[int, int]]]) -> Int64:
    """Return int64[transactions, 2]: ranks of begin and end among all time stamps.  Of equal ones, ends come first."""
    rank = {stamp: number for number, stamp in enumerate(sorted({each for pair in stamps for each in pair}))}
    ranks = np.array([[2 * rank[begin] + 1, 2 * rank[end]] for begin, end in stamps], np.int64).reshape(-1, 2)
    ranks[:, 1] = np.maximum(ranks[:, 1], ranks[:, 0] + 1)
    return ranks
