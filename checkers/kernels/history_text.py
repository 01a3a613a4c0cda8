"""Reads operations from the bytes of a text: EDN, lines of JSON, or lines of Jepsen's logs.

A kernel reads the bytes once and writes columns.  A value that is not a 64-bit integer becomes JSON text, as
`values.encode` writes it.  Functions, keys and errors are positions in the bytes, which `number_texts` numbers.

The kernels support the plain forms: ASCII, integers of up to 18 digits, no escapes, no maps, sets or tags in values.
EDN and JSON share one reader, whose parameters are the names of fields, the words, and the separators between values.
Any other form is *unsupported* (ODD), and so is corrupt text.  A kernel stops before an unsupported operation, and
`formats/jepsen.py` reads it.  So a kernel never reports an error.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Int32, Int64
from checkers.base.history import NEMESIS, Type
from checkers.kernels.jit import bare_kernel, inner_kernel, kernel
from checkers.kernels.transactions.payloads import Bytes, Texts, add, find

DONE, FULL, ODD = 0, 1, 2
"""Reasons why a kernel stopped: the text ended; no room for another operation is left; the next operation is
unsupported."""

AT, LINE, ROW, USED, TOP, TOP_LINE, BARE = range(7)
"""Indices into the state of a reader, int64[7].

AT, LINE: the next byte and its line
ROW, USED: number of rows and payload bytes written so far
TOP, TOP_LINE: the bracket around all operations (0 if there is none) and its line
BARE: 1 if lines have only the columns of an operation, without the log's prefix"""

NUMBER, INDEX, TIME, PROCESS, TYPE, FLAGS, F, F_END, KEY, KEY_END, ERROR, ERROR_END, VALUE, VALUE2, END = range(15)
"""Columns that a kernel writes.

NUMBER: line
INDEX: the operation's :index, or NO_INDEX
F to ERROR_END: positions in the bytes, or -1
END: end of the row's payload, which begins at the end of the previous row's"""
WIDTH = 15

HAS_VALUE, HAS_TIME, STATES_NIL, KEY_IN_VALUE, VALUE_SET, VALUE2_SET, TEXT_KEY, TEXT_ERROR = (1 << n for n in range(8))
"""Flags of a row.

HAS_VALUE, HAS_TIME: the operation has a :value, a :time
STATES_NIL: its value is nil
KEY_IN_VALUE: its value was [key value]
VALUE_SET, VALUE2_SET: value, value2 is not null
TEXT_KEY: its key is a text
TEXT_ERROR: its error is a text, not an EDN value"""

NO_INDEX = -(2**63)


Table = npt.NDArray[np.int64]

DEPTH_MAX = 32

_NIL, _INT, _TEXT, _LIST, _OTHER, _BAD, _NO_ROOM = 0, 1, 2, 3, 4, -1, -2

_V_AT, _V_LINE, _V_USED, _V_NUMBER, _V_BEGIN, _V_END, _V_ITEMS, _V_KINDS, _V_NUMBERS = 0, 1, 2, 3, 4, 5, 6, 7, 9
_OPENED, _COUNTS, _NAMES, _NAMES_MAX = 16, 48, 80, 16
WORK = 112
"""Length of the work array of a kernel.  It contains the result of `_value`, the brackets of a value, and the names of
a map.

The result begins at _V_AT: the next byte, its line, and the bytes used; the number; the text without quotes; of a list
the number of items, and the kinds and numbers of the first two.
"""

_ODD_BYTE, _SPACE, _NEWLINE, _COMMA, _NAME, _MARK = range(6)


def _classes() -> Bytes:
    """Return the class of each byte."""
    found = np.full(256, _ODD_BYTE, np.uint8)
    found[0x21:0x7F] = _NAME
    found[list(b'()[]{}";')] = _MARK
    found[list(b" \t")] = _SPACE
    found[ord(",")] = _COMMA
    found[ord("\n")] = _NEWLINE
    found[ord("\\")] = _ODD_BYTE
    return found


