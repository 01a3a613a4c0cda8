"""Journals for tests: written from the few facts that a test is about, and read back as plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from records_of_runs import fault_of

from checkers.record import run_record
from checkers.record.faults import Copy, FaultRecord
from checkers.record.files import as_json
from checkers.record.header_and_outcome import Header, RunOutcome
from checkers.record.run_record import TEST, RunRecord, decoded


def write_journal(
    folder: Path,
    *,
    outcome: Mapping[str, Any] | RunOutcome | None = None,
    faults: Sequence[Mapping[str, Any] | FaultRecord] | None = None,
    copies: Sequence[Mapping[str, Any] | Copy] | None = None,
    run_id: str = "",
    rows: int = 0,
) -> None:
    """Write a journal that shows this.  What a mapping does not name has the default of its type, and cards of the same
    number get others.

    outcome, faults, copies: None: as in the journal that is there; without one the harness did not come to its end.
    rows: the number of rows of the history."""
    before = RunRecord(folder)
    outcome = before.outcome if outcome is None else outcome
    faults = before.faults if faults is None else faults
    copies = before.copies if copies is None else copies
    known = decoded("outcome", outcome, RunOutcome, whole=False) if isinstance(outcome, Mapping) else outcome
    records = [fault if isinstance(fault, FaultRecord) else fault_of(dict(fault)) for fault in faults]
    for place, record in enumerate(records):
        if record.card.number in {other.card.number for other in records[:place]}:
            number = 1 + max(other.card.number for other in records)
            records[place] = replace(record, card=replace(record.card, number=number))
    taken = [copy if isinstance(copy, Copy) else decoded("copies", copy, Copy, whole=False) for copy in copies]
    events = [run_record.JournalEntry(0, 0, run_record.Begun(run_record.FORMAT, run_id))]
    for phase in known.phases if known is not None else ():
        events.append(
            run_record.JournalEntry(
                phase.start_ns, max(phase.first_row, 0), run_record.PhaseChange(phase.name, run_record.BEGAN)
            )
        )
        if phase.end_ns >= 0:
            state = run_record.PhaseChange(phase.name, run_record.BROKEN_OFF if phase.broken_off else run_record.ENDED)
            events.append(run_record.JournalEntry(phase.end_ns, max(phase.end_row, 0), state))
    for record in records:
        at_ns = max(record.injected_ns, record.heal_ordered_ns, record.healed_ns, 0)
        events.append(run_record.JournalEntry(at_ns, 0, run_record.FaultChange(record)))
    for number in dict.fromkeys(copy.copy for copy in taken):
        mine = tuple(copy for copy in taken if copy.copy == number)
        at_ns = max(0, *(copy.taken_ns for copy in mine))
        events += [
            run_record.JournalEntry(at_ns, 0, run_record.Copying(mine[0].when)),
            run_record.JournalEntry(at_ns, 0, run_record.Copied(mine[0].when, mine)),
        ]
    last_ns = max(entry.time_ns for entry in events)
    events.sort(key=lambda entry: entry.time_ns)
    if known is not None:
        events.append(run_record.JournalEntry(last_ns, rows, run_record.Concluded(replace(known, phases=()))))
        events.append(run_record.JournalEntry(last_ns, rows, run_record.JournalEnd(rows)))
    (folder / run_record.JOURNAL).write_text("".join(run_record.line_of(entry) + "\n" for entry in events))


def write_header(folder: Path, **test: Any) -> None:
    """Write a test.json of today's format that holds this."""
    header = decoded(TEST, {"spec": {}, "format": run_record.FORMAT, **test}, Header, whole=False)
    (folder / TEST).write_text(json.dumps(as_json(header)))


def recorded(folder: Path, part: str) -> Any:
    """The JSON of "outcome", "faults" or "copies" of the journal in this folder."""
    return json.loads(json.dumps(as_json(getattr(RunRecord(folder), part))))


def edit_journal(folder: Path, part: str, value: Any) -> None:
    """Write the journal anew with other "outcome", "faults" or "copies"; everything else is as it was.

    What is new stands where the last event of its kind stood.  Raises BrokenFile for what no journal can hold."""
    kind = {"faults": run_record.FaultChange, "copies": run_record.Copied, "outcome": run_record.Concluded}[part]
    entries = list(RunRecord(folder).journal)
    last = max(place for place, entry in enumerate(entries) if isinstance(entry.happened, kind))
    happened: list[run_record.Happened]
    if part == "faults":
        happened = [run_record.FaultChange(decoded(part, raw, FaultRecord, whole=True)) for raw in value]
    elif part == "copies":
        happened = [run_record.Copied(raw["when"], (decoded(part, raw, Copy, whole=True),)) for raw in value]
    else:
        happened = [run_record.Concluded(replace(decoded(part, value, RunOutcome, whole=False), phases=()))]
    fresh = [replace(entries[last], happened=each) for each in happened]
    before, after = entries[:last], entries[last + 1 :]
    _write(folder, [*(entry for entry in before if not isinstance(entry.happened, kind)), *fresh, *after])


def count_rows(folder: Path, rows: int) -> None:
    """Set the row count of the journal to these rows of the history."""
    entries = list(RunRecord(folder).journal)
    _write(folder, [*entries[:-1], replace(entries[-1], happened=run_record.JournalEnd(rows))])


def _write(folder: Path, entries: Sequence[run_record.JournalEntry]) -> None:
    (folder / run_record.JOURNAL).write_text("".join(run_record.line_of(entry) + "\n" for entry in entries))
