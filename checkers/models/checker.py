"""Makes a checker of live runs for each `KnownObject`.

A hash of its name deals each key to a part.  A part reads `history.parquet` one row group after another, and keeps only
the events of its own keys.  So a part needs memory for its own keys only.  Payloads (lists, sets, strings) are JSON.
Registers have a checker of their own, which reads sealed buckets (`checkers/registers`).

Either all operations of the history have a key, or none has one.  Every part checks this for the whole history.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, Event, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Verdict
from checkers.models.answers import KeyedOrNot
from checkers.models.each_object import ObjectsFinding, judge_each, verdict_of
from checkers.models.known_object import KnownObject
from checkers.models.objects_by_name import KNOWN

EVENTS_PER_PART, PARTS_MAX = 200_000, 16
"""One part is made for each EVENTS_PER_PART events.  Each part reads the whole history, so parts are few."""

BYTES_PER_EVENT = 1_200
"""Memory of an event in Python, and of half an operation (measured, rounded up)."""


def checker_of(known: KnownObject) -> Checker:
    """The checker that judges runs whose workload names this model."""

    def split(run: StoredRun) -> list[Part]:
        rows = pq.ParquetFile(run.history).metadata.num_rows
        count = 1 if known.whole else max(1, min(PARTS_MAX, rows // EVENTS_PER_PART))
        params = [{"model": known.name, "number": number, "count": count} for number in range(count)]
        return [Part((str(run.history),), each) for each in params]

    return Checker(known.name, known.title, known.question, split, judge, combine, frozenset({"history", "model"}))


def judge(part: Part, budget: Budget) -> ObjectsFinding:
    """Judge the objects of one part.

    params: "model", its name; "number" of the part and "count" of all parts, which decide the keys of the part.
    """
    path, number, count = part.paths[0], part.params["number"], part.params["count"]
    events: list[Event] = []
    keys = KeyedOrNot()
    with pq.ParquetFile(path) as file:
        for group in range(file.metadata.num_row_groups):
            table = file.read_row_group(group, HISTORY.names, use_threads=False)
            _demand_keys_or_none(table, keys)
            mine = table.filter(_mine(table, number, count))
            needed_bytes = (len(events) + len(mine)) * BYTES_PER_EVENT
            if needed_bytes > budget.size_bytes:
                reason = f"part {number} needs more than {needed_bytes} bytes, the budget is {budget.size_bytes} bytes"
                return ObjectsFinding(operations=(len(events) + len(mine)) // 2, unknown=(reason,))
            events += _events(mine)
    return judge_each(events, KNOWN[part.params["model"]], budget)


def combine(run: StoredRun, findings: Sequence[ObjectsFinding]) -> Verdict:
    return verdict_of(findings)


CHECKERS = tuple(checker_of(known) for known in KNOWN.values())


def _demand_keys_or_none(table: pa.Table, keys: KeyedOrNot) -> None:
    """Raises WrongEvent if some operations have a key and others have none.  keys: of the rows before the table."""
    clients = pc.and_(pc.greater_equal(table["process"], 0), pc.equal(table["type"], int(Type.INVOKE)))
    operations = pc.and_(clients, pc.not_equal(pc.cast(table["f"], pa.string()), CREATE))
    firsts = [
        table.filter(pc.and_(operations, mine)).slice(0, 1)
        for mine in (pc.is_valid(table["key"]), pc.is_null(table["key"]))
    ]
    for event in sorted(_events(pa.concat_tables(firsts)), key=lambda each: each.index):
        keys.invoked(event)


def _mine(table: pa.Table, number: int, count: int) -> pa.Array:
    """Return whether each row is a client's and belongs to this part."""
    codes = table["key"].combine_chunks()
    codes = codes if isinstance(codes, pa.DictionaryArray) else codes.dictionary_encode()
    part_of = [zlib.crc32(name.encode()) % count for name in codes.dictionary.to_pylist()]
    part_of.append(0)  # rows without a key belong to part 0
    at = np.asarray(codes.indices.fill_null(len(part_of) - 1))
    return pa.array((np.array(part_of)[at] == number) & (np.asarray(table["process"]) >= 0))


def _events(table: pa.Table) -> list[Event]:
    return list(map(Event.of_row, table.to_pylist()))