_CLASS = _classes()
_INVOKE, _OK, _FAIL, _INFO = int(Type.INVOKE), int(Type.OK), int(Type.FAIL), int(Type.INFO)


def _packed(word: str) -> int:
    return int.from_bytes(word.encode()[:8], "little")


_W_NIL, _W_NULL, _W_TRUE, _W_FALSE = _packed("nil"), _packed("null"), _packed("true"), _packed("false")
_W_INVOKE, _W_OK, _W_FAIL, _W_INFO = _packed("invoke"), _packed("ok"), _packed("fail"), _packed("info")
_W_PROCESS, _W_TYPE, _W_F, _W_VALUE = _packed("process"), _packed("type"), _packed("f"), _packed("value")
_W_TIME, _W_INDEX, _W_KEY, _W_ERROR = _packed("time"), _packed("index"), _packed("key"), _packed("error")
_W_NEMESIS, _W_CAS, _W_REBALANCE = _packed("nemesis"), _packed("cas"), _packed("rebalance-log")
_W_TIMED, _W_OUT = _packed("timed-ou"), _packed("t")
_INFO_WORD, _BRACKET, _LOGGER, _LOGGER_COLON, _DASH, _TYPE_NAME = (
    np.frombuffer(word, np.uint8) for word in (b"INFO", b"]", b"jepsen.util", b"jepsen.util:", b"-", b":type")
)


@inner_kernel
def _word(data: Bytes, begin: int, end: int) -> int:
    """Return the first eight bytes of a word, which must be ASCII, as a number."""
    packed = 0
    for i in range(min(8, end - begin) - 1, -1, -1):
        packed = (packed << 8) | int(data[begin + i] & 127)
    return packed


@inner_kernel
def _name_end(data: Bytes, at: int, end: int) -> int:
    """Return the end of a name; -1 if it is empty or contains an unsupported byte."""
    begin = at
    while at < end and _CLASS[data[at]] == _NAME:
        at += 1
    if at == begin or data[begin] == 58 or data[begin] == 35 or (at < end and _CLASS[data[at]] == _ODD_BYTE):
        return -1
    return at


@inner_kernel
def _after_space(data: Bytes, at: int, end: int, work: Int64, most: int) -> int:
    """Skip bytes whose class is between _SPACE and `most`, both included, and add their newlines to the line count in
    `work`."""
    while at < end and _SPACE <= _CLASS[data[at]] <= most:
        work[_V_LINE] += data[at] == 10
        at += 1
    return at


@inner_kernel
def _scalar(data: Bytes, at: int, end: int, json: bool, work: Int64) -> int:
    """Parse a number, a text or a word.  Returns its kind, _BAD if its form is unsupported, and stores it in `work`."""
    byte = data[at]
    kind, number, begin, stop = _TEXT, 0, at, at
    if 48 <= byte <= 57 or byte == 45:
        kind = _INT
        stop = begin + (byte == 45)
        digits = stop
        while stop < end and 48 <= data[stop] <= 57:
            number = number * 10 + int(data[stop]) - 48
            stop += 1
        size = stop - digits
        if size == 0 or size > 18 or (data[digits] == 48 and (size > 1 or byte == 45)):
            return _BAD
        if stop < end and (_CLASS[data[stop]] == _NAME or _CLASS[data[stop]] == _ODD_BYTE):
            return _BAD
        at = stop
        if byte == 45:
            number = -number
    elif byte == 34:
        begin = at + 1
        stop = begin
        while stop < end and 32 <= data[stop] < 127 and data[stop] != 34 and data[stop] != 92:
            stop += 1
        if stop >= end or data[stop] != 34:
            return _BAD
        at = stop + 1
    elif byte == 58 or 97 <= byte <= 122 or 65 <= byte <= 90:
        begin = at + (byte == 58)
        stop = _name_end(data, begin, end)
        if stop < 0:
            return _BAD
        at = stop
        if byte != 58 and stop - begin < 6:
            word = _word(data, begin, stop)
            if word == (_W_NULL if json else _W_NIL):
                kind = _NIL
            elif word == _W_TRUE or word == _W_FALSE:
                kind = _OTHER
        if json and kind == _TEXT:
            return _BAD
    else:
        return _BAD
    work[_V_AT], work[_V_NUMBER], work[_V_BEGIN], work[_V_END] = at, number, begin, stop
    return kind


