"""Jepsen's histories: EDN (`history.edn`), the log lines of `jepsen.util`, and their columns alone (`history.txt`).

Both become events.  The index is the position in the text.  An `:index` only shows whether the lines are in order: it
may have gaps (some tools leave them), but it is a whole number and always rises.  (-1 stands for none, as in Jepsen.)
Values that are no integers go into `payload` as JSON.  The process `:nemesis` becomes NEMESIS.  Times are kept only if
every operation of a client has one: a missing time would be shown as 0.

Some values are ambiguous.  A value `[a b]` of a cas is (expected, new).  `[k v]` of another operation is a key and its
value only if the map has a `:key`.  (Tuples of `independent` tests are written `[k v]` too.  The text does not
distinguish them from a list, so a caller chooses with `keyed=True`.)  The `:rebalance-log` of a Kafka test (the
partitions that came or went in an operation) becomes a `["rebalance", keys]` at the end of its value.

A reader of EDN, the notation Jepsen writes histories in (github.com/edn-format/edn).

Krucible has its own reader because a damaged history must be refused with the damaged line, which the readers on PyPI
do not report.  Keywords and symbols become plain `str` without the colon, vectors and lists `list`, sets `SetValue`.
A map is a `dict` whose keys are names (`values.name_of_key`): 1 and "1" have two.  Numbers keep all their digits.
A tagged value is read as the value behind its tag (a record is its map); a `#uuid` gets lower case, because the case of
its letters means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from checkers.base.history import NEMESIS, Event, MalformedHistory, Type
from checkers.base.values import canonical, encode, in_one_order, in_words, name_of_key, number_of

TRANSACTION = "txn"
"""The f of operations that name none, or nil: histories of Elle."""

EXAMPLE = "{:process 0, :type :invoke, :f :write, :value 1}"
"""How an operation looks, for complaints."""

_TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
_BEFORE_OPERATION = (
    r"(?:INFO\s+(?:\[[^\]]*\]\s.*?\s-\s+)?jepsen\.util\s+(?:-\s+)?|[\d-]+ \S+\s+INFO\s+\[[^\]]*\]\s+jepsen\.util:\s+)"
)
"""What a log has in front of an operation:

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
"""The look of an operation, even if it is damaged, or if it is EDN among lines of a log."""
_NEMESIS = "nemesis"
"""The process of faults.  Any other name could be that of a client, whose operations must not be passed over."""
_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class Line:
    """An event and the line of the text it stands on (from 1), so that complaints can name it.

    has_value: the operation states a value, if only nil.
    has_time: it states a time, as a whole number.
    """

    number: int
    event: Event
    has_value: bool = True
    has_time: bool = True


def read_edn(text: str, *, keyed: bool = False) -> Iterator[Line]:
    """Events of an EDN history: maps one after another, or one vector or list of maps."""
    return _events(_operations(read_items(text)), keyed)


def read_log_lines(text: str, *, keyed: bool = False) -> Iterator[Line]:
    """Events of a Jepsen log; lines that are no operations are ignored."""
    return _events(_logged(text, _LOG_LINE), keyed)


def read_columns(text: str, *, keyed: bool = False) -> Iterator[Line]:
    """Events of Jepsen's history.txt: process, type, f, value and error, separated by tabs."""
    return _events(_logged(text, _BARE_LINE), keyed)


def looks_like_log(text: str) -> bool:
    """Whether some line has the look of a line that `jepsen.util` logs."""
    return _LOG_HINT.search(text) is not None


def looks_like_columns(text: str) -> bool:
    """Whether the first line is an operation without a log around it, as in Jepsen's history.txt."""
    return _BARE_HINT.match(text) is not None


def _operations(forms: Iterable[Form]) -> Iterator[tuple[int, dict[str, Any]]]:
    for form in forms:
        if not isinstance(form.value, dict):
            words = f"an operation must be a map like {EXAMPLE}, not {form.value!r:.40}"
            raise MalformedHistory(f"line {form.line}: {words}")
        yield form.line, form.value


