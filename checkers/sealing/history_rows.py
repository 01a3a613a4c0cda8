"""Single events of a sealed history again, where a person has to see them.

A row's number is its index; `history.parquet` has row groups, so that a handful of rows costs a few of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Part
from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, Type

ROWS_PER_GROUP = 1 << 17
"""Rows of a row group of `history.parquet`: 10 to 20 ms to read one."""

ROWS_PER_PART = 32 * ROWS_PER_GROUP
"""Rows that one part of a pass over the whole history takes: some hundred megabytes as arrays."""

MISMATCH_ERRORS = (None, "mismatch")
"""`error` of a failed cas that may be read as an answer: the register did not hold what it expected."""

Row = dict[str, Any]


def read_rows(history: Path, rows: Sequence[int], columns: Sequence[str] = HISTORY.names) -> list[Row]:
    """Some rows of `history.parquet`, in the order asked for, as dicts; `type` as its number."""
    found: dict[int, Row] = {}
    with pq.ParquetFile(history) as file:
        starts = np.cumsum([0] + [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)])
        wanted = np.unique(np.asarray(rows, np.int64))
        group_of = np.searchsorted(starts, wanted, side="right") - 1
        for group in np.unique(group_of).tolist():
            mine = wanted[group_of == group]
            table = file.read_row_group(group, list(columns)).take(pa.array(mine - starts[group]))
            found.update(zip(mine.tolist(), table.to_pylist(), strict=True))
    return [found[int(row)] for row in rows]


def parts_of_history(history: Path, params: Mapping[str, Any]) -> list[Part]:
    """Parts of consecutive row groups, ROWS_PER_PART rows each; of an empty history none.

    `params` of each: those given, "first" and "end" (row groups, the end exclusive), "row" (number of its first row).
    """
    metadata = pq.read_metadata(history)
    parts: list[Part] = []
    first, start, rows = 0, 0, 0
    for group in range(metadata.num_row_groups):
        rows += metadata.row_group(group).num_rows
        if rows >= ROWS_PER_PART or group == metadata.num_row_groups - 1:
            parts.append(Part((str(history),), {**params, "first": first, "end": group + 1, "row": start}))
            first, start, rows = group + 1, start + rows, 0
    return parts


def functions_besides(history: Path, known: Collection[str]) -> dict[str, list[str]]:
    """What clients asked of keys besides reading, writing and the like (`known`) and making them: names by key, sorted.

    About 0.05 s per million events.
    """
    asked = (pc.field("type") == int(Type.INVOKE)) & (pc.field("process") >= 0)
    table = pq.read_table(history, columns=["key", "f"], filters=asked)
    table = table.set_column(1, "f", table.column("f").cast(pa.string()))
    strange = pc.invert(pc.is_in(table.column("f"), value_set=pa.array([*known, CREATE])))
    found: dict[str, list[str]] = {}
    for row in table.filter(strange).group_by(["key", "f"]).aggregate([]).to_pylist():
        found.setdefault(row["key"], []).append(row["f"])
    return {key: sorted(names) for key, names in found.items()}


def refused(history: Path, key: str, value: int | None, count_mismatches: bool) -> Row | None:
    """The first completion of a write or cas that would have put a value into a key, and failed; None if there is none.

    count_mismatches: whether a cas that failed because it did not match is one.
    """
    mine = (pc.field("key") == key) & (pc.field("type") == int(Type.FAIL)) & (pc.field("process") >= 0)
    for row in pq.read_table(history, columns=list(HISTORY.names), filters=mine).to_pylist():
        if row["f"] == "write" and row["value"] == value:
            return dict(row)
        if row["f"] == "cas" and row["value2"] == value and (count_mismatches or row["error"] not in MISMATCH_ERRORS):
            return dict(row)
    return None
