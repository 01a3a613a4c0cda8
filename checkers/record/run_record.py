"""The journal of a run, `journal.jsonl`, and the one reader of the small files of a run, `test.json` and the journal.

The journal records what the harness itself did, event by event, as it happened.  The history contains the operations
of clients.  The journal contains everything else: phases, faults, copies of data directories, and at the end what only
the harness knows.  Each fact is written once, at the moment it is known, so if the harness is killed, the record of
what it had done is complete.  The data for readers (`RunRecord`) is derived from the events: the record of each fault
from its changes, the phases from their begins and ends, the list of copies.

A line is a JSON object: `time_ns`, since the test began; `row`, the number of rows that the history had then; `event`,
one of EVENTS; and the fields of that event.  The last line is `end`, which contains the number of rows of the history.

Both files are decoded strictly, into the types of this package.  A corrupt file raises BrokenFile, which names the
file and the field: no JSON, a missing field, a value of another type, or an integer beyond 64 bits.  No default
replaces a value.  Unknown fields are ignored, because later versions may record more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from checkers.record.faults import Copy, FaultRecord
from checkers.record.files import BrokenFile, as_json, regular
from checkers.record.header_and_outcome import Header, Phase, RunOutcome

JOURNAL = "journal.jsonl"

FORMAT = 3
"""Format of a run folder, as stated in test.json and the first event.  Runs of other formats are refused."""

BEGAN, ENDED, BROKEN_OFF = "began", "ended", "broken off"
"""States of a phase."""
SET_UP, MAIN, RECOVERY, FINAL_READS, COLLECTION = PHASES = ("set-up", "main", "recovery", "final reads", "collection")
"""Names of the phases, in order."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The test began: the first event of every journal."""

    format: int
    run_id: str


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A phase reached a state: BEGAN, ENDED or BROKEN_OFF."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class FaultChange:
    """A fault's record has changed.  `measured` contains only the measurements since its last change."""

    record: FaultRecord


@dataclass(frozen=True, slots=True)
class Copying:
    """Data directories are about to be copied.  when: reason for the copies."""

    when: str


@dataclass(frozen=True, slots=True)
class Copied:
    """Data directories were copied.  copies: empty if the copying failed."""

    when: str
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class Concluded:
    """The run is over.  outcome: the outcome without its phases, which other events record."""

    outcome: RunOutcome


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """The last event. rows: number of rows of the history."""

    rows: int


Happened = Begun | PhaseChange | FaultChange | Copying | Copied | Concluded | JournalEnd

EVENTS: Mapping[str, type[Happened]] = {
    "begin": Begun,
    "phase": PhaseChange,
    "fault": FaultChange,
    "copying": Copying,
    "copied": Copied,
    "outcome": Concluded,
    "end": JournalEnd,
}
_NAMES = {type_: name for name, type_ in EVENTS.items()}


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One event of the journal.  row: number of rows that the history had at that time."""

    time_ns: int
    row: int
    happened: Happened


def line_of(entry: JournalEntry) -> str:
    """Return the entry as a line of the journal."""
    fields: dict[str, Any] = as_json(entry.happened)
    return json.dumps({"time_ns": entry.time_ns, "row": entry.row, "event": _NAMES[type(entry.happened)], **fields})


TEST = "test.json"

_LONG_INTEGER = re.compile(rb"\d{19}")
_T = TypeVar("_T")
_H = TypeVar("_H", bound=Happened)


class RunRecord:
    """Record that the harness made of one run.  Each file is read once, on first use.  Raises BrokenFile.

    A missing file counts as empty: the run ended before the file was written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def header(self) -> Header | None:
        """The content of test.json; None if there is no such file."""
        path = self.root / TEST
        raw = read_json(path)
        if raw is None and not path.exists():
            return None
        stated = raw.get("format", 0) if isinstance(raw, Mapping) else FORMAT
        if type(stated) is int and stated != FORMAT:
            words = f"the run has format {stated}, and this version of Krucible judges format {FORMAT}"
            raise BrokenFile(f"{TEST}: {words}: judge it with the version that recorded it (`git` in {TEST})")
        return decoded(TEST, raw, Header, whole=True)

    @cached_property
    def journal(self) -> tuple[JournalEntry, ...]:
        """Every event of the journal, in order."""
        return tuple(_entries(self.root / JOURNAL))

    @cached_property
    def faults(self) -> tuple[FaultRecord, ...]:
        """The latest record of each fault, in the order in which the cards were played."""
        records: dict[int, FaultRecord] = {}
        for change in _of(self.journal, FaultChange):
            number = change.record.card.number
            before = records[number].measured if number in records else ()
            records[number] = replace(change.record, measured=(*before, *change.record.measured))
        return tuple(records.values())

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """Every copy of a data directory, in order."""
        return tuple(copy for copied in _of(self.journal, Copied) for copy in copied.copies)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases, in the order in which they began."""
        found: list[Phase] = []
        for entry in self.journal:
            if not isinstance(entry.happened, PhaseChange):
                continue
            if entry.happened.state == BEGAN:
                found.append(Phase(entry.happened.name, entry.time_ns, first_row=entry.row))
            elif found:
                off = entry.happened.state == BROKEN_OFF
                found[-1] = replace(found[-1], end_ns=entry.time_ns, end_row=entry.row, broken_off=off)
        return tuple(found)

    @cached_property
    def outcome(self) -> RunOutcome | None:
        """Return what only the harness knows; None if the run did not reach its end."""
        last = next(iter(_of(self.journal, Concluded)), None)
        return replace(last.outcome, phases=self.phases) if last is not None else None

    @property
    def begun(self) -> Begun | None:
        """The first event of the journal; None if the journal does not begin with Begun."""
        first = self.journal[0].happened if self.journal else None
        return first if isinstance(first, Begun) else None

    @property
    def ended(self) -> JournalEnd | None:
        """The last event of the journal; None if the journal does not end with JournalEnd."""
        last = self.journal[-1].happened if self.journal else None
        return last if isinstance(last, JournalEnd) else None


def _of(entries: Sequence[JournalEntry], type_: type[_H]) -> Iterator[_H]:
    return (entry.happened for entry in entries if isinstance(entry.happened, type_))


def _entries(path: Path) -> Iterator[JournalEntry]:
    """Yield the events in the file.  The last line is incomplete if the harness was killed while it wrote the line."""
    try:
        lines = regular(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for number, line in enumerate(lines[:-1], 1):
        name = f"{path.name}, line {number}"
        raw = _decoded_json(line, name)
        if not isinstance(raw, dict):
            raise BrokenFile(f"{name}: not a JSON object")
        event = str(raw.get("event"))
        if event not in EVENTS:
            raise BrokenFile(f"{name}: {event!r:.40} is no event of a journal")
        at = (raw.get(field) for field in ("time_ns", "row"))
        time_ns, row = (value if type(value) is int else -1 for value in at)
        if min(time_ns, row) < 0:
            raise BrokenFile(f"{name}: time_ns and row must be whole numbers, 0 or more")
        yield JournalEntry(time_ns, row, decoded(name, raw, EVENTS[event], whole=True))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if there is no such file.

    Raises BrokenFile if the file is not JSON, not a regular file, or too large."""
    try:
        text = regular(path).read_bytes()
    except FileNotFoundError:
        return None
    return _decoded_json(text, path.name)


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file.

    Raises BrokenFile if the file contains anything else.
    """
    found = read_json(path)
    if found is None and not path.exists():
        return {}
    if not isinstance(found, dict):
        raise BrokenFile(f"{path.name} does not contain a JSON object")
    return found


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Return the list of objects in a JSON file; empty if there is no such file.

    Raises BrokenFile if the file contains anything else.
    """
    found = read_json(path)
    if found is None and not path.exists():
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BrokenFile(f"{path.name} does not contain a list of JSON objects")
    return found


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    """Return the value if it is a list or tuple, else an empty list."""
    return list(value) if isinstance(value, list | tuple) else []


