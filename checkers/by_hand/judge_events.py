"""A history by hand: events of any source and the name of a model, to a verdict.

What each model asks, exactly:

    register, cas-register   is there one order of all operations of a key that explains every answer?
    kv, queue, counter,      the same, of strings, of a first-in-first-out queue, of a sum, of a lock
    mutex
    set, append-log          the same, decided outright: answers show the order up to ties
    unique-ids               was no id handed out twice?
    FILE.py                  the same as the first, of a model of your own (`checkers/models/own.py`)

A queue is asked first whether values are conserved, a counter whether every read lies within its bounds: both are
decided for histories of any size, and what violates them is in no order.  The order of a queue is decided for any size
as well where no value is put there twice.
"""

from __future__ import annotations

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
from checkers.models.answers import ForeignEvent, WrongEvent, demand_agreement, the_same
from checkers.models.each_object import judge_each, verdict_of
from checkers.models.known import KNOWN
from checkers.models.known_object import searched
from checkers.models.model import Model
from checkers.registers import checker as linearizability
from checkers.sealing.seal import write_buckets

ONLY_OBJECT = "the register"
"""The key of a history that names none, so that sentences about it read well."""

REGISTERS = ("register", "cas-register")


def judge_events(
    events: Sequence[Event],
    model: str | Model,
    budget: Budget | None = None,
    failed_cas: str = linearizability.DID_NOT_HAPPEN,
) -> Verdict:
    """The verdict on one history.  model: a name of `MODEL_NAMES`, or a model.

    failed_cas: how registers read a cas that did not match, DID_NOT_HAPPEN or OBSERVED.
    Raises ValueError for a name that is none, WrongEvent where an event contradicts another one or the model.
    """
    budget = budget or Budget()
    if isinstance(model, Model):
        return verdict_of([judge_each(events, searched(model, model.name, "", exact=False), budget)])
    if model in REGISTERS:
        return _registers(events, model, budget, failed_cas)
    if model not in KNOWN:
        raise ValueError(f"there is no model {model!r}; there are {', '.join(MODEL_NAMES)}")
    return verdict_of([judge_each(events, KNOWN[model], budget)])


def _demand_numbers(asked: Sequence[Event], model: str) -> None:
    """Raises WrongEvent where an operation is none of this register, or its values are no numbers."""
    for event in asked:
        if event.f == "cas" and model == "register":
            raise ForeignEvent(event.index, "cas is not an operation of a register; judge it as a cas-register")
        if event.type not in (Type.INVOKE, Type.OK):
            continue
        if event.f == "cas" and (event.payload is not None or (event.type is Type.INVOKE and _holds_nothing(event))):
            given = "nil" if event.payload is None else f"{event.payload:.40}"
            raise WrongEvent(event.index, f"a cas needs [expected new], not {given}")
        if event.payload is not None:
            raise ForeignEvent(event.index, f"{event.payload:.40} is not a number, and registers here hold numbers")


def _holds_nothing(event: Event) -> bool:
    return event.value is None and event.value2 is None


def _registers(events: Sequence[Event], model: str, budget: Budget, failed_cas: str) -> Verdict:
    """By way of a bucket, as a run is judged."""
    asked = [e for e in events if e.process != NEMESIS and e.f != CREATE]
    _demand_numbers(asked, model)
    demand_agreement(asked, {"write": the_same, "cas": the_same})
    table = events_to_table([replace(e, key=e.key if e.key is not None else ONLY_OBJECT) for e in asked])
    with tempfile.TemporaryDirectory(prefix="krucible-check-") as folder:
        files = StoredRun(Path(folder))
        pq.write_table(table, files.history)
        write_buckets(table, files.buckets, count=1)
        parts = [replace(part, params={"failed_cas": failed_cas}) for part in linearizability.split(files)]
        return linearizability.combine(files, [linearizability.judge(part, budget) for part in parts])


MODEL_NAMES = (*REGISTERS, *KNOWN)