@bare_kernel
def _value(data: Bytes, at: int, end: int, json: bool, out: Bytes, used: int, work: Int64) -> int:
    """Write a value as JSON to out[used:].  Returns its kind, _BAD if unsupported, and stores the details in `work`."""
    depth, room, most = 0, out.shape[0] - 64, _SPACE if json else _COMMA
    work[_V_ITEMS] = 0
    while True:
        at = _after_space(data, at, end, work, most)
        if json and depth > 0 and work[_COUNTS + depth] > 0 and at < end and data[at] != 93:
            if data[at] != 44:
                return _BAD
            at = _after_space(data, at + 1, end, work, most)
            if at < end and data[at] == 93:
                return _BAD
        if at >= end:
            return _BAD
        if used > room:
            return _NO_ROOM
        byte = data[at]
        if json and (byte == 40 or byte == 58):
            return _BAD
        kind, number, begin, stop = _LIST, 0, at, at
        if byte == 93 or byte == 41:
            if depth == 0 or work[_OPENED + depth] != byte:
                return _BAD
            out[used] = 93
            used, at, depth = used + 1, at + 1, depth - 1
        else:
            if depth > 0:
                if work[_COUNTS + depth] > 0:
                    out[used], out[used + 1] = 44, 32
                    used += 2
                work[_COUNTS + depth] += 1
            if byte == 91 or byte == 40:
                depth += 1
                if depth >= DEPTH_MAX:
                    return _BAD
                work[_OPENED + depth], work[_COUNTS + depth] = 93 if byte == 91 else 41, 0
                out[used] = 91
                used, at = used + 1, at + 1
                continue
            kind = _scalar(data, at, end, json, work)
            at, number, begin, stop = work[_V_AT], work[_V_NUMBER], work[_V_BEGIN], work[_V_END]
            if kind == _BAD:
                return _BAD
            if used + stop - begin > room:
                return _NO_ROOM
            if kind == _NIL:
                out[used], out[used + 1], out[used + 2], out[used + 3] = 110, 117, 108, 108
                used += 4
            else:
                quoted = kind == _TEXT
                out[used] = 34
                used += quoted
                for i in range(begin, stop):
                    out[used] = data[i]
                    used += 1
                out[used] = 34
                used += quoted
        if depth == 1:
            items = work[_V_ITEMS]
            if items < 2:
                work[_V_KINDS + items], work[_V_NUMBERS + items] = kind, number
            work[_V_ITEMS] = items + 1
        elif depth == 0:
            work[_V_AT], work[_V_USED], work[_V_NUMBER] = at, used, number
            work[_V_BEGIN], work[_V_END] = begin, stop
            return kind


@inner_kernel
def _type_of(word: int) -> int:
    if word == _W_OK:
        return _OK
    if word == _W_INVOKE:
        return _INVOKE
    if word == _W_INFO:
        return _INFO
    return _FAIL if word == _W_FAIL else -1


@inner_kernel
def _clear(rows: Table, row: int, number: int) -> None:
    for column in range(WIDTH):
        rows[row, column] = -1
    rows[row, NUMBER], rows[row, INDEX], rows[row, TIME], rows[row, PROCESS] = number, NO_INDEX, 0, 0
    rows[row, FLAGS], rows[row, VALUE], rows[row, VALUE2] = 0, 0, 0