def _logged(text: str, looks: re.Pattern[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, operation) of the lines that have this look.  Raises MalformedHistory for a damaged operation."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if number == len(lines) and line.strip():
            raise MalformedHistory(f"line {number}: the last line has no end, so an operation may be cut off")
        match = looks.match(line.rstrip())
        if match is None:
            if _LIKE_AN_OPERATION.search(line) or (looks is _BARE_LINE and line.strip()):
                raise MalformedHistory(f"line {number}: an operation is damaged or cut off: {line!r:.60}")
            continue
        words, error = _without_error(match["operation"])
        try:
            values = [form.value for form in read_forms(words)]
        except MalformedHistory as damage:
            raise MalformedHistory(f"line {number}: {str(damage).partition(': ')[2]}") from damage
        if len(values) not in (3, 4):
            raise MalformedHistory(f"line {number}: an operation is a process, a type, an f and a value: {line!r:.60}")
        process, type_, f, *rest = values
        yield number, {"process": process, "type": type_, "f": f, "value": rest[0] if rest else None, "error": error}


def _without_error(operation: str) -> tuple[str, str | None]:
    """(process, type, f and value; the error behind them).  An error is any text, and none stands behind an answer."""
    columns = operation.split("\t", 4)
    if len(columns) < 5 or columns[1].strip() not in (":fail", ":info"):
        return operation, None
    return "\t".join(columns[:4]), columns[4].strip()


def _events(operations: Iterable[tuple[int, dict[str, Any]]], keyed: bool) -> Iterator[Line]:
    is_text: dict[str, bool] = {}
    asks: dict[str, bool] = {}  # per process: whether its last invoke had the value nil
    keyed_by: set[str] = set()  # the processes whose last invoke had the form [key value]
    last = -1
    for index, (line, operation) in enumerate(operations):
        last = _not_before(last, operation.get("index"), line)
        type_ = _type(operation, line)
        _demand_answer(operation, type_, asks, line)
        value, key = operation.get("value"), operation.get("key")
        if keyed and key is None and isinstance(value, list) and len(value) == 2:
            key, value = value
            keyed_by.add(str(operation.get("process")))
        elif type_ is Type.INVOKE:
            keyed_by.discard(str(operation.get("process")))
        elif type_ is Type.OK and value is not None and key is None and str(operation.get("process")) in keyed_by:
            words = f"the invoke was [key value], and the answer {_shortened(value)} has no key"
            raise MalformedHistory(f"line {line}: {words}; write it as [key answer]")
        name = None if key is None else _key(key)
        if name is not None and is_text.setdefault(name, isinstance(key, str)) is not isinstance(key, str):
            words = (
                f"a key stands as the text {name!r} and as the value {name}, which are two objects: write one of them"
            )
            raise MalformedHistory(f"line {line}: {words} otherwise")
        f = TRANSACTION if operation.get("f") is None else operation["f"]
        if not isinstance(f, str):
            raise MalformedHistory(f"line {line}: an operation's :f must be a keyword, not {f!r:.40}")
        number, number2, payload = _columns(f, _with_rebalances(operation, value))
        yield Line(
            line,
            Event(
                index=index,
                time_ns=_integer(operation.get("time"), 0),
                process=_process(operation, line),
                type=type_,
                f=f,
                key=name,
                value=number,
                value2=number2,
                payload=payload,
                error=_error(operation, value),
            ),
            "value" in operation,
            _is_int64(operation.get("time")),
        )


def _type(operation: dict[str, Any], line: int) -> Type:
    if (type_ := _TYPES.get(str(operation.get("type")))) is not None:
        return type_
    words = "an operation's :type must be invoke, ok, fail or info"
    if "type" not in operation:
        names = ", ".join(f":{name}" for name in operation if isinstance(name, str))
        words += f"; this map has none ({names:.60}), so it is no operation like {EXAMPLE}"
    raise MalformedHistory(f"line {line}: {words}")


def _demand_answer(operation: dict[str, Any], type_: Type, asks: dict[str, bool], line: int) -> None:
    """Raises MalformedHistory for an answer without a :value, if the invoke asked with `:value nil`.

    A name that is damaged would else turn an answer into nil.
    """
    process = str(operation.get("process"))
    if type_ is Type.INVOKE:
        asks[process] = "value" in operation and operation["value"] is None
    elif type_ is Type.OK and asks.pop(process, False) and "value" not in operation:
        words = "the invoke has :value nil, and the answer has no :value; write :value nil if that was the answer"
        raise MalformedHistory(f"line {line}: {words}")


def _shortened(value: Any) -> str:
    return f"{in_words(value):.40}"


def _not_before(last: int, index: Any, line: int) -> int:
    """Return the largest `:index` so far.

    Raises MalformedHistory if it falls or stays, because the lines are not in order, and if it is no place in an order.
    """
    if index is None or (index == -1 and last < 0):
        return last
    if not _is_int64(index) or index < 0:
        words = f":index {_shortened(index)} is no whole number from 0 on, so the order of the lines is not certain"
        raise MalformedHistory(f"line {line}: {words}; leave :index out if the lines are in order")
    if index < last:
        words = f":index {index} comes after :index {last}, so the lines are out of order, or from two histories"
        raise MalformedHistory(f"line {line}: {words}")
    if index == last:
        words = f":index {index} comes twice, so a line was copied, or the lines are from two histories"
        raise MalformedHistory(f"line {line}: {words}")
    return int(index)


def _with_rebalances(operation: dict[str, Any], value: Any) -> Any:
    """The value, and after it the operation's rebalances, if both are as in a Kafka test."""
    log = operation.get("rebalance-log")
    if not isinstance(value, list) or not isinstance(log, list):
        return value
    moved = [entry["keys"] for entry in log if isinstance(entry, dict) and isinstance(entry.get("keys"), list)]
    keys = [key for some in moved for key in some]
    return [*value, ["rebalance", keys]] if keys else value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key) if _is_int64(key) else canonical(key)


