"""Any history file, recognised by its content: Parquet or Arrow of ours, EDN or log lines of Jepsen's.

A history is read in two steps: into events with the line (or row) each stands on, then against the grammar: a process
has one open operation at most, a completion needs its invoke, and after an `info` a process is retired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq

from checkers.columns import HISTORY, read_stream
from checkers.formats.jepsen import Line, read_edn, read_log_lines
from checkers.history import NEMESIS, Event, MalformedHistory, Type

_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGIC = b"\xff\xff\xff\xff"
_LOG_HINT = re.compile(r"^INFO\s+jepsen\.util\b", re.MULTILINE)


def read_any(path: Path, *, keyed: bool = False) -> list[Event]:
    """The events of one file, in order, checked against the grammar.

    keyed: an EDN value `[k v]` is a key and its value (`jepsen.independent`).
    Raises MalformedHistory ("line N ..." or "row N ..."), OSError where the file cannot be read.
    """
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == _PARQUET_MAGIC:
        return check_grammar(_rows(path, sealed=True), "row")
    if magic == _ARROW_MAGIC:
        return check_grammar(_rows(path, sealed=False), "row")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        line = path.read_bytes()[: problem.start].count(b"\n") + 1
        raise MalformedHistory(f"line {line}: neither Parquet, Arrow nor UTF-8 text") from problem
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
                    f"{where}: process {process} invokes {event.f} while its {open_by[process].f} is open"
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
            raise MalformedHistory(f"{where}: process {process} completes {event.f} that it never invoked")
        if begun.f != event.f:
            raise MalformedHistory(f"{where}: process {process} invoked {begun.f} but completes {event.f}")
        if event.type is Type.INFO:
            retired[process] = line.number
    if not events:
        raise MalformedHistory(f"{unit} 1: no operation in the whole file")
    return events


def _rows(path: Path, *, sealed: bool) -> Iterator[Line]:
    try:
        table = pq.read_table(path, schema=HISTORY) if sealed else read_stream(path)
    except (OSError, ValueError, KeyError) as problem:
        raise MalformedHistory(f"row 0: not a history of ours ({problem})") from problem
    names: Sequence[str] = HISTORY.names
    for number, row in zip(count(), table.select(names).to_pylist()):
        yield Line(number, Event(**{**row, "type": Type(row["type"])}))