@inner_kernel
def _read_value(
    data: Bytes, at: int, end: int, json: bool, keyed: bool, rows: Table, row: int, out: Bytes, used: int, work: Int64
) -> int:
    """Write the :value of a row to out[used:] as JSON, and store the key in it.  Returns its kind, like `_value`."""
    line, most = work[_V_LINE], _SPACE if json else _COMMA
    if keyed and at < end and (data[at] == 91 or data[at] == 40):
        close = 93 if data[at] == 91 else 41
        kind = _value(data, at + 1, end, json, out, used, work)
        begin, stop = work[_V_BEGIN], work[_V_END]
        if kind == _NO_ROOM:
            return kind
        if _NIL <= kind <= _TEXT:
            is_text, at_next = kind == _TEXT, _after_space(data, work[_V_AT], end, work, most)
            if json:
                at_next = at_next + 1 if at_next < end and data[at_next] == 44 else end
            is_nil = kind == _NIL
            kind = _value(data, at_next, end, json, out, used, work)
            if kind == _NO_ROOM:
                return kind
            if kind >= 0:
                at_end = _after_space(data, work[_V_AT], end, work, most)
                if at_end < end and data[at_end] == close:
                    work[_V_AT] = at_end + 1
                    if not is_nil:
                        rows[row, KEY], rows[row, KEY_END] = begin, stop
                    rows[row, FLAGS] |= KEY_IN_VALUE | HAS_VALUE | (TEXT_KEY if is_text else 0)
                    return kind
        elif kind >= 0:
            return _BAD
        work[_V_LINE] = line
    kind = _value(data, at, end, json, out, used, work)
    if kind >= 0:
        rows[row, FLAGS] |= HAS_VALUE | (STATES_NIL if kind == _NIL else 0)
    return kind


@inner_kernel
def _store(data: Bytes, rows: Table, row: int, kind: int, state: Int64, work: Int64) -> None:
    """Complete a row.  kind: result of `_read_value`.  work: as `_read_value` filled it."""
    used = work[_V_USED]
    is_cas = rows[row, F_END] - rows[row, F] == 3 and _word(data, rows[row, F], rows[row, F_END]) == _W_CAS
    if kind == _INT and not is_cas:
        rows[row, VALUE] = work[_V_NUMBER]
        rows[row, FLAGS] |= VALUE_SET
        used = state[USED]
    elif kind == _NIL:
        used = state[USED]
    elif is_cas and kind == _LIST and work[_V_ITEMS] == 2 and work[_V_KINDS] <= _INT and work[_V_KINDS + 1] <= _INT:
        rows[row, VALUE], rows[row, VALUE2] = work[_V_NUMBERS], work[_V_NUMBERS + 1]
        rows[row, FLAGS] |= VALUE_SET * work[_V_KINDS] + VALUE2_SET * work[_V_KINDS + 1]
        used = state[USED]
    elif kind == _TEXT and rows[row, ERROR] < 0 and work[_V_END] - work[_V_BEGIN] == 9:
        begin = work[_V_BEGIN]
        if _word(data, begin, begin + 8) == _W_TIMED and _word(data, begin + 8, begin + 9) == _W_OUT:
            rows[row, ERROR], rows[row, ERROR_END] = begin, begin + 9
            rows[row, FLAGS] |= TEXT_ERROR
    rows[row, END] = used
    state[ROW], state[USED] = row + 1, used


