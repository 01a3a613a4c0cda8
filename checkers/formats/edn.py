"""A reader of EDN, the notation Jepsen writes histories in (github.com/edn-format/edn).

Krucible has its own reader because a damaged history must be refused with the damaged line, which the readers on PyPI
do not report.  Keywords and symbols become plain `str` without the colon, vectors and lists `list`, sets `SetValue`.
A map is a `dict` whose keys are names (`values.name_of_key`): 1 and "1" have two.  Numbers keep all their digits.
A tagged value is read as the value behind its tag (a record is its map); a `#uuid` gets lower case, because the case of
its letters means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from checkers.base.history import MalformedHistory
from checkers.base.values import in_one_order, name_of_key, number_of

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
