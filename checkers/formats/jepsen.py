"""Reads Jepsen's histories: EDN (`history.edn`), the log lines of `jepsen.util`, these lines without the log's prefix
(`history.txt`), and the operations of EDN as lines of JSON, or as one list in JSON (elle-cli).

Operations become events.  An event's index is its position in the text.  An `:index` only shows whether the lines are
in order: it may have gaps (some tools leave them), but it is an integer and always rises.  (-1 stands for none, as in
Jepsen.)  Values that are not integers go into `payload` as JSON.  The process `:nemesis` becomes NEMESIS.  Times are
kept only if every operation of a client has one: a missing time would be shown as 0.

Some values are ambiguous.  A value `[a b]` of a cas is (expected, new).  `[k v]` of another operation is a key and its
value only if the map has a `:key`.  (Tuples of `independent` tests are also written `[k v]`.  The text does not
distinguish them from a list, so a caller chooses with `keyed=True`.)  The `:rebalance-log` of a Kafka test (the
partitions assigned or revoked in an operation) becomes a `["rebalance", keys]` at the end of the operation's value.

*EDN.*  The notation in which Jepsen writes histories (github.com/edn-format/edn).

In JSON, names, keywords and strings are strings, and values have the form in which histories store them
(`base/values.py`).

Krucible has its own reader because the message about a corrupt history must name the line, and the readers on PyPI do
not report it.  Keywords and symbols become plain `str` without the colon, vectors and lists `list`, sets `SetValue`.  A
map is a `dict` whose keys are names (`values.name_of_key`): 1 and "1" have different names.  Numbers keep all their
digits.  A tagged value is read as the value behind its tag (a record is its map).  A `#uuid` gets lower case, because
the case of its letters means nothing.  A `#object` (a Java object that Clojure cannot print), a regular expression and
a var stay text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from checkers.base.arrays import Int64
from checkers.base.history import NEMESIS, Event, MalformedHistory, Type
from checkers.base.values import SET, canonical, encode, in_one_order, in_words, name_of_key, number_of
from checkers.formats.rows import TRANSACTION, Line, no_place
from checkers.kernels import history_text
from checkers.kernels.history_text import AT, LINE, TOP, TOP_LINE

EXAMPLE = "{:process 0, :type :invoke, :f :write, :value 1}"
"""Example of an operation in error messages."""

_TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
_BEFORE_OPERATION = (
    r"(?:INFO\s+(?:\[[^\]]*\]\s.*?\s-\s+)?jepsen\.util\s+(?:-\s+)?|[\d-]+ \S+\s+INFO\s+\[[^\]]*\]\s+jepsen\.util:\s+)"
)
"""Text in front of an operation in a log:

  * `INFO  jepsen.util - ` in old logs;
  * `INFO [2021-02-08 11:17:57,842] jepsen worker 0 - jepsen.util ` on a console;
  * `2021-02-26 23:39:01,300{GMT} INFO [jepsen worker 1] jepsen.util: ` in jepsen.log.
"""
_OPERATION = r"(?P<operation>\S+\s+:\w+\s+:\S+(?:\s.*)?)$"
_LOG_LINE = re.compile(rf"^{_BEFORE_OPERATION}{_OPERATION}")
_BARE_LINE = re.compile(rf"^{_OPERATION}")
_LOG_HINT = re.compile(rf"^{_BEFORE_OPERATION}", re.MULTILINE)
_BARE_HINT = re.compile(r"\s*(?:\d+|:nemesis)\s+:(?:invoke|info)\s+:\S")
_LIKE_AN_OPERATION = re.compile(r"jepsen\.util.*\t:|\t:(?:invoke|ok|fail|info)\t|^\s*[\[(]?\s*(?:#[\w.]+)?\{.*:type\b")
"""Pattern of an operation, even if the operation is corrupt, or if it is EDN among lines of a log."""
_NEMESIS = "nemesis"
"""The process of faults.  Any other name might be a client's, and operations of clients must not be skipped."""
_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)


_WINDOW_BYTES = 1 << 16
LineReader = Callable[[str, int], dict[str, Any] | None]
"""Function (line, its number) -> the operation of the line, or None.  Raises MalformedHistory."""


