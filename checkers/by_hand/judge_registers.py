"""Judges a history of registers by hand: it becomes a bucket in a temporary folder, like one of a live run.

Only registers need these tables (pyarrow), so a check of any other object does not import this file.
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
from checkers.registers import checker as linearizability
from checkers.sealing.seal import write_buckets

_HOLD = "registers here hold no other values"

ONLY_OBJECT = "the register"
"""The key of a history that names none, so that sentences about it read well."""


def judge_registers(events: Sequence[Event], model: str, budget: Budget, failed_cas: str) -> Verdict:
    """The verdict on a history of registers.  model: `register` or `cas-register`; failed_cas: as in `judge_events`.

    Raises WrongEvent where an event contradicts another one or the model.
    """
    of_clients = [e for e in events if e.process != NEMESIS and e.f != CREATE]
    _demand_numbers(of_clients, model)
    demand_agreement(of_clients, {"write": the_same, "cas": the_same})
    table = events_to_table([replace(e, key=e.key if e.key is not None else ONLY_OBJECT) for e in of_clients])
    with tempfile.TemporaryDirectory(prefix="krucible-check-") as folder:
        files = StoredRun(Path(folder))
        pq.write_table(table, files.history)
        write_buckets(table, files.buckets, count=1)
        parts = [replace(part, params={"failed_cas": failed_cas}) for part in linearizability.split(files)]
        verdict = linearizability.combine(files, [linearizability.judge(part, budget) for part in parts])
    return replace(verdict, reason=verdict.reason.removeprefix(f"key {ONLY_OBJECT}: "))


def _demand_numbers(events: Sequence[Event], model: str) -> None:
    """Raises WrongEvent if this register has no such operation, or its values are no numbers."""
    for event in events:
        if event.f == "cas" and model == "register":
            raise ForeignEvent(event.index, "cas is not an operation of a register; judge it as a cas-register")
        if event.type not in (Type.INVOKE, Type.OK):
            continue
        if event.f == "cas" and (event.payload is not None or (event.type is Type.INVOKE and _holds_nothing(event))):
            given = "nil" if event.payload is None else f"{event.payload:.40}"
            raise WrongEvent(event.index, f"a cas needs [expected new], not {given}")
        if event.payload is not None:
            raise ForeignEvent(event.index, f"{event.payload:.40} is no whole number of 64 bits, and {_HOLD}")


def _holds_nothing(event: Event) -> bool:
    return event.value is None and event.value2 is None
