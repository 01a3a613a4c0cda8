"""A table of a schema, of which only the columns that matter are given."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def filled(schema: pa.Schema, size: int, **columns: Any) -> pa.RecordBatch:
    """`size` rows.  A text or a number stands in every row; a column that is not given is null."""
    return pa.record_batch([_column(columns.get(each.name), size, each.type) for each in schema], schema=schema)


def _column(given: Any, size: int, type_: pa.DataType) -> pa.Array:
    if given is None:
        return pa.nulls(size, type_)
    if isinstance(given, str | int):
        return pa.repeat(pa.scalar(given), size).cast(type_)
    return given if isinstance(given, pa.Array) else pa.array(given, type_)
