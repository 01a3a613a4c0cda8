"""Any history file, recognised by its content: Parquet or Arrow of ours, EDN or log lines of Jepsen's.

A history is read in two steps.  The first makes events, each with its line or row.  The second holds them against the
grammar:

  * A process has at most one open operation.
  * A completion needs its invoke, and is about the same key.  A completion that names no key has that of its invoke.
  * After an `info` a process is retired.

A file cut off at the end of a line (or of a batch of an Arrow stream) is judged as a shorter history: it looks like a
test that ended there.  A file cut anywhere else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from checkers.base.history import CREATE, NEMESIS, Event, MalformedHistory, Type
from checkers.formats.jepsen import (
    EXAMPLE,
    Line,
    looks_like_columns,
    looks_like_log,
    read_columns,
    read_edn,
    read_log_lines,
)
from checkers.formats.read_once import read_once

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

LINE, ROW = "line", "row"
"""The place that a complaint names: a line of a text, or a row of a table."""

_JSON = re.compile(r'\s*\[?\s*\{\s*"[^"\n]*"(?::|\s+:\s)')
"""The look of a JSON object: the name of its first field is a string, and a colon follows."""


def read_any(path: Path, *, keyed: bool = False) -> list[Event]:
    """The events of one file, in order, checked against the grammar.

    keyed: an EDN value `[k v]` is a key and its value (`jepsen.independent`).
    Raises MalformedHistory ("line N ..." or "row N ..."), OSError where the file cannot be read.
    """
    return read_bytes(read_once(path), keyed=keyed)


def read_bytes(content: bytes, *, keyed: bool = False) -> list[Event]:
    """As `read_any`, of a file's content."""
    return read_history(content, keyed=keyed).events


@dataclass(frozen=True, slots=True)
class ReadHistory:
    """A history that was read.

    events: in order.
    without_value: indices of events that state no value, not even nil.
    """

    events: list[Event]
    without_value: frozenset[int]


def read_history(content: bytes, *, keyed: bool = False) -> ReadHistory:
    """Read the content of a file: the only door from bytes to typed events.  Raises as `read_any`."""
    lines, unit = _lines_of(content, keyed=keyed)
    seen: list[Line] = []

    def noted() -> Iterator[Line]:
        for line in lines:
            seen.append(line)
            yield line

    events = check_grammar(noted(), unit)
    if not all(line.has_time or line.event.process == NEMESIS for line in seen):
        events = [replace(event, time_ns=0) for event in events]
    return ReadHistory(events, frozenset(line.event.index for line in seen if not line.has_value))


def _lines_of(content: bytes, *, keyed: bool) -> tuple[Iterator[Line], str]:
    """(the events with their places, the name of a place: line or row)."""
    if content.startswith((PARQUET_MAGIC, ARROW_STREAM_MAGIC, ARROW_FILE_MAGIC)):
        return _rows_of(content), ROW
    text = _text(content)
    if _JSON.match(text):
        raise MalformedHistory(f"line 1: the file is JSON, and an operation is written in EDN, like {EXAMPLE}")
    if looks_like_log(text):
        return read_log_lines(text, keyed=keyed), LINE
    if looks_like_columns(text):
        return read_columns(text, keyed=keyed), LINE
    return read_edn(text, keyed=keyed), LINE


def _rows_of(content: bytes) -> Iterator[Line]:
    from checkers.formats.tables import read_file, read_parquet, read_stream  # pyarrow, which no text needs

    if content.startswith(PARQUET_MAGIC):
        return read_parquet(content)
    return read_file(content) if content.startswith(ARROW_FILE_MAGIC) else read_stream(content)


def place_of(content: bytes, index: int, *, keyed: bool = False) -> str:
    """The place of the event with this index in a content that `read_bytes` has read: "line 7", or "row 6"."""
    lines, unit = _lines_of(content, keyed=keyed)
    number = next((line.number for line in lines if line.event.index == index), None)
    return f"index {index}" if number is None else f"{unit} {number}"


def check_grammar(lines: Iterator[Line], unit: str) -> list[Event]:
    """The events, if they are a history.  Raises MalformedHistory naming the line or row that breaks the grammar."""
    events: list[Event] = []
    others = _Others(unit)
    open_by: dict[int, Event] = {}
    retired: dict[int, int] = {}
    for line in lines:
        event = line.event
        events.append(event)
        others.see(line)
        if event.process == NEMESIS:
            continue
        where, process = f"{unit} {line.number}", event.process
        if event.type is Type.INVOKE:
            if process in open_by:
                raise MalformedHistory(
                    f"{where}: process {process} invokes {event.f:.40} while its {open_by[process].f:.40} is open"
                )
            if process in retired:
                raise MalformedHistory(
                    f"{where}: process {process} was retired by the info of {unit} {retired[process]}"
                )
            open_by[process] = event
            continue
        begun = open_by.pop(process, None)
        if begun is None:
            if process in retired and event.type is Type.INFO:
                continue
            words = f"process {process} completes {event.f:.40} that it never invoked"
            raise MalformedHistory(f"{where}: {words}; every completion needs an invoke, which shows what ran at once")
        if event.key is None and begun.key is not None:
            events[-1] = event = replace(event, key=begun.key)
        if begun.key != event.key:
            names = f"key {begun.key:.40}" if begun.key is not None else "no key"
            words = f"process {process} invoked it on {names} but completes key {event.key:.40}"
            raise MalformedHistory(f"{where}: {words}")
        if begun.f != event.f:
            raise MalformedHistory(f"{where}: process {process} invoked {begun.f:.40} but completes {event.f:.40}")
        if event.type is Type.INFO:
            retired[process] = line.number
    if not events:
        raise MalformedHistory(f"{unit} 1: no operation in the whole file")
    others.check()
    return events


class _Others:
    """Rows that no model judges, faults and set-up: no operation of a client may hide among them."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._of_clients: set[str] = set()
        self._of_nemesis: dict[str, int] = {}
        self._keys_in_use: set[str | None] = set()

    def see(self, line: Line) -> None:
        """Raises MalformedHistory."""
        event = line.event
        if event.process == NEMESIS:
            self._of_nemesis.setdefault(event.f, line.number)
        elif event.f != CREATE:
            self._of_clients.add(event.f)
            self._keys_in_use.add(event.key)
        elif self._unit == LINE:
            words = f"{CREATE} is the name of set-up's operations in histories of ours, and no model judges them"
            raise MalformedHistory(f"{LINE} {line.number}: {words}")
        elif event.type is Type.INVOKE and event.key in self._keys_in_use:
            words = f"{CREATE} of key {event.key}, on which clients had already invoked operations"
            raise MalformedHistory(f"{self._unit} {line.number}: {words}")

    def check(self) -> None:
        """Raises MalformedHistory."""
        for f, number in self._of_nemesis.items():
            if f in self._of_clients:
                words = f"{f} is invoked by clients in this history, and here by no client (process {NEMESIS})"
                raise MalformedHistory(f"{self._unit} {number}: {words}")


def _text(content: bytes) -> str:
    """The text of a file, with lines that end in a line feed.  Raises MalformedHistory where it is none."""
    for begins, words in _FOREIGN.items():
        if content.startswith(begins):
            raise MalformedHistory(f"line 1: the file is {words}")
    content = content.replace(b"\r\n", b"\n")
    if (at := content.find(b"\x00")) >= 0:
        line = content.count(b"\n", 0, at) + 1
        raise MalformedHistory(f"line {line}: a NUL byte, which no text of a history has")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise MalformedHistory(f"line {line}: neither Parquet, Arrow nor UTF-8 text") from problem
