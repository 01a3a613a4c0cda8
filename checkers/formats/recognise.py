"""Any history file, recognised by its content: Parquet or Arrow of ours, EDN or log lines of Jepsen's.

A history is read in two steps: into events with the line (or row) each stands on, then against the grammar: a process
has one open operation at most, a completion needs its invoke and is about the same key (the invoke's, where it names
none, as those without an answer do), and after an `info` a process is retired.

A file cut off at the end of a line (or of a batch of an Arrow stream) is a shorter history and judged as one: nothing
tells it from a test that ended there.  Cut anywhere else it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from checkers.formats.jepsen import Line, read_edn, read_log_lines
from checkers.formats.tables import ARROW_FILE_MAGIC, ARROW_STREAM_MAGIC, PARQUET_MAGIC, read_parquet, read_stream
from checkers.history import NEMESIS, Event, MalformedHistory, Type

_LOG_HINT = re.compile(r"^INFO\s+jepsen\.util\b", re.MULTILINE)


def read_any(path: Path, *, keyed: bool = False) -> list[Event]:
    """The events of one file, in order, checked against the grammar.

    keyed: an EDN value `[k v]` is a key and its value (`jepsen.independent`).
    Raises MalformedHistory ("line N ..." or "row N ..."), OSError where the file cannot be read.
    """
    return read_bytes(path.read_bytes(), keyed=keyed)


def read_bytes(content: bytes, *, keyed: bool = False) -> list[Event]:
    """As `read_any`, of a file's content."""
    if content.startswith(PARQUET_MAGIC):
        return check_grammar(read_parquet(content), "row")
    if content.startswith((ARROW_STREAM_MAGIC, ARROW_FILE_MAGIC)):
        return check_grammar(read_stream(content), "row")
    text = _text(content)
    if _LOG_HINT.search(text):
        return check_grammar(read_log_lines(text, keyed=keyed), "line")
    return check_grammar(read_edn(text, keyed=keyed), "line")


def check_grammar(lines: Iterator[Line], unit: str) -> list[Event]:
    """The events, if they are a history.  Raises MalformedHistory naming the line or row that breaks the grammar."""
    events: list[Event] = []
    open_by: dict[int, Event] = {}
    retired: dict[int, int] = {}
    for line in lines:
        event = line.event
        events.append(event)
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
            raise MalformedHistory(f"{where}: process {process} completes {event.f:.40} that it never invoked")
        if event.key is None and begun.key is not None:
            events[-1] = event = replace(event, key=begun.key)
        if begun.key != event.key:
            names = f"key {begun.key:.40}" if begun.key is not None else "no key"
            raise MalformedHistory(f"{where}: process {process} asked about {names} but completes key {event.key:.40}")
        if begun.f != event.f:
            raise MalformedHistory(f"{where}: process {process} invoked {begun.f:.40} but completes {event.f:.40}")
        if event.type is Type.INFO:
            retired[process] = line.number
    if not events:
        raise MalformedHistory(f"{unit} 1: no operation in the whole file")
    return events


def _text(content: bytes) -> str:
    """The text of a file, with lines that end in a line feed.  Raises MalformedHistory where it is none."""
    content = content.replace(b"\r\n", b"\n")
    if (at := content.find(b"\x00")) >= 0:
        line = content.count(b"\n", 0, at) + 1
        raise MalformedHistory(f"line {line}: a NUL byte, which no text of a history has")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise MalformedHistory(f"line {line}: neither Parquet, Arrow nor UTF-8 text") from problem