def read_edn(
    content: bytes, state: Int64, keyed: bool, first: int, limit: int, *, more: bool = False
) -> tuple[list[Line], MalformedHistory | None]:
    """Read up to `limit` operations of an EDN history: maps one after another, or one vector or list of maps.

    Returns the operations and the error that follows them, or None.  There is at least one operation unless the content
    ends.

    state: state of the kernels (`history_text`), which is moved behind the operations that were read
    first: index of the first operation
    more: True if text follows the content, which may end within an operation
    """
    size_bytes = _WINDOW_BYTES if limit < len(content) else len(content)
    while True:
        piece = content[state[AT] : state[AT] + size_bytes]
        whole = state[AT] + len(piece) >= len(content)
        last = whole and not more
        text = piece.decode("utf-8", "strict" if last else "ignore")
        reader = FormReader(text, int(state[LINE]), chr(state[TOP]) if state[TOP] else "", int(state[TOP_LINE]))
        lines, damage, place = list[Line](), None, None
        try:
            for form in reader.items():
                if not last and reader.at == len(text):
                    break
                lines.append(_line_of(first + len(lines), form.line, _operation(form), keyed))
                place = reader.place()
                if len(lines) == limit:
                    break
            else:
                place = reader.place() if last else place
        except MalformedHistory as problem:
            damage = problem
        if lines or whole:
            if place is not None:
                at, line, top, top_line = place
                moved = at if len(text) == len(piece) else len(text[:at].encode())
                state[AT] += moved
                state[LINE], state[TOP], state[TOP_LINE] = line, ord(top or "\0"), top_line
            return lines, damage if last else None
        size_bytes *= 16


def read_lines(
    content: bytes, state: Int64, keyed: bool, first: int, limit: int, operation_of: LineReader
) -> tuple[list[Line], MalformedHistory | None]:
    """Read up to `limit` lines, each with one operation or none.  Parameters and result are those of `read_edn`."""
    lines = list[Line]()
    for _ in range(limit):
        end = content.find(b"\n", state[AT]) + 1 or len(content)
        number = int(state[LINE])
        try:
            operation = operation_of(content[state[AT] : end].decode(), number)
            if operation is not None:
                lines.append(_line_of(first + len(lines), number, operation, keyed))
        except MalformedHistory as damage:
            return lines, damage
        state[AT], state[LINE] = end, number + 1
        if state[AT] == len(content):
            break
    return lines, None


def lines_of_json_list(content: bytes) -> bytes:
    """Convert a list in JSON to lines of JSON, one item a line.

    An item stands in the line in which it begins in the list, or in the next free line.
    Raises MalformedHistory if the list is corrupt, or if something follows it.
    """
    text, written, at = content.decode(), list[str](), 0
    line = free = 1
    while (match := (_NEXT_ITEM if at else _FIRST_ITEM).match(text, at)) is not None:
        start, line = match.end(), line + text.count("\n", at, match.end())
        try:
            at = _JSON_SYNTAX.raw_decode(text, start)[1]
        except (json.JSONDecodeError, RecursionError) as problem:
            raise MalformedHistory(f"line {line}: an item of the list is damaged or cut off ({problem})") from problem
        written.append("\n" * (line - free) + text[start:at].replace("\n", " ") + "\n")
        free = max(line, free) + 1
        line += text.count("\n", start, at)
    if _END_OF_LIST.fullmatch(text, at) is None:
        raise MalformedHistory(f"line {line}: the list of operations is cut off, or damaged here: {text[at:]!r:.40}")
    return "".join(written).encode()


def operation_of_json(line: str, number: int) -> dict[str, Any] | None:
    """Return the operation in a line of JSON; None if the line is empty.  Raises MalformedHistory."""
    if not line.strip():
        return None
    try:
        value = json_value(line.removesuffix("\n"))
    except ValueError as problem:
        raise MalformedHistory(f"line {number}: not a JSON object ({problem})") from problem
    return _operation(Form(number, value))