def _columns(f: str, value: Any) -> tuple[int | None, int | None, str | None]:
    """(value, value2, payload) for one EDN value."""
    if value is None:
        return None, None, None
    if _is_int64(value) and f != "cas":  # a cas of one number is malformed: it must not pass for [number nil]
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
    raise MalformedHistory(f"line {line}: :process must be a number of 32 bits or :nemesis, not {process!r:.40}")


def _integer(value: Any, default: int) -> int:
    return int(value) if _is_int64(value) else default


def _error(operation: dict[str, Any], value: Any) -> str | None:
    error = operation.get("error")
    if error is None and value == "timed-out":
        error = value
    return None if error is None else error if isinstance(error, str) else encode(error)


_TOKEN = re.compile(
    r"""
      (?P<space>[\s,]+ | ;[^\n]*)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<open>\#\{ | [(\[{])
    | (?P<close>[)\]}])
    | (?P<discard>\#_)
    | (?P<tag>\#[A-Za-z][\w.*+!?$%&=<>/-]*)
    | (?P<char>\\(?:newline|return|space|tab|u[0-9a-fA-F]{4}|.))
    | (?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[NM]?(?=[\s,()\[\]{}";]|$))
    | (?P<name>:?[^\s,()\[\]{}";\#\\][^\s,()\[\]{}";]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_UUID = "#uuid"
_CLOSES = {"(": ")", "[": "]", "{": "}", "#{": "}"}
_NAMED = {"nil": None, "true": True, "false": False}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\"}
_CHARS = {"newline": "\n", "return": "\r", "space": " ", "tab": "\t"}

DEPTH_LIMIT = 100
"""Nesting beyond this is damage, not data."""

DIGITS_LIMIT = 1000
"""Of one number."""


@dataclass(frozen=True, slots=True)
class Form:
    """One top-level value and the line (from 1) on which it begins."""

    line: int
    value: Any


def read_forms(text: str) -> Iterator[Form]:
    """Every top-level value.  Raises MalformedHistory ("line N ...") at the first damage, after what came before it."""
    reader = _FormReader(text)
    while (token := reader.next_token()) is not None:
        yield from reader.form(token)


def read_items(text: str) -> Iterator[Form]:
    """As `read_forms`, but the items of top-level vectors and lists come one by one, each with a line of its own."""
    reader = _FormReader(text)
    while (token := reader.next_token()) is not None:
        if token[1] not in ("(", "["):
            yield from reader.form(token)
            continue
        opened, line = token[1], reader.line
        while (item := reader.next_token()) is not None and item[0] != "close":
            yield from reader.form(item)
        reader.must_close(opened, line, item)


_Token = tuple[str, str]


class _FormReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.line = 1
        self._counted = 0

    def next_token(self) -> _Token | None:
        while self._at < len(self._text):
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                self._count_lines()
                raise self._damage(f"unexpected {self._text[self._at : self._at + 20]!r}")
            kind, start = match.lastgroup or "", self._at
            self._at = match.end()
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
        """The value that begins with this token; nothing if the token discards the next one."""
        line = self.line
        if token[0] == "discard":
            self.value(self.required(), 0)
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
                tagged = self.value(self.required(), depth + 1)
                return tagged.lower() if text == _UUID and isinstance(tagged, str) else tagged
            case "char":
                word = text[1:]
                return _CHARS.get(word) or self._whole(chr(int(word[1:], 16)) if len(word) == 5 else word)
            case "name":
                return _NAMED[text] if text in _NAMED else text.removeprefix(":")
        raise self._damage(f"unexpected {text!r}")

    def _collection(self, opened: str, depth: int) -> Any:
        line, items = self.line, []
        while (token := self.next_token()) is not None and token[0] != "close":
            if token[0] == "discard":
                self.value(self.required(), depth + 1)
            else:
                items.append(self.value(token, depth + 1))
        self.must_close(opened, line, token)
        if opened == "#{":
            return in_one_order(items)
        if opened != "{":
            return items
        if len(items) % 2:
            raise self._damage("a map has a key without a value")
        if any(isinstance(key, list | dict | tuple) for key in items[::2]):
            raise self._damage("a map's key is a collection")
        found = dict(zip(map(name_of_key, items[::2]), items[1::2], strict=True))
        if len(found) < len(items) // 2:
            raise self._damage('a map has a key twice; :a and "a" count as one')
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

    def _whole(self, text: str) -> str:
        """The text with halves of characters joined: Java's escapes name each half of a large character."""
        if not any("\ud800" <= c <= "\udfff" for c in text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as problem:
            raise self._damage("half of a character (a surrogate) that has no other half") from problem

    def _count_lines(self) -> None:
        self.line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at

    def _damage(self, what: str) -> MalformedHistory:
        return MalformedHistory(f"line {self.line}: {what}")


def _unescape(match: re.Match[str]) -> str:
    word = match.group(1)
    return chr(int(word[1:], 16)) if len(word) == 5 else _ESCAPES.get(word, word)
