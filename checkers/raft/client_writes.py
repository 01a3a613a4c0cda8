"""Finds what clients wrote, and which entries of a log are those writes.

A workload writes every value at most once per key, so that a stale answer differs from a repeated one.  So (key, value)
names a write, in the history and in a log alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools
from checkers.base.history import Type
from checkers.base.run_evidence import log_groups, numbers
from checkers.sealing.codes import dictionary_codes
from checkers.sealing.history_rows import chunks_of_groups, read_rows

OFFSETS_PER_RANGE = 1 << 22
"""The size of a range of a log."""

WRITES = ("write", "add", "append")
"""The functions that put one value into a log: into a register, a set or a log of a client."""


NAMED_WRITES = f"""
CREATE TEMP TABLE writes AS
SELECT "index" AS row, key, value, type, CASE WHEN type < 3 THEN ended_index END AS completed
FROM operations WHERE f IN {WRITES} AND key IS NOT NULL AND value IS NOT NULL;
CREATE TEMP TABLE names AS
SELECT key, value, count(*) AS times, any_value(row) AS row, any_value(type) AS type, any_value(completed) AS completed
FROM writes GROUP BY key, value"""
"""Tables of a history (`sealing/tables.py`).  writes: completed is the row of an answer that decides the outcome.

names: of all writes; times: how many bear the name; row, type and completed: of one of them."""


def _group_of(metadata: pq.FileMetaData, row: int) -> tuple[int, int]:
    """Return the row group of a row, and the number of that group's first row."""
    first = 0
    for group in range(metadata.num_row_groups):
        if row < first + metadata.row_group(group).num_rows:
            return group, first
        first += metadata.row_group(group).num_rows
    return metadata.num_row_groups, first


def function_is(rows: pa.Table, *names: str) -> Bools:
    """Return which rows have one of these functions."""
    codes, words = dictionary_codes(rows["f"])
    return np.array([*(word in names for word in words), False], np.bool_)[codes]


def offset_ranges(logs: Iterable[str]) -> list[tuple[int, int]]:
    """Return ranges of OFFSETS_PER_RANGE offsets (first, end) that cover all of these logs; at least one."""
    groups = [group for path in logs for group in log_groups(pq.read_metadata(path))]
    first, end = min((g.first for g in groups), default=0), max((g.last for g in groups), default=0) + 1
    return [(at, at + OFFSETS_PER_RANGE) for at in range(first, end, OFFSETS_PER_RANGE)]


def invoke_of(history: str, key: str, value: int) -> int | None:
    """Return the row of the invoke of a write; None if no client wrote it."""
    first_row = 0
    for rows in chunks_of_groups(history, ("type", "f", "key", "value")):
        wanted = pc.and_(pc.equal(pc.cast(rows["key"], pa.string()), key), pc.equal(rows["value"], value))
        wanted = pc.and_(pc.fill_null(wanted, False), pc.equal(rows["type"], int(Type.INVOKE)))
        found = np.flatnonzero(np.asarray(wanted.to_numpy(), np.bool_) & function_is(rows, *WRITES))
        if len(found):
            return first_row + int(found[0])
        first_row += len(rows)
    return None


def operations(history: str, invoked: Sequence[int]) -> list[dict[str, Any]]:
    """Return the invoke and completion of some operations, in index order, in the form of a witness.

    invoked: rows of invokes.  The search for a completion reads from there up to the next row of the process.
    """
    rows = set(invoked)
    for row, event in zip(invoked, read_rows(Path(history), invoked, ["process"]), strict=True):
        answer = _next_of(history, event["process"], row)
        rows |= set() if answer is None else {answer}
    return read_rows(Path(history), sorted(rows))


def _next_of(history: str, process: int, row: int) -> int | None:
    """Return the row in which a process completes the operation that it invoked in `row`."""
    group, first_row = _group_of(pq.read_metadata(history), row)
    for rows in chunks_of_groups(history, ("process", "type"), group):
        mine = np.flatnonzero(numbers(rows, "process") == process)
        mine = mine[first_row + mine > row]
        if len(mine):
            completes = rows["type"][int(mine[0])].as_py() != Type.INVOKE
            return first_row + int(mine[0]) if completes else None
        first_row += len(rows)
    return None
