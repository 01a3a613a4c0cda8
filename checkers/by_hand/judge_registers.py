"""Judges a history of registers by hand: it becomes a bucket in a temporary folder, like one of a live run.

The columns of a live run hold whole numbers of 64 bits.  If a value of the file is anything else, a text or a keyword,
a search decides by the model of a register (`checkers/models/objects/registers.py`).

Only registers need these tables (pyarrow), so a check of any other object does not import this file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from checkers.base.checker import Budget
from checkers.base.columns import events_to_table
from checkers.base.history import CREATE, NEMESIS, Event, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Verdict
from checkers.models.answers import ForeignEvent, Repeats, WrongEvent, demand_agreement, the_same
from checkers.models.each_object import judge_each, verdict_of
from checkers.models.objects.registers import ANY_VALUES
from checkers.registers import checker as linearizability
from checkers.sealing.seal import write_buckets

_FIXED: dict[str, Repeats] = {"write": the_same, "cas": the_same}
"""The functions that fix the value of their answer (`answers.py`)."""

ONLY_OBJECT = "the register"
"""The key of a history that names none, so that sentences about it read well."""


def judge_registers(events: Sequence[Event], model: str, budget: Budget, failed_cas: str) -> Verdict:
    """The verdict on a history of registers.  model: `register` or `cas-register`; failed_cas: as in `judge_events`.

    Raises WrongEvent where an event contradicts another one or the model.
    """
    of_clients = [e for e in events if e.process != NEMESIS and e.f != CREATE]
    _demand_operations(of_clients, model)
    demand_agreement(of_clients, _FIXED)
    if (other := _first_other_value(of_clients)) is not None:
        return _judge_any_values(of_clients, other, budget, failed_cas)
    table = events_to_table([replace(e, key=e.key if e.key is not None else ONLY_OBJECT) for e in of_clients])
    with tempfile.TemporaryDirectory(prefix="krucible-check-") as folder:
        files = StoredRun(Path(folder))
        pq.write_table(table, files.history)
        write_buckets(table, files.buckets, count=1)
        parts = [replace(part, params={"failed_cas": failed_cas}) for part in linearizability.split(files)]
        verdict = linearizability.combine(files, [linearizability.judge(part, budget) for part in parts])
    return replace(verdict, reason=verdict.reason.removeprefix(f"key {ONLY_OBJECT}: "))


def _demand_operations(events: Sequence[Event], model: str) -> None:
    """Raises WrongEvent if this register has no such operation."""
    for event in events:
        if event.f == "cas" and model == "register":
            raise ForeignEvent(event.index, "cas is not an operation of a register; judge it as a cas-register")
        if event.f == "cas" and event.type in (Type.INVOKE, Type.OK) and not _is_cas(event):
            given = "nil" if event.payload is None else f"{event.payload:.40}"
            raise WrongEvent(event.index, f"a cas needs [expected new], not {given}")


def _is_cas(event: Event) -> bool:
    """Whether the value is [expected new].  An answer may have none."""
    if event.payload is None:
        return event.type is Type.OK or not _holds_nothing(event)
    value = json.loads(event.payload)
    return isinstance(value, list) and len(value) == 2


def _first_other_value(events: Sequence[Event]) -> Event | None:
    """The first invoke or answer whose value is not a whole number of 64 bits; None if there is none."""
    return next((e for e in events if e.type in (Type.INVOKE, Type.OK) and e.payload is not None), None)


def _judge_any_values(events: Sequence[Event], other: Event, budget: Budget, failed_cas: str) -> Verdict:
    """The verdict on registers that hold other values, too.  other: the first such event.

    Raises WrongEvent for another operation, and if a cas that did not match has to show something: the model leaves out
    what failed.
    """
    for event in events:
        if event.f not in ("read", "write", "cas"):
            raise ForeignEvent(event.index, f"{event.f:.40} is not an operation of a register")
    if failed_cas == "observed" and any(e.f == "cas" and e.type is Type.FAIL for e in events):
        words = f"{other.payload:.40} is no whole number of 64 bits, and --failed-cas observed judges no other values"
        raise ForeignEvent(other.index, words)
    named = (replace(e, key=e.key if e.key is not None else ONLY_OBJECT) for e in events)
    verdict = verdict_of([judge_each([_with_pair(e) for e in named], ANY_VALUES, budget)])
    return replace(verdict, reason=verdict.reason.removeprefix(f"key {ONLY_OBJECT}: "))


def _with_pair(event: Event) -> Event:
    """A cas with both of its values in the payload, where also [1 nil] is a pair."""
    if event.f != "cas" or event.payload is not None or _holds_nothing(event):
        return event
    return replace(event, value=None, value2=None, payload=json.dumps([event.value, event.value2]))


def _holds_nothing(event: Event) -> bool:
    return event.value is None and event.value2 is None
