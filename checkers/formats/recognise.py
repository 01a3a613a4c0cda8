"""Reads any history file, recognized by its content: Krucible's Parquet or Arrow, Jepsen's EDN or log lines, JSON.

A history is read in two steps.  The first makes rows.  The second verifies their grammar (`rows.py`).

A file cut off at the end of a line (or of a batch of an Arrow stream) is judged as a shorter history: it looks like a
test that ended there.  A file cut anywhere else is refused.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from checkers.base.history import Event, MalformedHistory
from checkers.formats import jepsen
from checkers.formats.read_once import Pieces
from checkers.formats.rows import LINE, ROW, HistoryColumns, Joined, Line, check_grammar
from checkers.kernels import history_text
from checkers.kernels.history_text import AT, USED
from checkers.kernels.jit import SMALL_BYTES, compiler_is_loaded

PARQUET_MAGIC = b"PAR1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
ARROW_FILE_MAGIC = b"ARROW1"

_FOREIGN = {
    b"\x1f\x8b": "compressed by gzip twice: unpack it first",
    b"JEPSEN": "Jepsen's own form of a test: judge the history.edn that Jepsen writes beside it",
    b"BZh": "compressed by bzip2: unpack it first",
    b"\xfd7zXZ\x00": "compressed by xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd twice: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\xff\xfe": "text in UTF-16: write it as UTF-8",
    b"\xfe\xff": "text in UTF-16: write it as UTF-8",
}
"""First bytes of files that contain no readable history -> advice."""

_HEAD_BYTES = 1 << 16
_JSON = re.compile(r'\s*\{\s*"[^"\n]*"(?::|\s+:\s)')
_JSON_LIST = re.compile(rf"\s*\[{_JSON.pattern}")
"""Pattern of JSON: an object whose first name is a string followed by a colon."""
_EDN = re.compile(r"(?:[\s,\[(]|;[^\n]*|#[\w.]+)*\{")
"""Pattern of EDN up to its first map, which may be in a vector or list."""


@dataclass
class ReadHistory:
    """A history that was read, as columns.  Events are created on first use."""

    columns: HistoryColumns
    unit: str

    @cached_property
    def events(self) -> list[Event]:
        """The events, in order."""
        return self.columns.events()

    @cached_property
    def without_value(self) -> frozenset[int]:
        """Indices of events whose operation has no value, not even nil."""
        return frozenset(self.columns.index[~self.columns.flag(history_text.HAS_VALUE)].tolist())

    def place_of(self, index: int) -> str:
        """Return the position of the event with this index in the file: "line 7", or "row 6"."""
        rows = np.flatnonzero(self.columns.index == index)
        return f"{self.unit} {self.columns.rows.number[rows[0]]}" if len(rows) else f"index {index}"


def read_history(content: Pieces, *, keyed: bool = False) -> ReadHistory:
    """Read the content of a file, and verify the grammar: the only path from bytes to typed events.

    keyed: True if an EDN value `[k v]` is a key and its value (`jepsen.independent`)

    Raises MalformedHistory ("line N ..." or "row N ..."), and OSError if the file cannot be read.
    """
    joined, reader = Joined(), None
    is_table = content.first.startswith((PARQUET_MAGIC, ARROW_STREAM_MAGIC, ARROW_FILE_MAGIC))
    if is_table:
        damage = _read_table(content.whole(), joined)
    else:
        reader = _TextReader(content, keyed, joined)
        damage = reader.read()
    columns, twice = joined.columns(jepsen.error_of_json if reader is not None and reader.is_json else jepsen.error_of)
    unit = ROW if is_table else LINE
    columns = check_grammar(columns, twice, unit, whole=damage is None)
    if damage is not None:
        raise damage
    return ReadHistory(columns, unit)


def _read_table(content: bytes, joined: Joined) -> MalformedHistory | None:
    from checkers.formats.tables import read_file, read_parquet, read_stream  # needs pyarrow, which texts do not need

    read = read_stream
    if not content.startswith(ARROW_STREAM_MAGIC):
        read = read_parquet if content.startswith(PARQUET_MAGIC) else read_file
    lines, damage = list[Line](), None
    try:
        for line in read(content):
            lines.append(line)
    except MalformedHistory as problem:
        damage = problem
    joined.add_lines(lines)
    joined.nodes, joined.indices = [line.event.node for line in lines], [line.event.index for line in lines]
    return damage


_ROWS, _PAYLOAD_BYTES, _BATCH = 1 << 18, 1 << 25, 1024


def _by_kernels(size_bytes: int) -> bool:
    """Return True if kernels read a text of this size."""
    return size_bytes > SMALL_BYTES or compiler_is_loaded()


class _TextReader:
    """Reads a text piece by piece.  The kernels read common forms, and Python reads all others."""

    def __init__(self, content: Pieces, keyed: bool, joined: Joined) -> None:
        for begins, words in _FOREIGN.items():
            if content.first.startswith(begins):
                raise MalformedHistory(f"line 1: the file is {words}")
        self._rest, self._keyed, self._joined = content.rest, keyed, joined
        text = _text(content.first.removeprefix(codecs.BOM_UTF8), 1)
        head = text[:_HEAD_BYTES].decode("utf-8", "ignore")
        if _JSON_LIST.match(head):
            text = jepsen.lines_of_json_list(_text(content.whole().removeprefix(codecs.BOM_UTF8), 1))
            head = text[:_HEAD_BYTES].decode("utf-8", "ignore")
        is_columns = jepsen.looks_like_columns(head)
        self.is_json = _JSON.match(head) is not None
        if not (self.is_json or is_columns or _EDN.match(head)):  # a log line may begin with anything
            text = _text(content.whole().removeprefix(codecs.BOM_UTF8), 1)
        is_log = not self.is_json and b"jepsen.util" in text and jepsen.looks_like_log(text.decode())
        self._operation_of: jepsen.LineReader | None = jepsen.operation_of_json if self.is_json else None
        self._is_lines = is_log or is_columns
        if self._is_lines:
            self._operation_of = partial(jepsen.operation_of_log, bare=not is_log)
        self._text, self._state = text, np.array([0, 1, 0, 0, 0, 1, not is_log], np.int64)

    def read(self) -> MalformedHistory | None:
        """Read the text.  Returns the error that stopped the reader, or None."""
        by_kernels, line, left = _by_kernels(len(self._text)), 1, b""
        if by_kernels:
            size_bytes = len(self._text)
            self._table = np.empty((min(_ROWS, size_bytes // 16 + 16), history_text.WIDTH), np.int64)
            self._out = np.empty(min(_PAYLOAD_BYTES, 3 * size_bytes + 256), np.uint8)
        piece = self._text
        while True:
            following = next(self._rest, None)
            self._text, line = left + piece, line + piece.count(b"\n")
            self._state[AT] = 0
            more = following is not None
            damage = self._read_piece(more=more) if by_kernels else self._read_odd(len(self._text) + 1, more=more)
            if damage is not None or following is None:
                return damage
            left, piece = self._text[self._state[AT] :], _text(following, line)

    def _read_piece(self, *, more: bool) -> MalformedHistory | None:
        """Read the current piece.  Returns the error that stopped the reader, or None.

        more: True if another piece follows, so that the last operation may be incomplete
        """
        data, state, joined, batch = np.frombuffer(self._text, np.uint8), self._state, self._joined, 1
        spare, work = np.empty(1 << 16, np.uint8), np.empty(history_text.WORK, np.int64)
        while True:
            first, rows = int(state[history_text.ROW]), (state, self._table, self._out)
            if self._is_lines:
                why = history_text.read_lines(data, self._keyed, *rows, work)
            else:
                why = history_text.read_maps(data, self.is_json, self._keyed, *rows, spare, work)
            joined.add_table(self._table[: state[history_text.ROW]], first, self._out, data)
            if why == history_text.DONE:
                return None
            if why == history_text.FULL:
                self._out = np.empty(len(self._out) * (1 if state[history_text.ROW] else 2), np.uint8)
                state[history_text.ROW] = state[USED] = 0
                continue
            batch = 1 if state[history_text.ROW] > first else min(2 * batch, _BATCH)
            at = int(state[AT])
            damage = self._read_odd(batch, more=more)
            if damage is not None or state[AT] in (at, len(self._text)):
                return damage

    def _read_odd(self, limit: int, *, more: bool) -> MalformedHistory | None:
        text, state, keyed, first = self._text, self._state, self._keyed, self._joined.count
        if self._operation_of is not None:
            lines, damage = jepsen.read_lines(text, state, keyed, first, limit, self._operation_of)
        else:
            lines, damage = jepsen.read_edn(text, state, keyed, first, limit, more=more)
        self._joined.add_lines(lines)
        return damage


def _text(content: bytes, line: int) -> bytes:
    """Return UTF-8 text whose lines end in a line feed.

    line: number of the first line

    Raises MalformedHistory if the content is not UTF-8 text.
    """
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n")
    if (at := content.find(b"\x00")) >= 0:
        line += content.count(b"\n", 0, at)
        raise MalformedHistory(f"line {line}: a NUL byte, which is not allowed in the text of a history")
    try:
        if not content.isascii():
            content.decode()
    except UnicodeDecodeError as problem:
        line += content.count(b"\n", 0, problem.start)
        raise MalformedHistory(f"line {line}: neither Parquet, Arrow nor UTF-8 text") from problem
    return content