def operation_of_log(line: str, number: int, bare: bool) -> dict[str, Any] | None:
    """Return the operation in a line of a log; None if the line has none.  Raises MalformedHistory.

    bare: True if lines have only the columns of an operation, without the log's prefix
    """
    if not line.endswith("\n") and line.strip():
        raise MalformedHistory(f"line {number}: the last line has no line feed, so an operation may be cut off")
    line = line.rstrip()
    match = (_BARE_LINE if bare else _LOG_LINE).match(line)
    if match is None:
        if _LIKE_AN_OPERATION.search(line) or (bare and line):
            raise MalformedHistory(f"line {number}: an operation is damaged or cut off: {line!r:.60}")
        return None
    words, error = _without_error(match["operation"])
    match [form.value for form in FormReader(words, number).items(whole=True)]:
        case [process, type_, f, *value] if len(value) < 2:
            stated = value[0] if value else None
            return {"process": process, "type": type_, "f": f, "value": stated, "error": error}
    raise MalformedHistory(f"line {number}: an operation needs a process, a type, an f and a value: {line!r:.60}")


def _without_error(operation: str) -> tuple[str, str | None]:
    """Split a line into the operation and the error after it.  An error is any text, and an ok answer has none."""
    columns = operation.split("\t", 4)
    if len(columns) < 5 or columns[1].strip() not in (":fail", ":info"):
        return operation, None
    return "\t".join(columns[:4]), columns[4].strip()


def looks_like_log(text: str) -> bool:
    """Return True if a line of the text begins like a line that `jepsen.util` logs."""
    return _LOG_HINT.search(text) is not None


def looks_like_columns(text: str) -> bool:
    """Return True if the first line is an operation without the prefix of a log, as in Jepsen's history.txt."""
    return _BARE_HINT.match(text) is not None


def _operation(form: Form) -> dict[str, Any]:
    if not isinstance(form.value, dict):
        words = f"an operation must be a map like {EXAMPLE}, not {form.value!r:.40}"
        raise MalformedHistory(f"line {form.line}: {words}")
    return form.value


def json_value(text: str) -> Any:
    """Parse JSON into a value like those of EDN.  An object whose only name is #set is a set.  Raises ValueError."""
    if "\\u" in text and _HALF.search(_NO_HALVES.sub("", text)):
        raise ValueError("an unpaired surrogate (half of a character)")
    try:
        value = _JSON.decode(text)
    except json.JSONDecodeError as problem:
        raise ValueError(f"column {problem.colno}: {problem.msg}") from problem
    except RecursionError:
        raise ValueError(f"nested deeper than {DEPTH_LIMIT}") from None
    _demand_shallow(value, DEPTH_LIMIT)
    return value


def _demand_shallow(value: Any, depth: int) -> None:
    if depth < 0:
        raise ValueError(f"nested deeper than {DEPTH_LIMIT}")
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _demand_shallow(item, depth - 1)


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same name twice")
    return in_one_order(found[SET]) if list(found) == [SET] and isinstance(found[SET], list) else found


def _whole_number(digits: str) -> int:
    if len(digits) > DIGITS_LIMIT:
        raise ValueError(f"a number of more than {DIGITS_LIMIT} digits")
    return int(digits)


def _exact(digits: str) -> float | Decimal:
    return number_of(digits) if len(digits) <= DIGITS_LIMIT else _whole_number(digits)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