@bare_kernel
def read_maps(
    data: Bytes, json: bool, keyed: bool, state: Int64, rows: Table, out: Bytes, spare: Bytes, work: Int64
) -> int:
    """Append maps from `state` on: in EDN one after another or in one vector or list, in JSON one a line.

    Returns the reason why it stopped.

    spare: room for values that are not payloads
    work: int64[WORK]
    """
    end, at, most = data.shape[0], state[AT], _SPACE if json else _COMMA
    work[_V_LINE] = state[LINE]
    while True:
        at = _after_space(data, at, end, work, _NEWLINE if json else _COMMA)
        state[AT], state[LINE] = at, work[_V_LINE]
        if at >= end:
            return DONE if state[TOP] == 0 else ODD
        byte = data[at]
        if not json and state[TOP] == 0 and (byte == 91 or byte == 40):
            state[TOP], state[TOP_LINE] = byte, work[_V_LINE]
            at += 1
            continue
        if (byte == 93 and state[TOP] == 91) or (byte == 41 and state[TOP] == 40):
            state[TOP] = 0
            at += 1
            continue
        row = state[ROW]
        if row == rows.shape[0]:
            return FULL
        if byte == 35 and at + 1 < end and (97 <= data[at + 1] <= 122 or 65 <= data[at + 1] <= 90):  # a tag
            at += 2
            while at < end and (97 <= data[at] <= 122 or 65 <= data[at] <= 90 or data[at] == 46):
                at += 1
        if at >= end or data[at] != 123 or (json and byte == 35):
            return ODD
        at += 1
        _clear(rows, row, state[LINE])
        names, kind, used = 0, _NIL, state[USED]
        while True:
            at = _after_space(data, at, end, work, most)
            if at >= end:
                return ODD
            if data[at] == 125:
                at += 1
                break
            at = _value_begins(data, at, end, json, names, work)
            if at < 0:
                return ODD
            word, began = work[_NAMES + names], at
            names += 1
            if word == _W_VALUE:
                found = _read_value(data, at, end, json, keyed, rows, row, out, used, work)
                kind = found
                for i in range(12):
                    work[_NAMES + _NAMES_MAX + i] = work[i]
            else:
                found = _value(data, at, end, json, spare, 0, work)
            if found < 0:
                return FULL if found == _NO_ROOM and word == _W_VALUE else ODD
            at = work[_V_AT]
            if not _store_field(data, word, found, began, keyed, rows, row, work):
                return ODD
        if json:
            at = _after_space(data, at, end, work, most)
            if at < end and data[at] != 10:
                return ODD
        if rows[row, TYPE] < 0:
            return ODD
        line = work[_V_LINE]
        if kind != _NIL:
            for i in range(12):
                work[i] = work[_NAMES + _NAMES_MAX + i]
        work[_V_LINE] = line
        _store(data, rows, row, kind, state, work)


@bare_kernel
def read_lines(data: Bytes, keyed: bool, state: Int64, rows: Table, out: Bytes, work: Int64) -> int:
    """Append the operations of a log, or of columns without a log's prefix, from `state` on.

    Parameters and result are those of `read_maps`.  A line without signs of an operation is skipped, because it cannot
    even be a corrupt operation (`formats/jepsen.py`).
    """
    size = data.shape[0]
    while state[AT] < size:
        at, marked, plain, named, logged = state[AT], state[BARE] == 1, True, False, False
        end = at
        while end < size and data[end] != 10:
            byte = data[end]
            plain = plain and (byte >= 32 or byte == 9)
            if byte == 58 and end > at:
                marked = marked or data[end - 1] == 9 or _stands(_TYPE_NAME, data, end, size)
                named = named or not 32 < data[end - 1] < 127
            elif byte == 106:
                logged = logged or _stands(_LOGGER, data, end, size)
            end += 1
        next_at, row, marked = end + 1, state[ROW], marked or (named and logged)
        if end == size or (marked and not plain):
            return ODD
        if marked and end > at:
            if row == rows.shape[0]:
                return FULL
            _clear(rows, row, state[LINE])
            while end > at and data[end - 1] <= 32:
                end -= 1
            begin = at if state[BARE] == 1 else _operation_begins(data, at, end)
            begin = _read_columns(data, begin, end, rows, row, work)
            stop = begin
            while 0 <= stop < end and data[stop] != 9:
                stop += 1
            kind = (
                _read_value(data, begin, stop, False, keyed, rows, row, out, state[USED], work) if begin >= 0 else _BAD
            )
            if kind < 0:
                return FULL if kind == _NO_ROOM else ODD
            if work[_V_AT] != stop or not _store_error(data, stop, end, rows, row):
                return ODD
            _store(data, rows, row, kind, state, work)
        state[AT], state[LINE] = next_at, state[LINE] + 1
    return DONE