def number(value: Any, default: int) -> int:
    """Return the value as an int if it is a number that fits into 64 bits, else the default."""
    return int(value) if _is_number(value) else default


def real(value: Any, default: float) -> float:
    """Return the value as a float if it is a number that fits into 64 bits, else the default."""
    return float(value) if _is_number(value) else default


def _is_number(value: Any) -> bool:
    """Return True for a finite number of at most 64 bits.

    JSON allows integers of any length, and Python's JSON reader also accepts infinity and NaN.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _decoded_json(text: bytes, name: str) -> Any:
    try:
        raw = msgspec.json.decode(text)
    except (ValueError, RecursionError) as problem:
        raise BrokenFile(f"{name} is not JSON ({problem})") from problem
    if _LONG_INTEGER.search(text) and (at := next(_beyond_64_bits(raw, ""), None)) is not None:
        raise BrokenFile(f"{name}: {at or 'its value'} is an integer beyond 64 bits")
    return raw


def decoded(name: str, raw: Any, type_: type[_T], *, whole: bool) -> _T:
    """Decode a value of one of the record's types.  Raises BrokenFile.

    name: name of the file
    raw: the JSON value
    whole: True if every field must exist, except optional ones (AT_TIMES)"""
    try:
        value = msgspec.convert(raw, type_)
    except (msgspec.ValidationError, RecursionError, OverflowError) as problem:
        what, _, at = str(problem).partition(" - at ")
        raise BrokenFile(f"{name}: {_plain(at)}{what[:1].lower()}{what[1:]}".replace("`", "")) from problem
    lacking = next(_lacking(raw, value, ""), None) if whole else None
    if lacking is not None:
        raise BrokenFile(f"{name}: {lacking}, which every run records")
    return value


def _plain(at: str) -> str:
    """Convert a path of msgspec, such as "`$[0].card.number`", to the form "[0].card.number: "."""
    place = at.strip("`").removeprefix("$").removeprefix(".")
    return f"{place}: " if place else ""


@cache
def _fields(type_: type) -> tuple[tuple[str, bool], ...]:
    """Return the name of each field, and True if every record must have the field."""
    return tuple((f.name, not f.metadata.get("at times")) for f in fields(type_))


def _lacking(raw: Any, value: Any, at: str) -> Iterator[str]:
    """Yield, in words and with its place, each field that a record in `value` must have but that its JSON lacks."""
    if is_dataclass(value) and not isinstance(value, type):
        for name, demanded in _fields(type(value)):
            if name in raw:
                yield from _lacking(raw[name], getattr(value, name), f"{at}.{name}" if at else name)
            elif demanded:
                yield f"{at or 'it'} lacks {name}"
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        for place, each in enumerate(value):
            yield from _lacking(raw[place], each, f"{at}[{place}]")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(each, tuple) or is_dataclass(each):
                yield from _lacking(raw[key], each, f"{at}.{key}")


def _beyond_64_bits(raw: Any, at: str) -> Iterator[str]:
    if isinstance(raw, int):
        if not -(2**63) <= raw < 2**63:
            yield at
    elif isinstance(raw, list):
        for place, each in enumerate(raw):
            yield from _beyond_64_bits(each, f"{at}[{place}]")
    elif isinstance(raw, dict):
        for key, each in raw.items():
            yield from _beyond_64_bits(each, f"{at}.{key}" if at else str(key))
