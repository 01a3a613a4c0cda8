"""Any history file, recognised by its content: Parquet or Arrow of ours, EDN or log lines of Jepsen's.

A history is read in two steps.  The first makes rows.  The second verifies their grammar (`rows.py`).

A file cut off at the end of a line (or of a batch of an Arrow stream) is judged as a shorter history: it looks like a
test that ended there.  A file cut anywhere else is refused.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from checkers.base.history import Event, MalformedHistory
from checkers.formats.jepsen import EXAMPLE, error_of, looks_like_columns, looks_like_log, read_edn, read_lines
from checkers.formats.read_once import read_once
from checkers.formats.rows import LINE, ROW, HistoryColumns, Joined, Line, check_grammar
from checkers.kernels.history.text_columns import AT, DONE, FULL, HAS_VALUE, USED, WIDTH
from checkers.kernels.history.text_columns import ROW as ROW_AT
from checkers.kernels.jit import SMALL_BYTES, compiler_is_loaded

PARQUET_MAGIC = b"PAR1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
ARROW_FILE_MAGIC = b"ARROW1"

_FOREIGN = {
    b"\x1f\x8b": "compressed by gzip twice: unpack it first",
    b"JEPSEN": "Jepsen's own form of a test: judge the history.edn that Jepsen writes beside it",
    b"BZh": "compressed by bzip2: unpack it first",
    b"\xfd7zXZ\x00": "compressed by xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\xff\xfe": "text in UTF-16: write it as UTF-8",
    b"\xfe\xff": "text in UTF-16: write it as UTF-8",
}
"""First bytes of files that hold no history as they are -> what to do."""

_HEAD_BYTES = 1 << 16
_JSON = re.compile(r'\s*\[?\s*\{\s*"[^"\n]*"(?::|\s+:\s)')
"""The look of a JSON object: the name of its first field is a string, and a colon follows."""


def read_any(path: Path, *, keyed: bool = False) -> list[Event]:
    """The events of one file, in order, checked against the grammar.

    keyed: an EDN value `[k v]` is a key and its value (`jepsen.independent`).
    Raises MalformedHistory ("line N ..." or "row N ..."), OSError where the file cannot be read.
    """
    return read_bytes(read_once(path), keyed=keyed)


def read_bytes(content: bytes, *, keyed: bool = False) -> list[Event]:
    """Act like `read_any`, of a file's content."""
    return read_history(content, keyed=keyed).events


@dataclass
class ReadHistory:
    """A history that was read, as columns; events are made of them on first use."""

    columns: HistoryColumns
    unit: str

    @cached_property
    def events(self) -> list[Event]:
        """The events, in order."""
        return self.columns.events()

    @cached_property
    def without_value(self) -> frozenset[int]:
        """Indices of events that state no value, not even nil."""
        return frozenset(self.columns.index[~self.columns.flag(HAS_VALUE)].tolist())

    def place_of(self, index: int) -> str:
        """Return the place of the event with this index in the file: "line 7", or "row 6"."""
        rows = np.flatnonzero(self.columns.index == index)
        return f"{self.unit} {self.columns.rows.number[rows[0]]}" if len(rows) else f"index {index}"


def read_history(content: bytes, *, keyed: bool = False) -> ReadHistory:
    """Read the content of a file: the only door from bytes to typed events.  Raises as `read_any`."""
    joined = Joined()
    is_table = content.startswith((PARQUET_MAGIC, ARROW_STREAM_MAGIC, ARROW_FILE_MAGIC))
    damage = _read_table(content, joined) if is_table else _read_text(_text(content), keyed, joined)
    columns, twice = joined.columns(error_of)
    unit = ROW if is_table else LINE
    columns = check_grammar(columns, twice, unit, whole=damage is None)
    if damage is not None:
        raise damage
    return ReadHistory(columns, unit)


def _read_table(content: bytes, joined: Joined) -> MalformedHistory | None:
    from checkers.formats.tables import read_file, read_parquet, read_stream  # pyarrow, which no text needs

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


def _read_text(content: bytes, keyed: bool, joined: Joined) -> MalformedHistory | None:
    """Read a text: kernels parse the usual lines, Python the others.  Returns the damage at which the text ends."""
    head = content[:_HEAD_BYTES].decode("utf-8", "ignore")
    if _JSON.match(head):
        raise MalformedHistory(f"line 1: the file is JSON, and an operation is written in EDN, like {EXAMPLE}")
    is_log = b"jepsen.util" in content and looks_like_log(content.decode())
    in_lines = is_log or looks_like_columns(head)
    state = np.array([0, 1, 0, 0, 0, 1], np.int64)
    read_odd = partial(read_lines, bare=not is_log) if in_lines else read_edn
    if not _by_kernels(len(content)):
        lines, damage = read_odd(content, state, keyed, 0, len(content) + 1)
        joined.add_lines(lines)
        return damage
    from checkers.kernels.history import text_rows

    data, batch = np.frombuffer(content, np.uint8), 1
    table = np.empty((min(_ROWS, len(content) // 16 + 16), WIDTH), np.int64)
    out = np.empty(min(_PAYLOAD_BYTES, 3 * len(content) + 256), np.uint8)
    spare, work = np.empty(1 << 16, np.uint8), np.empty(text_rows.WORK, np.int64)
    while True:
        first = int(state[ROW_AT])
        if in_lines:
            why = text_rows.read_lines(data, keyed, not is_log, state, table, out, work)
        else:
            why = text_rows.read_edn(data, keyed, state, table, out, spare, work)
        joined.add_table(table[: state[ROW_AT]], first, out, data)
        if why == DONE:
            return None
        if why == FULL:
            out = np.empty(len(out) * (1 if state[ROW_AT] else 2), np.uint8)
            state[ROW_AT] = state[USED] = 0
            continue
        batch = 1 if state[ROW_AT] > first else min(2 * batch, _BATCH)
        lines, damage = read_odd(content, state, keyed, joined.count, batch)
        joined.add_lines(lines)
        if damage is not None or state[AT] == len(content):
            return damage


def _text(content: bytes) -> bytes:
    """Return UTF-8 text with lines that end in a line feed.  Raises MalformedHistory if the content is none."""
    for begins, words in _FOREIGN.items():
        if content.startswith(begins):
            raise MalformedHistory(f"line 1: the file is {words}")
    content = content.replace(b"\r\n", b"\n")
    if (at := content.find(b"\x00")) >= 0:
        line = content.count(b"\n", 0, at) + 1
        raise MalformedHistory(f"line {line}: a NUL byte, which no text of a history has")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        if not content.isascii():
            content.decode()
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise MalformedHistory(f"line {line}: neither Parquet, Arrow nor UTF-8 text") from problem
    return content