@inner_kernel
def _stands(word: Bytes, data: Bytes, at: int, end: int) -> bool:
    """Return True if a word begins here."""
    if at < 0 or end - at < len(word):
        return False
    for i in range(len(word)):
        if data[at + i] != word[i]:
            return False
    return True


@inner_kernel
def _after_word(word: Bytes, data: Bytes, at: int, end: int) -> int:
    """Return the position after a word and the blanks that follow it; -1 if they are not at this position."""
    stop = at + len(word)
    if not _stands(word, data, at, end) or stop == end or data[stop] > 32:
        return -1
    while stop < end and data[stop] <= 32:
        stop += 1
    return stop


@inner_kernel
def _operation_begins(data: Bytes, at: int, end: int) -> int:
    """Return where the operation in a line of a log begins; -1 if the prefix is unsupported (`formats/jepsen.py`)."""
    dated = not _stands(_INFO_WORD, data, at, end)
    if dated:
        begin = at
        while at < end and (data[at] == 45 or 48 <= data[at] <= 57):
            at += 1
        if at == begin or at == end or data[at] != 32:
            return -1
        begin = at + 1
        at = begin
        while at < end and 32 < data[at] < 127:
            at += 1
        if at == begin:
            return -1
        while at < end and data[at] <= 32:
            at += 1
    at = _after_word(_INFO_WORD, data, at, end)
    if at >= 0 and at < end and data[at] == 91:
        while at < end and data[at] != 93:
            at += 1
        begin = at + 3
        at = _after_word(_BRACKET, data, at, end)
        if at >= 0 and not dated:
            at = -1
            for i in range(begin, end):
                if data[i] >= 127:
                    return -1
                if data[i] == 45 and data[i - 1] <= 32:
                    at = _after_word(_DASH, data, i, end)
                    if _stands(_LOGGER, data, at, end):
                        break
    elif dated:
        return -1
    if dated:
        return _after_word(_LOGGER_COLON, data, at, end)
    at = _after_word(_LOGGER, data, at, end)
    begin = _after_word(_DASH, data, at, end)
    return at if begin < 0 else begin


@inner_kernel
def _read_columns(data: Bytes, at: int, end: int, rows: Table, row: int, work: Int64) -> int:
    """Read process, type and f of a line.  Returns where its value begins; -1 if they are unsupported."""
    for word in (_W_PROCESS, _W_TYPE, _W_F):
        if at < 0 or at >= end or (word != _W_PROCESS and data[at] != 58):
            return -1
        found = _scalar(data, at, end, False, work)
        stop = work[_V_AT]
        if found == _BAD or stop == end or data[stop] != 9:
            return -1
        if not _store_field(data, word, found, at, False, rows, row, work):
            return -1
        at = int(stop) + 1
    return at if rows[row, TYPE] >= 0 else -1


@inner_kernel
def _store_error(data: Bytes, at: int, end: int, rows: Table, row: int) -> bool:
    """Store the remaining line as the error of a fail or info.  Returns False if it is unsupported."""
    if at == end:
        return True
    while data[at] <= 32:
        at += 1
    rows[row, ERROR], rows[row, ERROR_END] = at, end
    rows[row, FLAGS] |= TEXT_ERROR
    return bool(rows[row, TYPE] >= _FAIL and data[at] < 127 and data[end - 1] < 127)


