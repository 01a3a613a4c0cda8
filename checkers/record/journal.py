"""The journal of a run, `journal.jsonl`: what the harness did itself, event by event, as it happened.

The history holds the operations of clients.  The journal holds everything else: phases, faults, copies of data
directories, and at the end what only the harness knows.  Each fact is written once, at the moment it is known, so a
harness that is killed loses no record of what it had done.  What readers ask for (`reading.RunRecord`) is derived from
the events: the record of each fault from its changes, the phases from their begins and ends, the list of copies.

A line is a JSON object: `time_ns`, since the test began; `row`, the number of rows that the history had then; `event`,
one of EVENTS; and the fields of that event.  The last line is `end`, which counts the rows of the history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checkers.record.faults import Copy, FaultRecord
from checkers.record.files import as_json
from checkers.record.outcome import RunOutcome

JOURNAL = "journal.jsonl"

FORMAT = 3
"""The format of a run folder, which test.json and the first event name.  Runs of another format are refused."""

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
    """A fault's record has changed. Its `measured` holds only the measurements since its last change."""

    record: FaultRecord


@dataclass(frozen=True, slots=True)
class Copying:
    """Data directories are about to be copied. when: the reason for the copies."""

    when: str


@dataclass(frozen=True, slots=True)
class Copied:
    """Data directories were copied.  copies: none if the copying failed."""

    when: str
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class Concluded:
    """The run is over.  outcome: without its phases, which other events state."""

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
    """One event of the journal.  row: number of rows that the history had."""

    time_ns: int
    row: int
    happened: Happened


def line_of(entry: JournalEntry) -> str:
    """Return the entry as a line of the file."""
    fields: dict[str, Any] = as_json(entry.happened)
    return json.dumps({"time_ns": entry.time_ns, "row": entry.row, "event": _NAMES[type(entry.happened)], **fields})