_JSON = json.JSONDecoder(
    parse_float=_exact, parse_int=_whole_number, parse_constant=_no_number, object_pairs_hook=_object
)
_JSON_SYNTAX = json.JSONDecoder(parse_float=str, parse_int=str)
_FIRST_ITEM, _NEXT_ITEM, _END_OF_LIST = re.compile(r"\s*\[\s*(?=\S)"), re.compile(r"\s*,\s*"), re.compile(r"\s*\]\s*")
_NO_HALVES = re.compile(r"\\[^u]|\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _line_of(index: int, line: int, operation: dict[str, Any], keyed: bool) -> Line:
    """Return the row of one operation.  Raises MalformedHistory if the map is not an operation."""
    stated = operation.get("index")
    if stated is not None and (not _is_int64(stated) or stated < -1):
        raise MalformedHistory(f"line {line}: {no_place(stated)}")
    type_ = _type(operation, line)
    value, key = operation.get("value"), operation.get("key")
    flags = history_text.HAS_VALUE if "value" in operation else 0
    flags |= history_text.STATES_NIL if flags and value is None else 0
    has_time = _is_int64(operation.get("time"))
    flags |= history_text.HAS_TIME if has_time else 0
    if keyed and key is None and isinstance(value, list) and len(value) == 2:
        key, value = value
        flags |= history_text.KEY_IN_VALUE
    flags |= history_text.TEXT_KEY if isinstance(key, str) else 0
    f = TRANSACTION if operation.get("f") is None else operation["f"]
    if not isinstance(f, str):
        raise MalformedHistory(f"line {line}: an operation's :f must be a keyword, not {f!r:.40}")
    number, number2, payload = _columns(f, _with_rebalances(operation, value))
    event = Event(
        index=index,
        time_ns=int(operation["time"]) if has_time else 0,
        process=_process(operation, line),
        type=type_,
        f=f,
        key=key if key is None or isinstance(key, str) else str(key) if _is_int64(key) else canonical(key),
        value=number,
        value2=number2,
        payload=payload,
        error=_error(operation, value),
    )
    return Line(line, event, flags, history_text.NO_INDEX if stated is None else stated)


def _type(operation: dict[str, Any], line: int) -> Type:
    if (type_ := _TYPES.get(str(operation.get("type")))) is not None:
        return type_
    words = "an operation's :type must be invoke, ok, fail or info"
    if "type" in operation:
        words += f", not {in_words(operation['type']):.40}"
    else:
        names = ", ".join(f":{name}" for name in operation if isinstance(name, str))
        words += f"; this map has none ({names:.60}), so it is no operation like {EXAMPLE}"
    raise MalformedHistory(f"line {line}: {words}")


def _with_rebalances(operation: dict[str, Any], value: Any) -> Any:
    """Return the value, with the operation's rebalances at its end if the operation is that of a Kafka test."""
    log = operation.get("rebalance-log")
    if not isinstance(value, list) or not isinstance(log, list):
        return value
    moved = [entry["keys"] for entry in log if isinstance(entry, dict) and isinstance(entry.get("keys"), list)]
    keys = [key for some in moved for key in some]
    return [*value, ["rebalance", keys]] if keys else value


def _columns(f: str, value: Any) -> tuple[int | None, int | None, str | None]:
    """Return (value, value2, payload) for one EDN value."""
    if value is None:
        return None, None, None
    if _is_int64(value) and f != "cas":  # a cas with one number is malformed: it must not be read as [number nil]
        return value, None, None
    if f == "cas" and isinstance(value, list) and len(value) == 2 and all(v is None or _is_int64(v) for v in value):
        return value[0], value[1], None
    return None, None, encode(value)


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _process(operation: dict[str, Any], line: int) -> int:
    process = operation.get("process", 0)
    if isinstance(process, int) and not isinstance(process, bool) and process in _INT32:
        if process < 0:
            raise MalformedHistory(f"line {line}: process {process}: the number of a client is 0 or more")
        return process
    if process == _NEMESIS:
        return NEMESIS
    raise MalformedHistory(
        f"line {line}: :process must be a number of 32 bits or :nemesis, not {in_words(process):.40}"
    )


def _error(operation: dict[str, Any], value: Any) -> str | None:
    error = operation.get("error")
    if error is None and value == "timed-out":
        error = value
    return None if error is None else error if isinstance(error, str) else encode(error)


def error_of(text: str) -> str:
    """Return the text of an error that is written in EDN."""
    (form,) = FormReader(text).items(whole=True)
    return encode(form.value)


def error_of_json(text: str) -> str:
    """Return the text of an error that is written in JSON."""
    return encode(json_value(text))


_TOKEN = re.compile(
    r"""
      (?P<space>[\s,]+ | ;[^\n]*)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<open>\#\{ | [(\[{])
    | (?P<close>[)\]}])
    | (?P<discard>\#_)
    | (?P<space_of_keys>\#::?[\w.*+!?$%&=<>/-]*(?=[\s,]*\{))
    | (?P<as_written>\#"(?:[^"\\]|\\.)*" | \#'[^\s,()\[\]{}";]+)
    | (?P<based>[+-]?(?:0[xX][0-9a-fA-F]+|0[0-9]+|[1-9][0-9]?[rR][0-9a-zA-Z]+)N?(?=[\s,()\[\]{}";]|$))
    | (?P<symbolic>\#\#(?:Inf|-Inf|NaN))
    | (?P<tag>\#[A-Za-z][\w.*+!?$%&=<>/-]*)
    | (?P<char>\\(?:newline|return|space|tab|backspace|formfeed|u[0-9a-fA-F]{4}|.))
    | (?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[NM]?(?=[\s,()\[\]{}";]|$))
    | (?P<name>:?[^\s,()\[\]{}";\#\\][^\s,()\[\]{}";]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_UUID, _OBJECT = "#uuid", "#object"
_CLOSES = {"(": ")", "[": "]", "{": "}", "#{": "}"}
_NAMED = {"nil": None, "true": True, "false": False}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\"}
_CHARS = {"newline": "\n", "return": "\r", "space": " ", "tab": "\t", "backspace": "\b", "formfeed": "\f"}

DEPTH_LIMIT = 100
"""Maximum nesting of a value.  Deeper text is corrupt."""

DIGITS_LIMIT = 1000
"""Maximum number of digits of a number."""


@dataclass(frozen=True, slots=True)
class Form:
    """One top-level value and its first line (from 1)."""

    line: int
    value: Any


_Token = tuple[str, str]


class FormReader:
    """Reads the values of a text.

    at: position in the text
    line: line of the last token
    top: opening bracket around all values, or ""
    """

    def __init__(self, text: str, line: int = 1, top: str = "", top_line: int = 1) -> None:
        self._text = text
        self.at = 0
        self.line = line
        self._counted = 0
        self._top, self._top_line = top, top_line

    def items(self, *, whole: bool = False) -> Iterator[Form]:
        """Yield every top-level value.

        Of a top-level vector or list, yield each item with its line instead, unless `whole`.  At the first error, yield
        the values before it and then raise MalformedHistory ("line N ...").
        """
        while (token := self.next_token()) is not None:
            if self._top and token[0] == "close":
                self.must_close(self._top, self._top_line, token)
                self._top = ""
            elif not self._top and not whole and token[1] in ("(", "["):
                self._top, self._top_line = token[1], self.line
            else:
                yield from self.form(token)
        if self._top:
            self.must_close(self._top, self._top_line, None)

    def place(self) -> tuple[int, int, str, int]:
        """Return the position: offset, line, the bracket around all values, and the line of this bracket."""
        self._count_lines()
        return self.at, self.line, self._top, self._top_line

    def next_token(self) -> _Token | None:
        while self.at < len(self._text):
            match = _TOKEN.match(self._text, self.at)
            if match is None:
                self._count_lines()
                raise self._damage(f"unexpected {self._text[self.at : self.at + 20].split()[0]!r}")
            kind, start = match.lastgroup or "", self.at
            self.at = match.end()
            if kind != "space":
                self.line += self._text.count("\n", self._counted, start)
                self._counted = start
                return kind, match.group()
        return None

    def required(self) -> _Token:
        token = self.next_token()
        if token is None:
            self._count_lines()
            raise self._damage("the text ends in the middle of a value")
        return token

    def form(self, token: _Token) -> Iterator[Form]:
        """Yield the value that begins with this token, or nothing if the token is a `#_`, which discards a value."""
        line = self.line
        if token[0] == "discard":
            self._discard(0)
        else:
            yield Form(line, self.value(token, 0))

    def must_close(self, opened: str, line: int, token: _Token | None) -> None:
        if token is None:
            raise MalformedHistory(f"line {line}: {opened!r} is never closed")
        if token[1] != _CLOSES[opened]:
            raise self._damage(f"{opened!r} of line {line} is closed by {token[1]!r}")

    def value(self, token: _Token, depth: int) -> Any:
        kind, text = token
        if depth > DEPTH_LIMIT:
            raise self._damage(f"nested deeper than {DEPTH_LIMIT}")
        match kind:
            case "open":
                return self._collection(text, depth)
            case "string":
                return self._whole(_ESCAPE.sub(_unescape, text[1:-1]))
            case "number":
                return self._number(text)
            case "tag":
                start = self.at - len(text)
                tagged = self.value(self.required(), depth + 1)
                if text == _OBJECT:
                    return self._text[start : self.at]
                return tagged.lower() if text == _UUID and isinstance(tagged, str) else tagged
            case "char":
                word = text[1:]
                return _CHARS.get(word) or self._whole(chr(int(word[1:], 16)) if len(word) == 5 else word)
            case "based":
                return self._based(text)
            case "symbolic" | "as_written":
                return text
            case "space_of_keys":
                return self._collection(self.required()[1], depth, text.lstrip("#:"))
            case "name":
                return _NAMED[text] if text in _NAMED else text.removeprefix(":")
        raise self._damage(f"unexpected {text!r}")

    def _discard(self, depth: int) -> None:
        """Skip the next value, plus one more for each `#_` in front of it."""
        while (token := self.required())[0] == "discard":
            self._discard(depth)
        self.value(token, depth)

    def _collection(self, opened: str, depth: int, space: str = "") -> Any:
        """Return a list, set or map.  space: namespace of the map's keys that have none."""
        line, items = self.line, []
        while (token := self.next_token()) is not None and token[0] != "close":
            if token[0] == "discard":
                self._discard(depth + 1)
            else:
                items.append(self.value(token, depth + 1))
        self.must_close(opened, line, token)
        if opened == "#{":
            return in_one_order(items)
        if opened != "{":
            return items
        if len(items) % 2:
            raise self._damage("a map has a key without a value")
        if space:
            items[::2] = [_in_space(space, key) if isinstance(key, str) else key for key in items[::2]]
        found = dict(zip(map(name_of_key, items[::2]), items[1::2], strict=True))
        if len(found) < len(items) // 2:
            raise self._damage('a map has a key twice; :a and "a" are the same key')
        return found

    def _number(self, text: str) -> int | float | Decimal:
        digits = text.rstrip("NM")
        if len(digits) > DIGITS_LIMIT:
            raise self._damage(f"a number of more than {DIGITS_LIMIT} digits")
        if text[-1] != "M" and not any(c in digits for c in ".eE"):
            return int(digits)
        try:
            return number_of(digits)
        except ValueError as problem:
            raise self._damage(str(problem)) from problem

    def _based(self, text: str) -> int:
        """Parse an integer in another base, like Clojure: 0x10, 010 and 2r101."""
        digits = text.rstrip("N")
        if len(digits) > DIGITS_LIMIT:
            raise self._damage(f"a number of more than {DIGITS_LIMIT} digits")
        base, _, figures = digits.lstrip("+-").lower().partition("r")
        base, figures = (base, figures) if figures else ("16", base[2:]) if base[1] == "x" else ("8", base)
        try:
            found = int(figures, int(base))
        except ValueError as problem:
            raise self._damage(f"{text} is not a number") from problem
        return -found if digits[0] == "-" else found

    def _whole(self, text: str) -> str:
        """Return the text with surrogate pairs joined: Java escapes a character beyond U+FFFF as two halves."""
        if not any("\ud800" <= c <= "\udfff" for c in text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as problem:
            raise self._damage("an unpaired surrogate (half of a character)") from problem

    def _count_lines(self) -> None:
        self.line += self._text.count("\n", self._counted, self.at)
        self._counted = self.at

    def _damage(self, what: str) -> MalformedHistory:
        return MalformedHistory(f"line {self.line}: {what}")


def _in_space(space: str, key: str) -> str:
    return key.removeprefix("_/") if "/" in key else f"{space}/{key}"


def _unescape(match: re.Match[str]) -> str:
    word = match.group(1)
    return chr(int(word[1:], 16)) if len(word) == 5 else _ESCAPES.get(word, word)
