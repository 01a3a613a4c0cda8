"""The adapter through which every model judges live runs: one checker for each `KnownObject`.

Keys are dealt to parts by a hash of their names.  A part reads `history.parquet` one row group after another and keeps
the events of its own keys, so the memory of a part is that of its keys.  Payloads (lists, sets, strings) come along as
JSON.  A register has a checker of its own, over sealed buckets (`checkers/registers`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.columns import HISTORY
from checkers.base.history import Event, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Verdict
from checkers.models.each_object import ObjectsFinding, judge_each, verdict_of
from checkers.models.known import KNOWN
from checkers.models.known_object import KnownObject

EVENTS_PER_PART, PARTS_MAX = 200_000, 16
"""A part is made for so many events.  A history is read at most PARTS_MAX times."""

BYTES_PER_EVENT = 1_200
"""Memory of an event and its share of an operation in Python (measured, rounded up)."""


def checker_of(known: KnownObject) -> Checker:
    """The checker that judges runs whose workload names this model."""

    def split(run: StoredRun) -> list[Part]:
        rows = pq.ParquetFile(run.history).metadata.num_rows
        count = 1 if known.whole else max(1, min(PARTS_MAX, rows // EVENTS_PER_PART))
        params = [{"model": known.name, "number": number, "count": count} for number in range(count)]
        return [Part((str(run.history),), each) for each in params]

    return Checker(known.name, known.title, known.question, split, judge, combine, frozenset({"history", "model"}))


def judge(part: Part, budget: Budget) -> ObjectsFinding:
    """Judge the objects of one part.  params: model; number and count of the part, which decide its keys."""
    path, number, count = part.paths[0], part.params["number"], part.params["count"]
    events: list[Event] = []
    with pq.ParquetFile(path) as file:
        for group in range(file.metadata.num_row_groups):
            table = file.read_row_group(group, HISTORY.names, use_threads=False)
            events += _events(table.filter(_mine(table, number, count)))
            if len(events) * BYTES_PER_EVENT > budget.size_bytes:
                reason = f"part {number} holds more events than the budget of {budget.size_bytes} bytes allows"
                return ObjectsFinding(operations=len(events) // 2, unknown=(reason,))
    return judge_each(events, KNOWN[part.params["model"]], budget)


def combine(run: StoredRun, findings: Sequence[ObjectsFinding]) -> Verdict:
    return verdict_of(findings)


CHECKERS = tuple(checker_of(known) for known in KNOWN.values())


def _mine(table: pa.Table, number: int, count: int) -> pa.Array:
    """Whether each row is of a client, and on a key of this part."""
    codes = table["key"].combine_chunks()
    codes = codes if isinstance(codes, pa.DictionaryArray) else codes.dictionary_encode()
    part_of = [zlib.crc32(name.encode()) % count for name in codes.dictionary.to_pylist()]
    part_of.append(0)  # rows without a key
    at = np.asarray(codes.indices.fill_null(len(part_of) - 1))
    return pa.array((np.array(part_of)[at] == number) & (np.asarray(table["process"]) >= 0))


def _events(table: pa.Table) -> list[Event]:
    return [Event(**{**row, "type": Type(row["type"])}) for row in table.to_pylist()]