@inner_kernel
def _value_begins(data: Bytes, at: int, end: int, json: bool, names: int, work: Int64) -> int:
    """Read a field's name into work[_NAMES + names].  Returns where its value begins; -1 if the name is unsupported."""
    most = _SPACE if json else _COMMA
    if json and names > 0:
        at = _after_space(data, at + 1, end, work, most) if data[at] == 44 else end
    stop = _name_end(data, at + 1, end) if at < end and data[at] == (34 if json else 58) else -1
    if stop < 0 or names == _NAMES_MAX:
        return -1
    word = _word(data, at + 1, stop)
    if stop - at > 9:  # a longer name is identified by its first eight bytes and its length
        if word == _W_REBALANCE:
            return -1
        word = -1 - (word ^ ((stop - at) << 40))
    for i in range(names):
        if work[_NAMES + i] == word:
            return -1
    work[_NAMES + names] = word
    if json:
        if stop == end or data[stop] != 34:
            return -1
        stop = _after_space(data, stop + 1, end, work, most)
        if stop == end or data[stop] != 58:
            return -1
        stop += 1
    return _after_space(data, stop, end, work, most)


@inner_kernel
def _store_field(
    data: Bytes, word: int, found: int, began: int, keyed: bool, rows: Table, row: int, work: Int64
) -> bool:
    """Store the field `word` of a row, whose value has the kind `found`.  Returns False if it is unsupported."""
    begin, stop, number = work[_V_BEGIN], work[_V_END], work[_V_NUMBER]
    if word == _W_TYPE and found == _TEXT:
        rows[row, TYPE] = _type_of(_word(data, begin, stop)) if stop - begin < 7 else -1
    elif word == _W_PROCESS:
        if found == _TEXT and stop - begin == 7 and _word(data, begin, stop) == _W_NEMESIS:
            number = NEMESIS
        elif found != _INT or not 0 <= number < 2**31:
            return False
        rows[row, PROCESS] = number
    elif word == _W_F:
        if found == _TEXT:
            rows[row, F], rows[row, F_END] = begin, stop
        elif found != _NIL:
            return False
    elif word == _W_TIME and found == _INT:
        rows[row, TIME] = number
        rows[row, FLAGS] |= HAS_TIME
    elif word == _W_INDEX and found != _NIL:
        if found != _INT or number < -1:
            return False
        rows[row, INDEX] = number
    elif word == _W_KEY:
        if found > _TEXT or keyed:
            return False
        if found != _NIL:
            rows[row, KEY], rows[row, KEY_END] = begin, stop
            rows[row, FLAGS] |= TEXT_KEY if found == _TEXT else 0
    elif word == _W_ERROR and found != _NIL:
        rows[row, ERROR], rows[row, ERROR_END] = began, work[_V_AT]
        if found == _TEXT:
            rows[row, ERROR], rows[row, ERROR_END] = begin, stop
            rows[row, FLAGS] |= TEXT_ERROR
    return True


@kernel
def number_texts(data: Bytes, places: Table, within: Int64, texts: Texts) -> tuple[Texts, Int32]:
    """Return the known texts, and the number of the text at each place or -1.  places: (begin, end), -1 for none."""
    codes = np.full(places.shape[0], -1, np.int32)
    row = _number_known(data, places, within, texts, codes, 0)
    while row < places.shape[0]:
        begin, end = places[row, 0], places[row, 1]
        texts, codes[row] = add(texts, data, begin, end, within[row], find(texts, data, begin, end, within[row])[1])
        row = _number_known(data, places, within, texts, codes, row + 1)
    return texts, codes


@bare_kernel
def _number_known(data: Bytes, places: Table, within: Int64, texts: Texts, codes: Int32, first: int) -> int:
    """Write the numbers of known texts, from row `first` on.  Returns the row of the first unknown text, or the end."""
    for row in range(first, places.shape[0]):
        begin, end = places[row, 0], places[row, 1]
        if begin >= 0:
            codes[row] = find(texts, data, begin, end, within[row])[0]
            if codes[row] < 0:
                return row
    return int(places.shape[0])
