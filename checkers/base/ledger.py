"""The ledger: the rows of a history in which the harness records what it did itself.

Clients' rows record operations and answers.  Rows of process -1 record the actions of the harness.  Their payload is
JSON unless stated otherwise:

    begin       OK      the format, the id of the run, and its spec; the first row of every history
    phase       INVOKE  the name of a phase that begins; OK when it ends, INFO when it is broken off
    inject-K    INVOKE  the harness orders a fault of kind K; then OK, FAIL or INFO (words, not JSON)
    heal-K      INVOKE  the harness orders the end of the fault; then OK or INFO (words, not JSON)
    copy        INVOKE  why data directories are about to be copied; OK with the rows of copies.json that it added
    end         OK      counts of all rows before it; the last row of every history

A ledger that does not end with `end` belongs to a history that was cut short.  A count that differs shows that a row
was lost or added.  Whether anything was changed after the run is shown by its manifest and the signature of that
(`sealing/manifest.py`).  Before runs were signed, `file` and `bound` rows repeated the small files and the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from checkers.base.history import Type

FORMAT = 2
"""The format of a run folder.  test.json and the row `begin` name it.

0: from before the ledger; such runs record no format.  1: the ledger and the manifest.  2: each record holds every
field of its kind (`record/reading.py`).  Runs of older formats lack evidence, so they are unknown at best, unless the
user takes them at their word."""

BEGIN, PHASE, COPY, END = "begin", "phase", "copy", "end"
INJECT, HEAL = "inject-", "heal-"
"""Prefixes of the functions of rows about faults; the kind of fault follows."""

FINAL_READS = "final reads"
"""Name of the phase in which every key is read for the last time."""


def counted(counts: Mapping[tuple[str, int], int]) -> dict[str, list[int]]:
    """The counts of rows in the form of the payload of `end`: function -> [invoke, ok, fail, info].

    counts: (function, type) -> number of rows.
    """
    table: dict[str, list[int]] = {}
    for (f, type_), count in sorted(counts.items()):
        table.setdefault(f, [0] * len(Type))[type_] += count
    return table


def payload(row: Mapping[str, Any]) -> Any:
    """The content of a row's payload; None if the payload is not JSON."""
    try:
        return json.loads(row["payload"])
    except (TypeError, ValueError):
        return None


def stated(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object in a row's payload; empty if it holds none, and then nothing that was stated agrees with it."""
    return object_of(payload(row))


def object_of(value: Any) -> Mapping[str, Any]:
    """A value of a payload that must be an object; empty if it is none."""
    return value if isinstance(value, Mapping) else {}


def of(rows: Iterable[Mapping[str, Any]], f: str, type_: Type) -> list[Mapping[str, Any]]:
    """The rows of one function and one type, in order."""
    return [row for row in rows if row["f"] == f and row["type"] == type_]
