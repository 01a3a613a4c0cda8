"""The rows of traces and copies that a checker of Raft shows in its witnesses, and how many it shows at most."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from checkers.base.arrays import Int64
from checkers.base.run_evidence import row, trace_row

Row = dict[str, Any]

WITNESSES_PER_PART = 100
"""The largest number of witnesses of one kind in one part, because each costs memory; more are only counted."""

Fetch = Callable[[pa.Table, int], Row]
"""Returns the whole row of a witness: from the table that a rule looked at, or from the file of that table."""


def whole(table: pa.Table, position: int) -> Row:
    """Return a row of a table that has all columns."""
    return row(table, position, "trace")


def fetched_from(path: str) -> Fetch:
    """Return whole rows for a table that has only some columns of a trace, `seq` among them."""
    return lambda table, position: trace_row(path, int(table["seq"][position].as_py()))


def rows_of(table: pa.Table) -> list[Row]:
    """Return trace rows in the form of a witness."""
    return [{"table": "trace", **r} for r in table.to_pylist()]


def in_trace(trace: Row) -> str:
    """Return where a reader finds a row of a trace: the file in the run's folder, and the field `seq` of its line."""
    return f"trace/{trace['node']}.jsonl, seq {trace['seq']}"


def hash_words(value: int) -> str:
    """Return a hash of a trace as 16 hexadecimal digits.  value: the signed 64-bit number of the trace."""
    return f"{value & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def copy_row(copy: Row) -> Row:
    """Return a row of COPIES in the form of a witness."""
    return {"table": "copies", **copy}


def pairs(found: tuple[Int64, Int64]) -> Iterable[tuple[int, int]]:
    """Return at most WITNESSES_PER_PART of the pairs of rows that a kernel found."""
    first, second = (rows[:WITNESSES_PER_PART].tolist() for rows in found)
    return zip(first, second, strict=True)
